// Plans that tools make, what C becomes of them, and the spaces of their schedules.
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/device_profile.h"
#include "autoscheduler/bound/rank.h"
#include "plans/architecture.h"
#include "plans/emit.h"
#include "plans/plan.h"
#include "schedules/cpu_space.h"
#include "schedules/cuda_direct_space.h"
#include "schedules/cuda_space.h"
#include "schedules/depthwise_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/plan_files.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace distile;
using nlohmann::json;

TEST_CASE("The hash of a plan is of its code alone", "[plan]") {
    const TemporaryFolder folder;
    const auto hash = [&](const std::function<void(json &)> &change) {
        json file = good_plan();
        change(file);
        return plan_hash_text(read_plan(folder.write("plan.json", file.dump()), Times::Drop));
    };
    const std::string good = hash([](json &) {});
    CHECK(good == good_hash);
    for (const std::function<void(json &)> &same : std::initializer_list<std::function<void(json &)>>{
             [](json &file) { file["name"] = "other"; }, [](json &file) { file["operator"]["name"] = "other"; },
             [](json &file) { file["operator"]["typical"]["height"] = 9; }, [](json &file) { file.erase("profile"); },
             [](json &file) { file["operator"]["params"]["groups"] = 1; },
             [](json &file) { file["variants"][0]["dense"] = false; },
             [](json &file) { file["variants"][0]["layout"] = "cpu-o16"; }}) {
        CHECK(hash(same) == good);
    }
    for (const std::function<void(json &)> &other : std::initializer_list<std::function<void(json &)>>{
             [](json &file) { file["operator"]["params"]["epilogue"] = "none"; },
             [](json &file) { file["operator"]["params"]["pad_top"] = 0; }, [](json &file) { file["target"] = avx512; },
             [](json &file) { file["variants"][0]["name"] = "other"; },
             [](json &file) { file["variants"][1].erase("dense"); }, [](json &file) { file["variants"].erase(1); },
             [](json &file) { std::swap(file["variants"][0], file["variants"][1]); },
             [](json &file) { file["variants"][0]["code"]["halide"]["unroll"] = 1; }}) {
        CHECK(hash(other) != good);
    }
    // Files hold it, and a time table.
    const Plan plan = read_plan(folder.write("plan.json", good_plan().dump()));
    CHECK(time_table_of(plan)["plan_hash"] == good_hash);
    CHECK(time_table_of(plan)["kernel"] == "conv_avx2");
    CHECK(to_json(plan)["profile"]["plan_hash"] == good_hash);
    // Times that were measured with other code are no obstacle to who measures again.
    json changed = good_plan();
    changed["variants"][0]["code"]["halide"]["group"] = 3;
    const std::string path = folder.write("plan.json", changed.dump());
    refuse([&] { read_plan(path); }, {path, "profile", "plan_hash"});
    CHECK(read_plan(path, Times::Drop).times.empty());
}

TEST_CASE("Code whose groups have a dimension of their own is called with their number", "[plan]") {
    const TemporaryFolder folder;
    json file = good_plan();
    file["operator"]["params"]["groups"] = 2;  // There are 24 output channels.
    const std::string c = emit_polykernels({read_plan(folder.write("plan.json", file.dump()), Times::Drop)}, "s");
    CHECK(contains(c, "return distile_call_halide_groups(s_0_sparse_argv, 2, call);"));
    CHECK_FALSE(contains(c, "distile_call_halide("));
}

