// The bound of CPUs and of GPUs without tensor cores, on examples worked by hand.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/rank.h"
#include "tests/support/catch.h"
#include "tests/tools/bound_cases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

using namespace distile;
using nlohmann::json;

namespace {

std::vector<int> strided(int stride) {
    std::vector<int> addresses(32);
    for (int thread = 0; thread < 32; thread++) {
        addresses[thread] = thread * stride;
    }
    return addresses;
}

}  // namespace

TEST_CASE("Transactions are counted by the rows that they cover", "[bound]") {
    // The paper's example: a 4 x 8 tile of a row-major 16 x 16 matrix, in transactions of 32 elements.
    CHECK(memory_transactions(4, 8, 16, 32) == 2);
    // In a wide matrix every row of the tile takes its own.
    CHECK(memory_transactions(4, 8, 1024, 32) == 4);
    CHECK(memory_transactions(4, 48, 1024, 32) == 8);
    // Whole rows are contiguous.
    CHECK(memory_transactions(16, 16, 16, 32) == 8);
    // Sectors of 8 elements.
    CHECK(memory_transactions(4, 8, 16, 8) == 4);
    CHECK(memory_transactions(4, 16, 64, 8) == 8);
    CHECK(memory_transactions(1, 1, 1, 8) == 1);
}

TEST_CASE("Occupancy is limited by each resource in turn", "[bound]") {
    DeviceProfile device = simple_gpu();
    device.max_blocks = 32;
    CHECK(occupancy(device, 256, 32, 1024) == 8);      // 2048 threads
    CHECK(occupancy(device, 256, 128, 1024) == 2);     // 65536 registers
    CHECK(occupancy(device, 256, 32, 70 << 10) == 2);  // 200 KB of shared memory
    CHECK(occupancy(device, 32, 16, 1024) == 32);      // blocks
    CHECK(occupancy(device, 1024, 255, 1024) == 0);    // a block that cannot run
    CHECK(occupancy(device, 512, 32, 0) == 4);
}

TEST_CASE("Bank conflicts are counted over the addresses of a warp", "[bound]") {
    const std::pair<int, int> passes_by_stride[] = {{0, 1}, {1, 1}, {2, 2}, {3, 1}, {4, 4}, {32, 32}, {33, 1}, {36, 4}};
    for (const auto &[stride, passes] : passes_by_stride) {
        CAPTURE(stride);
        CHECK(shared_passes(strided(stride).data(), 32, 1, 32) == passes);
    }
    // Vectors of 4 words: 32 of them side by side fill 4 passes; rows of 36 words lie apart in the banks, rows of 32
    // all in the same.
    CHECK(shared_passes(strided(4).data(), 32, 4, 32) == 4);
    CHECK(shared_passes(strided(36).data(), 8, 4, 32) == 1);
    CHECK(shared_passes(strided(32).data(), 8, 4, 32) == 8);
    // Threads that read the same word get it in the same pass.
    std::vector<int> pairs = strided(1);
    for (int thread = 0; thread < 32; thread++) {
        pairs[thread] = thread / 2;
    }
    CHECK(shared_passes(pairs.data(), 32, 1, 32) == 1);
}

TEST_CASE("An input's footprint is its window, every byte once", "[bound]") {
    Workload workload = workload_of(make_operator({{"in_channels", 2}, {"out_channels", 16}}, 10, 20), simple_cpu());
    const auto bytes = [&](int tile_h, int tile_w, double pixels) {
        return input_footprint(workload, tile_h, tile_w, pixels) / (2 * 4);
    };
    CHECK(bytes(1, 1, 1) == 3 * 3);
    CHECK(bytes(1, 1, 2) == 3 * 4);
    CHECK(bytes(2, 2, 4) == 4 * 4);
    CHECK(bytes(2, 2, 8) == 4 * 6);
    // A part of a tile fills its first rows.
    CHECK(bytes(4, 4, 2) == 3 * 4);
    CHECK(bytes(4, 4, 8) == 4 * 6);
    // Rows of tiles as wide as the image, one under the other, up to all of it.
    CHECK(bytes(1, 1, 20) == 3 * 22);
    CHECK(bytes(1, 1, 40) == 4 * 22);
    CHECK(bytes(1, 1, 200) == 12 * 22);
    CHECK(bytes(1, 1, 4000) == 12 * 22);
    // With strides beyond the kernel nothing lies between the pixels.
    json params = point_params(2, 16);
    params["stride_h"] = params["stride_w"] = 2;
    workload = workload_of(make_operator(params), simple_cpu());
    CHECK(bytes(1, 1, 3) == 3);
}

