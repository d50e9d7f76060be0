// The plugin: what it schedules by a plan or by the bound, and the pipelines that it refuses.
#include "Halide.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/device_profile.h"
#include "autoscheduler/bound/rank.h"
#include "plans/emit.h"
#include "plans/plan.h"
#include "schedules/cpu.h"
#include "schedules/cuda_schedule.h"
#include "schedules/depthwise_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/check_facts.h"
#include "tests/tools/plan_files.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace distile;
using nlohmann::json;

namespace {

/** The pipeline of the generator masked_depthwise_conv2d, not yet scheduled. */
Halide::Pipeline masked_depthwise_conv2d(const std::map<std::string, std::string> &params, const char *target) {
    const auto generator = Halide::Internal::GeneratorRegistry::create(
        "masked_depthwise_conv2d", Halide::GeneratorContext(Halide::Target(target)));
    for (const auto &[name, value] : params) {
        generator->set_generatorparam_value(name, value);
    }
    return generator->build_pipeline();
}

/** The pipeline of a generator with input and output channels, not yet scheduled. */
Halide::Pipeline pipeline_of(const std::string &name, const std::map<std::string, std::string> &params,
                             const char *target = avx2) {
    const auto generator =
        Halide::Internal::GeneratorRegistry::create(name, Halide::GeneratorContext(Halide::Target(target)));
    for (const auto &[param, value] :
         std::map<std::string, std::string>{{"in_channels", "16"}, {"out_channels", "48"}}) {
        generator->set_generatorparam_value(param, value);
    }
    for (const auto &[param, value] : params) {
        generator->set_generatorparam_value(param, value);
    }
    return generator->build_pipeline();
}

Halide::Pipeline masked_conv2d(const std::map<std::string, std::string> &params = {}, const char *target = avx2) {
    return pipeline_of("masked_conv2d", params, target);
}

/** The schedule that the plugin applies. */
std::string schedule(const Halide::Pipeline &pipeline, const std::map<std::string, std::string> &params,
                     const char *target = avx2) {
    const Halide::AutoschedulerParams all("PolyKernel", params);
    return pipeline.apply_autoscheduler(Halide::Target(target), all).schedule_source;
}

void refuse_schedule(const Halide::Pipeline &pipeline, const std::map<std::string, std::string> &params,
                     const std::vector<std::string> &words, const char *target = avx2) {
    std::string message = "(nothing was thrown)";
    try {
        schedule(pipeline, params, target);
    } catch (const Halide::CompileError &error) {
        message = error.what();
    }
    INFO("the message is: " << message);
    CHECK(contains(message, "PolyKernel"));
    for (const std::string &word : words) {
        CHECK(contains(message, word));
    }
}

}  // namespace

TEST_CASE("A plan is checked as the plugin would check it, with what a target's vectors hold", "[plan]") {
    for (const char *target : {"x86-64-linux", "x86-64-linux-sse41", "x86-64-linux-avx", avx2, avx512,
                               "x86-64-linux-avx-avx2-avx512_skylake-f16c-fma-sse41", "x86-64-linux-avx512",
                               "arm-64-linux", "arm-64-linux-arm_dot_prod-arm_fp16"}) {
        CAPTURE(target);
        MaskedOperator any;
        const Problem problem = cpu_problem(any, Halide::Target(target));
        const Vectors vectors = cpu_bound_backend().vectors_of(target);
        CHECK(vectors.lanes == problem.vector_lanes);
        CHECK(vectors.registers == problem.vector_registers);
    }
    const TemporaryFolder folder;
    const auto check = [&](const json &file) { check_buildable(read_plan(folder.write("plan.json", file.dump()))); };
    json file = good_plan();
    file.erase("profile");
    check(file);
    file["variants"][1]["code"]["halide"]["unroll"] = 3;
    refuse([&] { check(file); }, {"'conv_avx2'", "variant \"dense\"", "schedule is not legal", "unroll that divides"});
}

