// Plans for tensor cores and for dot products, and their spaces.
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "kernels/dot_products.h"
#include "kernels/tensor_core/code.h"
#include "plans/emit.h"
#include "plans/plan.h"
#include "plans/tensor_core.h"
#include "schedules/attention_space.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/plan_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace distile;
using nlohmann::json;

TEST_CASE("A plan for tensor cores says its math, its layout and its target", "[plan]") {
    const TemporaryFolder folder;
    const auto read = [&](const json &file) { return read_plan(folder.write("plan.json", file.dump())); };
    const Plan plan = read(tensor_core_plan());
    CHECK(plan.math == Math::TF32);
    CHECK(plan.has(Language::TensorCore));
    CHECK_FALSE(plan.has(Language::Halide));
    CHECK(plan.variants[0].language == Language::TensorCore);
    CHECK(plan.variants[0].theta.at("stages") == 4);
    CHECK(plan.channel_block(plan.variants[0]) == 8);
    CHECK(to_json(plan)["variants"] == tensor_core_plan()["variants"]);
    CHECK(to_json(plan)["math"] == "tf32");
    Plan exact = plan;
    exact.math = Math::Float32;
    CHECK(plan_hash(exact) != plan_hash(plan));
    CHECK_FALSE(to_json(exact).contains("math"));
    for (const char *type : {"float16", "bfloat16"}) {
        CHECK(read(tensor_core_plan_in(type)).math == Math::Float32);
    }
    json spelled = good_plan();
    spelled["math"] = "float32";
    CHECK(plan_hash_text(read(spelled)) == good_hash);

    const json halide = {{"halide", good_theta()}};
    const std::vector<Change> changes = {
        erase("", "math"),
        set("/math", "float32", {"variant 0", "TF32", "\"math\": \"tf32\""}),
        set("/math", "fp8", {"math", "fp8"}),
        set("/math", 1, {"math"}),
        set("/operator/params/dtype", "float16", {"math", "float16"}),
        set("/layout", "cuda-k16", {"variant 0", "cuda-k16", "cuda-k32"}),
        set("/layout", "cuda-o32", {"variant 0", "cuda-o32", "cuda-k32"}),
        set("/variants/1/layout", "cuda-o32", {"variant 1", "cuda-o32", "cuda-k32"}),
        set("/backend", "cpu", {"target", "cpu"}),
        set("/target", "x86-64-linux-cuda-cuda_capability_75", {"variant 0", "tensor cores", "cuda_capability_75"}),
        set("/target", "x86-64-linux-cuda-cuda_capability_90", {"target", "cuda_capability_90"}),
        set("/variants/1/code", halide, {"variant 1", "Halide", "90a"}),
        set("/variants/0/code/tensor_core/tile_h", 0, {"variant 0", "tensor_core", "tile_h"}),
        set("/variants/0/code/tensor_core", 3, {"variant 0", "tensor_core", "object"}),
        {[&](json &file) {
             file["target"] = ampere;
             file["variants"][1]["code"] = halide;
         },
         {"variant 1", "math", "tf32", "Halide"}}};
    refuse_changes(tensor_core_plan(), changes, [](const std::string &path) { return read_plan(path); });

    // Code of both kinds, each with its own weights.
    json both = tensor_core_plan_in("float16");
    both["target"] = ampere;
    both["variants"][1]["code"] = halide;
    refuse([&] { read(both); }, {"variant 1", "cuda-k16", "cuda-o32"});
    both["variants"][1]["layout"] = "cuda-o32";
    const Plan mixed = read(both);
    CHECK(mixed.has(Language::Halide));
    CHECK(mixed.channel_block(mixed.variants[1]) == 32);
}

TEST_CASE("A plan for tensor cores becomes one of another type", "[plan]") {
    const TemporaryFolder folder;
    const Plan tf32 = read_plan(folder.write("plan.json", tensor_core_plan().dump()));
    Operator op = tf32.op;
    op.params["dtype"] = "bfloat16";
    Plan plan = tf32;
    plan.times = {{"sparse", 132, 10, 5.}};
    change_type(plan, op);
    CHECK(plan.math == Math::Float32);
    CHECK(plan.times.empty());
    for (const PlanVariant &variant : plan.variants) {
        CHECK(plan.layout_of(variant) == "cuda-k16");
    }
    CHECK(read_plan(folder.write("plan.json", to_json(plan).dump())).op == op);
    change_type(plan, tf32.op);
    CHECK(plan_hash(plan) == plan_hash(tf32));
}

TEST_CASE("The source for tensor cores names no type that they lack", "[plan]") {
    Operator op;
    op.params["dtype"] = "float32";
    CHECK(tensor_core_element(op) == std::string("Tf32"));
    op.params["dtype"] = "float8_e5m2";
    std::string message;
    try {
        tensor_core_element(op);
    } catch (const FileError &error) {
        message = error.what();
    }
    CHECK(contains(message, "float8_e5m2"));
}