TEST_CASE("The descriptor of a plan says what the plan says", "[plan]") {
    const TemporaryFolder folder;
    const Plan plan = read_plan(folder.write("plan.json", good_plan().dump()));
    const std::string c = emit_polykernels({plan}, "my_symbol");
    for (const std::string &word : std::vector<std::string>{
             "const distile_polykernel my_symbol = {", "int my_symbol_0_sparse_argv(void **arguments);",
             // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one text in two lines.
             "static int run_my_symbol_0_sparse(const distile_kernel_call *call) {\n"
             "    return distile_call_halide(my_symbol_0_sparse_argv, call);\n}",
             "{.name = \"sparse\", .tile_h = 1, .tile_w = 2, .dense = 0, .layout = \"cpu-o16\", "
             ".run = run_my_symbol_0_sparse, .input_dtype = DISTILE_FLOAT32}",
             "{.name = \"dense\", .tile_h = 1, .tile_w = 2, .dense = 1, .layout = \"cpu-o16\", "
             ".run = run_my_symbol_0_dense, .input_dtype = DISTILE_FLOAT32}",
             ".version = DISTILE_POLYKERNEL_VERSION", ".name = \"conv_avx2\"", ".kind = DISTILE_MASKED_CONV2D",
             ".device = DISTILE_CPU", ".features = \"avx avx2 f16c fma sse41\"",
             std::string(".plan_hash = 0x") + good_hash, "static const distile_conv2d op = {",
             "    .in_channels = 16,\n", "    .out_channels = 48,\n", "    .groups = 1,\n", "    .kernel_h = 3,\n",
             "    .stride_w = 1,\n", "    .pad_right = 1,\n", "    .dilation_w = 1,\n",
             "    .epilogue = DISTILE_ACTIVATION_RELU,\n", "    .residual = 0,\n",
             "{.role = DISTILE_ROLE_INPUT, .dtype = DISTILE_FLOAT32, .channels = 16}",
             "{.role = DISTILE_ROLE_OUTPUT, .dtype = DISTILE_FLOAT32, .channels = 48}", ".num_operands = 4",
             ".num_variants = 2", ".variants = variants_0", ".num_times = 4", ".times = times_0"}) {
        CAPTURE(word);
        CHECK(contains(c, word));
    }
    CHECK_FALSE(contains(c, ".fallback"));
    // The points are ordered by variant, threads and tiles.
    const char *const points[] = {"{0, 1, 5, 12.5", "{0, 1, 10, 24.5", "{0, 2, 10, 12.25", "{1, 1, 7, 3.5"};
    size_t last = 0;
    for (const char *point : points) {
        CAPTURE(point);
        CHECK(c.find(point) != std::string::npos);
        CHECK(c.find(point) > last);
        last = c.find(point);
    }
    json unprofiled = good_plan();
    unprofiled.erase("profile");
    CHECK_FALSE(contains(emit_polykernels({read_plan(folder.write("plan.json", unprofiled.dump()))}, "s"), "times"));

    json linear = unprofiled;
    linear["operator"] = {
        {"distile_operator", 1},
        {"name", "mlp"},
        {"generator", "masked_linear"},
        {"params",
         {{"dtype", "float16"}, {"in_channels", 16}, {"out_channels", 48}, {"epilogue", "gelu"}, {"residual", true}}}};
    const std::string of_linear = emit_polykernels({read_plan(folder.write("plan.json", linear.dump()))}, "s");
    for (const char *word :
         {".kind = DISTILE_MASKED_LINEAR", "static const distile_linear op = {", ".epilogue = DISTILE_ACTIVATION_GELU",
          ".residual = 1", "{.role = DISTILE_ROLE_WEIGHTS, .dtype = DISTILE_FLOAT32, .channels = 48}",
          "{.role = DISTILE_ROLE_BIAS, .dtype = DISTILE_FLOAT32, .channels = 48}",
          "{.role = DISTILE_ROLE_RESIDUAL, .dtype = DISTILE_FLOAT16, .channels = 48}", ".num_operands = 5"}) {
        CAPTURE(word);
        CHECK(contains(of_linear, word));
    }
}