TEST_CASE("Groups read all channels of the input and compute with their own", "[bound]") {
    json params = point_params(16, 32);
    const Workload whole = workload_of(make_operator(params, 4, 4), simple_cpu());
    params["groups"] = 2;
    const Workload grouped = workload_of(make_operator(params, 4, 4), simple_cpu());
    CHECK(input_footprint(grouped, 1, 1, 16) == input_footprint(whole, 1, 1, 16));
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1},         {"pixels", 2}, {"channels", 16},
                         {"group", 2},  {"channel_splits", 1}, {"order", 0},  {"unroll", 1}};
    const Bound of_whole = bound(whole, theta, 16), of_grouped = bound(grouped, theta, 16);
    for (const char *name : {"operations", "loads", "panel_bytes", "task_weight_bytes"}) {
        CAPTURE(name);
        CHECK(of_grouped.terms.at(name) == of_whole.terms.at(name) / 2);
    }
    CHECK(of_grouped.terms.at("task_input_bytes") == of_whole.terms.at("task_input_bytes"));
}

TEST_CASE("The bound counts what fills the blocks of groups, and a sum for each diagonal", "[bound]") {
    json params = point_params(48, 48);
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1},         {"pixels", 2}, {"channels", 16},
                         {"group", 2},  {"channel_splits", 1}, {"order", 0},  {"unroll", 1}};
    params["groups"] = 2;
    const Workload padded = workload_of(make_operator(params, 4, 4), simple_cpu());
    // Groups of 24 channels are multiplied as 32.
    json whole = point_params(48, 64);
    whole["groups"] = 2;
    const Workload filled = workload_of(make_operator(whole, 4, 4), simple_cpu());
    for (const char *name : {"operations", "loads", "task_weight_bytes"}) {
        CAPTURE(name);
        CHECK(bound(padded, theta, 16).terms.at(name) == bound(filled, theta, 16).terms.at(name));
    }

    // On a GPU too: groups of 24 channels as 32.
    const Theta staged = {
        {"tile_h", 1},          {"tile_w", 1},   {"block_pixels", 64}, {"block_channels", 32}, {"thread_pixels", 4},
        {"thread_channels", 8}, {"chunk", 8},    {"splits", 1},        {"weights_staged", 1},  {"transposed", 1},
        {"padding", 4},         {"prefetch", 1}, {"halo", 0}};
    const Bound on_gpu = bound(workload_of(make_operator(params, 4, 4), simple_gpu()), staged, 64);
    const Bound filled_on_gpu = bound(workload_of(make_operator(whole, 4, 4), simple_gpu()), staged, 64);
    CHECK(on_gpu.terms.at("blocks") == 2);
    CHECK(on_gpu.terms.at("operations") == filled_on_gpu.terms.at("operations"));

    // Groups of 4 channels side by side: as a depthwise convolution, but with 4 sums for every input.
    const auto read = [](const char *generator, const json &of_generator) {
        return workload_of(parse_operator({{"distile_operator", 1},
                                           {"name", "beside"},
                                           {"generator", generator},
                                           {"params", of_generator},
                                           {"typical", {{"batch", 1}, {"height", 4}, {"width", 4}}}},
                                          "here"),
                           simple_cpu());
    };
    const Theta depthwise_theta = {{"tile_h", 1},   {"tile_w", 1}, {"pixels", 2},
                                   {"channels", 8}, {"tasks", 2},  {"unroll", 1}};
    const Bound of_groups =
        bound(read("masked_conv2d", {{"in_channels", 40}, {"out_channels", 40}, {"groups", 10}}), depthwise_theta, 16);
    const Bound of_depthwise = bound(read("masked_depthwise_conv2d", {{"channels", 40}}), depthwise_theta, 16);
    for (const char *name : {"operations", "sums", "weight_bytes"}) {
        CAPTURE(name);
        CHECK(of_groups.terms.at(name) == 4 * of_depthwise.terms.at(name));
    }
    // 108 steps load the inputs of 2 pixels and the weights of 4 diagonals.
    CHECK(of_groups.terms.at("loads") == 108 * (2 + 4));
    CHECK(of_groups.us > of_depthwise.us);
}

