/** \file
 * A PolyKernel for GPUs against the plain loop, and against the CPU's path where there is one for the operator: what
 * test_masked_conv2d.cpp varies on a CPU, and in its place of threads and allocators how a call gets to the GPU.
 */
#ifndef DISTILE_TESTS_GPU_OPERATOR_H
#define DISTILE_TESTS_GPU_OPERATOR_H

#include "masks/mask_families.h"
#include "reference/tensors.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/kept_weights.h"
#include "tests/support/pairwise.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include "tests/support/two_of_four.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace distile::gpu_operator {

struct TestedPolykernel {
    const distile_polykernel *polykernel;
    const distile_polykernel *cpu; /**< The CPU's for the same operator, or null. */
};

/** How a PolyKernel multiplies float32 numbers. */
inline distile_math math_of(const distile_polykernel &polykernel) {
    return polykernel.math == DISTILE_MATH_TF32 ? DISTILE_MATH_TF32 : DISTILE_MATH_FLOAT32;
}

/** Whether the GPU can run a PolyKernel itself, and not only one behind it. */
inline bool can_run(const Gpu &gpu, const distile_polykernel &polykernel) {
    distile_polykernel alone = polykernel;
    alone.fallback = nullptr;
    distile_kernel *made = nullptr;
    const distile_status status = distile_kernel_create(gpu.context.get(), &alone, &made);
    const Kernel kernel(made);
    if (status == DISTILE_ERROR_UNSUPPORTED_DEVICE) {
        WARN("skipped: " << distile_context_message(gpu.context.get()));
        return false;
    }
    gpu.check(status);
    return true;
}

/** Elements that the kernels load and store at once where channels allow it. */
inline int32_t lanes_of(distile_dtype dtype) {
    return 16 / static_cast<int32_t>(distile_dtype_size(dtype));
}

enum class Launch {
    ByName,        /**< The host does not know how many tiles there are. */
    ByDispatcher,  /**< It does. */
    GraphWithMask, /**< By name, in a graph that also sets the mask, which differs from the one at the capture. */
    GraphAlone     /**< By the dispatcher, in a graph without the mask, which was set and used before. */
};
const char *const launch_names[] = {"by name", "by the dispatcher", "in a graph with its mask", "in a graph"};

struct Case {
    int32_t variant = 0; /**< The number of variants stands for the dispatcher's choice among all of them. */
    Launch launch = Launch::ByName;
    int32_t height = 1, width = 1, batch = 1; /**< The input's shape. */
    std::string mask_name;
    std::vector<uint8_t> mask;
    NamedLayout input{"plain", {}}, output{"plain", {}}, residual{"plain", {}};
    bool in_place = false; /**< The residual is the output. */
    distile_inactive inactive = DISTILE_KEEP;
    distile_store store = DISTILE_STORE_EXACT;
    bool input_guard = true, output_guard = true, bias = true;
    Values values = Values::Floats;
};

/** The CPU's path of an operator. */
struct CpuPath {
    Context context = make_context();
    Kernel kernel;
    Mask mask;
    Weights weights[2][2];
};