TEST_CASE("Operators in float8 have code from Halide alone, on every device", "[plan]") {
    const TemporaryFolder folder;
    for (const char *type : {"float8_e4m3fn", "float8_e5m2"}) {
        json file = good_operator();
        file["params"]["dtype"] = type;
        file["typical"]["weight_zeros"] = .9;
        const Operator op = parse_operator(file, "test");
        CHECK(op.dtype().bytes == 1);
        CHECK_FALSE(op.is_quantized());
        for (const Backend *backend : {&cpu_backend(), &cuda_backend(), &opencl_backend()}) {
            const std::vector<Plan> plans = bound_plans(op, *backend, true, get_platform("x86-64-linux"));
            CHECK_FALSE(plans.empty());
            for (const Plan &plan : plans) {
                CAPTURE(plan.name);
                check_buildable(read_plan(folder.write("plan.json", to_json(plan).dump())));
                CHECK(std::all_of(plan.variants.begin(), plan.variants.end(),
                                  [](const PlanVariant &variant) { return variant.language == Language::Halide; }));
            }
        }
        refuse([&] { read_plan(folder.write("plan.json", tensor_core_plan_in(type).dump())); },
               {"tensor cores do not multiply", type});
        json nonzeros = good_plan();
        nonzeros["operator"]["params"]["dtype"] = type;
        nonzeros["layout"] = "cpu-nonzeros";
        nonzeros["variants"] = {
            {{"name", "sparse"},
             {"code", {{"nonzeros", {{"tile_h", 8}, {"tile_w", 8}, {"vectors", 8}, {"channel_splits", 1}}}}}}};
        refuse([&] { read_plan(folder.write("plan.json", nonzeros.dump())); },
               {"nonzero weights does not multiply", type});
    }
}

TEST_CASE("A plan for dot products names a target that has them, and no other code", "[plan]") {
    const TemporaryFolder folder;
    const auto file_of = [&](const char *name) {
        return read_json(std::string(DISTILE_TESTS_FOLDER) + "/plans/" + name + ".json");
    };
    const auto read = [&](const json &file) {
        const Plan plan = read_plan(folder.write("plan.json", file.dump()));
        check_buildable(plan);
        return plan;
    };
    const json avx512_bf16 = file_of("test_conv3_24_40_residual_bf16_avx512_bf16"),
               amx_bf16 = file_of("test_conv3_24_40_residual_bf16_amx_bf16"),
               amx_fp16 = file_of("test_conv3_24_40_residual_fp16_amx_fp16"),
               split_fp16 = file_of("test_conv3_24_40_residual_fp16_amx_split_fp16");
    const Plan plan = read(avx512_bf16);
    CHECK(plan.variants[0].language == Language::DotProduct);
    CHECK(plan.channel_block(plan.variants[0]) == 16);
    CHECK(plan.features() == "avx avx2 avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16 f16c fma sse41");
    CHECK(contains(read(amx_bf16).features(), "amx_bf16"));
    CHECK(to_json(plan)["variants"] == avx512_bf16["variants"]);
    CHECK(std::string(generic_device_of(plan.target)) == "generic_avx512");

    const std::string c = emit_polykernels({plan}, "s");
    for (const char *word : {"static const distile_taps rows[] = {{-1, 1, 3}};", ".epilogue = DISTILE_ACTIVATION_GELU",
                             ".block_pixels = 12", ".block_channels = 32", ".staged_blocks = 2", ".channel_splits = 1",
                             ".stride_h = 1, .stride_w = 2", "return distile_call_avx512_bf16(&code, call);",
                             ".layout = \"cpu-k32\", .run = run_s_0_fine}"}) {
        CAPTURE(word, c);
        CHECK(contains(c, word));
    }
    CHECK(contains(emit_polykernels({read(amx_bf16)}, "s"), "return distile_call_amx_bf16(&code, call);"));
    CHECK(contains(emit_polykernels({read(amx_fp16)}, "s"), "return distile_call_amx_fp16(&code, call);"));
    CHECK(contains(emit_polykernels({read(split_fp16)}, "s"), "return distile_call_amx_split_fp16(&code, call);"));

    const std::string theta = "/variants/0/code/dot_product/";
    const json halide = {{"halide", good_theta()}};
    const std::vector<Change> changes = {
        set("/target", avx512, {"variant 0", "avx512_bf16 or amx_bf16", avx512}),
        set("/layout", "cpu-o16", {"variant 0", "cpu-o16", "cpu-k32"}),
        set("/variants/1/code", halide, {"variant 1", "Halide", "plan of its own"}),
        set("/operator/params/dtype", "float16", {"variant 0", "amx_fp16 or amx_bf16"}),
        set("/operator/params/dtype", "float32", {"variant 0", "bfloat16"})};
    refuse_changes(avx512_bf16, changes, [](const std::string &path) { return read_plan(path); });
    const std::vector<Change> not_buildable = {
        set("/target", amx_bf16["target"], {"\"fine\"", "pixels of one tile"}),
        set("/operator/params/groups", 8, {"\"fine\"", "fewer than 8 input channels"}),
        set(theta + "channels", 24, {"\"fine\"", "whole vectors"}),
        set(theta + "channels", 80, {"\"fine\"", "no more than 64"}),
        set(theta + "pixels", 15, {"\"fine\"", "registers"}),
        set(theta + "staged", 513, {"\"fine\"", "512"}),
        set(theta + "staged", 0, {"\"fine\"", "staged"})};
    for (const Change &change : not_buildable) {
        json changed = avx512_bf16;
        change.make(changed);
        refuse([&] { read(changed); }, change.words);
    }
    Plan other = plan;
    Operator op = plan.op;
    op.params["dtype"] = "float32";
    refuse([&] { change_type(other, op); }, {"fine", "float32"});
    op.params["dtype"] = "float16";
    refuse([&] { change_type(other, op); }, {"fine", "amx_fp16 or amx_bf16"});
}

