// The schedules: what is recognised of an operator, the space of CUDA schedules, and that what it counts is what is
// built.
#include "Halide.h"
#include "facts/weight_layouts.h"
#include "schedules/cuda_direct_space.h"
#include "schedules/cuda_schedule.h"
#include "schedules/masked_operator.h"
#include "tests/support/catch.h"
#include "tests/tools/check_facts.h"

#include <distile/polykernel.h>

#include <map>
#include <string>

using namespace distile;

namespace {

const char *const cuda = "x86-64-linux-cuda-cuda_capability_70";

Halide::Pipeline masked_conv2d(const std::map<std::string, int> &params, const char *target,
                               const char *dtype = "float32") {
    const auto generator =
        Halide::Internal::GeneratorRegistry::create("masked_conv2d", Halide::GeneratorContext(Halide::Target(target)));
    for (const auto &[name, value] : params) {
        generator->set_generatorparam_value(name, std::to_string(value));
    }
    generator->set_generatorparam_value("dtype", dtype);
    return generator->build_pipeline();
}

Theta halo_theta() {
    return {{"tile_h", 4},          {"tile_w", 2},   {"block_pixels", 64}, {"block_channels", 64}, {"thread_pixels", 8},
            {"thread_channels", 4}, {"chunk", 4},    {"splits", 1},        {"weights_staged", 1},  {"transposed", 0},
            {"padding", 0},         {"prefetch", 0}, {"halo", 1}};
}

/** Strides 1 and 2, dilations 2 and 3. */
OperatorFacts facts() {
    OperatorFacts facts;
    facts.in_channels = 32;
    facts.out_channels = 64;
    facts.kernel_h = 3;
    facts.kernel_w = 2;
    facts.stride_w = facts.dilation_h = 2;
    facts.dilation_w = 3;
    facts.channel_block = DISTILE_CUDA_CHANNEL_BLOCK;
    return facts;
}

std::map<std::string, int> params(const OperatorFacts &facts, const Theta &theta) {
    return {{"in_channels", facts.in_channels},
            {"out_channels", facts.out_channels},
            {"kernel_h", facts.kernel_h},
            {"kernel_w", facts.kernel_w},
            {"stride_h", facts.stride_h},
            {"stride_w", facts.stride_w},
            {"dilation_h", facts.dilation_h},
            {"dilation_w", facts.dilation_w},
            {"pad_top", 2},
            {"pad_left", 0},
            {"channel_block", facts.channel_block},
            {"tile_h", theta.at("tile_h")},
            {"tile_w", theta.at("tile_w")}};
}

/** Finds the shared memory with which a pipeline launches its kernels, as its Allocates say. */
class SharedBytes : public Halide::Internal::IRMutator {
public:
    explicit SharedBytes(int *bytes) : bytes(bytes) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override {
        if (op->memory_type == Halide::MemoryType::GPUShared) {
            *bytes += op->constant_allocation_size() * op->type.bytes();
        }
        return IRMutator::visit(op);
    }

private:
    int *bytes;
};

}  // namespace

TEST_CASE("Strides and dilations are recognised, in place, staged and through windows", "[schedules]") {
    const char *const targets[] = {"x86-64-linux-avx-avx2-f16c-fma-sse41", cuda};
    const OperatorFacts expected = facts();
    for (const char *target : targets) {
        for (int tile : {1, 3}) {
            CAPTURE(target, tile);
            Theta theta = halo_theta();
            theta["tile_h"] = theta["tile_w"] = tile;
            const MaskedOperator op = recognise_masked_operator(masked_conv2d(params(expected, theta), target));
            check_facts(op, expected);
        }
    }
}