/** On a CPU the terms of a bound overlap in part. */
double norm_of_times(const Bound &bound) {
    double sum = 0;
    for (const auto &[name, value] : bound.terms) {
        sum += name.rfind("t_", 0) == 0 ? std::pow(value, 4) : 0;
    }
    return std::pow(sum, .25);
}
TEST_CASE("The bound of a depthwise convolution is as worked by hand", "[bound]") {
    const Operator op = parse_operator({{"distile_operator", 1},
                                        {"name", "depthwise"},
                                        {"generator", "masked_depthwise_conv2d"},
                                        {"params", {{"channels", 40}}},
                                        {"typical", {{"batch", 1}, {"height", 4}, {"width", 4}}}},
                                       "here");
    const Workload workload = workload_of(op, simple_cpu());
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 2}, {"channels", 16}, {"tasks", 2}, {"unroll", 1}};
    const Bound result = bound(workload, theta, 16);
    const auto term = [&](const char *name) { return result.terms.at(name); };
    // 16 pixels are 8 register tiles, 2 for each of the 2 tasks of each of the 2 threads.
    CHECK(term("tasks") == 4);
    CHECK(term("rounds") == 2);
    CHECK(term("register_tiles") == 2);
    // A task: 2 register tiles x 3 groups of 16 channels x 9 taps are 54 steps, each of 2 pixels x 2 vectors.
    CHECK(term("operations") == 216);
    CHECK(term("t_fma") == Approx(2 * (.216 + .5)));
    CHECK(term("t_dependence") == Approx(2 * 54 * 4 * .001));
    // A step loads an input for every sum, and weights for all pixels, and spends 2 cycles on the address of a pixel.
    CHECK(term("t_load") == Approx(2 * 54 * (4 + 2 + 2 * 2) * .001));
    // With a row unrolled, 3 taps an iteration.
    CHECK(term("t_loop") == Approx(2 * 18 * 2 * .001));
    CHECK(term("t_L1") == Approx(2 * 54 * 6 * 32 / 100e3));
    // 9 taps of 48 channels, with the padding of the last block, do not stay in 1024 bytes: every register tile reads
    // them again. A task of 4 pixels reads windows of 3 x 6 pixels of 40 channels, and writes 4 pixels.
    CHECK(term("weight_bytes") == 9 * 48 * 4);
    CHECK(term("task_input_bytes") == 3 * 6 * 40 * 4);
    CHECK(term("t_L2") == Approx((2 * 2 * 1728 + 2 * (2880 + 4 * 40 * 4)) / 10e3));
    CHECK(term("t_DRAM") == 0);
    CHECK(result.us == Approx(2 + norm_of_times(result)));
}

TEST_CASE("The bound of phases is that of one of them, as often as there are phases", "[bound]") {
    // Without overlap each of the 2 x 3 phases of a transposed convolution is a 1x1 convolution of the input.
    json params = point_params(32, 64);
    const Workload point = workload_of(make_operator(params, 10, 12), simple_cpu());
    params.update({{"kernel_h", 2}, {"kernel_w", 3}, {"stride_h", 2}, {"stride_w", 3}});
    const Operator op = parse_operator({{"distile_operator", 1},
                                        {"name", "transposed"},
                                        {"generator", "masked_conv_transpose2d"},
                                        {"params", params},
                                        {"typical", {{"batch", 1}, {"height", 10}, {"width", 12}}}},
                                       "here");
    const Workload transposed = workload_of(op, simple_cpu());
    CHECK(transposed.height == 20);
    CHECK(transposed.width == 36);
    Theta theta = {{"tile_h", 2}, {"tile_w", 1},         {"pixels", 4}, {"channels", 16},
                   {"group", 3},  {"channel_splits", 1}, {"order", 0},  {"unroll", 4}};
    for (int64_t tiles : {1, 7, 60}) {
        theta["tile_h"] = 2;
        theta["tile_w"] = 1;
        const Bound one = bound(point, theta, tiles);
        theta["tile_h"] = 4;
        theta["tile_w"] = 3;
        const Bound all = bound(transposed, theta, tiles);
        CAPTURE(tiles);
        REQUIRE(one.terms.size() == all.terms.size());
        for (const auto &[name, value] : one.terms) {
            CAPTURE(name);
            CHECK(all.terms.at(name) == Approx(name.rfind("t_", 0) == 0 ? 6 * value : value));
        }
        CHECK(all.us - one.terms.at("launch_us") == Approx(6 * (one.us - one.terms.at("launch_us"))));
    }
}