TEST_CASE("A quantized operator on a GPU has plans for tensor cores and for dot products", "[plan]") {
    const TemporaryFolder folder;
    const json file = read_json(std::string(DISTILE_TESTS_FOLDER) + "/plans/test_linear_48_32_residual_int8_sm90.json");
    const auto read = [&](const json &json) {
        const Plan plan = read_plan(folder.write("plan.json", json.dump()));
        check_buildable(plan);
        return plan;
    };
    const std::string source = tensor_core_source(read(file)), c = emit_polykernels({read(file)}, "s");
    CAPTURE(source, c);
    CHECK(contains(source, "using Element = int8_t;\n    using Result = float;"));
    CHECK(contains(c, "DISTILE_ROLE_REQUANTIZATION"));
    CHECK(contains(c, ".layout = \"cuda-k8\""));
    json other = file;
    other["operator"]["params"]["output_dtype"] = "uint8";
    CHECK(contains(tensor_core_source(read(other)), "using Result = uint8_t;"));
    refuse_changes(file,
                   {set("/variants/1/code", {{"halide", good_theta()}}, {"variant 1", "Halide", "quantized"}),
                    set("/layout", "cuda-k16", {"variant 0", "cuda-k16", "cuda-k8"})},
                   [](const std::string &path) { return read_plan(path); });
    other["operator"]["params"]["in_channels"] = 56;
    refuse([&] { read(other); }, {"multiples of 16"});

    // Plans for dot products take any channels, and their code is the same for all operators.
    other["target"] = "x86-64-linux-cuda-cuda_capability_75";
    other["layout"] = "cuda-k64";
    for (json &variant : other["variants"]) {
        variant["code"] = {
            {"dot_product",
             {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 32}, {"channels", 16}, {"staged", 1}, {"channel_splits", 1}}}};
    }
    other.erase("profile");
    const Plan plan = read(other);
    CHECK(plan.features() == "sm_75");
    const std::string calls = emit_polykernels({plan}, "s");
    CAPTURE(calls);
    CHECK(contains(calls, "return distile_call_dp4a(&code, call);"));
    CHECK(contains(calls, ".layout = \"cuda-k64\""));
    refuse_changes(other,
                   {set("/target", "x86-64-linux-cuda-cuda_capability_80", {"variant 0", "quantized", "75"}),
                    set("/layout", "cuda-k8", {"variant 0", "cuda-k8", "cuda-k64"})},
                   [](const std::string &path) { return read_plan(path); });
}