TEST_CASE("The plugin schedules a masked operator as the plan's variant says", "[plugin]") {
    const TemporaryFolder folder;
    const std::string plan = folder.write("plan.json", good_plan().dump());
    for (const char *variant : {"sparse", "dense", "0", "1"}) {
        const std::string source = schedule(masked_conv2d({{"tile_w", "2"}}), {{"plan", plan}, {"variant", variant}});
        for (const char *word : {"const int pixels = 6;", "const int channels = 16;", "const int unroll = 2;",
                                 "const int lanes = 8", "parallel(task)", "unroll(ci, unroll)"}) {
            CAPTURE(variant, word, source);
            CHECK(contains(source, word));
        }
        CHECK_FALSE(contains(source, "unroll(kx)"));
    }
    CHECK_FALSE(schedule(masked_conv2d({{"tile_w", "2"}, {"residual", "true"}, {"epilogue", "silu"}}),
                         {{"plan", plan}, {"variant", "0"}})
                    .empty());
}

TEST_CASE("The plugin's orders of the reduction differ", "[plugin]") {
    const TemporaryFolder folder;
    const char *const words[] = {"reorder(c, p, ci, kx, ky)", "reorder(c, p, kx, ky, ci)", "reorder(c, p, kx, ci, ky)"};
    for (int order = 0; order < 3; order++) {
        json file = good_plan();
        file["variants"][0]["code"]["halide"]["order"] = order;
        const std::string source = schedule(masked_conv2d({{"tile_w", "2"}}),
                                            {{"plan", folder.write("plan.json", file.dump())}, {"variant", "0"}});
        for (int other = 0; other < 3; other++) {
            CAPTURE(order, other);
            CHECK(contains(source, words[other]) == (other == order));
        }
    }
}

TEST_CASE("The plugin refuses parameters that are wrong", "[plugin]") {
    const TemporaryFolder folder;
    const std::string plan = folder.write("plan.json", good_plan().dump());
    const Halide::Pipeline pipeline = masked_conv2d({{"tile_w", "2"}});
    refuse_schedule(pipeline, {{"variant", "sparse"}}, {"autoscheduler.plan", "missing"});
    refuse_schedule(pipeline, {{"plan", plan}}, {"autoscheduler.variant", "missing"});
    refuse_schedule(pipeline, {{"plan", plan}, {"variant", "sparse"}, {"speed", "9"}}, {"autoscheduler.speed"});
    for (const char *variant : {"none", "2", "-1", ""}) {
        refuse_schedule(pipeline, {{"plan", plan}, {"variant", variant}},
                        {"conv_avx2", std::string("'") + variant + "'"});
    }
    const std::string missing = folder.path() + "/missing.json";
    refuse_schedule(pipeline, {{"plan", missing}, {"variant", "sparse"}}, {missing, "opened"});
    const std::string bad = folder.write("bad.json", "{\"distile_plan\": 7}");
    refuse_schedule(pipeline, {{"plan", bad}, {"variant", "sparse"}}, {bad, "version 7"});
    refuse_schedule(pipeline, {{"plan", plan}, {"variant", "sparse"}}, {"conv_avx2", avx2, "avx512"}, avx512);
    refuse_schedule(masked_conv2d({}, "arm-64-linux"), {{"plan", plan}, {"variant", "sparse"}}, {avx2, "arm-64"},
                    "arm-64-linux");
    // None of this has scheduled anything.
    CHECK_FALSE(schedule(pipeline, {{"plan", plan}, {"variant", "sparse"}}).empty());
}

TEST_CASE("The plugin refuses an illegal schedule with the constraint", "[plugin]") {
    const TemporaryFolder folder;
    const std::pair<json, std::string> changes[] = {{{{"unroll", 3}}, "unroll"},
                                                    {{{"pixels", 16}}, "registers"},
                                                    {{{"warp", 1}}, "'warp'"},
                                                    {{{"order", 9}}, "order"}};
    for (const auto &[change, word] : changes) {
        json file = good_plan();
        file["variants"][0]["code"]["halide"].update(change);
        refuse_schedule(masked_conv2d(), {{"plan", folder.write("plan.json", file.dump())}, {"variant", "sparse"}},
                        {"schedule", "not legal", word});
    }
}

