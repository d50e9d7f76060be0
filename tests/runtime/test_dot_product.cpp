// Variants for dot-product and matrix instructions against the plain loops. Their code reads the operator at run time,
// so these PolyKernels are written here; nothing is generated.
#include "kernels/cpu/matrix_tiles.h"
#include "kernels/cpu/partition.h"
#include "kernels/dot_products.h"
#include "runtime/base/types.h"
#include "test_conv3_24_40_residual_bf16.h"
#include "test_conv3_24_40_residual_fp16.h"
#include "tests/support/activation_tests.h"
#include "tests/support/catch.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/dot_product_kernel.h"
#include "tests/support/emulated_pairs.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/operator_test.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>
#ifdef DISTILE_TEST_DOT_PRODUCTS
#include "test_conv3_24_40_residual_bf16_amx_bf16.h"
#include "test_conv3_24_40_residual_bf16_avx512_bf16.h"
#include "test_conv3_24_40_residual_fp16_amx_fp16.h"
#include "test_conv3_24_40_residual_fp16_amx_split_fp16.h"
#endif

using namespace distile;

namespace {

template<class Tiles> int call_emulated_tiles(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return dot_product::Product<dot_product::Steps<dot_product::TileSet<Tiles>>>(*code, *call).run();
}

int call_emulated_pairs(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return dot_product::Product<dot_product::Steps<dot_product::RegisterIsa<EmulatedPairs>>>(*code, *call).run();
}

/** Instructions and the type that they multiply. */
struct TypedSet : InstructionSet {
    distile_dtype dtype = DISTILE_BFLOAT16;
    bool tiles = true;
};

constexpr InstructionSet tiles(const char *name, const char *features, DotProductCall call) {
    return {name, features, call, {{32, 32}, {16, 32}, {32, 16}}};
}

const TypedSet emulated = {tiles("tiles", "", call_emulated_tiles<EmulatedBfloat16Tiles>)};
const TypedSet instruction_sets[] = {
    emulated,
    {tiles("tiles of float16", "", call_emulated_tiles<EmulatedFloat16Tiles>), DISTILE_FLOAT16},
    {tiles("tiles of split float16", "", call_emulated_tiles<EmulatedSplitFloat16Tiles>), DISTILE_FLOAT16},
    {{"pairs", "", call_emulated_pairs, {{14, 32}, {5, 64}, {9, 48}}}, DISTILE_BFLOAT16, false},
#ifdef DISTILE_TEST_DOT_PRODUCTS
    {{"avx512_bf16", "avx512bw avx512dq avx512vl avx512_bf16", distile_call_avx512_bf16, {{14, 32}, {5, 64}, {9, 48}}},
     DISTILE_BFLOAT16,
     false},
    {tiles("amx_bf16", "avx512bw avx512dq avx512vl amx_bf16", distile_call_amx_bf16)},
    {tiles("amx_fp16", "avx512bw avx512dq avx512vl amx_fp16", distile_call_amx_fp16), DISTILE_FLOAT16},
    {tiles("amx_split_fp16", "avx512bw avx512dq avx512vl amx_bf16", distile_call_amx_split_fp16), DISTILE_FLOAT16},
#endif
};

struct Case {
    const char *name;
    distile_operator_kind kind;
    distile_conv2d conv;
};

DotProductOperator operator_of(const Case &of, distile_dtype dtype) {
    return {of.kind,
            of.conv,
            dtype,
            "cpu-k32",
            {{DISTILE_ROLE_INPUT, dtype, of.conv.in_channels},
             {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 0},
             {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 0}}};
}

// Channels in, out; groups; kernel, stride; padding at the top, bottom, left and right; dilation; epilogue; residual.
const Case cases[] = {
    {"whole steps", DISTILE_MASKED_CONV2D, {32, 48, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0}},
    {"odd channels, strides",
     DISTILE_MASKED_CONV2D,
     {17, 20, 1, 3, 3, 2, 1, 0, 1, 0, 1, 1, 1, DISTILE_ACTIVATION_SILU, 1}},
    {"dilation", DISTILE_MASKED_CONV2D, {3, 33, 1, 5, 2, 1, 1, 2, 2, 1, 0, 2, 3, DISTILE_ACTIVATION_RELU6, 1}},
    {"one channel", DISTILE_MASKED_CONV2D, {1, 1, 1, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_HARDSIGMOID, 0}},
    {"1x1", DISTILE_MASKED_CONV2D, {64, 112, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_HARDSWISH, 1}},
    {"1x1 of a padded image",
     DISTILE_MASKED_CONV2D,
     {40, 16, 1, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
    {"linear", DISTILE_MASKED_LINEAR, {24, 40, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_GELU, 1}},
    {"transposed",
     DISTILE_MASKED_CONV_TRANSPOSE2D,
     {16, 32, 1, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_LEAKY_RELU, 0}},
    {"groups of 4", DISTILE_MASKED_CONV2D, {32, 32, 8, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_LEAKY_RELU, 1}},
    {"an odd number of groups side by side",
     DISTILE_MASKED_CONV2D,
     {104, 104, 13, 1, 3, 1, 1, 0, 0, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
    {"groups of 4 with twice the outputs",
     DISTILE_MASKED_CONV2D,
     {20, 40, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_HARDSWISH, 0}},
    {"groups of 24", DISTILE_MASKED_CONV2D, {48, 48, 2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_SILU, 1}},
    {"three groups of 40, 1x1",
     DISTILE_MASKED_CONV2D,
     {120, 120, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 1}},
    {"groups of 56, strides",
     DISTILE_MASKED_CONV2D,
     {112, 112, 2, 1, 3, 2, 2, 0, 0, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU6, 0}},
    {"groups of 100", DISTILE_MASKED_CONV2D, {200, 200, 2, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
    {"groups of many inputs",
     DISTILE_MASKED_CONV2D,
     {96, 15, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
    {"phases without taps",
     DISTILE_MASKED_CONV_TRANSPOSE2D,
     {6, 17, 1, 1, 3, 3, 2, 0, -1, 1, 1, 1, 1, DISTILE_ACTIVATION_SIGMOID, 1}},
    {"upsampled", DISTILE_MASKED_UPSAMPLE_CONV2D, {8, 24, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0}},
};

/** Tiles do not multiply groups that must be kept apart. What emulated tiles stage of other groups does not depend on
 * how they multiply, which takes long. */
bool has_test(const TypedSet &set, const Case &of) {
    constexpr int32_t pairs = 2;
    const bool is_emulated = *set.features == '\0';
    return !set.tiles || (dot_product_taps(of.kind, of.conv, pairs).apart_groups == 1 &&
                          (of.conv.groups == 1 || !is_emulated || set.dtype == DISTILE_BFLOAT16));
}

}  // namespace

TEST_CASE("Every activation after dot products is that of the reference", "[dot_product]") {
    struct Isa;
    using Vectors = dot_product::Epilogue<Isa>;
    check_activations([](const Activation &activation, const std::vector<float> &inputs) {
        constexpr size_t lanes = dot_product::vector_channels;
        std::vector<float> values = inputs;
        values.resize((inputs.size() + lanes - 1) / lanes * lanes);
        for (size_t i = 0; i < values.size(); i += lanes) {
            typename Vectors::Floats vector;
            std::memcpy(&vector, &values[i], sizeof(vector));
            switch (activation.function) {
#define ROW(number, name, NAME, value, gradient)                                                                       \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        Vectors::activate<DISTILE_ACTIVATION_##NAME>(vector, activation.slope);                                        \
        break;
                DISTILE_ACTIVATIONS(ROW)
#undef ROW
            }
            std::memcpy(&values[i], &vector, sizeof(vector));
        }
        values.resize(inputs.size());
        return values;
    });
}

TEST_CASE("Variants of dot products compute what the plain loop computes", "[dot_product]") {
    for (const TypedSet &set : instruction_sets) {
        for (const Case &one : cases) {
            if (!has_test(set, one)) {
                continue;
            }
            INFO(set.name << ", " << one.name);
            const DotProductKernel kernel(set, operator_of(one, set.dtype));
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            test_operator(kernel.polykernel());
        }
    }
    CHECK(EmulatedTiles::mistakes() == 0);
    CHECK(EmulatedTiles::spread_loads() > 0);
}

#ifdef DISTILE_TEST_DOT_PRODUCTS
TEST_CASE("Variants of dot products that are built from a plan compute the same", "[dot_product]") {
    for (const distile_polykernel *polykernel :
         {&test_conv3_24_40_residual_bf16_avx512_bf16, &test_conv3_24_40_residual_bf16_amx_bf16,
          &test_conv3_24_40_residual_fp16_amx_fp16, &test_conv3_24_40_residual_fp16_amx_split_fp16}) {
        if (can_run_or_warn(*polykernel)) {
            test_operator(*polykernel);
        }
    }
}
#endif

TEST_CASE("Operators of 16 bits that are built without a plan take the dot products of the CPU", "[dot_product]") {
    constexpr size_t of_operator = std::char_traits<char>::length("test_conv3_24_40_residual_bf16_");
    const Context context = make_context({});
    for (const distile_polykernel *built : {&test_conv3_24_40_residual_bf16, &test_conv3_24_40_residual_fp16}) {
        std::string names;
        const distile_polykernel *taken = nullptr;
        for (const distile_polykernel *each = built; each; each = each->fallback) {
            names += std::string(each->name).substr(of_operator) + " ";
            taken = !taken && can_run(*each) ? each : taken;
        }
#ifdef DISTILE_TEST_DOT_PRODUCTS
        const bool bfloat16 = built == &test_conv3_24_40_residual_bf16;
        CHECK(names == std::string(bfloat16 ? "amx_bf16 avx512_bf16" : "amx_fp16 amx_bf16") + " avx512 avx2 ");
#endif
        if (!taken) {
            WARN("this CPU runs none of the plans " << names);
            continue;
        }
        distile_kernel_info info{};
        check(context, distile_kernel_get_info(make_kernel(context, *built).get(), &info));
        CHECK(std::string(info.name) == taken->name);
        if (std::string(taken->variants->layout) == "cpu-k32") {
            test_operator(*taken);
        }
    }
}

TEST_CASE("Variants of dot products pass on NaN and infinity", "[dot_product]") {
    for (const TypedSet &set : instruction_sets) {
        for (const Case &one : cases) {
            if (!has_test(set, one)) {
                continue;
            }
            INFO(set.name << ", " << one.name);
            const DotProductKernel kernel(set, operator_of(one, set.dtype));
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            distile_context_options options{};
            options.threads = 2;
            const Context context = make_context(options);
            const ValueClasses classes = check_special_values(context, make_kernel(context, kernel.polykernel()),
                                                              SpecialCalls(kernel.polykernel()));
            CHECK(classes.nan > 0);
            CHECK(classes.finite > 0);
        }
    }
}

TEST_CASE("A number of 16 bits is the sum of its parts", "[dot_product]") {
    constexpr int count = 1 << 16;
    std::vector<uint16_t> stored(count), high(count), low(count);
    std::iota(stored.begin(), stored.end(), uint16_t{0});
    EmulatedSplitFloat16Tiles::Types::split(stored.data(), count, high.data(), low.data());
    std::vector<float> value(count), upper(count), lower(count);
    find_type(DISTILE_FLOAT16)->to_float(stored.data(), value.data(), count);
    find_type(DISTILE_BFLOAT16)->to_float(high.data(), upper.data(), count);
    find_type(DISTILE_BFLOAT16)->to_float(low.data(), lower.data(), count);
    for (int i = 0; i < count; i++) {
        CAPTURE(i, value[i], upper[i], lower[i]);
        if (std::isnan(value[i])) {
            REQUIRE(std::isnan(upper[i]));
            continue;
        }
        REQUIRE(upper[i] + lower[i] == value[i]);
        if (value[i] == 0) {
            REQUIRE(lower[i] == 0);
        } else {
            // Subnormal numbers count as 0, and 0 times infinity is NaN.
            REQUIRE(std::isnormal(lower[i]));
            REQUIRE(std::signbit(lower[i]) == std::signbit(value[i]));
        }
    }
    EmulatedSplitFloat16Tiles::Types::split(stored.data(), count, stored.data(), low.data());
    CHECK((stored == high));
}

TEST_CASE("Calls are cut into tasks that fit and that occupy all threads", "[dot_product]") {
    std::mt19937 random(3);
    const auto draw = [&](int32_t least, int32_t most) {
        return std::uniform_int_distribution<int32_t>(least, most)(random);
    };
    for (int round = 0; round < 5000; round++) {
        constexpr dot_product::CostModel cost_models[] = {dot_product::in_tiles, dot_product::in_registers,
                                                          dot_product::in_columns, dot_product::in_split_tiles};
        const dot_product::CostModel &cost_model = cost_models[round % std::size(cost_models)];
        dot_product::WorkShape work{};
        work.tiles = draw(1, round % 2 == 0 ? 50 : 20000);
        work.tile_pixels = 1 << draw(0, 4);
        work.block_pixels = cost_model.unit_pixels > 0 ? draw(1, 2) * 16 : draw(1, 14);
        work.staged_blocks = draw(1, 12);
        work.blocks = draw(1, 40);
        work.block_vectors = draw(1, 4);
        work.steps = draw(0, 100);
        work.shares_staging = draw(0, 1) == 1;
        work.threads = draw(1, 64);
        work.least_splits = draw(1, 4);
        const auto cut = dot_product::Partition<void>::best(work, cost_model);
        CAPTURE(round, work.tiles, work.tile_pixels, work.block_pixels, work.staged_blocks, work.blocks, work.threads,
                work.least_splits, cut.parts, cut.splits, cut.unit);
        REQUIRE(cut.unit >= 1);
        REQUIRE(cut.parts >= 1);
        REQUIRE(cut.parts <= (work.tiles + cut.unit - 1) / cut.unit);
        REQUIRE(cut.splits <= work.blocks);
        REQUIRE(cut.splits >= std::min(work.least_splits, work.blocks));
        // A part is staged at once, unless a tile or its unit exceeds what is staged.
        const int32_t unit_pixels = std::max({cost_model.unit_pixels, work.tile_pixels, work.block_pixels});
        const int64_t pixels = int64_t{work.tiles} * work.tile_pixels;
        REQUIRE(pixels / cut.parts <= std::max(work.staged_blocks * work.block_pixels, unit_pixels) + unit_pixels);
        // Much work leaves no thread without a task.
        if (work.steps > 20 && pixels >= int64_t{work.threads} * unit_pixels) {
            REQUIRE(cut.parts * cut.splits >= work.threads);
        }
    }
    // Few pixels divide the output channels: one block for 16 threads and 16 blocks of channels.
    dot_product::WorkShape few{};
    few = {16, 1, 32, 4, 16, 2, 72, true, 16, 1};
    CHECK(dot_product::Partition<void>::best(few, dot_product::in_tiles).splits >= 8);
    // One thread does all of it with as few tasks as memory allows.
    few.threads = 1;
    few.tiles = 128;
    CHECK(dot_product::Partition<void>::best(few, dot_product::in_tiles).parts == 1);
}

TEST_CASE("Variants of dot products without memory make an error", "[dot_product]") {
    const Case &one = cases[0];
    const DotProductKernel polykernel(emulated, operator_of(one, emulated.dtype));
    int64_t left = -1;  // Calls of the allocator that succeed; negative: all.
    distile_context_options options{};
    options.threads = 1;
    options.allocator_user = &left;
    options.allocate = [](void *user, size_t bytes, size_t alignment) -> void * {
        int64_t &count = *static_cast<int64_t *>(user);
        if (count == 0) {
            return nullptr;
        }
        count -= count > 0 ? 1 : 0;
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    };
    options.deallocate = [](void *, void *memory) { std::free(memory); };
    const Context context = make_context(options);
    const Kernel kernel = make_kernel(context, polykernel.polykernel());
    const std::vector<float> filter(static_cast<size_t>(9) * one.conv.in_channels * one.conv.out_channels, 1.0f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_HWIO;
    const Weights weights = pack_weights(context, kernel, source);
    const Mask mask = make_mask(context);
    constexpr int32_t extent = 12;
    const std::vector<uint8_t> all(extent * extent, 1);
    check(context, distile_mask_set_bytes(mask.get(), all.data(), 1, extent, extent, extent * extent, extent));
    const TestTensor input(1, extent, extent, one.conv.in_channels, {}, Flush::Back, DISTILE_BFLOAT16);
    const TestTensor output(1, extent, extent, one.conv.out_channels, {}, Flush::Back, DISTILE_BFLOAT16);
    distile_run_args args{};
    args.input = &input.view();
    args.output = &output.view();
    args.weights = weights.get();
    args.mask = mask.get();
    args.variant = "fine";
    // The list of tiles, then what is staged.
    int failures = 0;
    distile_status status = DISTILE_ERROR_OUT_OF_MEMORY;
    for (int64_t allowed = 0; status != DISTILE_OK && allowed < 20; allowed++) {
        left = allowed;
        status = distile_run(kernel.get(), &args);
        left = -1;
        CHECK((status == DISTILE_OK || status == DISTILE_ERROR_OUT_OF_MEMORY));
        failures += status == DISTILE_OK ? 0 : 1;
    }
    CHECK(failures > 1);
    CHECK(status == DISTILE_OK);
}

TEST_CASE("Weights hold the slope of leaky_relu, whose default is PyTorch's", "[dot_product]") {
    constexpr int32_t channels = 32, tokens = 5;
    const Case one = {"linear",
                      DISTILE_MASKED_LINEAR,
                      {channels, channels, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_LEAKY_RELU, 0}};
    const DotProductKernel polykernel(emulated, operator_of(one, emulated.dtype));
    const Context context = make_context({});
    const Kernel kernel = make_kernel(context, polykernel.polykernel());
    // Each output channel is an input channel.
    std::vector<float> filter(static_cast<size_t>(channels) * channels);
    for (size_t c = 0; c < channels; c++) {
        filter[c * channels + c] = 1;
    }
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> all(tokens, 1);
    check(context, distile_mask_set_bytes(mask.get(), all.data(), 1, 1, tokens, tokens, tokens));
    const TestTensor input(1, 1, tokens, channels, {}, Flush::Back, DISTILE_BFLOAT16);
    std::mt19937 random(3);
    input.draw(Values::Floats, random);
    const float slopes[] = {0, 1, -2, .25f}, *given[] = {nullptr, &slopes[0], &slopes[1], &slopes[2], &slopes[3]};
    for (const float *slope : given) {
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        source.slope = slope;
        const Weights weights = pack_weights(context, kernel, source);
        const TestTensor output(1, 1, tokens, channels, {}, Flush::Back, DISTILE_BFLOAT16);
        distile_run_args args{};
        args.input = &input.view();
        args.output = &output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        check(context, distile_run(kernel.get(), &args));
        for (int32_t t = 0; t < tokens; t++) {
            for (int32_t c = 0; c < channels; c++) {
                const float x = input.get(0, 0, t, c), due = x > 0 ? x : (slope ? *slope : .01f) * x;
                REQUIRE(output.get(0, 0, t, c) == round_to(DISTILE_BFLOAT16, due));
            }
        }
    }
}