TEST_CASE("A quantized operator has plans for dot products only", "[plan]") {
    const TemporaryFolder folder;
    const json file =
        read_json(std::string(DISTILE_TESTS_FOLDER) + "/plans/test_conv3_24_40_residual_uint8_avx512_vnni.json");
    const auto read = [&](const json &json) {
        const Plan plan = read_plan(folder.write("plan.json", json.dump()));
        check_buildable(plan);
        return plan;
    };
    const Plan plan = read(file);
    CHECK(plan.features() == "avx avx2 avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni f16c fma sse41");
    CHECK(plan.op.summary().find("uint8 to int8") != std::string::npos);
    const std::string c = emit_polykernels({plan}, "s");
    for (const char *word :
         {"{.role = DISTILE_ROLE_INPUT, .dtype = DISTILE_UINT8, .channels = 24}",
          "{.role = DISTILE_ROLE_WEIGHTS, .dtype = DISTILE_INT8", "DISTILE_ROLE_REQUANTIZATION",
          "{.role = DISTILE_ROLE_RESIDUAL, .dtype = DISTILE_INT8",
          "{.role = DISTILE_ROLE_OUTPUT, .dtype = DISTILE_INT8", "return distile_call_avx512_vnni(&code, call);",
          ".layout = \"cpu-k64\", .run = run_s_0_fine}"}) {
        CAPTURE(word, c);
        CHECK(contains(c, word));
    }
    // A word or a level chooses the code.
    const std::string base = "x86-64-linux-avx-avx2-avx512-avx512_skylake-f16c-fma-sse41";
    json few = file;
    for (json &variant : few["variants"]) {
        variant["code"]["dot_product"]["pixels"] = 1;
    }
    for (const auto &[target, function] : {std::pair("x86-64-linux", "portable_int8"),
                                           {"x86-64-linux-avx-avx2-f16c-fma-sse41", "avx2_int8"},
                                           {base.c_str(), "avx2_int8"},
                                           {"x86-64-linux-avx-avx2-avx_vnni-f16c-fma-sse41", "avx_vnni"},
                                           {"arm-64-linux", "portable_int8"}}) {
        few["target"] = target;
        CHECK(contains(emit_polykernels({read(few)}, "s"), std::string("return distile_call_") + function + "("));
    }
    few = file;
    few["target"] = base + "-amx_int8";
    for (json &variant : few["variants"]) {
        variant["code"]["dot_product"]["pixels"] = 16;
        variant["code"]["dot_product"]["channels"] = 16;
    }
    CHECK(contains(emit_polykernels({read(few)}, "s"), "return distile_call_amx_int8("));
    // Three groups of 5 output channels share a block; a depthwise convolution needs no code of AMX.
    few["operator"]["params"]["groups"] = 8;
    CHECK(
        contains(emit_polykernels({read(few)}, "s"), ".read_channels = 9, .section_channels = 15, .apart_groups = 1"));
    few["operator"]["params"]["in_channels"] = few["operator"]["params"]["groups"] = 40;
    for (json &variant : few["variants"]) {
        variant["code"]["dot_product"]["pixels"] = 14;
    }
    const std::string depthwise = emit_polykernels({read(few)}, "s");
    CHECK(contains(depthwise, ".read_channels = 0, .section_channels = 40"));
    CHECK(contains(depthwise, "return distile_call_avx512_vnni("));

    const json halide = {{"halide", good_theta()}};
    const std::vector<Change> changes = {
        set("/variants/1/code", halide, {"variant 1", "Halide", "quantized"}),
        set("/layout", "cpu-k32", {"variant 0", "cpu-k32", "cpu-k64"}),
        set("/operator/params/output_dtype", "float16", {"output_dtype", "float16"}),
        set("/operator/params/dtype", "float32", {"output_dtype", "uint8"}),
    };
    refuse_changes(file, changes, [](const std::string &path) { return read_plan(path); });
    const std::vector<Change> not_buildable = {
        set("/operator/params/groups", 8, {"\"fine\"", "those of a group"}),
        set("/variants/0/code/dot_product/pixels", 15, {"\"fine\"", "registers"}),
    };
    for (const Change &change : not_buildable) {
        json changed = file;
        change.make(changed);
        refuse([&] { read(changed); }, change.words);
    }
    // Code from Halide for CPUs does not know the words.
    json real = file;
    real["operator"]["params"].erase("output_dtype");
    real["operator"]["params"]["dtype"] = "float32";
    real["layout"] = "cpu-o16";
    real["variants"] = {{{"name", "v"}, {"code", halide}}};
    refuse([&] { read(real); }, {"Halide", "plan of its own"});
}