TEST_CASE("The CUDA space says why a schedule is illegal", "[schedules]") {
    const Problem problem = cuda_problem(facts());
    const auto why = [&](const Theta &changes) {
        Theta theta = halo_theta();
        for (const auto &[knob, value] : changes) {
            theta[knob] = value;
        }
        return cuda_space().why_illegal(theta, problem);
    };
    const auto says = [&](const Theta &changes, const std::string &word) {
        INFO(why(changes));
        CHECK(why(changes).find(word) != std::string::npos);
    };
    CHECK(why({}).empty());
    CHECK(why({{"halo", 0}, {"chunk", 8}}).empty());
    Theta without = halo_theta();
    without.erase("halo");
    CHECK(cuda_space().why_illegal(without, problem).find("'halo'") != std::string::npos);
    says({{"tile_w", 0}}, "at least 1");
    says({{"tile_h", 65535}, {"tile_w", 65535}}, "4096");
    // Blocks of 64 pixels hold no whole number of tiles of 3 x 2, which only matters to windows.
    says({{"tile_h", 3}}, "whole tiles");
    CHECK(why({{"tile_h", 3}, {"halo", 0}, {"chunk", 8}}).empty());
    // With windows the threads may have unequal shares; else 64 x 4 / 4 vectors are too few for 128 threads.
    says({{"halo", 0}}, "equal shares");
    says({{"chunk", 64}}, "chunk that divides");
    // 16 windows of 8 x 6 pixels, and weights of 6 positions.
    CHECK(window_height(halo_theta(), problem) == 3 + 2 * 2 + 1);
    CHECK(window_width(halo_theta(), problem) == 2 + 3 + 1);
    CHECK(staged_pixels(halo_theta(), problem) == 8 * 8 * 6);
    CHECK(why({{"chunk", 8}}).empty());
    says({{"chunk", 16}}, "48 KB");
    CHECK(why({{"chunk", 16}, {"weights_staged", 0}}).empty());
    says({{"chunk", 32}, {"weights_staged", 0}}, "48 KB");
    says({{"chunk", 8}, {"prefetch", 1}, {"thread_pixels", 16}, {"thread_channels", 8}}, "registers");
}

TEST_CASE("OpenCL has the CUDA space within the limits of lesser devices", "[schedules]") {
    const Problem opencl = opencl_problem(facts());
    CHECK(opencl.most_threads == 256);
    CHECK(opencl.most_shared_bytes == 32 << 10);
    CHECK(cuda_space().why_illegal(halo_theta(), opencl).empty());
    Problem small = opencl;
    small.most_threads = block_threads(halo_theta()) - 1;
    CHECK(cuda_space().why_illegal(halo_theta(), small).find("threads per block") != std::string::npos);
    small = opencl;
    small.most_shared_bytes = static_cast<int>(shared_bytes(halo_theta(), opencl)) - 1;
    CHECK(cuda_space().why_illegal(halo_theta(), small).find("shared memory") != std::string::npos);
}

TEST_CASE("What a block stages is counted without overflow", "[schedules]") {
    // Rows of one element with a padding of 412, for 64 channels of 1280 windows of 16 pixels: more than 2^31 bytes.
    OperatorFacts column;
    column.in_channels = 64;
    column.out_channels = column.channel_block = 32;
    column.kernel_h = 16;
    Theta theta = {{"tile_h", 1},
                   {"tile_w", 1},
                   {"block_pixels", 1280},
                   {"block_channels", 32},
                   {"thread_pixels", 32},
                   {"thread_channels", 4},
                   {"chunk", 64},
                   {"splits", 1},
                   {"weights_staged", 0},
                   {"transposed", 1},
                   {"padding", 412},
                   {"prefetch", 0},
                   {"halo", 1}};
    const Problem problem = cuda_problem(column);
    CHECK(shared_bytes(theta, problem) > int64_t{4} * 64 * 1280 * 16 * 413);
    CHECK(cuda_space().why_illegal(theta, problem).find("48 KB") != std::string::npos);

    // A tile of 16 x 16 fills a block, which then has one window, of 18 x 18. What counts are the block's windows.
    column.in_channels = column.out_channels = 64;
    column.kernel_h = column.kernel_w = 3;
    theta = halo_theta();
    theta["tile_h"] = theta["tile_w"] = 16;
    theta["block_pixels"] = 256;
    CHECK(staged_pixels(theta, cuda_problem(column)) == 18 * 18);
    CHECK(cuda_space().why_illegal(theta, cuda_problem(column)).empty());
    column.dilation_h = 2000;
    theta = halo_theta();
    CHECK(cuda_space().why_illegal(theta, cuda_problem(column)).find("65536") != std::string::npos);
}