TEST_CASE("The descriptors of several plans are chained in their order", "[plan]") {
    const TemporaryFolder folder;
    const auto plan = [&](const char *name, const char *target) {
        json changed = good_plan();
        changed.erase("profile");
        changed["name"] = name;
        changed["target"] = target;
        return read_plan(folder.write("plan.json", changed.dump()));
    };
    const Plan wide = plan("wide", avx512), narrow = plan("narrow", avx2), any = plan("any", "x86-64-linux");
    const std::string c = emit_polykernels({wide, narrow, any}, "s");
    for (const char *word : {"\nconst distile_polykernel s = {", "\nstatic const distile_polykernel polykernel_1 = {",
                             "\nstatic const distile_polykernel polykernel_2 = {",
                             ".variants = variants_0,\n    .fallback = &polykernel_1,\n};",
                             ".variants = variants_1,\n    .fallback = &polykernel_2,\n};",
                             ".variants = variants_2,\n};", ".run = run_s_1_sparse,", ".run = run_s_2_dense,"}) {
        CAPTURE(word);
        CHECK(contains(c, word));
    }
    CHECK(c.find("\"any\"") < c.find("\"narrow\""));
    CHECK(c.find("\"narrow\"") < c.find("\"wide\""));

    refuse([&] { emit_polykernels({narrow, wide}, "s"); }, {"'wide'", "no device would take it", "'narrow'"});
    refuse([&] { emit_polykernels({any, narrow}, "s"); }, {"'narrow'", "no device would take it", "'any'"});
    refuse([&] { emit_polykernels({narrow, plan("again", avx2)}, "s"); }, {"'again'", "no device would take it"});
    refuse([&] { emit_polykernels({wide, plan("wide", avx2)}, "s"); }, {"'wide'", "name"});
    Plan other = narrow;
    other.op.params["in_channels"] = "32";
    refuse([&] { emit_polykernels({wide, other}, "s"); }, {"'narrow'", "another operator"});
    Plan gpu = narrow;
    gpu.backend = "cuda";
    gpu.target = "x86-64-linux-cuda-cuda_capability_70";
    refuse([&] { emit_polykernels({gpu, any}, "s"); }, {"'narrow'", "GPUs", "cannot stand"});
    refuse([&] { emit_polykernels({any, gpu}, "s"); }, {"'narrow'", "GPUs", "cannot stand"});
}

TEST_CASE("The portable plan of an operator is legal on any CPU of its platform", "[plan]") {
    const TemporaryFolder folder;
    const auto [name, lanes, registers] = GENERATE(std::tuple("x86-64-linux", 4, 16), std::tuple("arm-64-linux", 4, 32),
                                                   std::tuple("arm-64-android", 4, 32));
    CAPTURE(name);
    const Platform &of = get_platform(name);
    for (const auto &[in_channels, out_channels, kernel] :
         {std::array{1, 1, 1}, {3, 17, 7}, {16, 48, 3}, {250, 3, 3}, {256, 256, 3}, {256, 1024, 1}}) {
        CAPTURE(in_channels, out_channels, kernel);
        json file = good_operator();
        file["params"]["in_channels"] = in_channels;
        file["params"]["out_channels"] = out_channels;
        file["params"]["kernel_h"] = file["params"]["kernel_w"] = kernel;
        const Operator op = read_operator(folder.write("operator.json", file.dump()));
        const Plan plan = portable_plan(op, of);
        CHECK(plan.name == op.name + "_portable");
        CHECK(plan.target == of.name());
        CHECK(is_portable(plan));
        CHECK(plan.times.empty());
        std::string shapes;
        for (const PlanVariant &variant : plan.variants) {
            CHECK(cpu_space().why_illegal(variant.theta, problem_of(op, "cpu", lanes, registers)) == "");
            shapes += variant.name + (variant.dense ? "!" : "") + " " + std::to_string(variant.theta.at("tile_h")) +
                      "x" + std::to_string(variant.theta.at("tile_w")) + ", ";
        }
        CHECK(shapes == "fine 1x1, dense! 1x1, ");
        // What is written is read again.
        CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
    }
    // Tiles are whole numbers of phases.
    json file = good_operator();
    file["generator"] = "masked_upsample_conv2d";
    file["params"] = {{"in_channels", 16}, {"out_channels", 48}, {"scale_h", 2}, {"scale_w", 3}};
    std::string shapes;
    for (const PlanVariant &variant :
         portable_plan(read_operator(folder.write("operator.json", file.dump())), of).variants) {
        shapes += variant.name + " " + std::to_string(variant.theta.at("tile_h")) + "x" +
                  std::to_string(variant.theta.at("tile_w")) + ", ";
    }
    CHECK(shapes == "fine 2x3, dense 2x3, ");
}