TEST_CASE("The descriptor of a plan for tensor cores holds what launches its code", "[plan]") {
    const TemporaryFolder folder;
    json file = tensor_core_plan();
    file["variants"].push_back({{"name", "tiles"}, {"code", {{"tensor_core", tensor_core_theta()}}}});
    file["variants"][2]["code"]["tensor_core"]["tile_w"] = 3;
    file["variants"][2]["code"]["tensor_core"]["block_pixels"] = 64;
    file["variants"][2]["code"]["tensor_core"]["splits"] = 1;
    const Plan plan = read_plan(folder.write("plan.json", file.dump()));
    const std::string c = emit_polykernels({plan}, "s");
    const std::string row = "{.name = \"sparse\", .tile_h = 1, .tile_w = 1, .dense = 0, .layout = \"cuda-k32\", "
                            ".run = run_s_0_sparse, .listless_pixels = 4096, .launch = 1}";
    for (const char *word :
         {row.c_str(), ".math = DISTILE_MATH_TF32,", ".features = \"sm_90a\"", ".device = DISTILE_CUDA",
          "extern const char s_0_code[], s_0_code_end[];",
          "static int run_s_0_sparse(const distile_kernel_call *call) {", ".code = s_0_code,", ".end = s_0_code_end",
          ".kernel = \"distile_sparse\"", ".kernel = \"distile_chosen_0\"",
          ".kernel = \"distile_chosen_0\", .place = 1", ".kernel = \"distile_chosen_1\", .place = 0",
          ".block_pixels = 128", ".block_channels = 64", ".splits = 2", ".balanced = 0", ".threads = 384",
          ".blocks_per_multiprocessor = 1", "return distile_call_tensor_core(&codes_0[0], call);",
          "return distile_choose_tensor_core(choices_0, calls, variants, num_calls, choice);",
          ".run_chosen = run_chosen_0",
          // Variants that need a list.
          ".dense = 1, .layout = \"cuda-k32\", .run = run_s_0_dense, .launch = 1}",
          ".tile_w = 3, .dense = 0, .layout = \"cuda-k32\", .run = run_s_0_tiles, .launch = 2}"}) {
        CAPTURE(word, c);
        CHECK(contains(c, word));
    }
    CHECK_FALSE(contains(c, "distile_call_halide"));
    CHECK_FALSE(contains(emit_polykernels({read_plan(folder.write("p.json", good_plan().dump()))}, "s"), ".math"));

    const std::string source = tensor_core_source(plan);
    for (const char *word :
         {"#include \"kernels/tensor_core/sm90.cuh\"", "using Element = Tf32;", " out_channels = 48;",
          "kernel_h = 3, kernel_w = 3", "tile_h = 1, tile_w = 3", "Activation::relu;", "residual = false",
          "Sm90<Op, 128, 64, 4, 2, false>", "Kernel::threads == 384", "extern \"C\" __global__", "struct Of_tiles {",
          "index = 2;", "distile_tiles(__grid_constant__ const Launch<1>", "run_named<Of_tiles>(launch);",
          "distile_chosen_1(", "distile_chosen_0(__grid_constant__ const Launch<2>",
          "run_chosen<Of_sparse, Of_dense>(launch);", "run_chosen<Of_tiles>(launch);"}) {
        CAPTURE(word, source);
        CHECK(contains(source, word));
    }
    // A kernel has at most 16 variants.
    json many = tensor_core_plan();
    for (int i = 0; i < 15; i++) {
        many["variants"].push_back({{"name", "v" + std::to_string(i)}, {"code", file["variants"][0]["code"]}});
    }
    const std::string of_many = tensor_core_source(read_plan(folder.write("plan.json", many.dump())));
    CHECK(contains(of_many, "distile_chosen_0(__grid_constant__ const Launch<16>"));
    CHECK(contains(of_many, "distile_chosen_1(__grid_constant__ const Launch<1>"));
    json linear = tensor_core_plan_in("bfloat16");
    linear["target"] = ampere;
    linear["operator"] = {
        {"distile_operator", 1},
        {"name", "mlp"},
        {"generator", "masked_linear"},
        {"params",
         {{"dtype", "bfloat16"}, {"in_channels", 16}, {"out_channels", 48}, {"epilogue", "gelu"}, {"residual", true}}}};
    const Plan mlp = read_plan(folder.write("plan.json", linear.dump()));
    const std::string of_linear = tensor_core_source(mlp);
    for (const char *word : {"#include \"kernels/tensor_core/sm80.cuh\"", "Bfloat16", "kernel_h = 1",
                             "Activation::gelu", "residual = true", "Sm80<"}) {
        CAPTURE(word, of_linear);
        CHECK(contains(of_linear, word));
    }
    // A theta that was never checked gives no code, but some C.
    linear["variants"][0]["code"]["tensor_core"] = {{"tile_h", 4096}, {"tile_w", 4096}, {"stages", 4096}};
    CHECK_NOTHROW(emit_polykernels({read_plan(folder.write("plan.json", linear.dump()))}, "s"));
}

TEST_CASE("Plans for GPUs are chained by their capability and their math", "[plan]") {
    const TemporaryFolder folder;
    const auto plan = [&](const char *name, json file, const char *target) {
        file["name"] = name;
        file["target"] = target;
        return read_plan(folder.write("plan.json", file.dump()));
    };
    json halide = good_plan();
    halide.erase("profile");
    halide["backend"] = "cuda";
    halide["layout"] = "cuda-o32";
    halide["operator"] = tensor_core_plan()["operator"];
    const char *const volta = "x86-64-linux-cuda-cuda_capability_70";
    const Plan tf32_sm90 = plan("tf32_sm90", tensor_core_plan(), hopper),
               tf32_sm80 = plan("tf32_sm80", tensor_core_plan(), ampere), any = plan("any", halide, volta),
               newer = plan("newer", halide, ampere);
    check_chain({tf32_sm90, tf32_sm80, any});
    check_chain({newer, any});
    // Contexts that want float32 pass over TF32.
    check_chain({tf32_sm80, newer});
    check_chain({tf32_sm80, plan("other", halide, "x86-64-linux-cuda-cuda_capability_86")});
    const std::string c = emit_polykernels({tf32_sm90, any}, "s");
    CHECK(contains(c, ".fallback = &polykernel_1"));
    CHECK(c.find(".math") == c.rfind(".math"));
    refuse([&] { check_chain({any, newer}); }, {"'newer'", "no device would take it", "'any'"});
    refuse([&] { check_chain({any, tf32_sm90}); }, {"'tf32_sm90'", "no device would take it", "'any'"});
    refuse([&] { check_chain({tf32_sm80, tf32_sm90}); }, {"'tf32_sm90'", "no device would take it", "'tf32_sm80'"});
    const Plan again = plan("again", tensor_core_plan(), hopper);
    refuse([&] { check_chain({tf32_sm90, again}); }, {"'again'", "no device would take it"});
    CHECK(cuda_backend().needs("sm_80") == "an NVIDIA GPU of compute capability 8.0 or later");
    CHECK(cuda_backend().needs("sm_90a") == "an NVIDIA GPU of compute capability 9.0");
}

