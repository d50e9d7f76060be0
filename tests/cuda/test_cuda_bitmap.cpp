// Linear layers on GPUs with a bitmap of their nonzero weights, against the plain loops. The code reads the operator at
// run time, so these PolyKernels are written here; nothing is generated.
#include "kernels/bitmap.h"
#include "kernels/cuda_bitmap/arguments.h"
#include "test_pruned_linear_264_72_residual_f16_bitmap.h"
#include "tests/cuda/operator_launches.h"
#include "tests/support/catch.h"
#include <string>
#include <vector>

using namespace distile;
using namespace distile::gpu_operator;

namespace {

/** Variants of blocks of three sizes, and tiles of as many. */
const InstructionSet instruction_sets[] = {
    {"narrow",
     "sm_80",
     distile_call_cuda_bitmap,
     {{8, 16}, {16, 16}, {32, 64}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {2, 3}, {1, 8}},
     {1, 4, 2}},
    {"wide",
     "sm_80",
     distile_call_cuda_bitmap,
     {{64, 128}, {8, 128}, {16, 128}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {2, 3}, {1, 8}},
     {1, 2, 3}},
    {"between",
     "sm_80",
     distile_call_cuda_bitmap,
     {{8, 32}, {32, 128}, {16, 64}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {1, 2}, {1, 4}},
     {16, 4, 1}},
    {"split",
     "sm_80",
     distile_call_cuda_bitmap,
     {{16, 32}, {64, 64}, {32, 32}},
     true,
     DISTILE_CUDA,
     {{1, 1}, {1, 4}, {1, 8}},
     {2, 4, 1}},
};

NonzeroCase linear(const char *name, int32_t inputs, int32_t outputs, double zeros, distile_activation epilogue,
                   int32_t residual) {
    return linear_case(name, inputs, outputs, zeros, epilogue, residual, DISTILE_FLOAT16);
}

const NonzeroCase cases[] = {
    linear("one unit", 128, 16, .5, DISTILE_ACTIVATION_NONE, 0),
    linear("one weight", 1, 1, 0, DISTILE_ACTIVATION_NONE, 1),
    linear("odd channels", 37, 21, .5, DISTILE_ACTIVATION_RELU, 1),
    linear("part of a unit", 24, 140, .9, DISTILE_ACTIVATION_GELU, 1),
    linear("no zeros", 520, 40, 0, DISTILE_ACTIVATION_NONE, 0),
    linear("all zeros", 264, 24, 1, DISTILE_ACTIVATION_HARDSIGMOID, 0),
    linear("many units", 1160, 40, .5, DISTILE_ACTIVATION_NONE, 1),
    linear("many units, odd channels", 1283, 34, .8, DISTILE_ACTIVATION_SILU, 0),
    linear("many channels", 136, 400, .7, DISTILE_ACTIVATION_NONE, 0),
    linear("few weights", 640, 132, .98, DISTILE_ACTIVATION_LEAKY_RELU, 1),
};

}  // namespace

TEST_CASE("Launches of a bitmap of weights cover the output", "[bitmap_launches]") {
    constexpr int32_t channels = AskingCall::channels, inputs = AskingCall::inputs;
    const NonzeroCase one = linear("linear", inputs, channels, .9, DISTILE_ACTIVATION_NONE, 0);
    for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        check_launches(instruction_sets, one, "cuda-bitmap", dtype,
                       [&](const InstructionSet &set, int32_t variant, int32_t pixels, const AskedFor &asked,
                           const distile_gpu_launch &launch) {
                           const auto &blocks = set.blocks[variant];
                           CHECK(std::string(launch.kernel) == std::string("distile_bitmap_") + type_name(dtype) + "_" +
                                                                   std::to_string(blocks.pixels));
                           CHECK(launch.blocks[0] * blocks.pixels >= pixels);
                           CHECK(launch.blocks[1] * blocks.channels >= channels);
                           CHECK((launch.blocks[1] - 1) * blocks.channels < channels);
                           // Each has a unit of 128 channels.
                           CHECK(launch.blocks[2] == std::min(set.reduction_splits[variant], (inputs + 127) / 128));
                           CHECK(launch.threads[0] == 256);
                           CHECK(launch.shared_bytes == cuda_bitmap::shared_bytes);
                           if (launch.blocks[2] > 1) {
                               const uint64_t outputs = uint64_t{1} * launch.blocks[0] * launch.blocks[1];
                               CHECK(asked.scratch == outputs * launch.blocks[2] * blocks.pixels * blocks.channels * 4);
                               CHECK(asked.signals == outputs * sizeof(uint32_t));
                           }
                       });
    }
    for (const InstructionSet &set : instruction_sets) {
        check_no_kernel(set, one, "cuda-bitmap", DISTILE_FLOAT32);
    }
    // GPUs of compute capability 8.6 have this much for a block.
    CHECK(cuda_bitmap::shared_bytes <= 99 * 1024);
    for (const auto &[pixels, channels_of_block] :
         {std::pair{32, 16}, std::pair{64, 16}, std::pair{64, 32}, std::pair{48, 128}, std::pair{16, 256}}) {
        CHECK(!cuda_bitmap::has_blocks(pixels, channels_of_block));
    }
}

