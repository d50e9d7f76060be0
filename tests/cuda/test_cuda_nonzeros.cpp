// Code for GPUs that multiplies with the nonzero weights alone, against the plain loops. It reads the operator at run
// time, so these PolyKernels are written here; nothing is generated.
#include "kernels/dot_products.h"
#include "tests/cuda/operator_launches.h"
#include "tests/support/catch.h"
#include "tests/support/nonzero_cases.h"
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace distile;
using namespace distile::gpu_operator;

namespace {

/** Variants of blocks of three sizes, and tiles of as many. */
InstructionSet nonzeros_of_gpu(const char *name, int32_t channels) {
    return {name, "sm_80",      distile_call_cuda_nonzeros, {{32, channels}, {64, channels}, {128, channels}},
            true, DISTILE_CUDA, {{1, 1}, {2, 3}, {1, 8}},   {1, 4, 2}};
}

const InstructionSet instruction_sets[] = {nonzeros_of_gpu("16 channels", 16), nonzeros_of_gpu("32 channels", 32),
                                           nonzeros_of_gpu("64 channels", 64), nonzeros_of_gpu("128 channels", 128)};

// What blocks of a GPU cut otherwise than those of a CPU.
const NonzeroCase more_cases[] = {
    {"many chunks and blocks",
     DISTILE_MASKED_CONV2D,
     {640, 272, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_RELU, 1},
     .9},
    {"chunks that begin within a tap",
     DISTILE_MASKED_CONV2D,
     {44, 136, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     .8},
    {"full batches of weights",
     DISTILE_MASKED_LINEAR,
     {520, 40, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
     0},
    {"narrow groups",
     DISTILE_MASKED_CONV2D,
     {36, 60, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 1},
     .5},
    {"groups that share a section",
     DISTILE_MASKED_CONV2D,
     {24, 24, 6, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_SIGMOID, 0},
     .5},
    {"one channel of each group",
     DISTILE_MASKED_CONV2D,
     {40, 40, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 1},
     .5},
};

template<typename Function> void for_each_case(const Function &function) {
    for (const NonzeroCase &one : nonzero_cases) {
        function(one);
    }
    for (const NonzeroCase &one : more_cases) {
        function(one);
    }
}

}  // namespace

TEST_CASE("Launches of nonzero weights cover the output", "[nonzero_launches]") {
    constexpr int32_t channels = AskingCall::channels, inputs = AskingCall::inputs;
    const NonzeroCase one = {"1x1",
                             DISTILE_MASKED_CONV2D,
                             {inputs, channels, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
                             .9};
    check_launches(instruction_sets, one, "cuda-nonzeros", DISTILE_FLOAT32,
                   [&](const InstructionSet &set, int32_t variant, int32_t pixels, const AskedFor &asked,
                       const distile_gpu_launch &launch) {
                       CHECK(launch.blocks[0] * set.blocks[variant].pixels >= pixels);
                       CHECK(launch.blocks[1] * set.blocks[variant].channels >= channels);
                       CHECK(launch.blocks[2] == set.reduction_splits[variant]);
                       if (launch.blocks[2] > 1) {
                           const uint64_t outputs = uint64_t{1} * launch.blocks[0] * launch.blocks[1];
                           CHECK(asked.scratch >= outputs * launch.blocks[2] * launch.threads[0] * 16);
                           CHECK(asked.signals >= outputs * sizeof(uint32_t));
                       }
                   });
    InstructionSet other = instruction_sets[0];
    other.blocks[0].pixels = 48;
    const DotProductKernel kernel(other, operator_of(one, "cuda-nonzeros"));
    const AskingCall asking(DISTILE_FLOAT32);
    CHECK(kernel.polykernel().variants[0].run(&asking.call) != 0);
    CHECK(asking.asked.message.find("no kernel") != std::string::npos);
}

TEST_CASE("Variants of nonzero weights on a GPU compute what the plain loop computes", "[gpu_nonzeros]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const InstructionSet &set : instruction_sets) {
        DYNAMIC_SECTION(set.name) {
            for_each_case([&](const NonzeroCase &one) { compare(gpu, set, one, "cuda-nonzeros"); });
        }
    }
}

TEST_CASE("Weights that are 0 leave out what they would multiply on a GPU", "[gpu_nonzeros]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    constexpr int32_t channels = 20;
    const NonzeroCase one = {"linear",
                             DISTILE_MASKED_LINEAR,
                             {channels, channels, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, DISTILE_ACTIVATION_NONE, 0},
                             0};
    for (const InstructionSet &set : instruction_sets) {
        const DotProductKernel made(set, operator_of(one, "cuda-nonzeros"));
        if (!can_run(gpu, made.polykernel())) {
            continue;
        }
        const Kernel kernel = gpu.make_kernel(made.polykernel());
        // Output channel o reads input channel o alone.
        std::vector<float> filter(channels * channels);
        for (size_t o = 0; o < channels; o++) {
            filter[o * (channels + 1)] = 2;
        }
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        const Weights weights = pack_weights(gpu.context, kernel, source);
        std::vector<float> input(channels, 1.0f);
        input[3] = std::numeric_limits<float>::infinity();
        input[5] = std::numeric_limits<float>::quiet_NaN();
        const DeviceArray<float> from(input), to(input);
        const distile_tensor in = distile_tensor_make(from.data(), 1, 1, 1, channels),
                             out = distile_tensor_make(to.data(), 1, 1, 1, channels);
        const Mask mask = gpu.make_mask();
        const DeviceArray<uint8_t> active(std::vector<uint8_t>{1});
        set_mask(gpu, mask, active, 1, 1, 1);
        for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
            distile_run_args args{};
            args.input = &in;
            args.output = &out;
            args.weights = weights.get();
            args.mask = mask.get();
            gpu.check(distile_run_variant(kernel.get(), variant, &args));
            gpu.finish();
            const std::vector<float> output = to.get();
            for (size_t o = 0; o < channels; o++) {
                CAPTURE(set.name, variant, o, output[o]);
                CHECK((o == 5 ? std::isnan(output[o]) : output[o] == 2 * input[o]));
            }
        }
    }
}
