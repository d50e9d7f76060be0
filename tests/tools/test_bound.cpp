// Device profiles, the points of a space, the bound on examples worked by hand, and the ranking by it.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/measure/calibrate.h"
#include "autoscheduler/search/mask_set.h"
#include "schedules/dot_product_space.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

using namespace distile;
using nlohmann::json;

namespace {

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

/** What a function throws as a FileError, which must name `words`. */
template<typename Function> void refuse(const Function &function, const std::vector<std::string> &words) {
    std::string message = "(nothing was thrown)";
    try {
        function();
    } catch (const FileError &error) {
        message = error.what();
    }
    INFO("the message is: " << message);
    for (const std::string &word : words) {
        CHECK(contains(message, word));
    }
    CHECK(message.front() != '(');
}

Operator make_operator(const json &params, int height = 40, int width = 40) {
    return parse_operator({{"distile_operator", 1},
                           {"name", "conv"},
                           {"generator", "masked_conv2d"},
                           {"params", params},
                           {"typical", {{"batch", 1}, {"height", height}, {"width", width}}}},
                          "here");
}

/** Operator 3 of the benchmarks. */
Operator conv3x3_256() {
    return make_operator({{"in_channels", 256}, {"out_channels", 256}});
}

json point_params(int in_channels, int out_channels) {
    return {{"in_channels", in_channels},
            {"out_channels", out_channels},
            {"kernel_h", 1},
            {"kernel_w", 1},
            {"pad_top", 0},
            {"pad_bottom", 0},
            {"pad_left", 0},
            {"pad_right", 0}};
}

/** A CPU with round figures: 1 GHz, 8 lanes, 1 KB of L1 and 1 MB of L2. */
DeviceProfile simple_cpu() {
    DeviceProfile device = generic_device_profile("generic_avx2");
    device.cores = 2;
    device.ghz = 1;
    device.fma_latency = 4;
    device.load_per_cycle = 1;
    device.alpha_us = .001;
    device.gamma_us = .5;
    device.launch_us = 2;
    device.memory = {{"L1", 1024, false, 100, 64, 1}, {"L2", 1 << 20, false, 10, 64, 4}, {"DRAM", 0, true, 1, 64, 100}};
    return device;
}

/** A GPU with round figures: 2 multiprocessors that hold 4 blocks at most. */
DeviceProfile simple_gpu() {
    DeviceProfile device = generic_device_profile("generic_cuda");
    device.cores = 2;
    device.max_threads = 2048;
    device.max_blocks = 4;
    device.registers = 65536;
    device.shared_bytes = 200 << 10;
    device.alpha_us = .001;
    device.gamma_us = 1;
    device.launch_us = 2;
    device.memory = {{"shared", 200 << 10, false, 1000, 128, 20},
                     {"L2", 1 << 20, true, 200, 32, 200},
                     {"DRAM", 0, true, 100, 32, 500}};
    return device;
}

std::vector<int> strided(int stride) {
    std::vector<int> addresses(32);
    for (int thread = 0; thread < 32; thread++) {
        addresses[thread] = thread * stride;
    }
    return addresses;
}

}  // namespace

TEST_CASE("Device profiles are read as they were written, and the generic ones are whole", "[device]") {
    for (const char *name : {"generic_avx2", "generic_avx512", "generic_aarch64", "generic_armv82", "generic_cuda",
                             "generic_cuda_sm90", "generic_opencl"}) {
        CAPTURE(name);
        const DeviceProfile device = generic_device_profile(name);
        const TemporaryFolder folder;
        const std::string path = folder.write("device.json", to_json(device).dump());
        CHECK(to_json(read_device_profile(path)) == to_json(device));
        CHECK(contains(device.id(), device.name));
        CHECK(contains(device.id(), std::to_string(device.cores)));
        CHECK(device.memory.back().name == "DRAM");
        refuse([&] { device.level("L9"); }, {device.name, "L9"});
    }
    refuse([] { generic_device_profile("generic_vax"); }, {"generic_vax"});
    CHECK(halide_target(generic_device_profile("generic_avx2")) == "x86-64-linux-avx-avx2-f16c-fma-sse41");
    CHECK(contains(halide_target(generic_device_profile("generic_avx512")), "avx512_skylake"));
    CHECK(contains(halide_target(generic_device_profile("generic_cuda")), "cuda_capability_70"));
    CHECK(halide_target(generic_device_profile("generic_aarch64")) == "arm-64-linux");
    CHECK(halide_target(generic_device_profile("generic_armv82")) == "arm-64-linux-arm_dot_prod-arm_fp16");

    // Profiles of before do not say what the tensor cores can do: it follows from the features, unless it is said.
    json file = to_json(generic_device_profile("generic_cuda"));
    for (const auto &[features, rate] : {std::pair("sm_75", 0), {"sm_80", 1024}, {"sm_89", 1024}, {"sm_90", 2048}}) {
        file["features"] = features;
        const DeviceProfile device = parse_device_profile(file, "here");
        CHECK(device.tensor16_per_cycle == rate);
        CHECK(device.tensor32_per_cycle == rate / 2);
        CHECK_FALSE(to_json(device).contains("tensor16_per_cycle"));
    }
    file["tensor16_per_cycle"] = 512;
    CHECK(parse_device_profile(file, "here").tensor16_per_cycle == 512);
    CHECK(to_json(parse_device_profile(file, "here")).at("tensor16_per_cycle") == 512);
    file["tensor16_per_cycle"] = -1;
    refuse([&] { parse_device_profile(file, "here"); }, {"here", "tensor16_per_cycle"});
}

