// Device profiles, the points of a space, and their ranking by the bound.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/measure/calibrate.h"
#include "autoscheduler/search/mask_set.h"
#include "schedules/dot_product_space.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/bound_cases.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

using namespace distile;
using nlohmann::json;

namespace {}  // namespace

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