class OperatorTest {
public:
    /** A share of the weights is 0, or of four neighbouring input channels at least two are; or all but those kept. */
    OperatorTest(const Gpu &gpu, const TestedPolykernel &tested, double zeros = 0, bool two_of_four = false,
                 Kept kept = Kept::Anything)
        : polykernel(*tested.polykernel), conv(convolution_of(polykernel)), kind(polykernel.kind),
          dtype(type_of(polykernel)), math(math_of(polykernel)), gpu_(gpu), stream_(gpu),
          all_(gpu.make_kernel(polykernel)), mask_(gpu.make_mask()) {
        for (int32_t i = 0; i < polykernel.num_variants; i++) {
            distile_polykernel single = polykernel;
            single.variants += i;
            single.num_variants = 1;
            single.num_times = 0;
            single.fallback = nullptr;
            single_polykernels_.push_back(single);
            singles_.push_back(gpu.make_kernel(single_polykernels_.back()));
        }
        if (tested.cpu) {
            make_cpu_path(*tested.cpu);
        }
        for (Values values : {Values::Floats, Values::Integers}) {
            const int drawn = static_cast<int>(values);
            filters_[drawn] = distile::draw(values, filter_size(conv), random);
            std::bernoulli_distribution is_zero(zeros);
            for (float &weight : filters_[drawn]) {
                weight = zeros > 0 && is_zero(random) ? 0 : weight;
            }
            if (two_of_four) {
                keep_two_of_four(filters_[drawn], conv, random);
            }
            keep(filters_[drawn], conv.out_channels, kept);
            biases_[drawn] = distile::draw(values, conv.out_channels, random);
            // The filter comes in float32, or in the operator's type.
            const size_t bytes = distile_dtype_size(dtype);
            std::vector<unsigned char> stored(filters_[drawn].size() * bytes);
            for (size_t i = 0; i < filters_[drawn].size(); i++) {
                store_as(dtype, filters_[drawn][i], &stored[i * bytes]);
                filters_[drawn][i] = load_as(dtype, &stored[i * bytes]);
            }
            for (int bias = 0; bias < 2; bias++) {
                distile_weights_source source{};
                source.filter = bias != 0 ? static_cast<const void *>(filters_[drawn].data()) : stored.data();
                source.dtype = bias != 0 ? DISTILE_FLOAT32 : dtype;
                source.order = DISTILE_HWIO;
                source.bias = bias != 0 ? biases_[drawn].data() : nullptr;
                source.slope = &tested_slope;
                weights_[drawn][bias] = pack_weights(gpu.context, all_, source);
                if (cpu_) {
                    cpu_->weights[drawn][bias] = pack_weights(cpu_->context, cpu_->kernel, source);
                }
            }
        }
    }
    ~OperatorTest() {
        std::cout << polykernel.name << ": " << cases_ << " cases, " << cpu_cases_ << " of them also on the CPU\n";
    }
    OperatorTest(const OperatorTest &) = delete;
    OperatorTest &operator=(const OperatorTest &) = delete;

    void run(const Case &one) {
        cases_++;
        const int32_t height = output_height(one.height), width = output_width(one.width);
        const int drawn = static_cast<int>(one.values);
        INFO(describe(one));

        const auto make = [&](int32_t rows, int32_t columns, int32_t channels, const NamedLayout &layout) {
            return std::make_unique<TestTensor>(one.batch, rows, columns, channels, layout.layout, Flush::Back, dtype);
        };
        const auto input = make(one.height, one.width, conv.in_channels, one.input);
        const auto output = make(height, width, conv.out_channels, one.output);
        const auto cpu_output = make(height, width, conv.out_channels, one.output);
        const auto residual = make(height, width, conv.out_channels, one.residual);
        const bool in_place = conv.residual != 0 && one.in_place;
        input->draw(one.values, random);
        residual->draw(one.values, random);
        if (in_place) {
            output->draw(one.values, random);
        }
        std::memcpy(cpu_output->own_words(), output->own_words(), output->num_own_words() * distile_dtype_size(dtype));
        const auto input_before = input->snapshot(), output_before = output->snapshot();
        const auto residual_before = residual->snapshot();

        DeviceTensor device_input(*input, one.input_guard), device_output(*output, one.output_guard);
        DeviceTensor device_residual(*residual, one.input_guard);
        distile_run_args args{};
        args.input = &device_input.view();
        args.output = &device_output.view();
        if (conv.residual != 0) {
            args.residual = in_place ? args.output : &device_residual.view();
        }
        args.weights = weights_[drawn][one.bias ? 1 : 0].get();
        args.mask = mask_.get();
        args.inactive = one.inactive;
        args.store = one.store;
        const distile_choice did = launch(one, args, device_output);

        // The reference needs the input as it was, and the output too where it is the residual.
        const int32_t index = one.variant == polykernel.num_variants ? did.variant_index : one.variant;
        const distile_variant &variant = polykernel.variants[index];
        INFO("variant " << variant.name);
        ReferenceArgs reference;
        reference.slope = tested_slope;
        set_operator(reference, polykernel);
        reference.input = input->view();
        reference.filter = filters_[drawn];
        if (one.bias) {
            reference.bias = biases_[drawn];
        }
        if (conv.residual != 0) {
            reference.residual = in_place ? &output->view() : &residual->view();
        }
        reference.mask = one.mask;
        reference.inactive = one.inactive;
        reference.store = one.store;
        reference.tile_h = variant.tile_h;
        reference.tile_w = variant.tile_w;
        reference.dense = variant.dense != 0;
        ReferenceOutput expected = reference_masked_conv2d(reference);
        if (cpu_) {
            run_on_cpu(one, input->view(), in_place ? cpu_output->view() : residual->view(), cpu_output->view());
        }

        REQUIRE(device_output.download());
        REQUIRE(device_input.download());
        REQUIRE(device_residual.download());
        if (in_place && one.inactive == DISTILE_ZERO && one.store == DISTILE_STORE_TILES) {
            forget_inactive(expected, one.mask, *output);
        }
        const bool exact = one.values == Values::Integers;
        REQUIRE((exact ? output->difference(output_before, expected, 0)
                       : output->difference(output_before, expected, math)) == "");
        REQUIRE(input->snapshot() == input_before);
        REQUIRE(residual->snapshot() == residual_before);
        check_choice(one, did, index);
        if (cpu_) {
            const double tolerance = exact ? 0 : 2 * error_bound(dtype, expected.largest, expected.largest, math);
            take_active(one, *cpu_output, expected);
            REQUIRE(output->difference(output_before, expected, tolerance) == "");
            cpu_cases_++;
        }
    }