TEST_CASE("The plugin refuses a schedule for other tiles than the pipeline was built for", "[plugin]") {
    const char *const cuda = "x86-64-linux-cuda-cuda_capability_80";
    const TemporaryFolder folder;
    const auto path_of = [&](const char *target, const Theta &theta) {
        json plan = good_plan();
        plan["target"] = target;
        plan["backend"] = target == cuda ? "cuda" : "cpu";
        plan["layout"] = get_backend(plan["backend"].get<std::string>()).layouts.front().name;
        plan["variants"][0]["code"]["halide"] = theta;
        return folder.write("plan.json", plan.dump());
    };
    Theta depthwise = depthwise_theta();
    depthwise["tile_w"] = 2;
    const Theta block = {
        {"tile_h", 1},          {"tile_w", 2},   {"block_pixels", 32}, {"block_channels", 32}, {"thread_pixels", 4},
        {"thread_channels", 4}, {"chunk", 8},    {"splits", 1},        {"weights_staged", 1},  {"transposed", 1},
        {"padding", 0},         {"prefetch", 0}, {"halo", 0}};
    for (const auto &[tile_h, tile_w] : {std::pair("1", "1"), {"2", "1"}, {"1", "4"}, {"2", "2"}, {"1", "2"}}) {
        const std::string built = std::string(tile_h) + " x " + tile_w;
        const auto check = [&](const Halide::Pipeline &pipeline, const char *target, const Theta &theta) {
            CAPTURE(target, built);
            const std::map<std::string, std::string> params = {{"plan", path_of(target, theta)}, {"variant", "sparse"}};
            if (built == "1 x 2") {
                CHECK_FALSE(schedule(pipeline, params, target).empty());
            } else {
                refuse_schedule(pipeline, params, {"tiles of 1 x 2", "built for tiles of " + built}, target);
            }
        };
        std::map<std::string, std::string> params = {{"tile_h", tile_h}, {"tile_w", tile_w}};
        check(masked_conv2d(params), avx2, good_theta().get<Theta>());
        params.insert({{"in_channels", "32"}, {"out_channels", "64"}, {"channel_block", "32"}});
        check(masked_conv2d(params, cuda), cuda, block);
        check(masked_depthwise_conv2d({{"channels", "16"}, {"tile_h", tile_h}, {"tile_w", tile_w}}, avx2), avx2,
              depthwise);
    }
}

TEST_CASE("A portable plan is applied to pipelines with its virtual tiles, whatever the operator's scale", "[plugin]") {
    const TemporaryFolder folder;
    const std::pair<const char *, json> operators[] = {{"masked_conv2d", {{"stride_h", 2}}},
                                                       {"masked_conv_transpose2d", {{"stride_w", 3}}},
                                                       {"masked_upsample_conv2d", {{"scale_w", 3}}}};
    for (const auto &[generator, params] : operators) {
        json file = good_operator();
        file["generator"] = generator;
        file["params"] = params;
        file["params"].update({{"in_channels", 16}, {"out_channels", 48}});
        const Plan plan = portable_plan(parse_operator(file, "here"));
        const std::string path = folder.write("plan.json", to_json(plan).dump());
        for (const auto &[variant, tile] : {std::pair("fine", "1"), {"dense", "1"}}) {
            std::map<std::string, std::string> values = {{"virtual_tile", tile}};
            for (const auto &[name, value] : params.items()) {
                values[name] = value.dump();
            }
            CAPTURE(generator, variant);
            const std::string source = schedule(pipeline_of(generator, values, "x86-64-linux"),
                                                {{"plan", path}, {"variant", variant}}, "x86-64-linux");
            const Theta &theta = plan.find(variant)->theta;
            CHECK(contains(source, "const int tile_w = " + std::to_string(theta.at("tile_w")) + ";"));
        }
    }
}