TEST_CASE("A wrong device profile is refused with the member", "[device]") {
    const json good_cpu = to_json(generic_device_profile("generic_avx2"));
    const json good_gpu = to_json(generic_device_profile("generic_cuda"));
    for (const json &good : {good_cpu, good_gpu}) {
        for (const auto &[member, value] : good.items()) {
            json lacks = good, wrong = good;
            lacks.erase(member);
            refuse([&lacks = lacks] { parse_device_profile(lacks, "here"); }, {"here", member});
            wrong[member] = json();
            refuse([&] { parse_device_profile(wrong, "here"); },
                   {"here", member == "distile_device" ? "version" : member});
        }
        for (const auto &[member, value] : good["memory"][0].items()) {
            json wrong = good;
            wrong["memory"][0].erase(member);
            refuse([&] { parse_device_profile(wrong, "here"); }, {"here", "memory level 0", member});
        }
    }
    const std::pair<const char *, json> wrong_values[] = {
        {"distile_device", 2}, {"backend", "gpu"}, {"cores", 0},          {"ghz", -1},
        {"alpha_us", 0},       {"gamma_us", -1},   {"vector_lanes", 2.5}, {"memory", json::array()}};
    for (const auto &[member, value] : wrong_values) {
        json wrong = good_cpu;
        wrong[member] = value;
        refuse([&] { parse_device_profile(wrong, "here"); }, {"here"});
    }
    json misspelt = good_cpu;
    misspelt["vector_lane"] = 8;
    refuse([&] { parse_device_profile(misspelt, "here"); }, {"here", "no member", "vector_lane\"", "vector_lanes"});
    misspelt = good_cpu;
    misspelt["memory"][0]["byte"] = 8;
    refuse([&] { parse_device_profile(misspelt, "here"); }, {"here, memory level 0", "no member", "byte\"", "bytes"});
    json no_l2 = good_gpu;
    no_l2["memory"][1]["name"] = "L9";
    refuse([&] { parse_device_profile(no_l2, "here"); }, {"L2"});
    refuse([] { read_device_profile("/nowhere/device.json"); }, {"/nowhere/device.json"});
}

TEST_CASE("The fit finds the coefficients that made the times", "[device]") {
    std::vector<TaskTime> times;
    for (double operations : {100, 1000, 10000}) {
        for (double tasks : {1, 2, 8}) {
            times.push_back({operations, tasks, .002 * operations + .25 * tasks + 3});
        }
    }
    const TaskFit fit = fit_task_times(times);
    CHECK(fit.alpha_us == Approx(.002));
    CHECK(fit.gamma_us == Approx(.25));
    CHECK(fit.launch_us == Approx(3));

    // A coefficient that would be negative is left out.
    for (TaskTime &time : times) {
        time.us = .002 * time.operations - .05 * time.tasks + 3;
    }
    const TaskFit clamped = fit_task_times(times);
    CHECK(clamped.gamma_us == 0);
    CHECK(clamped.alpha_us == Approx(.002).epsilon(.05));
    // Times that do not grow with the work are refused, however a machine rounds.
    for (double us : {3., .1, 7.7, 1e6}) {
        for (TaskTime &time : times) {
            time.us = us * time.tasks;
        }
        CAPTURE(us);
        refuse([&] { fit_task_times(times); }, {"idle"});
    }
    for (TaskTime &time : times) {
        time.us = 10 - .0005 * time.operations;
    }
    refuse([&] { fit_task_times(times); }, {"idle"});
}

TEST_CASE("A CPU's caches are counted over the cores that a call may use", "[device]") {
    // Four CPUs with a first level each, and two chiplets with a last level each.
    const TemporaryFolder folder;
    const auto describe = [&](int cpu, int index, const std::map<std::string, std::string> &files) {
        const std::string name = "cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index);
        std::filesystem::create_directories(folder.path() + "/" + name);
        for (const auto &[file, text] : files) {
            folder.write(std::string(name).append("/").append(file), text + "\n");
        }
    };
    for (int cpu = 0; cpu < 4; cpu++) {
        const std::string own = std::to_string(cpu), chiplet = cpu < 2 ? "0-1" : "2-3";
        describe(cpu, 0, {{"level", "1"}, {"type", "Data"}, {"size", "48K"}, {"shared_cpu_list", own}});
        describe(cpu, 1, {{"level", "1"}, {"type", "Instruction"}, {"size", "32K"}, {"shared_cpu_list", own}});
        describe(cpu, 2, {{"level", "3"}, {"type", "Unified"}, {"size", "32M"}, {"shared_cpu_list", chiplet}});
        for (int index = 0; index < 3; index++) {
            describe(cpu, index, {{"coherency_line_size", "64"}});
        }
    }
    const std::vector<CpuCache> all = cpu_caches(folder.path(), {0, 1, 2, 3}, 4);
    REQUIRE(all.size() == 2);
    CHECK(all[0].bytes == 48 << 10);
    CHECK(all[0].count == 4);
    CHECK(all[1].level == 3);
    CHECK(all[1].bytes == 32 << 20);
    CHECK(all[1].count == 2);
    CHECK(cpu_caches(folder.path(), {0, 1, 2, 3}, 1)[1].count == 1);
    CHECK(cpu_caches(folder.path(), {2, 3}, 4)[1].count == 1);
    refuse([&] { cpu_caches(folder.path() + "/none", {0}, 1); }, {"does not tell its caches"});
}

