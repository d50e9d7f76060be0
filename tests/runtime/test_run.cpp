// Runs and what belongs to them beyond the kernels of generators: what a kernel says of itself, variants by index,
// storage types, and exceptions of the caller's.
#include "kernels/call.h"
#include "test_polykernels.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/descriptors.h"
#include "tests/support/plain_linear.h"
#include "tests/support/reference.h"
#include "tests/support/session.h"
#include "tests/support/test_tensor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/layout.h>
#include <distile/planner.h>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr distile_dtype types[] = {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_BFLOAT16};

/** A linear layer with weights, on a context. */
struct Layer {
    explicit Layer(distile_dtype dtype, const distile_context_options &options = {}, int32_t in = 5, int32_t out = 19,
                   bool gelu = false, bool residual = false, Values values = Values::Integers)
        : linear(dtype, in, out, gelu, residual), context(make_context(options)),
          kernel(make_kernel(context, linear.polykernel())), mask(make_mask(context)),
          filter(draw(values, static_cast<size_t>(in) * out, random)), bias(draw(values, out, random)) {
        source.filter = filter.data();
        source.order = DISTILE_IO;
        source.bias = bias.data();
        weights = pack_weights(context, kernel, source);
        set_operator(reference, linear.polykernel());
        reference.filter = filter;
        reference.bias = bias;
    }

    /** Runs a variant on tensors of a shape, and says what is wrong; "" if nothing is. */
    std::string run(const char *variant, int32_t batch, int32_t height, int32_t width, Values values = Values::Integers,
                    distile_store store = DISTILE_STORE_EXACT, distile_inactive inactive = DISTILE_KEEP) {
        const distile_dtype dtype = reference.dtype;
        const TensorLayout layout{1, 2, 3};
        TestTensor input(batch, height, width, reference.conv.in_channels, layout, Flush::Front, dtype);
        TestTensor output(batch, height, width, reference.conv.out_channels, layout, Flush::Back, dtype);
        TestTensor residual(batch, height, width, reference.conv.out_channels, {}, Flush::Back, dtype);
        input.draw(values, random);
        residual.draw(values, random);
        reference.input = input.view();
        reference.residual = reference.conv.residual != 0 ? &residual.view() : nullptr;
        reference.mask = make_mask_bytes(batch, height, width);
        reference.store = store;
        reference.inactive = inactive;
        const distile_polykernel &polykernel = linear.polykernel();
        const distile_variant *const end = polykernel.variants + polykernel.num_variants;
        const distile_variant &chosen = *std::find_if(
            polykernel.variants, end, [&](const distile_variant &one) { return std::string(one.name) == variant; });
        reference.tile_h = chosen.tile_h;
        reference.tile_w = chosen.tile_w;
        reference.dense = chosen.dense != 0;
        set_mask(context, mask, reference.mask, batch, height, width);
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.residual = reference.residual;
        args.weights = weights.get();
        args.mask = mask.get();
        args.variant = variant;
        args.store = store;
        args.inactive = inactive;
        const auto before = output.snapshot();
        if (distile_run(kernel.get(), &args) != DISTILE_OK) {
            return distile_context_message(context.get());
        }
        const ReferenceOutput expected = reference_masked_conv2d(reference);
        return values == Values::Integers ? output.difference(before, expected, 0)
                                          : output.difference(before, expected);
    }
    std::vector<uint8_t> make_mask_bytes(int32_t batch, int32_t height, int32_t width) {
        std::vector<uint8_t> bytes(static_cast<size_t>(batch) * height * width);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random() % 3 == 0); });
        return bytes;
    }

    std::mt19937 random{51};
    PlainLinear linear;
    Context context;
    Kernel kernel;
    Mask mask;
    std::vector<float> filter, bias;
    distile_weights_source source{};
    Weights weights;
    ReferenceArgs reference;
};

/** A kernel for any CPU: nothing is run. */
Kernel describe(const Context &context, const distile_polykernel &polykernel) {
    distile_polykernel any_cpu = polykernel;
    any_cpu.features = "";
    // The kernel keeps the address.
    static std::vector<std::unique_ptr<distile_polykernel>> kept;
    kept.push_back(std::make_unique<distile_polykernel>(any_cpu));
    return make_kernel(context, *kept.back());
}

}  // namespace