TEST_CASE("Without a plan the plugin takes the best of the space", "[plugin]") {
    using Params = std::map<std::string, std::string>;
    const char *const cuda = "x86-64-linux-cuda-cuda_capability_80";
    const Params operators[] = {
        {},
        {{"in_channels", "3"}, {"out_channels", "17"}, {"kernel_h", "7"}, {"kernel_w", "7"}, {"stride_h", "2"}},
        {{"in_channels", "250"}, {"out_channels", "1"}, {"kernel_h", "1"}, {"kernel_w", "1"}, {"residual", "true"}},
        {{"in_channels", "256"}, {"out_channels", "256"}, {"tile_h", "2"}, {"tile_w", "4"}},
        {{"tile_h", "3"}, {"tile_w", "7"}, {"dilation_w", "2"}},
        {{"tile_h", "5"}}};
    for (const char *target : {avx2, avx512, cuda, "arm-64-linux"}) {
        for (Params params : operators) {
            params["channel_block"] = target == cuda ? "32" : "16";
            CAPTURE(target, params);
            const std::string source = schedule(masked_conv2d(params, target), {}, target);
            for (const char *knob : {"tile_h", "tile_w"}) {
                const std::string value = params.count(knob) != 0 ? params.at(knob) : "1";
                CHECK(contains(source, std::string("const int ") + knob + " = " + value + ";"));
            }
            CHECK(contains(source, target == cuda ? "gpu_blocks" : "parallel(task)"));
        }
    }
    // A density, and the profile of a device: one with two cores makes other tasks than one with many.
    const TemporaryFolder folder;
    DeviceProfile device = generic_device_profile("generic_avx2");
    device.cores = 64;
    const std::string many = folder.write("many.json", to_json(device).dump());
    device.cores = 1;
    const std::string one = folder.write("one.json", to_json(device).dump());
    const Params params = {{"in_channels", "256"}, {"out_channels", "256"}};
    CHECK(schedule(masked_conv2d(params), {{"device", many}, {"density", ".05"}}) !=
          schedule(masked_conv2d(params), {{"device", one}, {"density", "1"}}));
}

TEST_CASE("The plugin refuses what it cannot choose a schedule by", "[plugin]") {
    const TemporaryFolder folder;
    for (const char *density : {"0", "1.5", "-1", "half", ".3x", ""}) {
        refuse_schedule(masked_conv2d(), {{"density", density}}, {"autoscheduler.density", density});
    }
    refuse_schedule(masked_conv2d(), {{"device", "/nowhere/device.json"}}, {"/nowhere/device.json"});
    const std::string gpu = folder.write("gpu.json", to_json(generic_device_profile("generic_cuda")).dump());
    refuse_schedule(masked_conv2d(), {{"device", gpu}}, {"cuda", avx2});
    const std::string plan = folder.write("plan.json", good_plan().dump());
    refuse_schedule(masked_conv2d(), {{"plan", plan}, {"variant", "0"}, {"density", ".3"}}, {"autoscheduler.density"});
    const char *const vulkan = "x86-64-linux-vulkan";
    refuse_schedule(masked_conv2d({}, vulkan), {}, {"NVIDIA GPUs", "OpenCL devices", vulkan}, vulkan);

    // Without estimates nobody knows the image.
    Halide::Pipeline pipeline = masked_conv2d();
    for (int i = 0; i < 4; i++) {
        pipeline.outputs()[0].output_buffer().dim(i).set_estimate(Halide::Expr(), Halide::Expr());
    }
    refuse_schedule(pipeline, {}, {"set_estimates", "output"});
}