TEST_CASE("The bound makes plans for every level of a backend", "[plan]") {
    const TemporaryFolder folder;
    struct Case {
        const char *generator;
        json params;
    };
    const Case cases[] = {
        {"masked_conv2d", {{"in_channels", 3}, {"out_channels", 17}, {"kernel_h", 7}, {"kernel_w", 7}}},
        {"masked_conv2d", {{"in_channels", 64}, {"out_channels", 256}, {"kernel_h", 1}, {"kernel_w", 1}}},
        {"masked_depthwise_conv2d", {{"channels", 40}}},
        {"masked_conv_transpose2d", {{"in_channels", 32}, {"out_channels", 48}, {"stride_h", 2}, {"stride_w", 2}}},
        {"masked_upsample_conv2d", {{"in_channels", 32}, {"out_channels", 48}, {"scale_h", 2}, {"scale_w", 3}}},
    };
    for (const auto &[generator, params] : cases) {
        CAPTURE(generator);
        json file = good_operator();
        file["generator"] = generator;
        file["params"] = params;
        const Operator op = read_operator(folder.write("operator.json", file.dump()));
        std::vector<std::pair<const Backend *, const char *>> targets = {{&cpu_backend(), "x86-64-linux"},
                                                                         {&cpu_backend(), "arm-64-linux"},
                                                                         {&cuda_backend(), "x86-64-linux"},
                                                                         {&opencl_backend(), "x86-64-linux"}};
        // Android changes the names in a plan, not its schedules, so one operator shows it.
        if (std::string(generator) == "masked_upsample_conv2d") {
            targets.emplace_back(&cpu_backend(), "arm-64-android");
            targets.emplace_back(&opencl_backend(), "arm-64-android");
        }
        for (const auto &[backend, name] : targets) {
            const Platform &platform = get_platform(name);
            std::vector<Plan> plans = bound_plans(op, *backend, false, platform);
            std::string names;
            for (const Plan &plan : plans) {
                CAPTURE(plan.name);
                names += plan.name + " ";
                check_buildable(plan);
                CHECK(find_platform(plan.target) == &platform);
                REQUIRE(plan.variants.size() >= 2);
                CHECK(plan.variants.size() <= 4);
                std::set<std::pair<std::string, int>> timed;
                for (const PlanTime &time : plan.times) {
                    CHECK(time.microseconds > 0);
                    timed.insert({time.variant, time.threads});
                }
                for (const PlanVariant &variant : plan.variants) {
                    CHECK(variant.dense == (&variant == &plan.variants.back()));
                    CHECK(timed.count({variant.name, 16}) == 1);
                }
                CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
            }
            if (backend == &portable_backend()) {
                plans.push_back(portable_plan(op, platform));
            }
            check_chain(plans);
            CHECK(names == (backend != &cpu_backend() ? op.name + "_" + backend->name + " "
                            : &platform.architecture == &arm_64_architecture()
                                ? op.name + "_armv82 "
                                : op.name + "_avx512 " + op.name + "_avx2 "));
        }
    }
}

