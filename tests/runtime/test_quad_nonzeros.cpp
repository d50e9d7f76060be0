// Code that multiplies with the nonzero quads of quantized weights alone, against integer sums in plain loops.
#include "kernels/dot_products.h"
#include "runtime/kinds/nonzeros_layout.h"
#include "test_pruned3_24_40_residual_uint8.h"
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"
#include "tests/support/quantized_cases.h"
#include "tests/support/quantized_variant.h"
#include "tests/support/short_tests.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** Variants of blocks of three sizes: a window, if the taps allow it; pixels that lie anywhere; tiles of other sizes.
 */
InstructionSet quads(const char *name, const char *features, DotProductCall call, const std::array<int32_t, 3> &pixels,
                     int32_t window_rows, int32_t lanes) {
    constexpr int32_t channels = DISTILE_NONZERO_BLOCK;
    return {name,
            features,
            call,
            {{pixels[0], channels}, {pixels[1], channels}, {pixels[2], channels}},
            true,
            DISTILE_CPU,
            {{window_rows, lanes}, {1, 1}, {2, 3}}};
}

const InstructionSet quad_sets[] = {
    quads("portable_int8_nonzeros", "", distile_call_portable_int8_nonzeros, {16, 48, 32}, 4, 4),
#ifdef DISTILE_TEST_avx2_int8_nonzeros
    quads("avx2_int8_nonzeros", "avx2", distile_call_avx2_int8_nonzeros, {56, 64, 96}, 7, 8),
    quads("avx_vnni_nonzeros", "avx2 avx_vnni", distile_call_avx_vnni_nonzeros, {56, 96, 48}, 7, 8),
    quads("avx512_vnni_nonzeros", "avx512bw avx512dq avx512vl avx512_vnni", distile_call_avx512_vnni_nonzeros,
          {160, 128, 256}, 10, 16),
#endif
};

constexpr struct {
    const char *name;
    double quads, others;  ///< The shares of quads, and of the weights in other quads, that become 0.
} patterns[] = {
    {"quads", .9, 0}, {"anywhere", 0, .8}, {"quads and others", .5, .5}, {"no zeros", 0, 0}, {"all zeros", 1, 1}};

/** Makes weights 0. Every third output channel keeps all, and every fifth none, but where all are 0. */
void prune(QuantizedModel &model, double quads, double others, std::mt19937 &random) {
    const distile_conv2d &conv = model.of.conv;
    const int32_t outputs = conv.out_channels, inputs = model.group_inputs, taps = conv.kernel_h * conv.kernel_w;
    std::bernoulli_distribution is_zero(quads), is_zero_alone(others);
    for (int32_t o = 0; o < outputs; o++) {
        const int32_t first = o / (outputs / conv.groups) * inputs;
        for (int32_t tap = 0; tap < taps; tap++) {
            bool zero = false;
            for (int32_t i = 0; i < inputs; i++) {
                zero = i == 0 || (first + i) % quad_channels == 0 ? is_zero(random) : zero;
                const bool kept = o % 3 == 1 && quads < 1, none = o % 5 == 2 && quads > 0;
                if ((!kept && (zero || is_zero_alone(random))) || none) {
                    model.filter[(static_cast<size_t>(tap) * inputs + i) * outputs + o] = 0;
                }
            }
        }
    }
}

/** The quads with a nonzero weight. */
int64_t nonzero_quads(const QuantizedModel &model) {
    const distile_conv2d &conv = model.of.conv;
    const int32_t outputs = conv.out_channels, inputs = model.group_inputs, taps = conv.kernel_h * conv.kernel_w;
    int64_t quads = 0;
    for (int32_t o = 0; o < outputs; o++) {
        const int32_t first = o / (outputs / conv.groups) * inputs;
        for (int32_t tap = 0; tap < taps; tap++) {
            int32_t last = -1;
            for (int32_t i = 0; i < inputs; i++) {
                const int32_t quad = (first + i) / quad_channels;
                if (model.filter[(static_cast<size_t>(tap) * inputs + i) * outputs + o] != 0 && quad != last) {
                    last = quad;
                    quads++;
                }
            }
        }
    }
    return quads;
}

bool has_quads(const QuantizedCase &one) {
    return one.kind != DISTILE_MASKED_CONV_TRANSPOSE2D;
}

distile_context_options some_threads(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    return options;
}

}  // namespace

