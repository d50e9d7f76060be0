// Layers on GPUs with weights of the pattern 2:4, against the plain loops. The code reads the operator at run time, so
// these PolyKernels are written here; nothing is generated.
#include "kernels/cuda_two_four/arguments.h"
#include "kernels/two_four.h"
#include "test_two_four_conv3_72_88_residual_f16.h"
#include "tests/cuda/operator_launches.h"
#include "tests/support/catch.h"
#include <iterator>
#include <string>
#include <vector>

using namespace distile;
using namespace distile::gpu_operator;
using cuda_two_four::Cores;

namespace {

/** Variants of blocks of three sizes, and tiles of as many. */
const InstructionSet two_four_sets[] = {
    {"two_four_sm80",
     "sm_80",
     distile_call_cuda_two_four,
     {{64, 64}, {128, 64}, {128, 128}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {2, 3}, {1, 8}},
     {1, 3, 2}},
    {"two_four_sm80_wide",
     "sm_80",
     distile_call_cuda_two_four,
     {{64, 128}, {128, 128}, {64, 64}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {1, 4}, {1, 8}},
     {4, 1, 3}},
    {"two_four_sm90",
     "sm_90a",
     distile_call_cuda_two_four_sm90,
     {{64, 64}, {128, 128}, {256, 128}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {2, 3}, {1, 8}},
     {3, 2, 1}},
    {"two_four_sm90_wide",
     "sm_90a",
     distile_call_cuda_two_four_sm90,
     {{128, 256}, {64, 128}, {128, 64}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {1, 4}, {1, 8}},
     {1, 1, 4}},
    {"two_four_sm90_tall",
     "sm_90a",
     distile_call_cuda_two_four_sm90,
     {{64, 128}, {256, 128}, {128, 256}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {1, 2}, {1, 8}},
     {2, 4, 1}},
};

Cores cores_of(const InstructionSet &set) {
    return set.call == distile_call_cuda_two_four ? Cores::Sm80 : Cores::Sm90;
}

NonzeroCase two_four_linear(const char *name, int32_t inputs, int32_t outputs, double zeros,
                            distile_activation epilogue, int32_t residual) {
    return linear_case(name, inputs, outputs, zeros, epilogue, residual, DISTILE_FLOAT16);
}

// Channels in, out; groups; kernel, stride; padding at the top, bottom, left and right; dilation; epilogue; residual.
const NonzeroCase two_four_cases[] = {
    two_four_linear("one unit", 64, 64, 0, DISTILE_ACTIVATION_NONE, 0),
    two_four_linear("part of a unit", 8, 8, 0, DISTILE_ACTIVATION_NONE, 1),
    two_four_linear("parts of units", 136, 72, .2, DISTILE_ACTIVATION_GELU, 1),
    two_four_linear("all zeros", 264, 24, 1, DISTILE_ACTIVATION_HARDSIGMOID, 0),
    two_four_linear("many units", 1160, 200, 0, DISTILE_ACTIVATION_NONE, 1),
    two_four_linear("many channels", 328, 456, .5, DISTILE_ACTIVATION_SILU, 0),
    {"3x3", DISTILE_MASKED_CONV2D, {72, 48, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 1}, 0},
    {"strides, uneven padding",
     DISTILE_MASKED_CONV2D,
     {24, 136, 1, 3, 2, 2, 1, 0, 1, 0, 1, 1, 1, DISTILE_ACTIVATION_RELU6, 0},
     .3},
    {"dilation",
     DISTILE_MASKED_CONV2D,
     {128, 40, 1, 2, 3, 1, 2, 2, 2, 1, 0, 3, 2, DISTILE_ACTIVATION_LEAKY_RELU, 1},
     0},
    {"1x1 of a padded image",
     DISTILE_MASKED_CONV2D,
     {40, 16, 1, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     0},
    {"1x1, stride 2", DISTILE_MASKED_CONV2D, {192, 64, 1, 1, 1, 2, 2, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_TANH, 0}, 0},
    {"7x7, stride 2",
     DISTILE_MASKED_CONV2D,
     {8, 24, 1, 7, 7, 2, 2, 3, 3, 3, 3, 1, 1, DISTILE_ACTIVATION_SIGMOID, 0},
     0},
};

}  // namespace

TEST_CASE("Launches of weights of the pattern 2:4 cover the output", "[two_four_launches]") {
    constexpr int32_t channels = AskingCall::channels, inputs = AskingCall::inputs;
    const NonzeroCase one = two_four_linear("linear", inputs, channels, 0, DISTILE_ACTIVATION_NONE, 0);
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        check_launches(two_four_sets, one, "cuda-two-four", dtype,
                       [&](const InstructionSet &set, int32_t variant, int32_t pixels, const AskedFor &asked,
                           const distile_gpu_launch &launch) {
                           const auto &blocks = set.blocks[variant];
                           const cuda_two_four::Block block{cores_of(set), blocks.pixels, blocks.channels};
                           CHECK(std::string(launch.kernel) ==
                                 std::string("distile_two_four_") + (block.cores == Cores::Sm80 ? "sm80_" : "sm90_") +
                                     type_name(dtype) + "_" + std::to_string(blocks.pixels) + "_" +
                                     std::to_string(blocks.channels));
                           const int32_t channel_blocks = (channels + blocks.channels - 1) / blocks.channels,
                                         cluster_pixels = blocks.pixels * block.cluster(),
                                         // Each has a unit of 64 channels.
                               splits = std::min(set.reduction_splits[variant], (inputs + 63) / 64);
                           const int32_t outputs =
                               (pixels + cluster_pixels - 1) / cluster_pixels * block.cluster() * channel_blocks;
                           if (block.cores == Cores::Sm90) {
                               CHECK(launch.blocks[0] == std::min(outputs * splits, AskingCall::multiprocessors));
                               CHECK(launch.blocks[1] == 1);
                           } else {
                               CHECK(launch.blocks[0] == outputs);
                               CHECK(launch.blocks[1] == splits);
                           }
                           CHECK(launch.blocks[0] % block.cluster() == 0);
                           CHECK(launch.cluster == block.cluster());
                           CHECK(launch.early == (block.cores == Cores::Sm90 ? 1 : 0));
                           CHECK(launch.threads[0] == block.threads());
                           CHECK(launch.shared_bytes == block.shared_bytes());
                           if (splits > 1) {
                               const uint64_t all = outputs, groups = block.cores == Cores::Sm90 ? block.groups() : 1;
                               CHECK(asked.scratch == all * splits * blocks.pixels * blocks.channels * 4);
                               CHECK(asked.signals == all * groups * sizeof(uint32_t));
                           }
                       });
    }
    for (const InstructionSet &set : two_four_sets) {
        check_no_kernel(set, one, "cuda-two-four", DISTILE_FLOAT32);
    }
    for (const int32_t pixels : {32, 64, 96, 128, 256}) {
        for (const int32_t block_channels : {32, 64, 128, 256}) {
            for (const Cores cores : {Cores::Sm80, Cores::Sm90}) {
                CAPTURE(pixels, block_channels, cores == Cores::Sm90);
                if (!cuda_two_four::has_blocks(cores, pixels, block_channels)) {
                    continue;
                }
                const cuda_two_four::Block block{cores, pixels, block_channels};
                // GPUs of compute capability 8.6 have this much for a block, and those of 9.0 for all blocks.
                CHECK(block.shared_bytes() <= (cores == Cores::Sm80 ? 99 : 227) * 1024);
                CHECK(block.resident() * (block.shared_bytes() + 1024) <= (cores == Cores::Sm80 ? 164 : 228) * 1024);
                CHECK(block.stages() >= 3);
            }
        }
    }
}