TEST_CASE("The bound makes plans for dot products where CPUs have them", "[plan]") {
    const TemporaryFolder folder;
    const std::pair<const char *, const char *> narrow[] = {{"bfloat16", "amx_bf16 avx512_bf16 avx512 avx2 "},
                                                            {"float16", "amx_fp16 amx_bf16 avx512 avx2 "},
                                                            {"uint8", "amx_int8 avx512_vnni avx_vnni avx2 "}};
    for (const auto &[type, expected] : narrow) {
        json file = good_operator();
        file["params"]["dtype"] = type;
        for (const bool depthwise : {false, true}) {
            CAPTURE(type, depthwise);
            file["params"]["groups"] = depthwise ? file["params"]["in_channels"] : json(1);
            file["params"]["out_channels"] = depthwise ? file["params"]["in_channels"] : json(48);
            const Operator op = read_operator(folder.write("operator.json", file.dump()));
            std::vector<Plan> plans = bound_plans(op, cpu_backend(), false, get_platform("x86-64-linux"));
            std::string names;
            for (const Plan &plan : plans) {
                check_buildable(plan);
                CHECK_FALSE(plan.times.empty());
                CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
                names += plan.name.substr(op.name.size() + 1) + " ";
                const bool halide =
                    !op.is_quantized() && (plan.name == op.name + "_avx512" || plan.name == op.name + "_avx2");
                CHECK(plan.has(Language::DotProduct) != halide);
            }
            // There is none for depthwise convolutions but of quantized numbers, and those AMX does not multiply.
            CHECK(names == (!depthwise ? expected : op.is_quantized() ? "avx512_vnni avx_vnni avx2 " : "avx512 avx2 "));
            plans.push_back(portable_plan(op, get_platform("x86-64-linux")));
            check_chain(plans);
        }
        file["params"]["groups"] = 1;
        const Operator op = read_operator(folder.write("operator.json", file.dump()));
        const std::vector<Plan> plans = bound_plans(op, cpu_backend(), false, get_platform("arm-64-linux"));
        CHECK(plans.size() == 1);
        CHECK(plans.front().name == op.name + "_armv82");
    }
}

TEST_CASE("The bound makes plans for tensor cores, and behind them for every GPU", "[plan]") {
    const TemporaryFolder folder;
    json on_tensor_cores = good_operator();
    json &params = on_tensor_cores["params"];
    params["in_channels"] = params["out_channels"] = 64;
    for (const char *type : {"float32", "bfloat16"}) {
        params["dtype"] = type;
        const Operator op = read_operator(folder.write("operator.json", on_tensor_cores.dump()));
        const std::vector<Plan> plans = bound_plans(op, cuda_backend(), true);
        check_chain(plans);
        REQUIRE(plans.size() == 3);
        const bool tf32 = op.dtype().dtype == DISTILE_FLOAT32;
        CHECK(plans[0].name == op.name + (tf32 ? "_tf32_sm90" : "_sm90"));
        CHECK(plans[0].features() == "sm_90a");
        CHECK(plans[1].features() == "sm_80");
        CHECK(plans[2].name == op.name + "_cuda");
        for (const Plan &plan : plans) {
            CAPTURE(plan.name);
            check_buildable(plan);
            CHECK(plan.has(Language::TensorCore) == (&plan != &plans.back()));
            CHECK((plan.math == Math::TF32) == (tf32 && &plan != &plans.back()));
            CHECK_FALSE(plan.times.empty());
            CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
        }
    }
    params["in_channels"] = 3;
    CHECK(bound_plans(read_operator(folder.write("operator.json", on_tensor_cores.dump())), cuda_backend(), true)
              .size() == 1);
}

