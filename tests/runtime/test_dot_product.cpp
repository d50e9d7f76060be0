// Variants for dot-product and matrix instructions against the plain loops. Their code reads the operator at run time,
// so these PolyKernels are written here; nothing is generated.
#include "catch.h"
#include "dot_product_layout.h"
#include "emulated_tiles.h"
#include "matrix_tiles.h"
#include "operator_test.h"
#include "test_tensor.h"
#include <array>
#include <cstdint>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <string>
#include <vector>
#ifdef DISTILE_TEST_DOT_PRODUCTS
#include "test_conv3_24_40_residual_bf16_amx_bf16.h"
#include "test_conv3_24_40_residual_bf16_avx512_bf16.h"
#endif

using namespace distile;

namespace {

using Call = int (*)(const distile_dot_product_code *code, const distile_kernel_call *call);

int call_emulated_tiles(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return dot_product::Product<dot_product::TileSet<EmulatedBfloat16Tiles>>(*code, *call).run();
}

/** An instruction set, and the blocks of three variants. */
struct InstructionSet {
    const char *name, *features;
    Call call;
    struct {
        int32_t pixels, channels;
    } blocks[3];
};

const InstructionSet emulated = {"tiles", "", call_emulated_tiles, {{32, 32}, {16, 32}, {32, 16}}};
#ifdef DISTILE_TEST_DOT_PRODUCTS
const InstructionSet avx512_bf16 = {
    "avx512_bf16", "avx512bw avx512dq avx512vl avx512_bf16", distile_call_avx512_bf16, {{14, 32}, {5, 64}, {9, 48}}};
const InstructionSet amx_bf16 = {
    "amx_bf16", "avx512bw avx512dq avx512vl amx_bf16", distile_call_amx_bf16, {{32, 32}, {16, 32}, {32, 16}}};
const InstructionSet *const instruction_sets[] = {&emulated, &avx512_bf16, &amx_bf16};
#else
const InstructionSet *const instruction_sets[] = {&emulated};
#endif

constexpr int num_variants = 3;
/** What the variants of the PolyKernel that is tested call. */
std::array<distile_dot_product_code, num_variants> codes;
Call code_of_all;

template<int Variant> int run_variant(const distile_kernel_call *call) {
    return code_of_all(&codes[Variant], call);
}
constexpr distile_kernel_function runs[num_variants] = {run_variant<0>, run_variant<1>, run_variant<2>};

/** A PolyKernel of a convolution in bfloat16. The last variant is dense. Only one can be in use. */
class DotProductKernel {
public:
    DotProductKernel(const InstructionSet &set, distile_operator_kind kind, const distile_conv2d &conv)
        : conv_(conv), linear_{conv.in_channels, conv.out_channels, conv.epilogue, conv.residual},
          taps_(dot_product_taps(kind, conv)), name_(set.name) {
        operands_ = {{DISTILE_ROLE_INPUT, DISTILE_BFLOAT16, conv.in_channels},
                     {DISTILE_ROLE_WEIGHTS, DISTILE_FLOAT32, 0},
                     {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 0}};
        if (conv.residual != 0) {
            operands_.push_back({DISTILE_ROLE_RESIDUAL, DISTILE_BFLOAT16, conv.out_channels});
        }
        operands_.push_back({DISTILE_ROLE_OUTPUT, DISTILE_BFLOAT16, conv.out_channels});
        constexpr int32_t tiles[num_variants][2] = {{1, 1}, {2, 3}, {1, 8}};
        constexpr int32_t staged[num_variants] = {2, 1, 3}, splits[num_variants] = {1, 2, 4};
        constexpr const char *names[num_variants] = {"fine", "coarse", "dense"};
        code_of_all = set.call;
        for (int i = 0; i < num_variants; i++) {
            codes[i] = {conv.epilogue,          tiles[i][0],    tiles[i][1],    set.blocks[i].pixels,
                        set.blocks[i].channels, staged[i],      splits[i],      taps_.scale_h,
                        taps_.scale_w,          taps_.stride_h, taps_.stride_w, taps_.rows.data(),
                        taps_.columns.data()};
            variants_[i] = {names[i],  tiles[i][0], tiles[i][1], i + 1 == num_variants ? 1 : 0,
                            "cpu-k32", runs[i],     {},          0};
        }
        polykernel_.version = DISTILE_POLYKERNEL_VERSION;
        polykernel_.name = name_.c_str();
        polykernel_.kind = kind;
        polykernel_.op = kind == DISTILE_MASKED_LINEAR ? static_cast<const void *>(&linear_) : &conv_;
        polykernel_.num_operands = static_cast<int32_t>(operands_.size());
        polykernel_.operands = operands_.data();
        polykernel_.device = DISTILE_CPU;
        polykernel_.features = set.features;
        polykernel_.num_variants = num_variants;
        polykernel_.variants = variants_.data();
    }
    DotProductKernel(const DotProductKernel &) = delete;
    DotProductKernel &operator=(const DotProductKernel &) = delete;