TEST_CASE("Code for weights of the pattern 2:4 refuses channels that are no multiples of 8", "[two_four_launches]") {
    for (const auto &[inputs, outputs] : {std::pair{12, 64}, std::pair{64, 12}}) {
        const NonzeroCase one = two_four_linear("linear", inputs, outputs, 0, DISTILE_ACTIVATION_NONE, 0);
        const DotProductKernel kernel(two_four_sets[0], operator_of(one, "cuda-two-four"));
        AskingCall asking(DISTILE_FLOAT16, kernel.polykernel().variants);
        asking.operands[0].dim[0].extent = inputs;
        asking.operands[3].dim[0].extent = outputs;
        CHECK(kernel.polykernel().variants[0].run(&asking.call) != 0);
        CHECK(asking.asked.message.find("multiples of 8") != std::string::npos);
    }
}

TEST_CASE("Variants with weights of the pattern 2:4 on a GPU compute what the plain loop computes", "[gpu_two_four]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const InstructionSet &set : two_four_sets) {
        for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
            DYNAMIC_SECTION(set.name << " in " << type_name(dtype)) {
                // Types differ in what instructions they take: a part of the cases tells.
                constexpr size_t narrow_step = 4;
                const size_t step = dtype == DISTILE_FLOAT16 ? 1 : narrow_step;
                for (size_t i = 0; i < std::size(two_four_cases); i += step) {
                    NonzeroCase one = two_four_cases[i];
                    one.dtype = dtype;
                    compare(gpu, set, one, "cuda-two-four", true);
                }
            }
        }
    }
}

TEST_CASE("Weights of another pattern than 2:4 are refused on a GPU", "[gpu_two_four]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    constexpr int32_t inputs = 64, outputs = 16;
    const NonzeroCase one = two_four_linear("linear", inputs, outputs, 0, DISTILE_ACTIVATION_NONE, 0);
    const DotProductKernel made(two_four_sets[0], operator_of(one, "cuda-two-four"));
    if (!can_run(gpu, made.polykernel())) {
        return;
    }
    const Kernel kernel = gpu.make_kernel(made.polykernel());
    std::vector<float> filter(inputs * outputs);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OI;
    pack_weights(gpu.context, kernel, source);
    filter[5 * inputs + 12] = filter[5 * inputs + 13] = filter[5 * inputs + 15] = 1;
    distile_weights *weights = nullptr;
    CHECK(distile_weights_pack(kernel.get(), &source, &weights) == DISTILE_ERROR_BAD_VALUE);
    CHECK(std::string(distile_context_message(gpu.context.get())).find("pattern 2:4") != std::string::npos);
    CHECK(weights == nullptr);
}

TEST_CASE("A PolyKernel of plans keeps two of four weights, and all of them", "[gpu_two_four]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const distile_polykernel &polykernel = test_two_four_conv3_72_88_residual_f16;
    for (const distile_polykernel *each = &polykernel; each; each = each->fallback) {
        if (can_run(gpu, *each)) {
            OperatorTest test(gpu, {each, nullptr}, 0, true);
            run_pairwise(test);
        }
    }
}