TEST_CASE("The facts of an operator file are those of its pipeline", "[plugin]") {
    const std::vector<std::map<std::string, std::string>> operators = {
        {{"in_channels", "16"}, {"out_channels", "48"}},
        {{"in_channels", "3"}, {"out_channels", "17"}, {"kernel_h", "5"}, {"kernel_w", "7"}, {"stride_h", "2"}},
        {{"in_channels", "16"}, {"stride_w", "3"}, {"dilation_h", "2"}, {"dilation_w", "4"}, {"kernel_w", "2"}},
        {{"in_channels", "1024"}, {"out_channels", "1"}, {"kernel_h", "1"}, {"kernel_w", "1"}, {"residual", "true"}}};
    for (const auto &params : operators) {
        for (const bool gpu : {false, true}) {
            json file = good_operator();
            file["params"] = json::object();
            for (const auto &[name, value] : params) {
                file["params"][name] = json::parse(value);
            }
            const char *target = gpu ? "x86-64-linux-cuda-cuda_capability_80" : avx512;
            std::map<std::string, std::string> with_block = params;
            with_block["channel_block"] = gpu ? "32" : "16";
            with_block.emplace("out_channels", "64");
            const MaskedOperator recognised = recognise_masked_operator(masked_conv2d(with_block, target));
            const Problem expected = gpu ? cuda_problem(recognised) : cpu_problem(recognised, Halide::Target(target));
            const Problem found = problem_of(parse_operator(file, "here"), gpu ? "cuda" : "cpu", 16, 32);
            CAPTURE(file.dump(), target);
            check_facts(found, expected);
            CHECK(found.vector_lanes == expected.vector_lanes);
            CHECK(found.vector_registers == expected.vector_registers);
        }
    }
}

TEST_CASE("The phases of an operator are known from its file and from its pipeline", "[plugin]") {
    const std::pair<const char *, json> operators[] = {
        {"masked_conv_transpose2d", {{"kernel_h", 4}, {"kernel_w", 4}, {"stride_h", 2}, {"stride_w", 2}}},
        {"masked_conv_transpose2d",
         {{"kernel_h", 2}, {"kernel_w", 5}, {"stride_h", 1}, {"stride_w", 3}, {"dilation_w", 2}, {"pad_left", 4}}},
        {"masked_conv_transpose2d",
         {{"kernel_w", 1}, {"stride_h", 4}, {"stride_w", 2}, {"dilation_h", 6}, {"output_padding_h", 3}}},
        {"masked_conv_transpose2d", {{"stride_h", 1}, {"stride_w", 1}, {"dilation_h", 2}}},
        {"masked_upsample_conv2d", {{"scale_h", 2}, {"scale_w", 2}}},
        {"masked_upsample_conv2d", {{"scale_h", 3}, {"scale_w", 1}, {"kernel_h", 7}, {"dilation_w", 3}}}};
    for (const auto &[generator, params] : operators) {
        json file = good_operator();
        file["generator"] = generator;
        file["params"] = params;
        file["params"]["out_channels"] = 48;
        file["params"]["in_channels"] = 16;
        const Problem found = problem_of(parse_operator(file, "here"), "cpu", 16, 32);
        for (int tiles : {1, 3}) {
            std::map<std::string, std::string> values;
            for (const auto &[name, value] : params.items()) {
                values[name] = value.dump();
            }
            values["tile_h"] = std::to_string(tiles * found.scale_h);
            values["tile_w"] = std::to_string(tiles * found.scale_w);
            CAPTURE(file.dump(), tiles);
            const Halide::Pipeline pipeline = pipeline_of(generator, values, avx512);
            const MaskedOperator recognised = recognise_masked_operator(pipeline);
            values["channel_block"] = "32";
            const MaskedOperator on_gpu =
                recognise_masked_operator(pipeline_of(generator, values, "x86-64-linux-cuda-cuda_capability_80"));
            CHECK(on_gpu.scale_h == found.scale_h);
            CHECK(on_gpu.scale_w == found.scale_w);
            CHECK(on_gpu.kernel_h == found.kernel_h);
            CHECK(on_gpu.kernel_w == found.kernel_w);
            CHECK((on_gpu.stride_h == 1 && on_gpu.stride_w == 1));
            CHECK((found.kernel_h == 1 || on_gpu.dilation_h == found.dilation_h));
            CHECK((found.kernel_w == 1 || on_gpu.dilation_w == found.dilation_w));
            CHECK(on_gpu.stages.at(0).weights.defined());
            CHECK(recognised.tile_h == tiles * found.scale_h);
            CHECK(recognised.tile_w == tiles * found.scale_w);
            CHECK(recognised.scale_h == found.scale_h);
            CHECK(recognised.scale_w == found.scale_w);
            CHECK(recognised.kernel_h == found.kernel_h);
            CHECK(recognised.kernel_w == found.kernel_w);
            CHECK(recognised.stride_h == 1);
            CHECK(recognised.stride_w == 1);
            CHECK(found.stride_h == 1);
            CHECK(found.stride_w == 1);
            // A kernel of one tap has no dilation that matters.
            CHECK((found.kernel_h == 1 || recognised.dilation_h == found.dilation_h));
            CHECK((found.kernel_w == 1 || recognised.dilation_w == found.dilation_w));
            // Without a plan it is scheduled for the granularity that it was built for.
            const std::string source = schedule(pipeline, {}, avx512);
            CHECK(contains(source, "const int tile_h = " + values["tile_h"] + ";"));
            CHECK(contains(source, "task, phase") == (found.scale_h * found.scale_w > 1));
        }
    }
}