TEST_CASE("Every kind of operator is ranked on a GPU, in the space of its own", "[rank]") {
    for (const json &file : {json{{"generator", "masked_conv2d"}, {"params", {{"groups", 4}}}},
                             json{{"generator", "masked_depthwise_conv2d"}, {"params", json::object()}},
                             json{{"generator", "masked_conv_transpose2d"}, {"params", {{"stride_w", 2}}}},
                             json{{"generator", "masked_upsample_conv2d"}, {"params", json::object()}}}) {
        json op = {{"distile_operator", 1}, {"name", "grouped"}};
        op.update(file);
        const Workload workload = workload_of(parse_operator(op, "here"), simple_gpu());
        const Space &space = space_of("cuda", workload.problem);
        CAPTURE(op.dump());
        CHECK((&space == &space_of("cuda")) == (workload.problem.groups == 1));
        RankOptions options;
        options.keep = 0;
        options.per_bucket = 1;
        options.held = {{"tile_h", 2}, {"tile_w", 2}};
        const Theta best = rank(workload, {density_bucket(workload, .3)}, options).kept.front().theta;
        CHECK(space.why_illegal(best, workload.problem).empty());
        // Twice the tiles take longer, and never less than their bytes.
        const Bound few = bound(workload, best, 200), many = bound(workload, best, 400);
        CHECK(few.us > 0);
        CHECK(many.us >= few.us);
        CHECK(many.terms.at("unique_bytes") > few.terms.at("unique_bytes"));
    }
}

TEST_CASE("The bound on a CPU is as worked by hand", "[bound]") {
    const Workload workload = workload_of(make_operator(point_params(16, 16), 4, 4), simple_cpu());
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1},         {"pixels", 2}, {"channels", 16},
                         {"group", 2},  {"channel_splits", 1}, {"order", 0},  {"unroll", 1}};
    const Bound result = bound(workload, theta, 16);
    const auto term = [&](const char *name) { return result.terms.at(name); };
    // 16 pixels are 8 register tiles, 4 for each of the 2 threads, which with 2 a task makes 4 tasks in 2 rounds.
    CHECK(term("tasks") == 4);
    CHECK(term("rounds") == 2);
    CHECK(term("register_tiles") == 2);
    CHECK(term("idle") == 0);
    // A task: 2 register tiles x 16 channels are 32 steps, each of 2 pixels x 2 vectors.
    CHECK(term("operations") == 128);
    // Beside them, each register tile finds and stores 2 pixels.
    CHECK(term("t_fma") == Approx(2 * (.128 + 2 * 2 * .020 + .5)));
    CHECK(term("t_dependence") == Approx(2 * 32 * 4 * .001));
    CHECK(term("t_load") == Approx(2 * 32 * (2 + 2) * .001));
    CHECK(term("t_store") == 0);
    // A step has 4 multiply-adds and 4 loads.
    CHECK(term("t_decode") == Approx(2 * 32 * 8 / 6. * .001));
    CHECK(term("t_loop") == Approx(2 * 32 * 2 * .001));
    // A step loads 2 vectors of 32 bytes and 2 numbers of 4 bytes from the first level.
    CHECK(term("t_L1") == Approx(2 * 32 * (64 + 8) / 100e3));
    // 1024 bytes of weights and the inputs do not both fit 1024 bytes, so that each register tile reads them again;
    // a task of 4 pixels reads 256 bytes and writes 256.
    CHECK(term("t_L2") == Approx(2 * (2 * 1024 + 256 + 256) / 10e3));
    // All of it stays in the second level.
    CHECK(term("t_DRAM") == 0);
    CHECK(result.us == Approx(2 + norm_of_times(result)));
    CHECK(result.sum() == Approx(term("t_fma") + term("t_dependence") + term("t_load") + term("t_decode") +
                                 term("t_loop") + term("t_L1") + term("t_L2")));

    // With a larger first level the weights are read once.
    Workload roomy = workload;
    roomy.device.memory[0].bytes = 1500;
    CHECK(bound(roomy, theta, 16).terms.at("t_L2") == Approx((1024 + 2 * (256 + 256)) / 10e3));
    roomy.device.memory[0].bytes = 4096;
    CHECK(bound(roomy, theta, 16).terms.at("t_L2") == 0);
    // One pixel is a task of its own, and the other thread idles.
    CHECK(bound(workload, theta, 1).terms.at("tasks") == 1);
    CHECK(bound(workload, theta, 1).terms.at("idle") == .5);
}