TEST_CASE("No time is better than that of a schedule that the bound ranks first", "[plan]") {
    const TemporaryFolder folder;
    json file = good_operator();
    file["params"]["in_channels"] = file["params"]["out_channels"] = 128;
    const Operator op = read_operator(folder.write("operator.json", file.dump()));
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const Workload workload = workload_of(op, device);
    const Plan plan = bound_plan("mine", op, device, 1);
    CHECK(plan.variants.size() == 2);
    const Bucket all = density_bucket(workload, 1);
    CHECK(plan.times.back().tiles == all.tiles(1, 1));
    Workload threads = workload;
    threads.threads = plan.times.back().threads;
    CHECK(plan.times.back().microseconds ==
          Approx(bound(threads, plan.variants.back().theta, plan.times.back().tiles).us));

    // What to measure first differs in more than a detail, and begins with what the bound ranks first.
    const std::vector<Theta> first = best_by_bound(workload, {.3, .05}, 10);
    CHECK(first.size() == 10);
    for (size_t i = 0; i < first.size(); i++) {
        CHECK(space_of("cpu", workload.problem).why_illegal(first[i], workload.problem).empty());
        for (size_t j = 0; j < i; j++) {
            int differences = 0;
            for (const auto &[knob, value] : first[i]) {
                differences += first[j].at(knob) != value ? 1 : 0;
            }
            CHECK(differences >= 2);
        }
    }
    RankOptions options;
    options.held = {{"tile_h", 1}, {"tile_w", 1}};
    const Bucket bucket = density_bucket(workload, .3);
    const double least = rank(workload, {bucket}, options).kept.front().us[0];
    CHECK(bound(workload, first.front(), bucket.tiles(1, 1)).us <= least * 1.02);
}

TEST_CASE("The space says why a schedule is illegal", "[plan]") {
    OperatorFacts facts;
    facts.in_channels = facts.channel_block = 16;
    facts.kernel_h = facts.kernel_w = 3;
    facts.out_channels = 40;
    const Problem problem = cpu_problem(facts, 8, 16);
    const Theta good = good_theta().get<Theta>();
    const auto why = [&](const Theta &changes, const Problem &of) {
        Theta theta = good;
        for (const auto &[knob, value] : changes) {
            theta[knob] = value;
        }
        return cpu_space().why_illegal(theta, of);
    };
    CHECK(why({}, problem).empty());
    for (const Knob &knob : cpu_space().knobs) {
        CAPTURE(knob.name);
        CHECK_FALSE(knob.meaning.empty());
        CHECK_FALSE(knob.values.empty());
        Theta without = good;
        without.erase(knob.name);
        CHECK(contains(cpu_space().why_illegal(without, problem), "'" + knob.name + "'"));
        CHECK(contains(why({{knob.name, -1}}, problem), "'" + knob.name + "' is negative"));
        CHECK((knob.name == "order" ? why({{knob.name, 0}}, problem).empty()
                                    : contains(why({{knob.name, 0}}, problem), "at least 1")));
    }
    CHECK(contains(why({{"warp", 1}}, problem), "'warp' (there are tile_h, tile_w, pixels,"));
    CHECK(contains(why({{"order", 3}}, problem), "order from 0 to 2"));
    CHECK(contains(why({{"channels", 12}}, problem), "whole vectors"));
    // 40 channels are 48 with whole blocks.
    CHECK(contains(why({{"channels", 32}, {"pixels", 2}}, problem), "divide the output channels"));
    CHECK(contains(why({{"channel_splits", 2}}, problem), "divide the output channels"));
    CHECK(why({{"channel_splits", 3}}, problem).empty());
    CHECK(why({{"channels", 8}, {"channel_splits", 6}}, problem).empty());
    // 16 registers hold 6 x 2 accumulators, 2 of weights and 1 of the input; 7 x 2 do not fit.
    CHECK(contains(why({{"pixels", 7}}, problem), "registers"));
    CHECK(why({{"pixels", 13}, {"channels", 8}}, problem).empty());
    CHECK(contains(why({{"unroll", 3}}, problem), "divides the input channels"));
    CHECK(contains(why({{"unroll", 16}, {"order", 1}}, problem), "64 unrolled"));
    CHECK(why({{"unroll", 4}, {"order", 1}}, problem).empty());
    CHECK(why({{"unroll", 16}, {"order", 2}}, problem).empty());
    CHECK(why({{"tile_h", 64}, {"tile_w", 64}}, problem).empty());
    CHECK(contains(why({{"tile_h", 64}, {"tile_w", 65}}, problem), "4096"));
    CHECK(contains(why({{"tile_h", 65535}, {"tile_w", 65535}}, problem), "4096"));
    // With 32 registers the broadcast needs none of its own.
    facts.out_channels = 48;
    const Problem wide = cpu_problem(facts, 16, 32);
    CHECK(why({{"pixels", 31}}, wide).empty());
    CHECK(contains(why({{"pixels", 32}}, wide), "registers"));
}

