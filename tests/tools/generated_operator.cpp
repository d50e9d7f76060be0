#include "tests/tools/generated_operator.h"
#include "generators/epilogue.h"
#include "generators/storage_type.h"
#include "reference/activation_reference.h"
#include "runtime/base/types.h"
#include "runtime/kinds/group_blocks.h"
#include "runtime/kinds/polyphase.h"
#include "schedules/apply.h"
#include "schedules/masked_operator.h"

#include <cmath>
#include <limits>
#include <random>

namespace distile {

namespace {

using Halide::Buffer;

/** An operator's geometry, whatever its kind. The stride of an upsampling is its scale. */
struct Geometry {
    enum Kind { Convolution, Transposed, Upsampled } kind;
    int in_channels, out_channels, groups;
    int kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, pad_bottom, pad_right, dilation_h, dilation_w;

    int group_channels() const {
        return in_channels / groups;
    }
    /** How its packed weights have its groups. */
    GroupBlocks blocks(const GeneratedCase &generated) const {
        const bool in_order =
            Halide::Target(generated.target).has_gpu_feature() || generated.generator == "masked_depthwise_conv2d";
        const int apart = in_order ? 1 : groups;
        return {apart, group_channels(), out_channels / apart, generated.param("channel_block", 16)};
    }
    PolyphaseAxis rows() const {
        return {kernel_h, stride_h, pad_top, pad_bottom, dilation_h, kind == Upsampled};
    }
    PolyphaseAxis columns() const {
        return {kernel_w, stride_w, pad_left, pad_right, dilation_w, kind == Upsampled};
    }
};

Geometry geometry_of(const GeneratedCase &generated) {
    const auto param = [&](const char *name, int fallback) { return generated.param(name, fallback); };
    Geometry g{};
    g.kind = generated.generator == "masked_conv_transpose2d"  ? Geometry::Transposed
             : generated.generator == "masked_upsample_conv2d" ? Geometry::Upsampled
                                                               : Geometry::Convolution;
    g.in_channels = param("in_channels", 64);
    g.out_channels = param("out_channels", 64);
    g.groups = param("groups", 1);
    if (generated.generator == "masked_depthwise_conv2d") {
        g.in_channels = g.out_channels = g.groups = param("channels", 64);
    }
    const bool linear = generated.generator == "masked_linear";
    const int kernel = linear ? 1 : 3, pad = linear ? 0 : 1;
    const bool scaled = g.kind == Geometry::Upsampled;
    g.kernel_h = param("kernel_h", kernel);
    g.kernel_w = param("kernel_w", kernel);
    g.stride_h = scaled ? param("scale_h", 2) : param("stride_h", 1);
    g.stride_w = scaled ? param("scale_w", 2) : param("stride_w", 1);
    g.pad_top = param("pad_top", pad);
    g.pad_left = param("pad_left", pad);
    g.pad_bottom = param("pad_bottom", pad);
    g.pad_right = param("pad_right", pad);
    g.dilation_h = param("dilation_h", 1);
    g.dilation_w = param("dilation_w", 1);
    return g;
}

int output_extent(const Geometry &g, int input, bool row) {
    const PolyphaseAxis axis = row ? g.rows() : g.columns();
    return g.kind == Geometry::Convolution
               ? (input + axis.pad_before + axis.pad_after - axis.dilation * (axis.kernel - 1) - 1) / axis.stride + 1
               : static_cast<int>(axis.output_extent(input));
}

/** The pixel of the input that a position of the kernel reads for an output pixel; -1 if there is none. */
int input_position(const Geometry &g, int output, int kernel, int extent, bool row) {
    const PolyphaseAxis axis = row ? g.rows() : g.columns();
    int at = -1;
    if (g.kind == Geometry::Transposed) {
        const int shifted = output + axis.pad_before - kernel * axis.dilation;
        at = shifted >= 0 && shifted % axis.stride == 0 ? shifted / axis.stride : -1;
    } else if (g.kind == Geometry::Upsampled) {
        const int upsampled = output - axis.pad_before + kernel * axis.dilation;
        at = upsampled >= 0 ? upsampled / axis.stride : -1;
    } else {
        at = output * axis.stride - axis.pad_before + kernel * axis.dilation;
    }
    return at < extent ? at : -1;
}

float as_stored(float value, distile_dtype dtype) {
    float stored = 0;
    find_type(dtype)->from_float(&value, &stored, 1);
    find_type(dtype)->to_float(&stored, &value, 1);
    return value;
}

/** An array of a type, whose elements are given as floats by their coordinates, innermost first. */
Buffer<> make_buffer(distile_dtype dtype, const std::vector<int> &extents,
                     const std::function<float(const int *)> &value) {
    const Type &type = *find_type(dtype);
    Buffer<> buffer(stored_type(dtype), extents);
    auto *const elements = static_cast<char *>(buffer.data());
    buffer.get()->for_each_element([&](const int *at) {
        size_t index = 0;
        for (size_t d = extents.size(); d-- > 0;) {
            index = index * extents[d] + at[d];
        }
        const float number = value(at);
        type.from_float(&number, elements + index * type.bytes, 1);
    });
    return buffer;
}

/** The packed weights: blocks of output channels; the taps of all phases one after the other. */
Buffer<> pack_filter(const GeneratedCase &generated, const Geometry &g, const std::vector<float> &filter) {
    std::vector<MergedTap> columns, rows;
    if (g.kind == Geometry::Convolution) {
        for (int k = 0; k < g.kernel_w; k++) {
            columns.push_back({k, k + 1});
        }
        for (int k = 0; k < g.kernel_h; k++) {
            rows.push_back({k, k + 1});
        }
    } else {
        columns = g.columns().taps();
        rows = g.rows().taps();
    }
    const GroupBlocks blocks = g.blocks(generated);
    // The channels of the filter in the place of each weight.
    std::map<std::pair<int, int>, std::pair<int, int>> channels;
    for (int co = 0; co < g.out_channels; co++) {
        for (int ci = 0; ci < g.group_channels(); ci++) {
            const GroupBlocks::Place place = blocks.place(co, ci);
            channels[{place.channel, place.row}] = {co, ci};
        }
    }
    const auto found = generated.params.find("weights_dtype");
    const distile_dtype type = found == generated.params.end() ? DISTILE_FLOAT32 : generated.dtype();
    return make_buffer(type,
                       {blocks.block, g.group_channels(), static_cast<int>(columns.size()),
                        static_cast<int>(rows.size()), blocks.count()},
                       [&](const int *at) {
                           const auto placed = channels.find({at[4] * blocks.block + at[0], at[1]});
                           if (placed == channels.end()) {
                               return 0.0f;
                           }
                           const auto [co, ci] = placed->second;
                           double sum = 0;
                           for (int ky = rows[at[3]].begin; ky < rows[at[3]].end; ky++) {
                               for (int kx = columns[at[2]].begin; kx < columns[at[2]].end; kx++) {
                                   sum +=
                                       filter[((static_cast<size_t>(ky) * g.kernel_w + kx) * g.group_channels() + ci) *
                                                  g.out_channels +
                                              co];
                               }
                           }
                           return static_cast<float>(sum);
                       });
}

/** A view of this memory, with groups of channels in a last dimension of their own if there are any apart. */
Buffer<> set_apart(Buffer<> buffer, int groups) {
    if (groups == 0) {
        return buffer;
    }
    const halide_dimension_t *whole = buffer.raw_buffer()->dim;
    std::vector<halide_dimension_t> dimensions(whole, whole + buffer.dimensions());
    dimensions[0].extent /= groups;
    dimensions.emplace_back(0, groups, dimensions[0].extent);
    return Buffer<>(buffer.type(), buffer.data(), static_cast<int>(dimensions.size()), dimensions.data());
}

}  // namespace

int GeneratedCase::param(const std::string &name, int fallback) const {
    const auto found = params.find(name);
    return found == params.end() ? fallback : std::stoi(found->second);
}

bool GeneratedCase::has_residual() const {
    const auto found = params.find("residual");
    return found != params.end() && found->second == "true";
}

distile_dtype GeneratedCase::dtype() const {
    const auto found = params.find("dtype");
    return found == params.end() ? DISTILE_FLOAT32 : float_types_by_name().at(found->second);
}

GeneratedPipeline scheduled_pipeline(const GeneratedCase &generated) {
    const Halide::Target target(generated.target);
    GeneratedPipeline made;
    made.generator = Halide::Internal::GeneratorRegistry::create(generated.generator, Halide::GeneratorContext(target));
    for (const auto &[name, value] : generated.params) {
        made.generator->set_generatorparam_value(name, value);
    }
    for (const char *knob : {"tile_h", "tile_w"}) {
        made.generator->set_generatorparam_value(knob, std::to_string(generated.theta.at(knob)));
    }
    made.pipeline = made.generator->build_pipeline();
    MaskedOperator op = recognise_masked_operator(made.pipeline);
    made.source = apply_schedule(made.pipeline, op, generated.theta, target);
    return made;
}

GeneratedArrays random_arrays(const GeneratedCase &generated, int batch, int height, int width, double density) {
    const Geometry g = geometry_of(generated);
    const distile_dtype type = generated.dtype();
    GeneratedArrays arrays{};
    arrays.batch = batch;
    arrays.in_height = height;
    arrays.in_width = width;
    arrays.out_height = output_extent(g, height, true);
    arrays.out_width = output_extent(g, width, false);
    std::mt19937 random(7);
    const auto fill = [&](std::vector<float> &values, size_t count) {
        std::uniform_real_distribution<float> uniform(-1, 1);
        values.resize(count);
        for (float &value : values) {
            value = as_stored(uniform(random), type);
        }
    };
    const size_t outputs = size_t(batch) * arrays.out_height * arrays.out_width;
    fill(arrays.input, size_t(batch) * height * width * g.in_channels);
    fill(arrays.filter, size_t(g.kernel_h) * g.kernel_w * g.group_channels() * g.out_channels);
    fill(arrays.bias, g.out_channels);
    if (generated.has_residual()) {
        fill(arrays.residual, outputs * g.out_channels);
    }
    std::bernoulli_distribution active(density);
    arrays.mask.resize(outputs);
    for (uint8_t &pixel : arrays.mask) {
        pixel = active(random) ? 1 : 0;
    }
    return arrays;
}

GeneratedCode::GeneratedCode(const GeneratedCase &generated) : generated_(generated) {
    const GeneratedPipeline made = scheduled_pipeline(generated);
    Halide::Pipeline pipeline = made.pipeline;
    // In the order in which the generator declares them.
    const std::vector<Halide::Argument> inferred = pipeline.infer_arguments();
    std::vector<Halide::Argument> arguments;
    for (const auto &declared : made.generator->arginfos()) {
        for (const Halide::Argument &argument : inferred) {
            if (argument.name == declared.name) {
                arguments.push_back(argument);
            }
        }
    }
    code_ = pipeline.compile_to_callable(arguments, Halide::Target(generated.target));
}

GeneratedRun GeneratedCode::bind(const GeneratedArrays &arrays, Reads reads) const {
    const Geometry g = geometry_of(generated_);
    const distile_dtype type = generated_.dtype();
    // The runtime converts a CPU's input, except for depthwise convolutions.
    const bool stored =
        Halide::Target(generated_.target).has_gpu_feature() || generated_.generator == "masked_depthwise_conv2d";
    const distile_dtype input_type = stored ? type : DISTILE_FLOAT32;
    const int height = arrays.in_height, width = arrays.in_width;
    // More than any operator of the tests reads beyond its input.
    const int border = reads == Reads::InPlace ? 16 : 0;
    const auto pixel_of = [](const int *at, int channels, int columns, int rows) {
        return ((size_t(at[3]) * rows + at[2]) * columns + at[1]) * channels + at[0];
    };
    Buffer<> input = make_buffer(
        input_type, {g.in_channels, width + 2 * border, height + 2 * border, arrays.batch}, [&](const int *at) {
            const int place[] = {at[0], at[1] - border, at[2] - border, at[3]};
            const bool inside = place[1] >= 0 && place[1] < width && place[2] >= 0 && place[2] < height;
            return inside ? arrays.input[pixel_of(place, g.in_channels, width, height)] : 0.0f;
        });
    input.translate({0, -border, -border, 0});

    // The tiles with an active pixel, and the mask's bits.
    const int out_height = arrays.out_height, out_width = arrays.out_width;
    const int tile_h = generated_.theta.at("tile_h"), tile_w = generated_.theta.at("tile_w");
    Buffer<uint32_t> bits((out_width + 31) / 32, out_height, arrays.batch);
    bits.fill(0);
    std::vector<std::pair<uint32_t, uint32_t>> list;
    for (int n = 0; n < arrays.batch; n++) {
        std::map<std::pair<int, int>, bool> active;
        for (int y = 0; y < out_height; y++) {
            for (int x = 0; x < out_width; x++) {
                if (arrays.mask[(size_t(n) * out_height + y) * out_width + x]) {
                    bits(x / 32, y, n) |= uint32_t{1} << (x % 32);
                    active[{y / tile_h, x / tile_w}] = true;
                }
            }
        }
        for (const auto &tile : active) {
            list.emplace_back(tile.first.second * tile_w | tile.first.first * tile_h << 16, n);
        }
    }
    const bool gpu = Halide::Target(generated_.target).has_gpu_feature();
    const int listed = static_cast<int>(list.size());
    // A launch on a GPU covers more tiles than are listed; what stands behind them is no tile.
    const int num_tiles = gpu ? listed + 70 : listed;
    Buffer<uint32_t> tiles(std::max(num_tiles, 1), 2), tile_count(1);
    tiles.fill(UINT32_MAX);
    tile_count(0) = listed;
    for (int t = 0; t < listed; t++) {
        tiles(t, 0) = list[t].first;
        tiles(t, 1) = list[t].second;
    }

    const GroupBlocks blocks = g.blocks(generated_);
    const Buffer<> weights = pack_filter(generated_, g, arrays.filter);
    std::vector<float> placed_bias(static_cast<size_t>(blocks.count()) * blocks.block);
    for (int co = 0; co < g.out_channels; co++) {
        placed_bias[blocks.channel(co)] = arrays.bias[co];
    }
    const Buffer<> bias = make_buffer(DISTILE_FLOAT32, {static_cast<int>(placed_bias.size())},
                                      [&](const int *at) { return placed_bias[at[0]]; });
    const std::vector<int> extents = {g.out_channels, out_width, out_height, arrays.batch};
    GeneratedRun run;
    run.dtype = type;
    run.output = make_buffer(type, extents, [](const int *) { return std::numeric_limits<float>::quiet_NaN(); });
    const int num_interior = reads == Reads::InPlace ? num_tiles : 0, threads = 1;
    Buffer<> residual;
    if (generated_.has_residual()) {
        residual = make_buffer(type, extents, [&](const int *at) {
            return arrays.residual[pixel_of(at, g.out_channels, out_width, out_height)];
        });
    }
    for (Buffer<> buffer :
         {input, Buffer<>(tiles), Buffer<>(bits), Buffer<>(tile_count), weights, bias, residual, run.output}) {
        if (buffer.defined()) {
            buffer.set_host_dirty();
        }
    }
    const int apart = blocks.form() == GroupForm::Padded ? g.groups : 0;
    const auto image = [=](const Buffer<> &buffer) { return set_apart(buffer, apart); };
    // A GPU's code takes neither the number of interior tiles nor threads.
    const auto call = [=, code = code_, output = run.output](const auto &...optional) {
        const int result = gpu ? code(input, tiles, bits, num_tiles, false, weights, bias, tile_count,
                                      image(optional)..., image(output))
                               : code(input, tiles, bits, num_interior, num_tiles, threads, false, weights, bias,
                                      image(optional)..., image(output));
        Buffer<>(output).copy_to_host();
        return result;
    };
    run.run = residual.defined() ? std::function<int()>([=] { return call(residual); })
                                 : std::function<int()>([=] { return call(); });
    return run;
}

std::vector<float> GeneratedRun::values() const {
    std::vector<float> values(output.number_of_elements());
    find_type(dtype)->to_float(output.data(), values.data(), values.size());
    return values;
}

ReferenceValues reference_values(const GeneratedCase &generated, const GeneratedArrays &arrays) {
    const Geometry g = geometry_of(generated);
    const auto found = generated.params.find("epilogue");
    const distile_activation activation =
        activations_by_name().at(found == generated.params.end() ? "none" : found->second);
    const int group_outputs = g.out_channels / g.groups;
    ReferenceValues result;
    result.values.resize(arrays.mask.size() * g.out_channels);
    result.scales.resize(result.values.size());
    for (size_t pixel = 0; pixel < arrays.mask.size(); pixel++) {
        if (!arrays.mask[pixel]) {
            continue;
        }
        const int x = static_cast<int>(pixel % arrays.out_width);
        const int y = static_cast<int>(pixel / arrays.out_width % arrays.out_height);
        const size_t n = pixel / arrays.out_width / arrays.out_height;
        double *values = &result.values[pixel * g.out_channels], *scales = &result.scales[pixel * g.out_channels];
        const auto add = [&](int co, double product) {
            values[co] += product;
            scales[co] += std::abs(product);
        };
        for (int ky = 0; ky < g.kernel_h; ky++) {
            for (int kx = 0; kx < g.kernel_w; kx++) {
                const int in_y = input_position(g, y, ky, arrays.in_height, true);
                const int in_x = input_position(g, x, kx, arrays.in_width, false);
                if (in_y < 0 || in_x < 0) {
                    continue;
                }
                const float *in =
                    &arrays.input[((n * arrays.in_height + in_y) * arrays.in_width + in_x) * g.in_channels];
                for (int ci = 0; ci < g.group_channels(); ci++) {
                    const float *filter =
                        &arrays.filter[((size_t(ky) * g.kernel_w + kx) * g.group_channels() + ci) * g.out_channels];
                    for (int co = 0; co < g.out_channels; co++) {
                        add(co, double{in[co / group_outputs * g.group_channels() + ci]} * filter[co]);
                    }
                }
            }
        }
        for (int co = 0; co < g.out_channels; co++) {
            add(co, arrays.bias[co]);
            if (!arrays.residual.empty()) {
                add(co, arrays.residual[pixel * g.out_channels + co]);
            }
            values[co] = apply_epilogue(activation, values[co]);
        }
    }
    return result;
}

}  // namespace distile