TEST_CASE("Variants of nonzero quads compute what integer sums give", "[quad_nonzeros]") {
    std::mt19937 random(1);
    QuantizedRuns runs;
    int number = 0, calls = 0;
    for (const InstructionSet &set : quad_sets) {
        for (const QuantizedCase &one : quantized_cases) {
            if (!has_quads(one)) {
                continue;
            }
            const DotProductKernel kernel(set, quantized_operator_of(one, "cpu-nonzero-quads"));
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            for (const auto &pattern : patterns) {
                const bool halves = number % 3 == 0;
                const distile_dtype dtype = number % 4 == 3 ? DISTILE_INT4 : DISTILE_INT8;
                const int threads = number % 2 == 0 ? 1 : 3;
                INFO(set.name << ", " << one.name << ", zeros: " << pattern.name << (halves ? ", halves" : "")
                              << ", type of the filter " << dtype << ", threads: " << threads);
                number++;
                QuantizedModel model(one, halves, random, dtype);
                prune(model, pattern.quads, pattern.others, random);
                const Context context = make_context(some_threads(threads));
                const Kernel made = make_kernel(context, kernel.polykernel());
                const Weights weights = model.pack(context, made);
                for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
                    for (int run = 0; run < 3; run++) {
                        if (left_out(calls++)) {
                            continue;
                        }
                        check_quantized_variant(context, made, weights, model, runs, variant, random);
                    }
                }
            }
        }
    }
}

TEST_CASE("Packed quads are those with a nonzero weight", "[quad_nonzeros]") {
    std::mt19937 random(2);
    const Context context = make_context({});
    for (const QuantizedCase &one : quantized_cases) {
        if (!has_quads(one)) {
            continue;
        }
        INFO(one.name);
        const DotProductKernel kernel(quad_sets[0], quantized_operator_of(one, "cpu-nonzero-quads"));
        const Kernel made = make_kernel(context, kernel.polykernel());
        const distile_conv2d &conv = one.conv;
        const int32_t quads_of_pixel = (conv.in_channels + quad_channels - 1) / quad_channels,
                      chunks = quads_of_pixel / nonzero_channels(conv.kernel_h, conv.kernel_w) + 1;
        for (const bool pruned : {false, true}) {
            QuantizedModel model(one, false, random);
            std::replace(model.filter.begin(), model.filter.end(), int8_t{0}, int8_t{1});
            if (pruned) {
                prune(model, .9, 0, random);
            }
            const int64_t quads = nonzero_quads(model), bytes = distile_weights_bytes(model.pack(context, made).get());
            CHECK((pruned || quads == count_quads({conv.out_channels, model.group_inputs, conv.kernel_h, conv.kernel_w},
                                                  conv.groups)));
            // A value each, and a place unless it is shared; and for each channel its bias, how it is requantized, and
            // up to two rows in each chunk.
            CHECK(bytes >= 4 * quads);
            CHECK(bytes <= 6 * quads + (conv.out_channels + 15) * (12 + 8 * chunks) + 12 * chunks + 256);
        }
    }
}

TEST_CASE("Quantized operators with zeros are built with code for nonzero quads and for all", "[quad_nonzeros]") {
    std::mt19937 random(3);
    QuantizedRuns runs;
    int tested = 0;
    for (const distile_polykernel *each = &test_pruned3_24_40_residual_uint8; each; each = each->fallback) {
        CAPTURE(each->name);
        int skipping = 0, all = 0;
        for (int32_t i = 0; i < each->num_variants; i++) {
            const std::string layout = each->variants[i].layout;
            const bool skips = layout == "cpu-nonzero-quads";
            (skips ? skipping : all)++;
            CHECK((skips || layout == "cpu-k64"));
            CHECK((std::string(each->variants[i].name).rfind("all_", 0) == 0) == !skips);
        }
        const bool portable = each->fallback == nullptr;
        CHECK(skipping > 1);
        CHECK((portable ? all == 0 : all > 1));
        // Each of 40 output channels has 9 * 6 quads.
        CHECK(each->nonzeros == 216);
        distile_polykernel alone = *each;
        alone.fallback = nullptr;
        if (!can_run_or_warn(alone)) {
            continue;
        }
        const QuantizedCase one = {"", each->kind, *static_cast<const distile_conv2d *>(each->op), DISTILE_UINT8,
                                   DISTILE_INT8};
        QuantizedModel model(one, false, random);
        prune(model, .9, 0, random);
        const Context context = make_context(some_threads(2));
        const Kernel kernel = make_kernel(context, alone);
        const Weights weights = model.pack(context, kernel);
        for (int32_t variant = 0; variant < each->num_variants; variant++) {
            for (int run = 0; run < 6; run++) {
                check_quantized_variant(context, kernel, weights, model, runs, variant, random);
            }
        }
        tested++;
    }
    CHECK(tested > 0);
}