TEST_CASE("A kernel says what it computes", "[run]") {
    const Context context = make_context();
    const PlainLinear half(DISTILE_FLOAT16, 7, 33, true, true);
    std::vector<const distile_polykernel *> all(std::begin(test_polykernels), std::end(test_polykernels));
    all.push_back(&half.polykernel());
    for (const distile_polykernel *polykernel : all) {
        CAPTURE(polykernel->name);
        const Kernel kernel = describe(context, *polykernel);
        distile_kernel_info info{};
        REQUIRE(distile_kernel_get_info(kernel.get(), &info) == DISTILE_OK);
        const distile_conv2d conv = convolution_of(*polykernel);
        CHECK(std::string(info.name) == polykernel->name);
        const char *const kinds[] = {"", "masked_conv2d", "masked_conv_transpose2d", "masked_upsample_conv2d",
                                     "masked_linear"};
        CHECK(std::string(info.kind) == kinds[polykernel->kind]);
        CHECK(info.device == DISTILE_CPU);
        CHECK(std::string(info.features).empty());
        CHECK(info.dtype == type_of(*polykernel));
        CHECK(info.in_channels == conv.in_channels);
        CHECK(info.out_channels == conv.out_channels);
        CHECK(info.has_residual == conv.residual);
        CHECK(info.num_variants == polykernel->num_variants);
        for (int32_t i = 0; i < info.num_variants; i++) {
            const distile_variant &due = polykernel->variants[i];
            distile_variant_info variant{};
            REQUIRE(distile_kernel_get_variant(kernel.get(), i, &variant) == DISTILE_OK);
            CHECK(std::string(variant.name) == due.name);
            CHECK(variant.tile_h == due.tile_h);
            CHECK(variant.tile_w == due.tile_w);
            CHECK(variant.dense == due.dense);
        }
        const distile_dense_candidate candidate{"mine", [](void *, void *, const distile_run_args *) { return 0; },
                                                nullptr};
        REQUIRE(distile_kernel_add_dense(kernel.get(), &candidate) == DISTILE_OK);
        REQUIRE(distile_kernel_get_info(kernel.get(), &info) == DISTILE_OK);
        CHECK(info.num_variants == polykernel->num_variants + 1);
        distile_variant_info added{};
        REQUIRE(distile_kernel_get_variant(kernel.get(), polykernel->num_variants, &added) == DISTILE_OK);
        CHECK(std::string(added.name) == "mine");
        CHECK(added.dense == 1);
        CHECK(added.tile_h * added.tile_w == 1);
    }
    CHECK(distile_context_device(context.get()) == DISTILE_CPU);
}

TEST_CASE("A kernel says how large its output is", "[run]") {
    const Context context = make_context();
    const PlainLinear linear(DISTILE_FLOAT32, 3, 4);
    std::vector<const distile_polykernel *> all(std::begin(test_polykernels), std::end(test_polykernels));
    all.push_back(&linear.polykernel());
    bool kinds[5] = {}, empty = false;
    for (const distile_polykernel *polykernel : all) {
        CAPTURE(polykernel->name);
        kinds[polykernel->kind] = true;
        const Kernel kernel = describe(context, *polykernel);
        const distile_conv2d conv = convolution_of(*polykernel);
        int64_t wrong = 0;
        for (int32_t height = 1; height < 40; height++) {
            for (int32_t width = 1; width < 40; width++) {
                int32_t out_height = -1, out_width = -1;
                REQUIRE(distile_kernel_output_shape(kernel.get(), height, width, &out_height, &out_width) ==
                        DISTILE_OK);
                const int32_t rows = reference_output_height(conv, height, polykernel->kind);
                const int32_t columns = reference_output_width(conv, width, polykernel->kind);
                const bool any = rows > 0 && columns > 0;
                wrong += out_height == (any ? rows : 0) && out_width == (any ? columns : 0) ? 0 : 1;
                empty = empty || !any;
            }
        }
        CHECK(wrong == 0);
        // The largest inputs, of which some have an output that no mask has.
        int32_t out_height = -1, out_width = -1;
        const int32_t rows = reference_output_height(conv, 65535, polykernel->kind);
        const bool fits = rows <= 65535 && reference_output_width(conv, 65535, polykernel->kind) <= 65535;
        CHECK(distile_kernel_output_shape(kernel.get(), 65535, 65535, &out_height, &out_width) ==
              (fits ? DISTILE_OK : DISTILE_ERROR_BAD_SHAPE));
        CHECK(out_height == (fits ? rows : -1));
    }
    CHECK(empty);
    CHECK(std::all_of(kinds + 1, std::end(kinds), [](bool met) { return met; }));
}