TEST_CASE("Tiles are whole multiples of the stride of a transposed convolution", "[plugin]") {
    const auto refuse_pipeline = [](const std::string &generator, const std::map<std::string, std::string> &params,
                                    const char *target, const std::string &word) {
        std::string message = "(nothing was thrown)";
        try {
            pipeline_of(generator, params, target);
        } catch (const Halide::CompileError &error) {
            message = error.what();
        }
        INFO("the message is: " << message);
        CHECK(contains(message, word));
    };
    const std::map<std::string, std::string> params = {{"stride_h", "2"}, {"stride_w", "3"}, {"tile_h", "2"}};
    refuse_pipeline("masked_conv_transpose2d", params, avx2, "2 x 1");
    refuse_pipeline("masked_upsample_conv2d", {{"stride_w", "2"}, {"tile_h", "2"}, {"tile_w", "2"}}, avx2, "scale_h");

    Problem problem = cpu_problem(OperatorFacts(), 8, 16);
    problem.in_channels = problem.out_channels = problem.channel_block = 16;
    problem.scale_h = 2;
    problem.scale_w = 3;
    Theta theta = good_theta().get<Theta>();
    CHECK(contains(cpu_space().why_illegal(theta, problem), "tile_h"));
    theta["tile_h"] = 4;
    CHECK(contains(cpu_space().why_illegal(theta, problem), "tile_w"));
    theta["tile_w"] = 3;
    CHECK(cpu_space().why_illegal(theta, problem).empty());
    problem.out_channels = problem.channel_block = 32;
    int64_t legal = 0, wrong = 0;
    const Space space = restrict_space(cuda_space(), {{"padding", 0}, {"transposed", 0}, {"prefetch", 0}});
    for_each_legal(space, cuda_problem(problem), [&](const PackedTheta &point) {
        const Theta found = unpack(space, point);
        legal++;
        wrong += found.at("tile_h") % 2 || found.at("tile_w") % 3 || found.at("halo") || found.at("splits") > 1 ? 1 : 0;
    });
    CHECK(legal > 0);
    CHECK(wrong == 0);
}