TEST_CASE("The points of a space are those that are legal", "[points]") {
    // Brute force over a part of each space.
    struct Part {
        const char *backend;
        Theta held;
    };
    for (const Part &part : {Part{"cpu", {{"tile_h", 7}, {"group", 4}}}, Part{"cuda",
                                                                              {{"tile_h", 7},
                                                                               {"tile_w", 2},
                                                                               {"splits", 1},
                                                                               {"padding", 4},
                                                                               {"block_channels", 32},
                                                                               {"weights_staged", 1}}}}) {
        for (const json &params : {json{{"in_channels", 48}, {"out_channels", 96}}, point_params(3, 17)}) {
            CAPTURE(part.backend, params);
            const Space space = restrict_space(space_of(part.backend), part.held);
            const Problem problem = problem_of(make_operator(params), part.backend, 8, 16);
            std::set<Theta> expected;
            PackedTheta point;
            for (bool more = true; more;) {
                const Theta theta = unpack(space, point);
                const bool is_distinct =
                    std::all_of(space.distinct.begin(), space.distinct.end(),
                                [&](const Constraint &constraint) { return constraint.holds(theta, problem); });
                if (is_distinct && space.why_illegal(theta, problem).empty()) {
                    expected.insert(theta);
                }
                more = false;
                for (size_t knob = 0; knob < space.knobs.size() && !more; knob++) {
                    more = ++point.choices[knob] < space.knobs[knob].values.size();
                    point.choices[knob] = more ? point.choices[knob] : 0;
                }
            }
            std::set<Theta> found;
            for (const PackedTheta &legal : legal_points(space, problem)) {
                CHECK(found.insert(unpack(space, legal)).second);
            }
            CHECK(found == expected);
            CHECK(static_cast<double>(found.size()) < all_points(space));
        }
    }
    refuse([] { restrict_space(space_of("cpu"), {{"warp", 1}}); }, {"warp", "tile_h", "unroll"});
    refuse([] { space_of("abacus"); }, {"abacus"});

    // Nothing is legal, because of a single knob, or as only a walk of the space can show.
    const Problem problem = problem_of(conv3x3_256(), "cpu", 8, 16);
    const Space wrong_channels = restrict_space(space_of("cpu"), {{"channels", 12}});
    refuse([&] { legal_points(wrong_channels, problem); },
           {"no schedule with channels=12 is", ": none has channels that are"});
    refuse([&] { check_for_legal_points(wrong_channels, problem); }, {"channels=12", "whole vectors"});
    const Space wide = restrict_space(space_of("cpu"), {{"tile_h", 100}, {"tile_w", 100}});
    refuse([&] { legal_points(wide, problem); }, {"with tile_h=100, tile_w=100 is legal"});
    check_for_legal_points(wide, problem);
    check_for_legal_points(space_of("cpu"), problem);
}

TEST_CASE("Operator 3 has more than a million legal schedules on each backend", "[points]") {
    struct Kind {
        const char *backend;
        int lanes, registers;
    };
    for (const Kind &kind : {Kind{"cpu", 8, 16}, Kind{"cpu", 16, 32}, Kind{"cuda", 0, 0}}) {
        const Space &space = space_of(kind.backend);
        const Problem problem = problem_of(conv3x3_256(), kind.backend, kind.lanes, kind.registers);
        const std::vector<PackedTheta> points = legal_points(space, problem);
        CHECK(points.size() > 1'000'000);
        // In strict order, so that all are distinct.
        CHECK(std::adjacent_find(points.begin(), points.end(),
                                 [](const PackedTheta &a, const PackedTheta &b) { return !(a < b); }) == points.end());
        std::mt19937 engine(1);
        for (int i = 0; i < 1000; i++) {
            const Theta theta = unpack(space, points[engine() % points.size()]);
            CHECK(space.why_illegal(theta, problem).empty());
        }
        for (const Knob &knob : space.knobs) {
            CHECK(std::set<int>(knob.values.begin(), knob.values.end()).size() == knob.values.size());
        }
    }
}

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

namespace {

constexpr const char *hopper = "x86-64-linux-cuda-cuda_capability_90a";
constexpr const char *ampere = "x86-64-linux-cuda-cuda_capability_80";

}  // namespace

TEST_CASE("The bound of tensor cores is as worked by hand", "[bound]") {
    DeviceProfile device = simple_gpu();
    device.features = "sm_90";
    device.ghz = 1;
    set_derived(device);
    const Workload workload = workload_of(make_operator(point_params(64, 64), 16, 16), device, {hopper, Math::TF32});
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"block_pixels", 64}, {"block_channels", 64},
                         {"stages", 4}, {"splits", 1}, {"balanced", 0}};
    // Two blocks on each of two multiprocessors, with two steps of 32 channels: four items are one wave.
    const Bound all = bound(workload, theta, 256);
    CHECK(all.terms.at("items") == 4);
    CHECK(all.terms.at("steps") == 2);
    CHECK(all.terms.at("resident") == 2);
    CHECK(all.terms.at("waves") == 1);
    CHECK(all.terms.at("idle") == 0);
    CHECK(all.terms.at("t_multiply") == Approx(4 * 64 * 64 * 32 / (1024 * .7) * 1e-3));
    CHECK(all.terms.at("t_rows") == Approx(4 * 64 * 128 / 80. * 1e-3));
    CHECK(all.terms.at("t_L2") == Approx(4 * 128 * 128 / 128. * 1e-3));
    CHECK(all.terms.at("t_shared") == Approx(4 * (2 * 128 * 128) / 1000. * 1e-3));
    CHECK(all.terms.at("t_latency") == Approx(2 * 4.5 * .2 / 4));
    CHECK(all.terms.at("t_global") == Approx((256 * 64 + (64 + 256) * 64) * 4 / 100. * 1e-3));
    CHECK(all.terms.at("launch_us") == Approx(2 + 2 + 1.7));
    CHECK(all.us > all.terms.at("t_global") + all.terms.at("launch_us"));
    CHECK(bound(workload, theta, 257).terms.at("waves") == 2);

    // One item fills a quarter.
    const Bound one = bound(workload, theta, 64);
    CHECK(one.terms.at("t_rows") == Approx(2 * 64 * 128 / 80. * 1e-3));
    Theta other = theta;
    other["balanced"] = 1;
    CHECK(bound(workload, other, 256).us == Approx(all.us));
    CHECK(bound(workload, other, 64).us == Approx(one.us));
    // With 64 steps it is worth it that all four blocks share them, and add their sums.
    const Workload deep = workload_of(make_operator(point_params(2048, 64), 16, 16), device, {hopper, Math::TF32});
    const Bound alone = bound(deep, theta, 64), balanced = bound(deep, other, 64);
    CHECK(alone.terms.at("steps") == 64);
    CHECK(balanced.terms.at("t_latency") == Approx(alone.terms.at("t_latency") / 4));
    CHECK(balanced.terms.at("t_rows") == Approx(alone.terms.at("t_rows") / 2));
    CHECK(balanced.terms.at("launch_us") == Approx(alone.terms.at("launch_us") + 4.2 + 5.3 * 64 * 64 / (128 * 256)));
    other = theta;
    other["splits"] = 2;
    const Bound split = bound(workload, other, 64);
    CHECK(split.terms.at("t_rows") == Approx(one.terms.at("t_rows") / 2));
    CHECK(split.terms.at("launch_us") == Approx(one.terms.at("launch_us") + 1.3));

    // 16-bit numbers: one step, at twice the rate.
    json params = point_params(64, 64);
    params["dtype"] = "bfloat16";
    const Workload narrow = workload_of(make_operator(params, 16, 16), device, {hopper, Math::Float32});
    const Bound half = bound(narrow, theta, 256);
    CHECK(half.terms.at("steps") == 1);
    CHECK(half.terms.at("t_multiply") == Approx(all.terms.at("t_multiply") / 2));
    CHECK(half.terms.at("t_global") == Approx(all.terms.at("t_global") / 2));
}