TEST_CASE("A variant runs by its index as by its name", "[run]") {
    distile_choice traced{};
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    Layer layer(DISTILE_FLOAT32, options);
    std::vector<uint8_t> bytes(72);
    bytes[40] = 1;
    set_mask(layer.context, layer.mask, bytes, 2, 4, 9);
    TestTensor input(2, 4, 9, 5);
    input.draw(Values::Integers, layer.random);
    distile_run_args args{};
    args.input = &input.view();
    args.weights = layer.weights.get();
    args.mask = layer.mask.get();
    args.store = DISTILE_STORE_TILES;
    const int32_t variants = distile_kernel_num_variants(layer.kernel.get());
    REQUIRE(variants == 3);
    std::vector<std::vector<uint32_t>> results;
    for (int32_t index = 0; index < variants; index++) {
        CAPTURE(index);
        TestTensor by_name(2, 4, 9, 19), by_index(2, 4, 9, 19);
        args.output = &by_index.view();
        args.variant = nullptr;
        traced = {};
        REQUIRE(distile_run_variant(layer.kernel.get(), index, &args) == DISTILE_OK);
        CHECK(traced.variant_index == index);
        args.output = &by_name.view();
        args.variant = distile_kernel_variant_name(layer.kernel.get(), index);
        REQUIRE(distile_run(layer.kernel.get(), &args) == DISTILE_OK);
        CHECK(traced.variant_index == index);
        CHECK(by_index.snapshot() == by_name.snapshot());
        results.push_back(by_index.snapshot());
        // Both at once are refused.
        CHECK(distile_run_variant(layer.kernel.get(), index, &args) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(distile_context_message(layer.context.get()), "must be null when an index is given"));
    }
    // They store tiles of other sizes, so that it shows which one ran.
    CHECK(results[0] != results[1]);
    CHECK(results[1] != results[2]);
    args.variant = nullptr;
    for (int32_t bad : {-1, variants}) {
        CHECK(distile_run_variant(layer.kernel.get(), bad, &args) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(distile_context_message(layer.context.get()), std::to_string(bad)));
    }
}