TEST_CASE("The space of depthwise convolutions says why a schedule is illegal", "[plan]") {
    OperatorFacts facts;
    facts.in_channels = 1;
    facts.out_channels = facts.groups = 40;
    facts.channel_block = 16;
    facts.depthwise = true;
    facts.kernel_h = facts.kernel_w = 9;
    const Problem problem = cpu_problem(facts, 8, 16);
    const auto why = [&](const Theta &changes) {
        Theta theta = depthwise_theta();
        for (const auto &[knob, value] : changes) {
            theta[knob] = value;
        }
        return cpu_depthwise_space().why_illegal(theta, problem);
    };
    CHECK(&space_of("cpu", problem) == &cpu_depthwise_space());
    CHECK(&space_of("cpu") == &cpu_space());
    CHECK(contains(why({}), "64 unrolled taps"));
    CHECK(why({{"unroll", UnrollRow}}).empty());
    CHECK(why({{"unroll", UnrollNothing}}).empty());
    CHECK(contains(why({{"unroll", 3}}), "unroll from 0 to 2"));
    CHECK(contains(why({{"unroll", 1}, {"tasks", 0}}), "'tasks'"));
    CHECK(contains(why({{"unroll", 1}, {"channels", 12}}), "whole vectors"));
    // 40 channels are 48 with whole blocks.
    CHECK(contains(why({{"unroll", 1}, {"channels", 32}}), "divide the operator's"));
    CHECK(why({{"unroll", 1}, {"channels", 48}, {"pixels", 1}}).empty());
    // 16 registers hold 7 x 2 sums and 2 of weights; 8 x 2 do not fit.
    CHECK(why({{"unroll", 1}, {"pixels", 7}}).empty());
    CHECK(contains(why({{"unroll", 1}, {"pixels", 8}}), "registers"));
    CHECK(contains(why({{"unroll", 1}, {"tile_h", 64}, {"tile_w", 65}}), "4096"));
}

TEST_CASE("Every space says in words what a schedule does", "[plan]") {
    CHECK(cpu_space().describe(good_theta().get<Theta>()).rfind("tiles of ", 0) == 0);
    CHECK(cpu_depthwise_space().describe(depthwise_theta()) ==
          "tiles of 1 x 1; register tiles of 6 pixels x 16 channels; 2 tasks a thread; the kernel unrolled");
    Theta theta = {{"tile_h", 1},        {"tile_w", 2}, {"block_pixels", 16},  {"block_channels", 64},
                   {"thread_pixels", 4}, {"unroll", 1}, {"thread_channels", 8}};
    CHECK(cuda_direct_space().describe(theta) == "tiles of 1 x 2; blocks of 16 pixels x 64 channels, threads of 4 x 8; "
                                                 "input read in place; a kernel row unrolled");
    theta["splits"] = theta["halo"] = 1;
    theta["chunk"] = 4;
    CHECK(cuda_space().describe(theta) ==
          "tiles of 1 x 2; blocks of 16 pixels x 64 channels, threads of 4 x 8; reduction in 1 part, 4 input "
          "channels staged at once for whole windows; weights through the cache");
    // A plan may hold any numbers, and lack knobs.
    for (const Space *space : {&cpu_space(), &cpu_depthwise_space(), &cuda_space(), &cuda_direct_space()}) {
        CHECK_FALSE(space->describe({}).empty());
        CHECK_FALSE(space->describe({{"order", 4096}, {"unroll", 4096}}).empty());
    }
}