TEST_CASE("Groups and depthwise convolutions are recognised, and have schedules of their own", "[plugin]") {
    const char *const cuda = "x86-64-linux-cuda-cuda_capability_80";
    const auto read = [](const char *generator, const json &params) {
        json file = good_operator();
        file["generator"] = generator;
        file["params"] = params;
        return parse_operator(file, "here");
    };
    const auto compare = [](const MaskedOperator &recognised, const Operator &op) {
        check_facts(recognised, problem_of(op, "cpu", 16, 32));
    };
    const Operator grouped =
        read("masked_conv2d", {{"in_channels", 32}, {"out_channels", 96}, {"groups", 2}, {"dilation_w", 2}});
    const MaskedOperator groups = recognise_masked_operator(
        masked_conv2d({{"in_channels", "32"}, {"out_channels", "96"}, {"groups", "2"}, {"dilation_w", "2"}}, avx512));
    compare(groups, grouped);
    CHECK(groups.in_channels == 16);
    CHECK(groups.groups == 2);
    CHECK_FALSE(groups.depthwise);
    CHECK(contains(grouped.summary(), "in 2 groups"));
    CHECK(groups.groups_in_blocks == GroupForm::Whole);

    // Groups of 5 output channels have blocks of their own, groups of 8 to 8 channels are side by side in a block.
    const MaskedOperator apart = recognise_masked_operator(
        masked_conv2d({{"in_channels", "12"}, {"out_channels", "20"}, {"groups", "4"}}, avx512));
    compare(apart, read("masked_conv2d", {{"in_channels", 12}, {"out_channels", 20}, {"groups", 4}}));
    CHECK(apart.groups_in_blocks == GroupForm::Padded);
    CHECK(num_channel_tiles(apart, 16) == 4);
    CHECK_FALSE(reads_own_channels(apart));
    const MaskedOperator beside = recognise_masked_operator(
        masked_conv2d({{"in_channels", "24"}, {"out_channels", "24"}, {"groups", "3"}}, avx512));
    compare(beside, read("masked_conv2d", {{"in_channels", 24}, {"out_channels", 24}, {"groups", 3}}));
    CHECK(beside.groups_in_blocks == GroupForm::Diagonals);
    CHECK(num_diagonals(beside) == 8);
    CHECK(reads_own_channels(beside));

    const std::map<std::string, std::string> params = {
        {"channels", "48"}, {"kernel_h", "5"}, {"stride_h", "2"}, {"dilation_w", "3"}};
    const Operator alone =
        read("masked_depthwise_conv2d", {{"channels", 48}, {"kernel_h", 5}, {"stride_h", 2}, {"dilation_w", 3}});
    const MaskedOperator depthwise = recognise_masked_operator(masked_depthwise_conv2d(params, avx512));
    compare(depthwise, alone);
    CHECK(depthwise.in_channels == 1);
    CHECK(depthwise.groups == 48);
    CHECK(depthwise.depthwise);
    CHECK(conv_of(alone).in_channels == 48);
    CHECK(conv_of(alone).out_channels == 48);
    CHECK(conv_of(alone).groups == 48);
    CHECK(contains(alone.summary(), "depthwise convolution"));

    // Without a plan, the best of the space; with one, its own.
    for (const char *target : {avx2, avx512}) {
        CHECK(contains(schedule(masked_depthwise_conv2d(params, target), {}, target), "const int tasks = "));
    }
    const TemporaryFolder folder;
    json plan = good_plan();
    plan.erase("profile");
    plan["operator"] = to_json(alone);
    plan["variants"][0]["code"]["halide"] = depthwise_theta();
    const std::string path = folder.write("plan.json", plan.dump());
    CHECK(contains(schedule(masked_depthwise_conv2d(params, avx2), {{"plan", path}, {"variant", "sparse"}}),
                   "unroll(ky)"));
    CHECK(contains(
        emit_polykernels({read_plan(path)}, "s"),
        "    .groups = 48,\n    .kernel_h = 5,\n    .kernel_w = 3,\n    .stride_h = 2,\n    .stride_w = 1,\n"));
    // On a GPU they are not staged, except for groups that fill blocks of the weights.
    const auto stages = [&](const Halide::Pipeline &pipeline) {
        const std::string source = schedule(pipeline, {}, cuda);
        CHECK(contains(source, "gpu_threads"));
        return contains(source, "GPUShared");
    };
    CHECK_FALSE(stages(masked_depthwise_conv2d(params, cuda)));
    CHECK_FALSE(stages(masked_conv2d({{"groups", "4"}, {"channel_block", "32"}}, cuda)));
    CHECK(stages(masked_conv2d(
        {{"in_channels", "32"}, {"out_channels", "64"}, {"groups", "2"}, {"channel_block", "32"}}, cuda)));
    CHECK_THROWS_AS(masked_conv2d({{"groups", "5"}}), Halide::CompileError);
}