    int32_t output_height(int32_t input) const {
        return reference_output_height(conv, input, kind);
    }
    int32_t output_width(int32_t input) const {
        return reference_output_width(conv, input, kind);
    }

    const distile_polykernel &polykernel;
    const distile_conv2d conv;
    const distile_operator_kind kind;
    const distile_dtype dtype;
    const distile_math math; /**< The PolyKernel's math; the tests run the first of its chain. */
    std::mt19937 random{1};

private:
    /** Puts a call on the stream in the way that is due, and says what it did. */
    distile_choice launch(const Case &one, distile_run_args args, DeviceTensor &output) {
        const bool any = one.variant == polykernel.num_variants;
        const bool by_name = !any && (one.launch == Launch::ByName || one.launch == Launch::GraphWithMask);
        distile_kernel *kernel = any || by_name ? all_.get() : singles_[one.variant].get();
        args.variant = by_name ? polykernel.variants[one.variant].name : nullptr;
        const distile_tensor &view = *args.output;
        DeviceArray<uint8_t> bytes(one.mask);
        const auto set = [&] {
            gpu_.check(distile_mask_set_bytes(mask_.get(), bytes.data(), view.batch, view.height, view.width,
                                              int64_t{view.height} * view.width, view.width));
        };
        const auto run = [&] { gpu_.check(distile_run(kernel, &args)); };
        *gpu_.traced = {};
        if (one.launch == Launch::ByName || one.launch == Launch::ByDispatcher) {
            set();
            run();
            stream_.finish();
            return *gpu_.traced;
        }
        const bool with_mask = by_name && one.launch == Launch::GraphWithMask;
        if (with_mask) {
            std::vector<uint8_t> other(one.mask.size());
            std::transform(one.mask.begin(), one.mask.end(), other.begin(),
                           [](uint8_t active) { return static_cast<uint8_t>(active == 0); });
            bytes.set(other);
        }
        // Once before the capture, for its memory; and as if it had not been.
        set();
        run();
        stream_.finish();
        output.upload();
        const Graph graph(stream_.get(), [&] {
            if (with_mask) {
                set();
            }
            run();
        });
        bytes.set(one.mask);
        graph.launch();
        stream_.finish();
        return *gpu_.traced;
    }

    void check_choice(const Case &one, const distile_choice &did, int32_t index) const {
        const bool any = one.variant == polykernel.num_variants;
        const bool by_name = !any && (one.launch == Launch::ByName || one.launch == Launch::GraphWithMask);
        REQUIRE(did.variant == std::string(polykernel.variants[index].name));
        const int64_t active = std::count_if(one.mask.begin(), one.mask.end(), [](uint8_t byte) { return byte != 0; });
        REQUIRE(did.active_pixels == (by_name ? -1 : active));
        REQUIRE(did.tiles == (by_name ? -1 : tiles_of(one, index)));
        if (any && polykernel.num_times == 0) {
            // It takes the variant that computes the fewest pixels.
            for (int32_t i = 0; i < polykernel.num_variants; i++) {
                REQUIRE(pixels_of(one, index) <= pixels_of(one, i));
            }
        }
    }