TEST_CASE("Cores share the bandwidth of shared levels", "[bound]") {
    // A second level of 8 KB for each core; 64 KB for all, at 16 GB/s for all.
    Workload workload = workload_of(make_operator(point_params(64, 64), 16, 16), simple_cpu());
    workload.device.cores = workload.threads = 16;
    workload.device.memory = {{"L1", 1024, false, 100, 64, 1},
                              {"L2", 8192, false, 10, 64, 4},
                              {"L3", 1 << 16, true, 16, 64, 20},
                              {"DRAM", 0, true, 4, 64, 100}};
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1},         {"pixels", 2}, {"channels", 16},
                         {"group", 8},  {"channel_splits", 1}, {"order", 0},  {"unroll", 1}};
    Bound result = bound(workload, theta, 256);
    const auto term = [&](const char *name) { return result.terms.at(name); };
    // 128 register tiles for 4 shares of each thread: 64 tasks of 4 pixels and all channels, in 4 rounds.
    CHECK(term("tasks") == 64);
    CHECK(term("rounds") == 4);
    // A task reads 16 KB of weights, which stay in no level of a core, and 1 KB of inputs, and writes 1 KB. Without
    // room for a panel of 4 KB, each of its 2 register tiles reads the weights again and each of 4 panels the inputs.
    CHECK(term("t_L2") == Approx(4 * (2 * 16384 + 4 * 1024 + 1024) / 10e3));
    // In the second level a panel and the inputs stay. A core has a sixteenth of the third level's bandwidth.
    CHECK(term("t_L3") == Approx(4 * (16384 + 1024 + 1024) / 1e3));
    // Weights, inputs and outputs, each once for all cores, do not fit the third level.
    CHECK(term("t_DRAM") == Approx((16384 + 65536 + 65536) / 4e3));

    // Four threads, of 16 tasks with 16 pixels: each has a quarter of the third level, and DRAM is as fast as before.
    workload.threads = 4;
    result = bound(workload, theta, 256);
    CHECK(term("tasks") == 16);
    CHECK(term("t_L3") == Approx(4 * (16384 + 4096 + 4096) / 4e3));
    CHECK(term("t_DRAM") == Approx((16384 + 65536 + 65536) / 4e3));
}

TEST_CASE("Few pixels on many threads divide the output channels first", "[rank]") {
    Workload workload = workload_of(conv3x3_256(), generic_device_profile("generic_avx512"));
    const double all_weights = 256. * 9 * 256 * 4;
    const auto best = [&](int threads, double density) {
        workload.device.cores = workload.threads = threads;
        const Bucket bucket = density_bucket(workload, density);
        const Theta theta = rank(workload, {bucket}).kept.front().theta;
        return bound(workload, theta, bucket.tiles(theta.at("tile_h"), theta.at("tile_w")));
    };
    for (const int threads : {16, 64}) {
        CAPTURE(threads);
        // 8 pixels. A thread that read all weights would wait for its share of the third level.
        const Bound few = best(threads, .005), many = best(threads, 1);
        CHECK(few.terms.at("task_weight_bytes") <= all_weights / 8);
        CHECK(few.terms.at("tasks") >= 16);
        CHECK(few.terms.at("tasks") * few.terms.at("task_weight_bytes") <= 4 * all_weights);
        // More pixels need no smaller parts.
        CHECK(many.terms.at("task_weight_bytes") >= few.terms.at("task_weight_bytes"));
        CHECK(many.terms.at("tasks") >= threads);
    }
    CHECK(best(1, .005).terms.at("task_weight_bytes") == all_weights);
    // Dot products.
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const Operator op = make_operator({{"in_channels", 256}, {"out_channels", 256}, {"dtype", "bfloat16"}});
    workload = workload_of(op, device, {halide_target(device) + "-amx_bf16", Math::Float32});
    CHECK(best(16, .005).terms.at("tasks") >= 8);
    CHECK(best(1, .005).terms.at("tasks") == 1);
}