    const distile_polykernel &polykernel() const {
        return polykernel_;
    }

private:
    distile_conv2d conv_;
    distile_linear linear_;
    DotProductTaps taps_;
    std::string name_;
    std::vector<distile_operand> operands_;
    std::array<distile_variant, num_variants> variants_{};
    distile_polykernel polykernel_{};
};

struct Case {
    const char *name;
    distile_operator_kind kind;
    distile_conv2d conv;
};

// Channels in, out; groups; kernel, stride; padding at the top, bottom, left and right; dilation; epilogue; residual.
const Case cases[] = {
    {"whole steps", DISTILE_MASKED_CONV2D, {32, 48, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_EPILOGUE_RELU, 0}},
    {"odd channels, strides",
     DISTILE_MASKED_CONV2D,
     {17, 20, 1, 3, 3, 2, 1, 0, 1, 0, 1, 1, 1, DISTILE_EPILOGUE_SILU, 1}},
    {"dilation", DISTILE_MASKED_CONV2D, {3, 33, 1, 5, 2, 1, 1, 2, 2, 1, 0, 2, 3, DISTILE_EPILOGUE_RELU6, 1}},
    {"one channel", DISTILE_MASKED_CONV2D, {1, 1, 1, 3, 3, 1, 2, 1, 1, 1, 1, 1, 1, DISTILE_EPILOGUE_HARDSIGMOID, 0}},
    {"1x1", DISTILE_MASKED_CONV2D, {64, 112, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_EPILOGUE_HARDSWISH, 1}},
    {"1x1 of a padded image",
     DISTILE_MASKED_CONV2D,
     {40, 16, 1, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, DISTILE_EPILOGUE_NONE, 0}},
    {"linear", DISTILE_MASKED_LINEAR, {24, 40, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_EPILOGUE_GELU, 1}},
    {"transposed",
     DISTILE_MASKED_CONV_TRANSPOSE2D,
     {16, 32, 1, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_EPILOGUE_RELU, 0}},
    {"phases without taps",
     DISTILE_MASKED_CONV_TRANSPOSE2D,
     {6, 17, 1, 1, 3, 3, 2, 0, -1, 1, 1, 1, 1, DISTILE_EPILOGUE_SIGMOID, 1}},
    {"upsampled", DISTILE_MASKED_UPSAMPLE_CONV2D, {8, 24, 1, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_EPILOGUE_RELU, 0}},
};

}  // namespace

TEST_CASE("Variants of dot products compute what the plain loop computes", "[dot_product]") {
    for (const InstructionSet *set : instruction_sets) {
        for (const Case &one : cases) {
            INFO(set->name << ", " << one.name);
            const DotProductKernel kernel(*set, one.kind, one.conv);
            if (!can_run_or_warn(kernel.polykernel())) {
                break;
            }
            test_operator(kernel.polykernel());
        }
    }
    CHECK(EmulatedTiles::mistakes() == 0);
}

#ifdef DISTILE_TEST_DOT_PRODUCTS
TEST_CASE("Variants of dot products that are built from a plan compute the same", "[dot_product]") {
    for (const distile_polykernel *polykernel :
         {&test_conv3_24_40_residual_bf16_avx512_bf16, &test_conv3_24_40_residual_bf16_amx_bf16}) {
        if (can_run_or_warn(*polykernel)) {
            test_operator(*polykernel);
        }
    }
}
#endif

TEST_CASE("Variants of dot products pass on NaN and infinity", "[dot_product]") {
    for (const InstructionSet *set : instruction_sets) {
        for (const Case &one : cases) {
            INFO(set->name << ", " << one.name);
            const DotProductKernel kernel(*set, one.kind, one.conv);
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

TEST_CASE("Variants of dot products without memory make an error", "[dot_product]") {
    const Case &one = cases[0];
    const DotProductKernel polykernel(emulated, one.kind, one.conv);
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