TEST_CASE("Operators of every storage type compute what the plain loop computes", "[run]") {
    for (distile_dtype dtype : types) {
        for (const bool residual : {false, true}) {
            for (Values values : {Values::Integers, Values::Floats}) {
                const bool gelu = values == Values::Floats;
                // Sums above 2^11 and 2^8, which are rounded.
                Layer layer(dtype, {}, 300, 19, gelu, residual, values);
                for (const char *variant : {"fine", "coarse", "dense"}) {
                    for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                            CAPTURE(dtype, residual, values, variant, store, inactive);
                            CHECK(layer.run(variant, 2, 3, 10, values, store, inactive) == "");
                            // Tokens.
                            CHECK(layer.run(variant, 3, 1, 41, values, store, inactive) == "");
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("A dense candidate of the application's is copied in every storage type", "[run]") {
    for (distile_dtype dtype : types) {
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            CAPTURE(dtype, inactive);
            Layer layer(dtype);
            const distile_dense_candidate candidate{
                "ones",
                [](void *, void *, const distile_run_args *args) {
                    const distile_tensor *const output = args->output;
                    for (int64_t pixel = 0; pixel < output->width; pixel++) {
                        for (int64_t c = 0; c < output->channels; c++) {
                            const int64_t element = pixel * output->stride_w + c;
                            store_as(output->dtype, 1.5f,
                                     static_cast<char *>(output->data) +
                                         element * static_cast<int64_t>(distile_dtype_size(output->dtype)));
                        }
                    }
                    return 0;
                },
                nullptr};
            REQUIRE(distile_kernel_add_dense(layer.kernel.get(), &candidate) == DISTILE_OK);
            const std::vector<uint8_t> bytes = layer.make_mask_bytes(1, 1, 70);
            set_mask(layer.context, layer.mask, bytes, 1, 1, 70);
            TestTensor input(1, 1, 70, 5, {}, Flush::Back, dtype), output(1, 1, 70, 19, {3}, Flush::Back, dtype);
            input.draw(Values::Integers, layer.random);
            distile_run_args args{};
            args.input = &input.view();
            args.output = &output.view();
            args.weights = layer.weights.get();
            args.mask = layer.mask.get();
            args.variant = "ones";
            args.inactive = inactive;
            ReferenceOutput expected;
            for (uint8_t byte : bytes) {
                expected.states.push_back(byte != 0                  ? PixelState::Computed
                                          : inactive == DISTILE_ZERO ? PixelState::Zeroed
                                                                     : PixelState::Kept);
                expected.values.insert(expected.values.end(), 19, byte != 0 ? 1.5f : 0.0f);
            }
            const auto before = output.snapshot();
            REQUIRE(distile_run(layer.kernel.get(), &args) == DISTILE_OK);
            CHECK(output.difference(before, expected, 0) == "");
        }
    }
}

TEST_CASE("Tensors of another type than the operator's, or off its elements, are refused", "[run]") {
    for (distile_dtype dtype : types) {
        Layer layer(dtype, {}, 5, 19, false, true);
        set_mask(layer.context, layer.mask, std::vector<uint8_t>(20, 1), 1, 4, 5);
        TestTensor input(1, 4, 5, 5, {1}, Flush::Front, dtype), output(1, 4, 5, 19, {1}, Flush::Front, dtype),
            residual(1, 4, 5, 19, {1}, Flush::Front, dtype);
        distile_tensor views[3] = {input.view(), output.view(), residual.view()};
        const char *const names[] = {"input", "output", "residual"};
        distile_run_args args{};
        args.input = &views[0];
        args.output = &views[1];
        args.residual = &views[2];
        args.weights = layer.weights.get();
        args.mask = layer.mask.get();
        const auto before = output.snapshot();
        for (int i = 0; i < 3; i++) {
            CAPTURE(dtype, names[i]);
            const distile_tensor good = views[i];
            for (distile_dtype other : types) {
                if (other != dtype) {
                    views[i].dtype = other;
                    CHECK(distile_run(layer.kernel.get(), &args) == DISTILE_ERROR_BAD_TYPE);
                    CHECK(contains(distile_context_message(layer.context.get()), names[i]));
                    views[i] = good;
                }
            }
            for (size_t offset = 1; offset < distile_dtype_size(dtype); offset++) {
                views[i].data = static_cast<char *>(good.data) + offset;
                CHECK(distile_run(layer.kernel.get(), &args) == DISTILE_ERROR_BAD_ALIGNMENT);
                CHECK(contains(distile_context_message(layer.context.get()), names[i]));
                views[i] = good;
            }
        }
        CHECK(output.snapshot() == before);
        CHECK(distile_run(layer.kernel.get(), &args) == DISTILE_OK);
    }
}

TEST_CASE("Weights are for one type and kind of operator", "[run]") {
    std::mt19937 random(52);
    for (distile_dtype dtype : types) {
        Layer layer(dtype);
        set_mask(layer.context, layer.mask, {1}, 1, 1, 1);
        TestTensor input(1, 1, 1, 5, {}, Flush::Back, dtype), output(1, 1, 1, 19, {}, Flush::Back, dtype);
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.mask = layer.mask.get();
        for (distile_dtype other : types) {
            const Layer another(other);
            args.weights = another.weights.get();
            CAPTURE(dtype, other);
            CHECK(distile_run(layer.kernel.get(), &args) == (dtype == other ? DISTILE_OK : DISTILE_ERROR_BAD_WEIGHTS));
        }
        // The weights are blocks of 16 output channels, and a bias in float32.
        CHECK(distile_weights_bytes(layer.weights.get()) ==
              static_cast<int64_t>(2 * 16 * 5 * distile_dtype_size(dtype) + 2 * 16 * sizeof(float)));
    }
    CHECK(distile_weights_bytes(nullptr) == 0);
    // A convolution of one pixel with the same channels.
    const PlainLinear linear(DISTILE_FLOAT32, 17, 48);
    const Context context = make_context();
    const Kernel kernel = make_kernel(context, linear.polykernel()), conv = describe(context, test_point_17_48_avx2);
    const std::vector<float> filter(size_t{17} * 48, 1);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    const Weights own = pack_weights(context, kernel, source), others = pack_weights(context, conv, source);
    const Mask mask = make_mask(context);
    set_mask(context, mask, {1}, 1, 1, 1);
    TestTensor input(1, 1, 1, 17), output(1, 1, 1, 48);
    distile_run_args args{};
    args.input = &input.view();
    args.output = &output.view();
    args.mask = mask.get();
    args.weights = others.get();
    CHECK(distile_run(kernel.get(), &args) == DISTILE_ERROR_BAD_WEIGHTS);
    CHECK(contains(distile_context_message(context.get()), "17 -> 48"));
    args.weights = own.get();
    CHECK(distile_run(kernel.get(), &args) == DISTILE_OK);
}

TEST_CASE("A filter may have another type than the operator", "[run]") {
    for (distile_dtype dtype : types) {
        for (distile_dtype given : types) {
            CAPTURE(dtype, given);
            Layer layer(dtype, {}, 5, 19, false, false, Values::Floats);
            std::vector<uint32_t> stored(layer.filter.size());
            auto *elements = reinterpret_cast<char *>(stored.data());
            for (size_t i = 0; i < layer.filter.size(); i++) {
                store_as(given, layer.filter[i], elements + i * distile_dtype_size(given));
                layer.reference.filter[i] = round_to(given, layer.filter[i]);
            }
            layer.source.filter = elements;
            layer.source.dtype = given;
            layer.weights = pack_weights(layer.context, layer.kernel, layer.source);
            CHECK(layer.run("fine", 1, 3, 10, Values::Floats) == "");
        }
    }
}

TEST_CASE("Batch normalisation is folded into weights of every type", "[run]") {
    for (distile_dtype dtype : types) {
        CAPTURE(dtype);
        Layer layer(dtype, {}, 40, 19, false, false, Values::Floats);
        const std::vector<float> gamma = draw(Values::Floats, 19, layer.random),
                                 mean = draw(Values::Floats, 19, layer.random);
        std::vector<float> variance = draw(Values::Floats, 19, layer.random);
        for (float &value : variance) {
            value = value * value + 0.1f;
        }
        layer.source.bn_gamma = gamma.data();
        layer.source.bn_mean = mean.data();
        layer.source.bn_variance = variance.data();
        layer.source.bn_epsilon = 1e-3f;
        layer.weights = pack_weights(layer.context, layer.kernel, layer.source);
        const Conv2dReference loops(layer.reference.conv, layer.source, DISTILE_MASKED_LINEAR, dtype);
        TestTensor input(1, 4, 9, 40, {}, Flush::Back, dtype), output(1, 4, 9, 19, {}, Flush::Back, dtype);
        input.draw(Values::Floats, layer.random);
        set_mask(layer.context, layer.mask, std::vector<uint8_t>(36, 1), 1, 4, 9);
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.weights = layer.weights.get();
        args.mask = layer.mask.get();
        REQUIRE(distile_run(layer.kernel.get(), &args) == DISTILE_OK);
        std::vector<double> sums, scales;
        int wrong = 0;
        for (int32_t y = 0; y < 4; y++) {
            for (int32_t x = 0; x < 9; x++) {
                loops.sums(input.view(), nullptr, 0, y, x, sums, &scales);
                for (int32_t o = 0; o < 19; o++) {
                    const double error = std::abs(output.get(0, y, x, o) - sums[o]);
                    wrong += error <= error_bound(dtype, sums[o], scales[o]) ? 0 : 1;
                }
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("An exception of the caller's ends the call, and nothing else", "[run]") {
    struct Thrower {
        bool throws = false, is_standard = false;

        void act() const {
            if (throws && is_standard) {
                throw std::runtime_error("the pool is dry");
            }
            if (throws) {
                throw 5;
            }
        }
    } pool, trace;
    distile_context_options options{};
    options.threads = 3;
    options.parallel_for = [](void *user, distile_task task, void *closure, int32_t count) {
        static_cast<Thrower *>(user)->act();
        for (int32_t i = 0; i < count; i++) {
            task(closure, i);
        }
    };
    options.parallel_for_user = &pool;
    options.trace = [](void *user, const distile_choice *) { static_cast<Thrower *>(user)->act(); };
    options.trace_user = &trace;
    Layer layer(DISTILE_FLOAT32, options);
    for (Thrower *thrower : {&pool, &trace}) {
        for (const bool is_standard : {true, false}) {
            thrower->throws = true;
            thrower->is_standard = is_standard;
            CHECK(contains(layer.run("fine", 1, 4, 9), "unexpected exception"));
            CHECK(contains(distile_context_message(layer.context.get()), "the pool is dry") == is_standard);
            thrower->throws = false;
            CHECK(layer.run("fine", 1, 4, 9) == "");
        }
    }
    // From generated code, too, through which no exception can pass.
    Session session(options, 1, *session_kernel.fallback);
    for (int32_t i = 0; i < distile_kernel_num_variants(session.kernel.get()); i++) {
        const char *variant = distile_kernel_variant_name(session.kernel.get(), i);
        pool.throws = pool.is_standard = true;
        CHECK(contains(session.run(variant), "the pool is dry"));
        pool.throws = false;
        CHECK(session.run(variant) == "");
    }
    // The status, also from the library's own loops.
    std::vector<float> values(size_t{64} * 64 * 64), planes(values.size());
    const distile_tensor tensor = distile_tensor_make(values.data(), 1, 64, 64, 64);
    const distile_nchw nchw = distile_nchw_make(planes.data(), 64, 64, 64);
    pool.throws = true;
    CHECK(distile_to_nchw(layer.context.get(), &tensor, &nchw) == DISTILE_ERROR_INTERNAL);
    pool.throws = false;
    CHECK(distile_to_nchw(layer.context.get(), &tensor, &nchw) == DISTILE_OK);
}

TEST_CASE("Planners hand out tensors of every type", "[run]") {
    const Context context = make_context();
    for (distile_clearing clearing : {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND}) {
        distile_planner_options options{};
        options.clearing = clearing;
        options.buffers = 2;
        const Planner planner = make_planner(context, options);
        const Mask mask = make_mask(context);
        std::mt19937 random(53);
        for (int32_t step = 0; step < 60; step++) {
            // One type for a while, and then another in the same buffers.
            const distile_dtype dtype = types[step / 4 % 3];
            CAPTURE(clearing, step, dtype);
            constexpr int32_t height = 3, width = 70, channels = 5;
            std::vector<uint8_t> bytes(size_t{height} * width);
            std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random() % 2); });
            set_mask(context, mask, bytes, 1, height, width);
            const distile_output_spec spec{1, height, width, channels, 1, 2, 1, 0, dtype};
            const distile_store store = step % 3 == 0 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
            distile_tensor tensor{};
            REQUIRE(distile_planner_next(planner.get(), &spec, mask.get(), store, &tensor) == DISTILE_OK);
            CHECK(tensor.dtype == dtype);
            CHECK(tensor.stride_w == channels);
            const auto size = static_cast<int64_t>(distile_dtype_size(dtype));
            int64_t stale = 0;
            for (int32_t y = -1; y < height + 2; y++) {
                for (int32_t x = -1; x < width; x++) {
                    char *pixel = static_cast<char *>(tensor.data) + (y * tensor.stride_h + x * tensor.stride_w) * size;
                    const bool inside = y >= 0 && y < height && x >= 0;
                    const bool active = inside && bytes[y * width + x] != 0;
                    if (!active || store == DISTILE_STORE_TILES) {
                        stale += std::any_of(pixel, pixel + channels * size, [](char byte) { return byte != 0; });
                    }
                    if (active || (inside && store == DISTILE_STORE_TILES)) {
                        std::fill_n(pixel, channels * size, '\x3f');
                    }
                }
            }
            CHECK(stale == 0);
        }
        // Its buffers hold what the largest type needs.
        CHECK(distile_planner_bytes(planner.get()) == int64_t{2} * 6 * 71 * 5 * 4);
    }
}