TEST_CASE("What tensor cores cannot run is refused", "[plan]") {
    const TemporaryFolder folder;
    const auto check = [&](const json &file) { check_buildable(read_plan(folder.write("plan.json", file.dump()))); };
    const json good = tensor_core_plan();
    check(good);
    const auto refuse_knob = [&](const char *knob, int value, const std::string &word) {
        json file = good;
        file["variants"][1]["code"]["tensor_core"][knob] = value;
        refuse([&] { check(file); }, {"'conv_sm90'", "variant \"dense\"", "schedule is not legal", word});
    };
    refuse_knob("stages", 1, "stages among 2, 3");
    refuse_knob("stages", 9, "stages among 2, 3");
    refuse_knob("block_pixels", 96, "block_pixels among 64, 128");
    refuse_knob("block_channels", 48, "block_channels among 32, 64, 96");
    refuse_knob("block_channels", 96, "no block beyond the channels");
    refuse_knob("splits", 3, "splits among 1, 2, 4, 8");
    refuse_knob("splits", 8, "as many steps of the reduction as it has stages");
    refuse_knob("balanced", 1, "splits of reductions or a balance");
    refuse_knob("balanced", 2, "balanced among 0, 1");
    refuse_knob("block_pixels", 256, "block_pixels of at most 128 with splits");
    refuse_knob("warps", 4, "there is no knob 'warps'");
    json file = good;
    file["variants"][0]["code"]["tensor_core"].erase("splits");
    refuse([&] { check(file); }, {"variant \"sparse\"", "'splits'", "missing"});
    file = good;
    file["target"] = ampere;
    refuse([&] { check(file); }, {"splits among 1"});
    file["variants"][0]["code"]["tensor_core"]["splits"] = file["variants"][1]["code"]["tensor_core"]["splits"] = 1;
    refuse([&] { check(file); }, {"99 KB of shared memory"});
    file["variants"][0]["code"]["tensor_core"]["stages"] = file["variants"][1]["code"]["tensor_core"]["stages"] = 3;
    check(file);
    for (const auto &[param, value] : std::vector<std::pair<const char *, int>>{
             {"in_channels", 20}, {"out_channels", 20}, {"groups", 4}, {"groups", 16}, {"kernel_h", 17}}) {
        CAPTURE(param);
        file = good;
        file["operator"]["params"][param] = value;
        refuse([&] { check(file); }, {"variant \"sparse\"", "no kernel for tensor cores", "multiples of 8"});
    }
    // Not even one that is a convolution at its strides of 1.
    file = good;
    file["operator"]["generator"] = "masked_conv_transpose2d";
    refuse([&] { check(file); }, {"no kernel for tensor cores"});
}