    int64_t tiles_of(const Case &one, int32_t index) const {
        const distile_variant &variant = polykernel.variants[index];
        const std::vector<uint8_t> full(one.mask.size(), 1);
        return reference_active_tiles(variant.dense != 0 ? full : one.mask, one.batch, output_height(one.height),
                                      output_width(one.width), variant.tile_h, variant.tile_w);
    }

    int64_t pixels_of(const Case &one, int32_t index) const {
        const distile_variant &variant = polykernel.variants[index];
        return tiles_of(one, index) * variant.tile_h * variant.tile_w;
    }

    void make_cpu_path(const distile_polykernel &cpu) {
        auto path = std::make_unique<CpuPath>();
        distile_kernel *kernel = nullptr;
        const distile_status status = distile_kernel_create(path->context.get(), &cpu, &kernel);
        path->kernel.reset(kernel);
        path->mask = distile::make_mask(path->context);
        if (status == DISTILE_OK) {
            cpu_ = std::move(path);
        } else {
            WARN(polykernel.name << " is not compared with the CPU: " << distile_context_message(path->context.get()));
            REQUIRE(status == DISTILE_ERROR_UNSUPPORTED_DEVICE);
        }
    }

    void run_on_cpu(const Case &one, const distile_tensor &input, const distile_tensor &residual,
                    const distile_tensor &output) const {
        check(cpu_->context, distile_mask_set_bytes(cpu_->mask.get(), one.mask.data(), output.batch, output.height,
                                                    output.width, int64_t{output.height} * output.width, output.width));
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.residual = conv.residual != 0 ? &residual : nullptr;
        args.weights = cpu_->weights[static_cast<int>(one.values)][one.bias ? 1 : 0].get();
        args.mask = cpu_->mask.get();
        args.inactive = one.inactive;
        check(cpu_->context, distile_run(cpu_->kernel.get(), &args));
    }

    /** Makes what a tensor holds at the active pixels what is expected there. */
    static void take_active(const Case &one, const TestTensor &output, ReferenceOutput &expected) {
        const distile_tensor &view = output.view();
        for (size_t pixel = 0; pixel < one.mask.size(); pixel++) {
            if (one.mask[pixel] != 0) {
                const auto row = static_cast<int32_t>(pixel / view.width), x = static_cast<int32_t>(pixel % view.width);
                for (int32_t c = 0; c < view.channels; c++) {
                    expected.values[pixel * view.channels + c] = output.get(row / view.height, row % view.height, x, c);
                }
            }
        }
    }

    std::string describe(const Case &one) const {
        std::ostringstream text;
        text << polykernel.name << ", "
             << (one.variant == polykernel.num_variants ? "any variant" : polykernel.variants[one.variant].name) << ", "
             << launch_names[static_cast<int>(one.launch)] << ", input of " << one.height << " x " << one.width
             << ", batch " << one.batch << ", mask: " << one.mask_name << ", input: " << one.input.name
             << (one.input_guard ? " in a guard" : "") << ", output: " << one.output.name
             << (one.output_guard ? " in a guard" : "") << ", residual: "
             << (conv.residual == 0 ? "none"
                 : one.in_place     ? "the output itself"
                                    : one.residual.name)
             << ", " << (one.inactive == DISTILE_ZERO ? "zero" : "keep") << ", "
             << (one.store == DISTILE_STORE_TILES ? "tiles" : "exact") << ", " << (one.bias ? "bias" : "no bias")
             << ", " << (one.values == Values::Floats ? "floats" : "integers");
        return text.str();
    }

    const Gpu &gpu_;
    const StreamInUse stream_;
    Kernel all_;
    std::deque<distile_polykernel> single_polykernels_;
    std::vector<Kernel> singles_;  // Kernels with one variant each, which their dispatcher must take.
    Mask mask_;
    Weights weights_[2][2];  // [Values][with bias]
    std::unique_ptr<CpuPath> cpu_;
    std::vector<float> filters_[2], biases_[2];
    int64_t cases_ = 0, cpu_cases_ = 0;
};