TEST_CASE("The plugin refuses pipelines that are no masked operators, and says how they differ", "[plugin]") {
    using namespace Halide;
    const TemporaryFolder folder;
    const std::map<std::string, std::string> params = {{"plan", folder.write("plan.json", good_plan().dump())},
                                                       {"variant", "sparse"}};
    Var x("x"), y("y");
    const auto refuse_foreign = [&](const Pipeline &pipeline, const std::vector<std::string> &words) {
        std::vector<std::string> all = {"masked operators", "differs"};
        all.insert(all.end(), words.begin(), words.end());
        refuse_schedule(pipeline, params, all);
    };
    {
        Func blur("blur");
        blur(x, y) = cast<float>(x + y) / 2;
        refuse_foreign(blur, {"blur", "no update stage"});
    }
    {
        Func one("one"), two("two");
        one(x) = x;
        two(x) = x;
        refuse_foreign(Pipeline({one, two}), {"2 outputs"});
    }
    {
        Func pair("pair");
        pair(x) = Tuple(x, x);
        refuse_foreign(pair, {"Tuple"});
    }
    {
        // The number of channels is not known.
        Func sum("sum");
        RDom r(0, 10);
        sum(x) = 0.0f;
        sum(x) += cast<float>(r);
        refuse_foreign(sum, {"channel extent", "sum", "constant"});
    }
    {
        Func histogram("histogram");
        RDom r(0, 10, 0, 10, 0, 10);
        histogram(x) = 0.0f;
        histogram(x) += cast<float>(r.x + r.y + r.z);
        histogram.output_buffer().dim(0).set_bounds(0, 8);
        refuse_foreign(histogram, {"update 0", "3 RVars"});
    }
    {
        Func reads_nothing("reads_nothing");
        RDom r(0, 10);
        reads_nothing(x, y) = 0.0f;
        reads_nothing(x, r) = 1.0f;
        reads_nothing.output_buffer().dim(0).set_bounds(0, 8);
        refuse_foreign(reads_nothing, {"0 Funcs"});
    }
    const auto scatter = [&](const Func &accumulator) {
        Func output("output");
        RDom r(0, 10);
        output(x, y) = undef<float>();
        output(x, r) = accumulator(x, r);
        output.output_buffer().dim(0).set_bounds(0, 8);
        return Pipeline(output);
    };
    {
        Func accumulator("accumulator");
        accumulator(x, y) = 0.0f;
        refuse_foreign(scatter(accumulator), {"accumulator", "one update"});
    }
    {
        Func accumulator("accumulator");
        RDom taps(0, 3);
        accumulator(x, y) = 0.0f;
        accumulator(x, y) += cast<float>(taps);
        refuse_foreign(scatter(accumulator), {"accumulator", "reduce"});
    }
    {
        // Depthwise.
        Func accumulator("accumulator");
        RDom taps(0, 3, 0, 3);
        accumulator(x, y) = 0.0f;
        accumulator(x, y) += cast<float>(taps.x + taps.y);
        refuse_foreign(scatter(accumulator), {"accumulator", "no weights"});
    }
    {
        Func accumulator("accumulator");
        RDom taps(0, 3, 0, 3, 0, 3);
        accumulator(x, y) = 0.0f;
        accumulator(x, y) += cast<float>(taps.x + taps.y + taps.z);
        refuse_foreign(scatter(accumulator), {"accumulator", "no weights"});
    }
    {
        Func accumulator("accumulator"), staging("staging");
        RDom taps(0, 3, 0, 3, 0, 3);
        staging(x, y) = cast<float>(x);
        accumulator(x, y) = 0.0f;
        accumulator(x, y) += staging(taps.x, y);
        refuse_foreign(scatter(accumulator), {"staging"});
    }
    {
        const Pipeline twice = masked_conv2d({{"tile_w", "2"}});
        CHECK_FALSE(schedule(twice, params).empty());
        refuse_foreign(twice, {"already has a schedule"});
    }
}