TEST_CASE("Groups on tensor cores are judged by the blocks that begin with them", "[bound]") {
    DeviceProfile device = simple_gpu();
    device.features = "sm_90";
    set_derived(device);
    const auto workload_for = [&](int channels, int groups, const char *type) {
        json params = point_params(channels, channels);
        params["groups"] = groups;
        params["dtype"] = type;
        const Operator op = make_operator(params, 16, 16);
        CHECK(language_of(op, {hopper, Math::Float32}) == Language::TensorCore);
        return workload_of(op, device, {hopper, Math::Float32});
    };
    Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"block_pixels", 64}, {"block_channels", 64},
                   {"stages", 4}, {"splits", 1}, {"balanced", 0}};
    const auto of = [&](const Workload &workload) { return bound(workload, theta, 256); };
    const auto why = [&](const Workload &workload) {
        return tensor_core_space(TensorCores::Sm90, workload.problem).why_illegal(theta, workload.problem);
    };
    // Two groups of 128 channels: each of the 4 x 4 blocks reads those of its group.
    const Workload whole = workload_for(256, 1, "float16"), halves = workload_for(256, 2, "float16");
    CHECK(of(whole).terms.at("items") == 4 * 4);
    CHECK(of(halves).terms.at("items") == 4 * 4);
    CHECK(of(whole).terms.at("steps") == 4);
    CHECK(of(halves).terms.at("steps") == 2);
    CHECK(of(halves).terms.at("t_multiply") == Approx(of(whole).terms.at("t_multiply") / 2));
    // Eight of 40 take a block of 64 each, and those of 8 one of 32, of which quantized ones share one.
    const Workload of40 = workload_for(320, 8, "bfloat16"), of8 = workload_for(64, 8, "bfloat16");
    CHECK(of(of40).terms.at("items") == 4 * 8);
    CHECK(of(of40).terms.at("steps") == 1);
    CHECK(why(of40).empty());
    CHECK(why(of8).find("no block beyond the channels") != std::string::npos);
    theta["block_channels"] = 32;
    CHECK(of(of40).terms.at("items") == 4 * 16);
    CHECK(of(of8).terms.at("items") == 4 * 8);
    CHECK(why(of8).empty());
    const Workload quantized = workload_for(64, 8, "int8");
    CHECK(of(quantized).terms.at("items") == 4 * 2);
    CHECK(of(quantized).terms.at("steps") == 1);
    CHECK(why(quantized).empty());
}