/** Rows and columns of the input: fewer for an operator whose plain loop takes long. */
inline std::vector<std::pair<int32_t, int32_t>> sizes_of(const OperatorTest &test) {
    const distile_conv2d &conv = test.conv;
    const int64_t work = int64_t{conv.in_channels} * conv.out_channels * conv.kernel_h * conv.kernel_w / conv.groups;
    std::vector<std::pair<int32_t, int32_t>> sizes = {{17, 13}, {40, 40}, {1, 1}, {5, 64}, {65, 9}};
    if (work > 100000) {
        sizes = {{9, 11}, {1, 1}, {3, 20}, {17, 13}};
    }
    if (test.polykernel.kind == DISTILE_MASKED_LINEAR) {
        sizes = {{1, 197}, {1, 1}, {1, 64}, {1, 330}};
    }
    sizes.erase(std::remove_if(sizes.begin(), sizes.end(),
                               [&](const auto &size) {
                                   return test.output_height(size.first) == 0 || test.output_width(size.second) == 0;
                               }),
                sizes.end());
    return sizes;
}

/** The mask of a family for the output of a case. */
inline void choose_mask(Case &one, const OperatorTest &test, const char *name, std::mt19937 &random) {
    one.mask_name = name;
    one.mask = make_mask(name, one.batch, test.output_height(one.height), test.output_width(one.width), random);
}

inline void run_pairwise(OperatorTest &test) {
    enum Parameter {
        Variant,
        LaunchMode,
        Size,
        Batch,
        Mask_,
        InputLayout,
        OutputLayout,
        Residual,
        Inactive,
        Store,
        InputGuard,
        OutputGuard,
        Bias,
        NumParameters
    };
    const int32_t lanes = lanes_of(test.dtype);
    const auto sizes = sizes_of(test);
    // The border of an operator with phases is not its padding, which may be negative.
    const Border border = padding_of(test.conv, test.polykernel.kind);
    distile_conv2d bordered = test.conv;
    bordered.pad_top = border.top;
    bordered.pad_bottom = border.bottom;
    bordered.pad_left = border.left;
    bordered.pad_right = border.right;
    const auto inputs = input_layouts(bordered, lanes), outputs = output_layouts(test.conv, lanes);
    const auto residuals = residual_layouts(test.conv, lanes);
    std::vector<int> num_values(NumParameters, 2);
    num_values[Variant] = test.polykernel.num_variants + 1;
    num_values[LaunchMode] = static_cast<int>(std::size(launch_names));
    num_values[Size] = static_cast<int>(sizes.size());
    num_values[Mask_] = static_cast<int>(std::size(mask_names));
    num_values[InputLayout] = static_cast<int>(inputs.size());
    num_values[OutputLayout] = static_cast<int>(outputs.size());
    // The last one is the output itself.
    num_values[Residual] = test.conv.residual != 0 ? static_cast<int>(residuals.size()) + 1 : 1;
    for (const std::vector<int> &values : combine_pairwise(num_values, test.random)) {
        Case one;
        one.variant = values[Variant];
        one.launch = static_cast<Launch>(values[LaunchMode]);
        std::tie(one.height, one.width) = sizes[values[Size]];
        one.batch = values[Batch] != 0 ? 3 : 1;
        choose_mask(one, test, mask_names[values[Mask_]], test.random);
        one.input = inputs[values[InputLayout]];
        one.output = outputs[values[OutputLayout]];
        one.in_place = values[Residual] == static_cast<int>(residuals.size());
        one.residual = residuals[one.in_place ? 0 : values[Residual]];
        one.inactive = static_cast<distile_inactive>(values[Inactive]);
        one.store = static_cast<distile_store>(values[Store]);
        one.input_guard = values[InputGuard] != 0;
        one.output_guard = values[OutputGuard] != 0;
        one.bias = values[Bias] != 0;
        test.run(one);
        // Integers are exact whatever the order of the sums.
        if (keeps_integers(test.conv.epilogue)) {
            one.values = Values::Integers;
            test.run(one);
        }
    }
}

}  // namespace distile::gpu_operator

#endif