TEST_CASE("The bound on a CPU knows what does not fit the registers and the cache of instructions", "[bound]") {
    Workload workload = workload_of(conv3x3_256(), simple_cpu());
    Theta theta = {{"tile_h", 1}, {"tile_w", 1},         {"pixels", 4}, {"channels", 16},
                   {"group", 1},  {"channel_splits", 1}, {"order", 0},  {"unroll", 1}};
    const auto term = [&](const char *name) { return bound(workload, theta, 1).terms.at(name); };
    // One task: a register tile of 4 pixels x 2 vectors for each of 16 groups of channels.
    const double steps = 16 * 256 * 9;
    CHECK(term("t_load") == Approx(steps * (2 + 4) * .001));
    // With a row unrolled there are 12 pointers for 10 registers: a sixth of them is loaded for every broadcast.
    theta["order"] = 2;
    CHECK(term("t_load") == Approx(steps * (2 + 4 + 4 / 6.) * .001));
    // 4 unrolled channels load 4 vectors ahead; beside 8 sums and 2 weights there are registers for 6.
    theta["order"] = 0;
    theta["unroll"] = 4;
    CHECK(term("t_store") == 0);
    // 5 pixels leave 4; 6 leave 2.
    theta["pixels"] = 5;
    CHECK(term("t_store") == 0);
    theta["pixels"] = 6;
    CHECK(term("t_store") == Approx(steps * 3 * 2 * .001));
    CHECK(term("t_load") == Approx(steps * (2 + 6 + 3 * 2) * .001));
    // 32 instructions a step: 128 fit the cache of instructions, 512 still do, more are decoded every time.
    CHECK(term("t_decode") == Approx(steps * (12 + 2 + 6 + 12) / 6. * .001));
    theta["pixels"] = 4;
    theta["unroll"] = 16;
    CHECK(term("t_decode") == Approx(steps * (8 + 2 + 4 + 2 * 3 * 1) / 6. * .001));
    theta["unroll"] = 32;
    CHECK(term("t_decode") == Approx(steps * (8 + 2 + 4 + 2 * 3 * 2.5) / 3. * .001));
}