TEST_CASE("Schedules for dot products are judged by what their instructions multiply", "[bound]") {
    const json params = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "bfloat16"}};
    const Operator op = make_operator(params);
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const std::string base = halide_target(device), pairs = base + "-avx512_bf16", tiles = base + "-amx_bf16";
    const auto workload_for = [&](const std::string &target) {
        const CodeChoice code = choose_code(op, device, target, Math::Float32);
        CHECK(language_of(op, code) == (target == base ? Language::Halide : Language::DotProduct));
        Workload workload = workload_of(op, device, code);
        workload.threads = 1;
        return workload;
    };
    const Workload by_pairs = workload_for(pairs), by_tiles = workload_for(tiles);
    CHECK(&space_of("cpu", workload_for(base).problem) == &space_of("cpu"));
    CHECK(&space_of("cpu", by_pairs.problem) == &dot_product_space(DotProducts::Avx512Bf16));
    CHECK(&space_of("cpu", by_tiles.problem) == &dot_product_space(DotProducts::AmxBf16));
    refuse([&] { choose_code(conv3x3_256(), device, pairs, Math::Float32); }, {pairs, "Halide", "bfloat16"});
    // Without a target, the best that a device has for the operator.
    DeviceProfile capable = device;
    const auto target_of = [&](const json &of, const char *features) {
        capable.features = device.features + features;
        return choose_code(make_operator(of), capable, "", Math::Float32).target;
    };
    CHECK(target_of(params, "") == base);
    CHECK(target_of(params, " avx512_bf16") == pairs);
    CHECK(target_of(params, " avx512_bf16 amx_bf16 amx_int8") == tiles);
    for (const auto &[knob, value] : {std::pair<const char *, json>("dtype", "float32"), {"groups", 256}}) {
        json other = params;
        other[knob] = value;
        CHECK(target_of(other, " avx512_bf16 amx_bf16") == base);
    }
    json grouped = params;
    grouped["groups"] = 2;
    CHECK(target_of(grouped, " avx512_bf16 amx_bf16") == tiles);
    grouped["groups"] = 64;
    CHECK(target_of(grouped, " avx512_bf16 amx_bf16") == pairs);
    const json float16 = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "float16"}};
    CHECK(target_of(float16, " avx512_bf16") == base);
    CHECK(target_of(float16, " amx_bf16") == tiles);
    CHECK(target_of(float16, " amx_bf16 amx_fp16") == base + "-amx_fp16");

    // One task of 96 pixels x 256 channels: 16 vectors, and 72 steps of 16 pairs.
    Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                   {"channels", 32}, {"staged", 8}, {"channel_splits", 1}};
    const Bound one = bound(by_pairs, theta, 96), two = bound(by_pairs, theta, 192);
    CHECK(one.terms.at("tasks") == 1);
    CHECK(one.terms.at("operations") == 96 * 16 * 72 * 16);
    CHECK(two.terms.at("rounds") == 2);
    CHECK(two.terms.at("t_fma") == Approx(2 * one.terms.at("t_fma")));
    CHECK(two.terms.at("t_stage") == Approx(2 * one.terms.at("t_stage")));
    CHECK(one.terms.at("loads") == Approx(96 * 16 * 72 * 16 * (1 / 12. + 1 / 2.)));
    theta["pixels"] = 32;
    theta["staged"] = 3;
    CHECK(bound(by_tiles, theta, 96).terms.at("operations") == 6 * 16 * 72);
    CHECK(bound(by_tiles, theta, 96).us < one.us);
    // Two tiles of each factor make four products; one of pixels and two of channels, two.
    CHECK(bound(by_tiles, theta, 96).terms.at("loads") == 6 * 16 * 72);
    Theta narrow = theta;
    narrow["pixels"] = 16;
    narrow["staged"] = 6;
    CHECK(bound(by_tiles, narrow, 96).terms.at("loads") == 9 * 16 * 72);
    // Two parts of the channels stage every pixel twice.
    theta["channel_splits"] = 2;
    const Bound split = bound(by_tiles, theta, 96);
    CHECK(split.terms.at("tasks") == 2);
    CHECK(
        split.terms.at("t_stage") ==
        Approx(
            2 *
            bound(
                by_tiles,
                {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 32}, {"channels", 32}, {"staged", 3}, {"channel_splits", 1}},
                96)
                .terms.at("t_stage")));
    for (const Workload &workload : {by_pairs, by_tiles}) {
        const Ranking ranking = rank(workload, {density_bucket(workload, .1), density_bucket(workload, 1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cpu", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
    }
}

TEST_CASE("Schedules of quantized operators are judged by the instructions of the device", "[bound]") {
    const Operator op = make_operator({{"in_channels", 256}, {"out_channels", 256}, {"dtype", "uint8"}});
    const auto workload_for = [&](const char *profile, const char *word) {
        const DeviceProfile device = generic_device_profile(profile);
        const CodeChoice code = choose_code(op, device, "", Math::Float32);
        CHECK(code.target == halide_target(device) + word);
        CHECK(language_of(op, code) == Language::DotProduct);
        Workload workload = workload_of(op, device, code);
        workload.threads = 1;
        return workload;
    };
    const Workload vnni = workload_for("generic_avx512", "-avx512_vnni"), avx2 = workload_for("generic_avx2", ""),
                   any = workload_for("generic_x86_64", "");
    CHECK(&space_of("cpu", vnni.problem) == &dot_product_space(DotProducts::Avx512Vnni));
    CHECK(&space_of("cpu", avx2.problem) == &dot_product_space(DotProducts::Avx2Int8));
    CHECK(&space_of("cpu", any.problem) == &dot_product_space(DotProducts::PortableInt8));
    // One task of 96 pixels x 256 channels: 16 vectors, and 36 steps of 16 groups of four.
    Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                   {"channels", 32}, {"staged", 8}, {"channel_splits", 1}};
    CHECK(bound(vnni, theta, 96).terms.at("operations") == 96 * 16 * 36 * 16);
    theta["pixels"] = 2;
    CHECK(bound(avx2, theta, 96).us > 2 * bound(vnni, theta, 96).us);
    for (const Workload &workload : {vnni, avx2, any}) {
        const Ranking ranking = rank(workload, {density_bucket(workload, .1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cpu", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
    }
}

TEST_CASE("Quantized operators run on tensor cores of GPUs, or by dot products beside them", "[bound]") {
    const auto make = [](int channels) {
        return make_operator({{"in_channels", channels}, {"out_channels", 256}, {"dtype", "uint8"}});
    };
    const Operator op = make(256);
    for (const char *profile : {"generic_cuda", "generic_cuda_sm90"}) {
        const DeviceProfile device = generic_device_profile(profile);
        const CodeChoice code = choose_code(op, device, "", Math::Float32);
        CHECK(language_of(op, code) == Language::TensorCore);
        const Workload workload = workload_of(op, device, code);
        CHECK(&space_of("cuda", workload.problem) == &tensor_core_space(*workload.problem.tensor_cores, true));
        const Ranking ranking = rank(workload, {density_bucket(workload, .1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cuda", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
        const CodeChoice other = choose_code(make(24), device, "", Math::Float32);
        CHECK(other.target == "x86-64-linux-cuda-cuda_capability_75");
        CHECK(language_of(make(24), other) == Language::DotProduct);
        refuse([&] { choose_code(make(24), device, "x86-64-linux-cuda-cuda_capability_80", Math::Float32); },
               {"quantized", "multiples of 16", other.target});
    }
    const std::vector<PlannedCode> planned = planned_codes(op, cuda_backend(), true);
    REQUIRE(planned.size() == 3);
    CHECK(planned.front().name == "conv_sm90");
    CHECK(planned.back().name == "conv_cuda");
    CHECK(planned_codes(op, cuda_backend(), false).size() == 1);
    CHECK(planned_codes(make(24), cuda_backend(), true).size() == 1);
}

TEST_CASE("Schedules for dot products on GPUs are judged by their blocks", "[bound]") {
    const DeviceProfile device = generic_device_profile("generic_cuda");
    const auto workload_for = [&](const json &params) {
        const Operator op = make_operator(params);
        return workload_of(op, device, choose_code(op, device, "", Math::Float32));
    };
    const Workload workload = workload_for({{"in_channels", 24}, {"out_channels", 128}, {"dtype", "uint8"}});
    const Space &space = space_of("cuda", workload.problem);
    CHECK(&space == &dot_product_space(DotProducts::Dp4a));
    const Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 128},
                         {"channels", 64}, {"staged", 1}, {"channel_splits", 1}};
    CHECK(space.why_illegal(theta, workload.problem).empty());
    for (const auto &[knob, value] :
         {std::pair("pixels", 64), {"channels", 32}, {"staged", 2}, {"channel_splits", 2}}) {
        Theta illegal = theta;
        illegal[knob] = value;
        CHECK_FALSE(space.why_illegal(illegal, workload.problem).empty());
    }
    // 216 elements are four steps.
    const Bound one = bound(workload, theta, 128), many = bound(workload, theta, 128 * 1000);
    CHECK(one.terms.at("steps") == 4);
    CHECK(one.terms.at("blocks") == 2);
    CHECK(one.terms.at("rounds") == 1);
    CHECK(many.us > 10 * one.us);
    Theta small = theta;
    small["pixels"] = 32;
    CHECK(bound(workload, small, 32).us < bound(workload, theta, 32).us);
    CHECK(bound(workload, small, 128 * 1000).terms.at("t_L2") > many.terms.at("t_L2"));
    // Blocks mean nothing for a depthwise convolution.
    const Workload depthwise =
        workload_for({{"in_channels", 40}, {"out_channels", 40}, {"groups", 40}, {"dtype", "int8"}});
    const Ranking ranking = rank(depthwise, {density_bucket(depthwise, .1)});
    REQUIRE_FALSE(ranking.kept.empty());
    for (const Candidate &candidate : ranking.kept) {
        CHECK(candidate.theta.at("pixels") == 32);
        CHECK(candidate.theta.at("channels") == 16);
    }
}

TEST_CASE("Schedules of quantized convolutions with groups are judged by what their channels read", "[bound]") {
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const auto workload_for = [&](const json &params, const std::string &word) {
        const Operator op = make_operator(params);
        Workload workload =
            workload_of(op, device, choose_code(op, device, halide_target(device) + word, Math::Float32));
        workload.threads = 1;
        return workload;
    };
    const auto of_groups = [&](int groups) {
        return workload_for({{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "int8"}},
                            "-avx512_vnni");
    };
    // One task of 96 pixels x 256 channels: 16 vectors.
    const Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                         {"channels", 16}, {"staged", 8}, {"channel_splits", 1}};
    const auto operations = [&](const Workload &workload) { return bound(workload, theta, 96).terms.at("operations"); };
    CHECK(operations(of_groups(1)) == 96 * 16 * 36 * 16);
    CHECK(operations(of_groups(4)) == 96 * 16 * 9 * 16);
    // A block of 16 channels reads 16 inputs, which are 36 packs of 4 numbers; with groups of 4, each vector multiplies
    // a pack of every group.
    CHECK(operations(of_groups(16)) == 96 * 16 * 36);
    CHECK(operations(of_groups(64)) == 96 * 16 * 9);
    CHECK(bound(of_groups(64), theta, 96).terms.at("t_fma") < bound(of_groups(16), theta, 96).terms.at("t_fma"));
    CHECK(bound(of_groups(64), theta, 96).terms.at("t_stage") ==
          Approx(bound(of_groups(16), theta, 96).terms.at("t_stage")));
    // 3 columns of 3 taps, which count as 4.
    CHECK(operations(of_groups(256)) == 96 * 16 * 3);
    // Taps are interleaved in vectors of up to 64 channels, so 48 take two.
    const auto stage = [&](int channels) {
        const Theta block = {{"tile_h", 1},          {"tile_w", 1}, {"pixels", 6},
                             {"channels", channels}, {"staged", 8}, {"channel_splits", 1}};
        return bound(of_groups(256), block, 96).terms.at("t_stage");
    };
    CHECK(stage(16) > stage(48));
    CHECK(stage(48) > stage(32));
    CHECK(stage(32) > stage(64));
    Theta wide = theta;
    wide["channels"] = 32;
    const auto why = [&](int groups) {
        const Workload workload = of_groups(groups);
        return space_of("cpu", workload.problem).why_illegal(wide, workload.problem);
    };
    CHECK(why(1).empty());
    CHECK(why(8).empty());
    CHECK(why(16).find("those of a group") != std::string::npos);
    CHECK(why(256).empty());
    // Groups of 24 are padded to 32: 2 of them have 4 vectors, and read 54 packs each.
    const auto of_width = [&](const json &type, const std::string &word) {
        return workload_for({{"in_channels", 48}, {"out_channels", 48}, {"groups", 2}, {"dtype", type}}, word);
    };
    CHECK(operations(of_width("int8", "-avx512_vnni")) == 96 * 4 * 54);
    CHECK(operations(of_width("bfloat16", "-avx512_bf16")) == 96 * 4 * 108);
    // Tiles are whole: 216 numbers are 7 steps.
    CHECK(operations(of_width("bfloat16", "-amx_bf16")) == 6 * 4 * 7);
    // AMX has no code for depthwise convolutions.
    const auto instructions_for = [&](int groups) {
        const json params = {{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "uint8"}};
        return workload_for(params, "-amx_int8").problem.dot_products;
    };
    CHECK(instructions_for(4) == DotProducts::AmxInt8);
    CHECK(instructions_for(64) == DotProducts::AmxInt8);
    CHECK(instructions_for(256) == DotProducts::Avx512Vnni);
    // AMX has no code for groups of bfloat16 that share a block: a 0 of theirs times infinity would be no 0.
    const auto of_bfloat16 = [&](int groups) {
        return workload_for({{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "bfloat16"}},
                            "-amx_bf16");
    };
    CHECK(of_bfloat16(4).problem.dot_products == DotProducts::AmxBf16);
    CHECK(of_bfloat16(64).problem.dot_products == DotProducts::Avx512Bf16);

    const Operator upsampled = parse_operator({{"distile_operator", 1},
                                               {"name", "conv"},
                                               {"generator", "masked_upsample_conv2d"},
                                               {"params", {{"dtype", "int8"}}}},
                                              "here");
    refuse([&] { choose_code(upsampled, device, "", Math::Float32); }, {"quantized", "upsampling"});
}

TEST_CASE("The code that schedules are ranked for follows from the operator, the device, the target and the math",
          "[rank]") {
    const Operator conv = conv3x3_256();
    json params = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "float16"}};
    const Operator narrow = make_operator(params);
    params["in_channels"] = 3;
    const Operator odd = make_operator(params);
    const DeviceProfile sm90 = generic_device_profile("generic_cuda_sm90"),
                        sm80 = generic_device_profile("generic_cuda"), cpu = generic_device_profile("generic_avx2");
    const auto space_for = [](const Operator &op, const DeviceProfile &device, const std::string &target, Math math) {
        const CodeChoice code = choose_code(op, device, target, math);
        const Workload workload = workload_of(op, device, code);
        CHECK(workload.problem.tensor_cores.has_value() == (language_of(op, code) == Language::TensorCore));
        return &space_of(device.backend, workload.problem);
    };
    const Space *const halide = &space_of("cuda"), *const of_sm90 = &tensor_core_space(TensorCores::Sm90),
                       *const of_sm80 = &tensor_core_space(TensorCores::Sm80);
    CHECK(space_for(conv, sm90, "", Math::Float32) == halide);
    CHECK(space_for(conv, sm90, "", Math::TF32) == of_sm90);
    CHECK(space_for(conv, sm90, ampere, Math::TF32) == of_sm80);
    CHECK(space_for(conv, sm80, "", Math::TF32) == of_sm80);
    CHECK(space_for(conv, sm80, ampere, Math::Float32) == halide);
    CHECK(space_for(narrow, sm90, "", Math::Float32) == of_sm90);
    CHECK(space_for(narrow, sm90, halide_target(sm90), Math::Float32) == halide);
    CHECK(space_for(odd, sm90, "", Math::Float32) == halide);
    CHECK(space_for(narrow, cpu, "", Math::Float32) == &space_of("cpu"));
    refuse([&] { choose_code(narrow, sm90, "", Math::TF32); }, {"float16", "--math"});
    refuse([&] { choose_code(conv, cpu, "", Math::TF32); }, {"TF32", "CPUs"});
    refuse([&] { choose_code(conv, sm80, hopper, Math::TF32); }, {sm80.name, "sm_80", hopper});
    refuse([&] { choose_code(conv, sm90, hopper, Math::Float32); }, {hopper, "--math tf32"});
    refuse([&] { choose_code(conv, sm90, halide_target(sm90), Math::TF32); }, {"TF32", "80, 86 or 90a"});
    refuse([&] { choose_code(odd, sm90, hopper, Math::Float32); }, {hopper, "multiples of 8"});

    // The more pixels, the larger the best blocks; and one multiprocessor needs no splits.
    for (const auto &[device, target] : {std::pair(sm90, hopper), {sm80, ampere}}) {
        Workload workload = workload_of(conv, device, {target, Math::TF32});
        const Ranking ranking = rank(workload, {density_bucket(workload, .02), density_bucket(workload, 1)});
        const auto best = [&](size_t bucket) {
            return std::min_element(ranking.kept.begin(), ranking.kept.end(),
                                    [&](const Candidate &a, const Candidate &b) { return a.us[bucket] < b.us[bucket]; })
                ->theta;
        };
        const auto size = [](const Theta &theta) { return theta.at("block_pixels") * theta.at("block_channels"); };
        CHECK(size(best(0)) < size(best(1)));
        // So few pixels fill the same blocks in small tiles, too.
        CHECK(best(0).at("tile_h") * best(0).at("tile_w") <= 4);
        workload.threads = 1;
        CHECK(rank(workload, {density_bucket(workload, 1)}).kept.front().theta.at("splits") == 1);
    }
}

TEST_CASE("A point's bound is its theta's", "[bound]") {
    for (const char *name : {"generic_avx512", "generic_cuda"}) {
        const Workload workload = workload_of(conv3x3_256(), generic_device_profile(name));
        const Space &space = space_of(workload.device.backend);
        const std::vector<PackedTheta> points = legal_points(space, workload.problem);
        for (const BoundForm form : {BoundForm::Paper, BoundForm::Corrected}) {
            const BoundOfPoints bound_of(workload, space, form);
            std::mt19937 engine(2);
            for (int i = 0; i < 300; i++) {
                const PackedTheta &point = points[engine() % points.size()];
                const BoundOfPoints::Times times = bound_of(bound_of.read(point), 123);
                const Bound expected = bound(workload, unpack(space, point), 123, form);
                CHECK(times.us == Approx(expected.us));
                CHECK(times.sum == Approx(expected.sum()));
                CHECK(expected.us > 0);
            }
        }
    }
}

TEST_CASE("The tiles of a density are those of blobs", "[rank]") {
    for (const auto &[height, width] : {std::pair(64, 64), std::pair(48, 80)}) {
        Workload workload = workload_of(make_operator(json::object(), height, width), simple_cpu());
        for (const double density : {.05, .2, .5, .8}) {
            const Bucket bucket = density_bucket(workload, density);
            CHECK(bucket.tiles(1, 1) == std::llround(density * height * width));
            for (const auto &[tile_h, tile_w] : {std::pair(2, 2), std::pair(1, 8), std::pair(4, 4), std::pair(8, 8)}) {
                double counted = 0;
                constexpr int masks = 20;
                for (int seed = 0; seed < masks; seed++) {
                    const ByteMask blob = blob_mask(1, height, width, density, seed);
                    counted += static_cast<double>(MaskSet({blob}).tiles({tile_h, tile_w})[0]);
                }
                CAPTURE(height, width, density, tile_h, tile_w);
                CHECK(static_cast<double>(bucket.tiles(tile_h, tile_w)) == Approx(counted / masks).epsilon(.12));
            }
        }
        workload.batch = 3;
        CHECK(density_bucket(workload, 1).tiles(5, 7) == 3 * ((height + 4) / 5) * ((width + 6) / 7));
        CHECK(density_bucket(workload, 1e-6).tiles(8, 8) == 1);
        refuse([&] { density_bucket(workload, 0); }, {"density"});
        refuse([&] { density_bucket(workload, 1.5); }, {"density", "1.5"});
    }
}

TEST_CASE("Masks of a like density share a bucket", "[rank]") {
    const auto mask = [](const std::vector<int> &active, int batch = 1) {
        ByteMask made{batch, 8, 8, std::vector<uint8_t>(static_cast<size_t>(batch) * 64)};
        for (int pixel : active) {
            made.bytes[pixel] = 255;
        }
        return made;
    };
    // Two pixels in one tile of 2 x 2 and in two tiles; and twenty pixels.
    std::vector<int> many(20);
    for (int i = 0; i < 20; i++) {
        many[i] = i;
    }
    const std::vector<Bucket> buckets = MaskSet({mask({0, 9}), mask(many), mask({1, 2})}).buckets();
    REQUIRE(buckets.size() == 2);
    CHECK(buckets[0].density == Approx(2 / 64.0));
    CHECK(buckets[0].tiles(1, 1) == 2);
    CHECK(buckets[0].tiles(2, 2) == 2);  // 1.5, rounded up
    CHECK(buckets[0].tiles(8, 8) == 1);
    CHECK(buckets[1].density == Approx(20 / 64.0));
    CHECK(buckets[1].tiles(2, 2) == 6);
    CHECK(buckets[1].tiles(3, 5) == 2);

    // A mask of four images, of which three are empty: what counts are its own tiles, and its part of all pixels.
    const std::vector<Bucket> batch = MaskSet({mask(many, 4)}).buckets();
    REQUIRE(batch.size() == 1);
    CHECK(batch[0].density == Approx(20 / 256.0));
    CHECK(batch[0].tiles(1, 1) == 20);
    CHECK(batch[0].tiles(2, 2) == 6);
}

TEST_CASE("A ranking keeps the best of every bucket and every granularity", "[rank]") {
    const Workload workload = workload_of(conv3x3_256(), generic_device_profile("generic_avx2"));
    const std::vector<Bucket> buckets = {density_bucket(workload, .1), density_bucket(workload, 1)};
    RankOptions options;
    options.held = {{"group", 8}, {"channels", 16}};
    options.per_bucket = 100;
    options.at_most = .05;
    options.threads = 3;
    const Ranking ranking = rank(workload, buckets, options);
    const Space space = restrict_space(space_of("cpu"), options.held);
    const std::vector<PackedTheta> points = legal_points(space, workload.problem);
    CHECK(ranking.legal_points == static_cast<int64_t>(points.size()));
    // At least the half that goes to the best of one bucket.
    CHECK(ranking.kept.size() >= 50);
    CHECK(ranking.kept.size() <= 300);
    // Each has a bound of its own.
    std::set<std::vector<double>> bounds;
    for (const Candidate &candidate : ranking.kept) {
        std::vector<double> own = {static_cast<double>(candidate.theta.at("tile_h")),
                                   static_cast<double>(candidate.theta.at("tile_w"))};
        for (const Bucket &bucket : buckets) {
            const int64_t tiles = bucket.tiles(candidate.theta.at("tile_h"), candidate.theta.at("tile_w"));
            own.push_back(bound(workload, candidate.theta, tiles).us);
            own.push_back(bound(workload, candidate.theta, tiles).sum());
        }
        CHECK(bounds.insert(own).second);
    }
    std::set<std::pair<int, int>> granularities;
    for (const Candidate &candidate : ranking.kept) {
        CHECK(space_of("cpu").why_illegal(candidate.theta, workload.problem).empty());
        CHECK(candidate.theta.at("group") == 8);
        granularities.emplace(candidate.theta.at("tile_h"), candidate.theta.at("tile_w"));
        for (size_t b = 0; b < buckets.size(); b++) {
            const int64_t tiles = buckets[b].tiles(candidate.theta.at("tile_h"), candidate.theta.at("tile_w"));
            CHECK(candidate.us[b] == Approx(bound(workload, candidate.theta, tiles).us));
        }
    }
    // No point of the space is better than what is kept, in any bucket.
    for (size_t b = 0; b < buckets.size(); b++) {
        double least = INFINITY, kept = INFINITY;
        for (size_t i = 0; i < points.size(); i += 7) {
            Theta theta = unpack(space, points[i]);
            least = std::min(least, bound(workload, theta, buckets[b].tiles(theta["tile_h"], theta["tile_w"])).us);
        }
        for (const Candidate &candidate : ranking.kept) {
            kept = std::min(kept, candidate.us[b]);
        }
        CHECK(kept <= least * 1.0001);
    }

    // The ranking is the same with any number of threads.
    options.threads = 1;
    const Ranking again = rank(workload, buckets, options);
    REQUIRE(again.kept.size() == ranking.kept.size());
    for (size_t i = 0; i < again.kept.size(); i++) {
        CHECK(again.kept[i].theta == ranking.kept[i].theta);
    }

    // With room for it, every granularity keeps some.
    options.per_bucket = 400;
    granularities.clear();
    for (const Candidate &candidate : rank(workload, buckets, options).kept) {
        granularities.emplace(candidate.theta.at("tile_h"), candidate.theta.at("tile_w"));
    }
    CHECK(granularities.size() == space.knobs[0].values.size() * space.knobs[1].values.size());

    options.at_most = .001;
    CHECK(static_cast<double>(rank(workload, buckets, options).kept.size()) <= .001 * points.size() + 2);
    options.held["channels"] = 24;
    refuse([&] { rank(workload, buckets, options); }, {"legal"});
}