TEST_CASE("The spaces of tensor cores hold what fits a multiprocessor", "[plan]") {
    OperatorFacts facts;
    facts.in_channels = facts.out_channels = 256;
    facts.kernel_h = facts.kernel_w = 3;
    CHECK(runs_on_tensor_cores(facts));
    const Problem problem{facts};
    for (const TensorCores cores : {TensorCores::Sm80, TensorCores::Sm90}) {
        const Space &space = tensor_core_space(cores);
        const int64_t most = cores == TensorCores::Sm90 ? 227 << 10 : 99 << 10;
        const std::vector<PackedTheta> points = legal_points(space, problem);
        CHECK(points.size() > 500);
        for (const PackedTheta &point : points) {
            const Theta theta = unpack(space, point);
            REQUIRE(space.why_illegal(theta, problem).empty());
            const TensorCoreBlock block = tensor_core_block(cores, theta);
            REQUIRE(block.shared_bytes <= most);
            REQUIRE(block.per_multiprocessor * (block.shared_bytes + 1024) <= most + 1024);
            REQUIRE(block.per_multiprocessor * block.threads <= 1536);
        }
        // Each constraint refuses some.
        CHECK(static_cast<double>(points.size()) < all_points(space));
        CHECK(contains(space.describe(unpack(space, points.front())), "tensor cores, blocks of"));
    }
    const auto block = [](TensorCores cores, int pixels, int channels, int stages, int splits) {
        return tensor_core_block(
            cores, {{"block_pixels", pixels}, {"block_channels", channels}, {"stages", stages}, {"splits", splits}});
    };
    const TensorCoreBlock large = block(TensorCores::Sm90, 128, 256, 4, 1);
    CHECK(large.threads == 384);
    CHECK(large.shared_bytes == 1024 + 4 * 384 * 128 + 4 * 16 + 16 * 128 + 2 * 8 * 256 + 8 + 8320);
    CHECK(large.per_multiprocessor == 1);
    CHECK(block(TensorCores::Sm90, 64, 64, 7, 4).shared_bytes ==
          1024 + 7 * 128 * 128 + 3 * 16 * 72 * 4 + 16 + 64 * 8 + 7 * 16 + 16 * 64 + 8 * 64 + 8 + 8320);
    CHECK(block(TensorCores::Sm90, 64, 64, 4, 2).shared_bytes == 116 << 10);
    CHECK(block(TensorCores::Sm90, 64, 64, 3, 1).per_multiprocessor == 2);
    CHECK(block(TensorCores::Sm90, 64, 256, 4, 1).per_multiprocessor == 1);
    CHECK(block(TensorCores::Sm90, 128, 32, 3, 1).per_multiprocessor == 1);
    CHECK(block(TensorCores::Sm80, 128, 64, 3, 1).threads == 256);
    CHECK(block(TensorCores::Sm80, 64, 64, 3, 1).shared_bytes == 3 * 128 * 128 + 8320);
    // Quantized operators keep three numbers of each channel, not only the bias.
    const Theta theta = {{"block_pixels", 128}, {"block_channels", 256}, {"stages", 3}, {"splits", 1}};
    CHECK(tensor_core_block(TensorCores::Sm90, theta, true).shared_bytes ==
          tensor_core_block(TensorCores::Sm90, theta).shared_bytes + 2 * 2 * 8 * 256);
    CHECK(tensor_core_block(TensorCores::Sm80, theta, true).shared_bytes ==
          tensor_core_block(TensorCores::Sm80, theta).shared_bytes);
    // Tiles of 16 pixels and more that fill a block, of whole steps of channels, on the latest chips.
    const auto boxes = [&](TensorCores cores, int height, int width, int pixels) {
        return has_boxes(cores, {{"tile_h", height}, {"tile_w", width}, {"block_pixels", pixels}}, facts);
    };
    CHECK(boxes(TensorCores::Sm90, 8, 8, 64));
    CHECK(boxes(TensorCores::Sm90, 2, 8, 256));
    facts.bytes_per_element = 1;
    CHECK_FALSE(boxes(TensorCores::Sm90, 8, 8, 64));
    CHECK(runs_on_tensor_cores(facts));
    facts.in_channels = 264;
    CHECK_FALSE(runs_on_tensor_cores(facts));
    facts.in_channels = 256;
    facts.bytes_per_element = 4;
    CHECK_FALSE(boxes(TensorCores::Sm80, 8, 8, 64));
    CHECK_FALSE(boxes(TensorCores::Sm90, 8, 16, 64));
    CHECK_FALSE(boxes(TensorCores::Sm90, 2, 4, 64));
    CHECK_FALSE(boxes(TensorCores::Sm90, 1, 32, 64));
    CHECK_FALSE(boxes(TensorCores::Sm90, 2, 9, 144));
    facts.stride_w = 9;
    CHECK_FALSE(boxes(TensorCores::Sm90, 8, 8, 64));
    facts.stride_w = 1;
    facts.in_channels = 72;
    CHECK_FALSE(boxes(TensorCores::Sm90, 8, 8, 64));
    // Groups whose channels are multiples of 8, and quantized ones whose channels together are multiples of 16.
    const auto runs = [&](int in_channels, int out_channels, int groups, int bytes) {
        facts.in_channels = in_channels;
        facts.out_channels = out_channels;
        facts.groups = groups;
        facts.bytes_per_element = bytes;
        return runs_on_tensor_cores(facts);
    };
    CHECK(runs(8, 40, 5, 2));
    CHECK(runs(24, 8, 1, 4));
    CHECK_FALSE(runs(4, 128, 32, 2));
    CHECK_FALSE(runs(8, 20, 5, 2));
    CHECK(runs(4, 128, 32, 1));
    CHECK(runs(100, 400, 4, 1));
    CHECK_FALSE(runs(24, 24 * 5, 5, 1));
    CHECK_FALSE(runs(1, 64, 64, 1));
    // A box has channels of one group.
    facts = {};
    facts.in_channels = 32;
    facts.out_channels = 128;
    facts.groups = 2;
    facts.bytes_per_element = 2;
    CHECK_FALSE(boxes(TensorCores::Sm90, 8, 8, 64));
    facts.in_channels = 64;
    CHECK(boxes(TensorCores::Sm90, 8, 8, 64));
}

TEST_CASE("Code for tensor cores says which channels the blocks of groups read", "[plan]") {
    const TemporaryFolder folder;
    const auto read = [&](const json &file) { return read_plan(folder.write("plan.json", file.dump())); };
    json file = tensor_core_plan();
    CHECK(contains(tensor_core_source(read(file)), "panel_channels = 48, read_channels = 64;"));
    file["operator"]["params"]["groups"] = 2;
    for (json &variant : file["variants"]) {
        variant["code"]["tensor_core"]["block_channels"] = 32;
    }
    CHECK(contains(tensor_core_source(read(file)), "panel_channels = 24, read_channels = 32;"));
    CHECK(contains(emit_polykernels({read(file)}, "s"), ".block_channels = 32, .channel_blocks = 2,"));
}