TEST_CASE("The bound on a GPU is as worked by hand", "[bound]") {
    const Workload workload = workload_of(make_operator(point_params(32, 32), 8, 8), simple_gpu());
    const Theta theta = {
        {"tile_h", 1},          {"tile_w", 1},   {"block_pixels", 32}, {"block_channels", 32}, {"thread_pixels", 4},
        {"thread_channels", 4}, {"chunk", 8},    {"splits", 1},        {"weights_staged", 1},  {"transposed", 1},
        {"padding", 0},         {"prefetch", 0}, {"halo", 0}};
    const Bound paper = bound(workload, theta, 64, BoundForm::Paper);
    // 64 pixels are 2 blocks of 64 threads, which take 4 steps of 8 channels.
    CHECK(paper.terms.at("blocks") == 2);
    CHECK(paper.terms.at("threads") == 64);
    CHECK(paper.terms.at("steps") == 4);
    CHECK(paper.terms.at("resident") == 4);
    CHECK(paper.terms.at("rounds") == 1);
    // (8): a step takes a transaction for each of 32 pixels and 8 for the weights; the output's rows are contiguous.
    CHECK(paper.terms.at("transactions") == 4 * (32 + 8) + 32);
    CHECK(paper.terms.at("t_global") == Approx(4 * 32 * 192 * 2 / 100e3));
    // (10): a warp's 4 x 8 threads read 16 inputs and 32 weights a channel, a pass each, in 2 warps. They store 2
    // vectors a pixel, word by word into columns that meet in the banks; the weights' 2 x 4 passes meet nothing.
    CHECK(paper.terms.at("t_shared") == Approx(4 * 4 * (8 * 2 * 2 + 2 * 8 + 2 * 4) * 128 / 1e6));
    // (11): 512 multiply-adds a thread, in the 8 warps of 4 blocks.
    CHECK(paper.terms.at("operations") == 512);
    CHECK(paper.terms.at("t_compute") == Approx(.001 * 512 * 8 + 1));
    CHECK(paper.us == Approx(.001 * 512 * 8 + 1));

    const Bound corrected = bound(workload, theta, 64);
    // A block for each multiprocessor, whose warps take two of its four parts. A warp also issues its loads of inputs
    // and weights, its copies into shared memory, and 8 operations a step of its own.
    CHECK(corrected.terms.at("t_compute") == Approx(.001 * (512 + 4 * (16 + 4 + 8)) * 4 + 1));
    CHECK(corrected.terms.at("t_shared") == Approx(paper.terms.at("t_shared") / 4));
    // Every byte once from memory: 64 x 32 inputs, 32 x 32 weights and 64 x 32 outputs.
    CHECK(corrected.terms.at("t_global") == Approx(4 * (2048 + 1024 + 2048) / 100e3));
    // In sectors of 8: 32 pixels x 1, 256 weights, and the output's rows.
    CHECK(corrected.terms.at("transactions") == 4 * (32 + 32) + 128);
    CHECK(corrected.terms.at("t_L2") == Approx(4 * 8 * 384 * 2 / 200e3));
    // The steps wait for the second level, and compute after that unless they prefetch.
    CHECK(corrected.terms.at("t_latency") == Approx(4 * (.2 + .001 * 8 * 16 * 4)));
    Theta ahead = theta;
    ahead["prefetch"] = 1;
    CHECK(bound(workload, ahead, 64).terms.at("t_latency") == Approx(4 * .2));
    // A reduction in two parts is added up by a second kernel.
    Theta split = theta;
    split["splits"] = 2;
    const Bound halves = bound(workload, split, 64);
    CHECK(halves.terms.at("blocks") == 4);
    CHECK(halves.terms.at("steps") == 2);
    CHECK(halves.terms.at("launch_us") == 4);
    // Pixels whose channels are contiguous, 8 floats apart, meet in the banks; rows of 12 meet less.
    Theta plain = theta;
    plain["transposed"] = 0;
    const double unpadded = bound(workload, plain, 64).terms.at("t_shared");
    plain["padding"] = 4;
    CHECK(bound(workload, plain, 64).terms.at("t_shared") < unpadded);
}

TEST_CASE("With windows a GPU's block reads what its pixels share once", "[bound]") {
    // 3 x 3, of which a tile of 4 x 4 reads a window of 6 x 6.
    const Workload workload =
        workload_of(make_operator({{"in_channels", 32}, {"out_channels", 32}}, 8, 8), simple_gpu());
    Theta theta = {
        {"tile_h", 4},          {"tile_w", 4},   {"block_pixels", 32}, {"block_channels", 32}, {"thread_pixels", 4},
        {"thread_channels", 4}, {"chunk", 8},    {"splits", 1},        {"weights_staged", 1},  {"transposed", 0},
        {"padding", 0},         {"prefetch", 0}, {"halo", 0}};
    const Bound apart = bound(workload, theta, 4, BoundForm::Paper);
    theta["halo"] = 1;
    const Bound windows = bound(workload, theta, 4, BoundForm::Paper);
    CHECK(apart.terms.at("steps") == 4 * 9);
    CHECK(windows.terms.at("steps") == 4);
    // 32 pixels at each of 9 positions, or 2 windows of 36 pixels; the weights and the output are the same.
    CHECK(apart.terms.at("transactions") == 4 * 9 * (32 + 8) + 32);
    CHECK(windows.terms.at("transactions") == 4 * (2 * 36 + 9 * 8) + 32);
    CHECK(windows.terms.at("operations") == apart.terms.at("operations"));
    CHECK(windows.terms.at("shared_bytes") > apart.terms.at("shared_bytes"));
}