TEST_CASE("A CUDA kernel takes the shared memory that its space counts", "[schedules]") {
    const Theta changes[] = {{},
                             {{"transposed", 1}, {"padding", 4}},
                             {{"padding", 4}, {"splits", 2}, {"prefetch", 1}},
                             {{"weights_staged", 0}, {"chunk", 8}},
                             {{"tile_w", 1}},
                             {{"tile_h", 8}, {"tile_w", 8}, {"block_channels", 32}},
                             {{"tile_h", 16}, {"tile_w", 16}, {"block_pixels", 256}},
                             {{"halo", 0}, {"chunk", 8}},
                             {{"halo", 0}, {"chunk", 8}, {"tile_h", 3}, {"transposed", 1}, {"padding", 4}}};
    const std::pair<const char *, int> types[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}};
    for (const Theta &change : changes) {
        const auto &[dtype, bytes_per_element] = types[(&change - changes) % 3];
        OperatorFacts typed = facts();
        typed.bytes_per_element = bytes_per_element;
        const Problem problem = cuda_problem(typed);
        Theta theta = halo_theta();
        for (const auto &[knob, value] : change) {
            theta[knob] = value;
        }
        Halide::Pipeline pipeline = masked_conv2d(params(facts(), theta), cuda, dtype);
        MaskedOperator op = recognise_masked_operator(pipeline);
        CHECK(op.bytes_per_element == bytes_per_element);
        const std::string source = apply_cuda_schedule(pipeline, op, cuda_problem(op), theta);
        CAPTURE(source, dtype);
        int bytes = 0;
        // The pipeline owns its passes.
        pipeline.add_custom_lowering_pass(new SharedBytes(&bytes));  // NOLINT(cppcoreguidelines-owning-memory)
        pipeline.compile_to_module(pipeline.infer_arguments(), "kernel", Halide::Target(cuda));
        // Halide may put what is staged where the look-ups were.
        CHECK(bytes <= shared_bytes(theta, problem));
        CHECK(bytes >= shared_bytes(theta, problem) - 8 * looked_up_tiles(theta, problem));
    }
}

TEST_CASE("The space of schedules without staging is that of depthwise convolutions and small groups", "[schedules]") {
    OperatorFacts op = facts();
    CHECK_FALSE(runs_direct(op));
    op.groups = 2;
    CHECK_FALSE(runs_direct(op));
    op.groups = 4;
    CHECK(runs_direct(op));
    // Groups of more than half a block are padded to whole blocks, of 20 channels as much as of 40.
    for (const int channels : {20, 40}) {
        op.out_channels = 4 * channels;
        CHECK_FALSE(runs_direct(op));
        CHECK(padded_channels(op) == 4 * round_up(channels, 32));
    }
    op = facts();
    op.depthwise = true;
    op.in_channels = 1;
    op.groups = op.out_channels;
    CHECK(runs_direct(op));
    const Problem problem = cuda_problem(op);
    const auto why = [&](const Theta &changes) {
        Theta theta = {{"tile_h", 1},        {"tile_w", 1},          {"block_pixels", 16}, {"block_channels", 64},
                       {"thread_pixels", 2}, {"thread_channels", 4}, {"unroll", 2}};
        for (const auto &[knob, value] : changes) {
            theta[knob] = value;
        }
        return cuda_direct_space().why_illegal(theta, problem);
    };
    const auto says = [&](const Theta &changes, const std::string &word) {
        INFO(why(changes));
        CHECK(why(changes).find(word) != std::string::npos);
    };
    CHECK(why({}).empty());
    says({{"tile_h", 65535}, {"tile_w", 65535}}, "4096");
    says({{"thread_channels", 6}}, "whole vectors");
    says({{"thread_pixels", 3}}, "divide");
    says({{"block_channels", 128}}, "beyond");
    says({{"block_pixels", 2}}, "32 to 1024");
    says({{"block_pixels", 64}, {"thread_pixels", 32}, {"unroll", 0}}, "64 sums");
    says({{"unroll", 3}}, "0 to 2");
    // 6 taps of 8 pixels.
    says({{"thread_pixels", 8}, {"block_pixels", 64}}, "40 unrolled");
    CHECK(why({{"thread_pixels", 8}, {"block_pixels", 64}, {"unroll", 1}}).empty());
}