TEST_CASE("Variants of a bitmap of weights on a GPU compute what the plain loop computes", "[gpu_bitmap]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const InstructionSet &set : instruction_sets) {
        for (const distile_dtype dtype : {DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
            DYNAMIC_SECTION(set.name << " in " << type_name(dtype)) {
                for (NonzeroCase one : cases) {
                    one.dtype = dtype;
                    compare(gpu, set, one, "cuda-bitmap");
                }
            }
        }
    }
}

TEST_CASE("Blocks that share an output add in the same order in every call", "[gpu_bitmap]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const NonzeroCase one = linear("linear", 4096, 256, .6, DISTILE_ACTIVATION_NONE, 0);
    for (const InstructionSet &set : instruction_sets) {
        const DotProductKernel made(set, operator_of(one, "cuda-bitmap"));
        if (!can_run(gpu, made.polykernel())) {
            continue;
        }
        constexpr int32_t tokens = 50, inputs = 4096, outputs = 256;
        std::mt19937 random(3);
        std::vector<float> filter(static_cast<size_t>(inputs) * outputs);
        for (float &weight : filter) {
            weight = random() % 5 < 3 ? 0 : static_cast<float>(random() % 1000) / 1000 - .5f;
        }
        const Kernel kernel = gpu.make_kernel(made.polykernel());
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        const Weights weights = pack_weights(gpu.context, kernel, source);
        std::vector<uint16_t> input(static_cast<size_t>(tokens) * inputs);
        for (uint16_t &bits : input) {
            bits = static_cast<uint16_t>((random() & 0x83ffU) | 0x3800U);
        }
        const DeviceArray<uint16_t> from(input), to(static_cast<size_t>(tokens) * outputs);
        distile_tensor in = distile_tensor_make(from.data(), 1, 1, tokens, inputs),
                       out = distile_tensor_make(to.data(), 1, 1, tokens, outputs);
        in.dtype = out.dtype = DISTILE_FLOAT16;
        const Mask mask = gpu.make_mask();
        const DeviceArray<uint8_t> active(std::vector<uint8_t>(tokens, 1));
        set_mask(gpu, mask, active, 1, 1, tokens);
        for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
            CAPTURE(set.name, variant);
            distile_run_args args{};
            args.input = &in;
            args.output = &out;
            args.weights = weights.get();
            args.mask = mask.get();
            std::vector<uint16_t> expected;
            for (int32_t call = 0; call < 20; call++) {
                gpu.check(distile_run_variant(kernel.get(), variant, &args));
                gpu.finish();
                const std::vector<uint16_t> output = to.get();
                expected = call == 0 ? output : expected;
                REQUIRE(output == expected);
            }
        }
    }
}

TEST_CASE("A PolyKernel of a plan reads a bitmap of weights, and all of them", "[gpu_bitmap]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const distile_polykernel &polykernel = test_pruned_linear_264_72_residual_f16_bitmap;
    if (can_run(gpu, polykernel)) {
        OperatorTest test(gpu, {&polykernel, nullptr}, .7);
        run_pairwise(test);
    }
}