TEST_CASE("The spaces of attention on tensor cores hold what fits a multiprocessor", "[plan]") {
    OperatorFacts facts;
    facts.heads = 3;
    for (const int head_dim : {32, 40, 64, 80, 96, 128}) {
        facts.head_dim = head_dim;
        using Product = TokenProduct;
        for (const auto &[product, cores, bytes] : {std::tuple(Product::Attention, TensorCores::Sm80, 2),
                                                    {Product::Attention, TensorCores::Sm90, 2},
                                                    {Product::Attention, TensorCores::Sm80, 4},
                                                    {Product::Scores, TensorCores::Sm80, 2},
                                                    {Product::Scores, TensorCores::Sm80, 4},
                                                    {Product::Values, TensorCores::Sm80, 2},
                                                    {Product::Values, TensorCores::Sm80, 4}}) {
            facts.product = product;
            facts.bytes_per_element = bytes;
            CHECK(has_attention(facts, cores));
            const Problem problem{facts};
            const Space &space = tensor_core_space(cores, facts);
            const int64_t most = cores == TensorCores::Sm90 ? 228 << 10 : 100 << 10;
            const std::vector<PackedTheta> points = legal_points(space, problem);
            CHECK(points.size() >= (bytes == 2 ? 10 : 1));
            for (const PackedTheta &point : points) {
                const Theta theta = unpack(space, point);
                REQUIRE(space.why_illegal(theta, problem).empty());
                const AttentionBlock block = attention_block(cores, theta, facts);
                REQUIRE(theta.at("blocks") * (block.shared_bytes + 1024) <= most);
                REQUIRE(theta.at("blocks") * block.threads <= 768);
            }
            CHECK(static_cast<double>(points.size()) < all_points(space));
            CHECK(contains(space.describe(unpack(space, points.front())), "tensor cores, blocks of"));
        }
    }
    facts.product = TokenProduct::Attention;
    Theta theta = {{"block_rows", 192}, {"block_keys", 128}, {"stages", 3}, {"balanced", 1}};
    const auto block_of = [&](TensorCores cores, int head_dim, int bytes) {
        facts.head_dim = head_dim;
        facts.bytes_per_element = bytes;
        return attention_block(cores, theta, facts);
    };
    const AttentionBlock large = block_of(TensorCores::Sm90, 64, 2);
    CHECK(large.threads == 512);
    CHECK(large.shared_bytes == 1024 + (2 * 192 + 6 * 128) * 128 + 3 * 32 + 56);
    CHECK(large.part_bytes == 384 * 9 * 16);
    // Rows have 32, 64, 96 or 128 channels in shared memory.
    theta["warp_rows"] = 16;
    CHECK(block_of(TensorCores::Sm80, 40, 2).shared_bytes == 6 * 128 * 128);
    CHECK(block_of(TensorCores::Sm80, 40, 4).shared_bytes == 6 * 128 * 256);
    CHECK(block_of(TensorCores::Sm80, 40, 2).part_bytes == 0);
    CHECK(block_of(TensorCores::Sm80, 40, 2).threads == 384);
    theta["warp_rows"] = 32;
    theta["block_keys"] = 16;
    CHECK(block_of(TensorCores::Sm80, 40, 4).threads == 192);
    CHECK(block_of(TensorCores::Sm80, 40, 4).shared_bytes == 192 * 256);
    // Products alone have the tokens of one operand, and rows of scores with 8 more.
    theta["block_keys"] = 64;
    facts.product = TokenProduct::Scores;
    CHECK(block_of(TensorCores::Sm80, 40, 2).shared_bytes == 192 * 128 + 192 * 72 * 2);
    facts.product = TokenProduct::Values;
    CHECK(block_of(TensorCores::Sm80, 40, 4).shared_bytes == 3 * 64 * 256 + 192 * 72 * 4);
    CHECK(block_of(TensorCores::Sm80, 40, 4).threads == 192);
    for (const TokenProduct product : {TokenProduct::Scores, TokenProduct::Values}) {
        facts.product = product;
        facts.bytes_per_element = 2;
        CHECK_FALSE(has_attention(facts, TensorCores::Sm90));
    }
    facts.product = TokenProduct::Attention;
    facts.bytes_per_element = 4;
    CHECK_FALSE(has_attention(facts, TensorCores::Sm90));
    for (const int head_dim : {36, 136}) {
        facts.head_dim = head_dim;
        CHECK_FALSE(has_attention(facts, TensorCores::Sm80));
    }
    facts = {};
    CHECK_FALSE(has_attention(facts, TensorCores::Sm80));
}
