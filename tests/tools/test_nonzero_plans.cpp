// Plans of code that multiplies with the nonzero weights alone.
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "kernels/dot_products.h"
#include "plans/bitmap.h"
#include "plans/emit.h"
#include "plans/nonzeros.h"
#include "plans/plan.h"
#include "plans/two_four.h"
#include "tests/support/catch.h"
#include "tests/support/short_tests.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/plan_files.h"

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

using namespace distile;
using nlohmann::json;

namespace {

json operator_file(const json &zeros, const std::string &dtype = "float32") {
    return {{"distile_operator", 1},
            {"name", "pruned"},
            {"generator", "masked_conv2d"},
            {"params", {{"dtype", dtype}, {"in_channels", 64}, {"out_channels", 96}}},
            {"typical", {{"batch", 1}, {"height", 20}, {"width", 30}, {"weight_zeros", zeros}}}};
}

}  // namespace

TEST_CASE("Operators say how many of their weights are 0", "[plan]") {
    const Operator op = parse_operator(operator_file(.9), "test");
    CHECK(op.typical_zeros == .9);
    CHECK(to_json(op)["typical"]["weight_zeros"] == .9);
    CHECK(typical_nonzeros(op) == 5530);
    CHECK_FALSE(to_json(parse_operator(operator_file(0), "test"))["typical"].contains("weight_zeros"));
    for (const json &wrong : {json(1), json(-.1), json("many"), json(true)}) {
        CAPTURE(wrong.dump());
        refuse([&] { parse_operator(operator_file(wrong), "test"); }, {"weight_zeros", wrong.dump()});
    }
    CHECK(skips_zeros(op));
    CHECK_FALSE(skips_zeros(with_all_weights(op)));
    CHECK_FALSE(skips_zeros(parse_operator(operator_file(.4), "test")));
    CHECK(skips_zeros(parse_operator(operator_file(.5, "bfloat16"), "test")));
    const Operator quantized = parse_operator(operator_file(.9, "uint8"), "test");
    CHECK(skips_zeros(quantized));
    // Each of 96 output channels has 9 * 16 quads.
    CHECK(typical_nonzeros(quantized) == 1382);
}

TEST_CASE("What zeros leave out are weights, or quads of quantized ones", "[plan]") {
    json file = operator_file(.9);
    file["params"] = {{"in_channels", 12}, {"out_channels", 4}, {"kernel_h", 1}, {"kernel_w", 2}, {"groups", 2}};
    const auto visit = [&](const char *type) {
        file["params"]["dtype"] = type;
        std::vector<size_t> counts;
        size_t next = 0;
        visit_prunable(parse_operator(file, "test"), [&](size_t first, size_t count) {
            CHECK(first == next);
            next += count;
            counts.push_back(count);
        });
        CHECK(next == 48);
        return counts;
    };
    CHECK(visit("float32") == std::vector<size_t>(48, 1));
    // A group has six channels, so a quad lies in both.
    CHECK(visit("int8") == std::vector<size_t>{4, 2, 4, 2, 4, 2, 4, 2, 2, 4, 2, 4, 2, 4, 2, 4});
    CHECK(typical_nonzeros(parse_operator(file, "test")) == 2);
}

TEST_CASE("Plans of quantized operators with zeros have code for nonzero quads, and for all", "[plan]") {
    const TemporaryFolder folder;
    const Operator op = parse_operator(operator_file(.9, "int8"), "test");
    const struct {
        const char *target, *function, *dense;
    } expected[] = {{"amx_int8", "distile_call_avx512_vnni_nonzeros", "distile_call_amx_int8"},
                    {"avx512_vnni", "distile_call_avx512_vnni_nonzeros", "distile_call_avx512_vnni"},
                    {"avx_vnni", "distile_call_avx_vnni_nonzeros", "distile_call_avx_vnni"},
                    {"sse41", "distile_call_avx2_int8_nonzeros", "distile_call_avx2_int8"}};
    const std::vector<Plan> plans = bound_plans(op, cpu_backend(), false, get_platform("x86-64-linux"));
    REQUIRE(plans.size() == std::size(expected));
    for (size_t i = 0; i < plans.size(); i++) {
        const Plan &plan = plans[i];
        CAPTURE(plan.name, plan.target);
        CHECK(plan.target.substr(plan.target.rfind('-') + 1) == expected[i].target);
        CHECK(plan.layout == "cpu-nonzero-quads");
        for (const PlanVariant &variant : plan.variants) {
            CAPTURE(variant.name);
            const bool all = variant.name.rfind(all_weights_prefix, 0) == 0;
            CHECK(variant.language == (all ? Language::DotProduct : Language::Nonzeros));
            CHECK(plan.layout_of(variant) == (all ? "cpu-k64" : "cpu-nonzero-quads"));
        }
        CHECK(plan.has(Language::DotProduct));
        check_buildable(plan);
        const std::string c = emit_polykernels({plan}, "s");
        for (const std::string &word :
             {std::string(expected[i].function) + "(&code, call);", std::string(expected[i].dense) + "(&code, call);",
              std::string(".layout = \"cpu-nonzero-quads\""), std::string(".nonzeros = 1382,")}) {
            CAPTURE(word, c);
            CHECK(contains(c, word));
        }
        CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
    }
    const Plan portable = portable_plan(op, get_platform("x86-64-linux"));
    CHECK(std::string(nonzeros_object(portable)) == "distile_portable_int8_nonzeros.o");
    // GPUs multiply all quads, with the plans of operators without zeros.
    for (const Plan &plan : bound_plans(op, cuda_backend(), true, get_platform("x86-64-linux"))) {
        CHECK_FALSE(plan.has(Language::Nonzeros));
    }
    CHECK_FALSE(
        skips_zeros(parse_operator({{"distile_operator", 1},
                                    {"name", "transposed"},
                                    {"generator", "masked_conv_transpose2d"},
                                    {"params", {{"dtype", "int8"}, {"in_channels", 16}, {"out_channels", 16}}},
                                    {"typical", {{"batch", 1}, {"height", 20}, {"width", 30}, {"weight_zeros", .9}}}},
                                   "test")));
}

TEST_CASE("Plans of operators with zeros have code for nonzero weights, and for all", "[plan]") {
    const TemporaryFolder folder;
    const Operator op = parse_operator(operator_file(.9), "test");
    const std::vector<Plan> plans = bound_plans(op, cpu_backend(), false, get_platform("x86-64-linux"));
    REQUIRE(plans.size() == 2);
    const struct {
        int lanes;
        const char *function, *object;
    } levels[] = {{16, "distile_call_avx512_nonzeros", "distile_avx512_nonzeros.o"},
                  {8, "distile_call_avx2_nonzeros", "distile_avx2_nonzeros.o"}};
    for (size_t i = 0; i < plans.size(); i++) {
        const Plan &plan = plans[i];
        CAPTURE(plan.name);
        CHECK(plan.has(Language::Nonzeros));
        CHECK(plan.has(Language::Halide));
        CHECK(plan.layout == "cpu-nonzeros");
        for (const PlanVariant &variant : plan.variants) {
            CAPTURE(variant.name);
            const bool all = variant.name.rfind(all_weights_prefix, 0) == 0;
            CHECK(variant.language == (all ? Language::Halide : Language::Nonzeros));
            CHECK(plan.layout_of(variant) == (all ? "cpu-o16" : "cpu-nonzeros"));
            CHECK((all || variant.theta.at("tile_w") == 1 || variant.theta.at("tile_w") == levels[i].lanes));
        }
        check_buildable(plan);
        CHECK(std::string(nonzeros_object(plan)) == levels[i].object);
        const std::string c = emit_polykernels({plan}, "s");
        for (const std::string &word :
             {std::string(levels[i].function) + "(&code, call);", std::string(".layout = \"cpu-nonzeros\""),
              std::string(".layout = \"cpu-o16\""), std::string(".nonzeros = 5530,")}) {
            CAPTURE(word, c);
            CHECK(contains(c, word));
        }
        const Plan again = read_plan(folder.write("plan.json", to_json(plan).dump()));
        CHECK(to_json(again) == to_json(plan));
        // Times are of weights with as many zeros.
        Plan other = plan;
        other.op.typical_zeros = .8;
        CHECK(plan_hash(other) != plan_hash(plan));
    }
    // 16-bit types have such code too, which reads them as they are; no dot products.
    for (const Plan &plan : bound_plans(parse_operator(operator_file(.9, "bfloat16"), "test"), cpu_backend(), false,
                                        get_platform("x86-64-linux"))) {
        CAPTURE(plan.name, plan.target);
        CHECK(plan.has(Language::Nonzeros));
        CHECK_FALSE(plan.has(Language::DotProduct));
    }
    const Plan portable = portable_plan(op, get_platform("x86-64-linux"));
    CHECK(std::string(nonzeros_object(portable)) == "distile_portable_nonzeros.o");
    const Plan arm = bound_plans(op, cpu_backend(), false, get_platform("arm-64-linux")).front();
    CHECK(std::string(nonzeros_object(arm)) == "distile_portable_nonzeros.o");
    check_buildable(arm);
}

TEST_CASE("Plans for GPUs skip zeros, with one for older GPUs behind", "[plan]") {
    const TemporaryFolder folder;
    const Operator op = parse_operator(operator_file(.9), "test");
    const std::vector<Plan> plans = bound_plans(op, cuda_backend(), false, get_platform("x86-64-linux"));
    REQUIRE(plans.size() == 2);
    const Plan &plan = plans.front();
    CHECK(plan.features() == "sm_80");
    CHECK(plan.layout == "cuda-nonzeros");
    CHECK(std::string(nonzeros_object(plan)) == "distile_cuda_nonzeros.o");
    int dense = 0;
    for (const PlanVariant &variant : plan.variants) {
        CAPTURE(variant.name);
        const bool all = variant.name.rfind(all_weights_prefix, 0) == 0;
        CHECK(variant.language == (all ? Language::Halide : Language::Nonzeros));
        CHECK(plan.layout_of(variant) == (all ? "cuda-o32" : "cuda-nonzeros"));
        dense += all && variant.dense ? 1 : 0;
    }
    CHECK(dense == 1);
    check_buildable(plan);
    CHECK_FALSE(plans.back().has(Language::Nonzeros));
    CHECK(plans.back().features() == "sm_70");
    const std::string c = emit_polykernels(plans, "s");
    for (const std::string word : {"distile_call_cuda_nonzeros(&code, call);", ".layout = \"cuda-nonzeros\"",
                                   ".nonzeros = 5530,", ".fallback = &polykernel_1"}) {
        CAPTURE(word, c);
        CHECK(contains(c, word));
    }
    CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
    // Narrow types run on tensor cores, which multiply all weights. A plan may still skip zeros.
    for (const Plan &narrow : bound_plans(parse_operator(operator_file(.9, "float16"), "test"), cuda_backend(), true,
                                          get_platform("x86-64-linux"))) {
        CHECK_FALSE(narrow.has(Language::Nonzeros));
    }
    // Other backends have no such code.
    for (const Plan &other : bound_plans(op, opencl_backend(), false, get_platform("x86-64-linux"))) {
        CHECK_FALSE(other.has(Language::Nonzeros));
    }
    Plan wrong = plan;
    wrong.variants.resize(1);
    wrong.variants.front().theta["pixels"] = 48;
    refuse([&] { check_buildable(wrong); }, {"pixels", "32, 64, 128"});
    wrong.variants.front().theta = {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 32}, {"channels", 128}, {"splits", 4}};
    check_buildable(wrong);
    wrong.op = parse_operator(operator_file(.9), "test");
    wrong.op.params["out_channels"] = "48";
    refuse([&] { check_buildable(wrong); }, {"less than half of a block empty"});
    wrong.variants.front().theta = {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 32}, {"channels", 64}, {"splits", 8}};
    refuse([&] { check_buildable(wrong); }, {"a chunk of 128 columns each"});
    wrong = plan;
    wrong.target = "x86-64-linux-cuda-cuda_capability_75";
    refuse([&] { read_plan(folder.write("wrong.json", to_json(wrong).dump())); }, {"compute capability 80 or 86"});
}

TEST_CASE("Plans for GPUs read a bitmap of the weights of linear layers of few tokens", "[plan]") {
    const TemporaryFolder folder;
    const auto linear = [](const char *dtype, double zeros, int32_t tokens) {
        return parse_operator({{"distile_operator", 1},
                               {"name", "pruned"},
                               {"generator", "masked_linear"},
                               {"params", {{"dtype", dtype}, {"in_channels", 2048}, {"out_channels", 4096}}},
                               {"typical", {{"batch", 1}, {"tokens", tokens}, {"weight_zeros", zeros}}}},
                              "test");
    };
    const Platform &platform = get_platform("x86-64-linux");
    int number = 0;
    for (const char *dtype : {"float16", "bfloat16"}) {
        if (left_out(number++)) {
            continue;
        }
        const Operator op = linear(dtype, .9, 8);
        CHECK(reads_bitmap(op));
        const std::vector<Plan> plans = bound_plans(op, cuda_backend(), true, platform);
        REQUIRE(plans.size() == 2);
        const Plan &plan = plans.front();
        CAPTURE(plan.name);
        CHECK(plan.features() == "sm_80");
        CHECK(plan.layout == "cuda-bitmap");
        int dense = 0;
        for (const PlanVariant &variant : plan.variants) {
            CAPTURE(variant.name);
            const bool all = variant.name.rfind(all_weights_prefix, 0) == 0;
            CHECK(variant.language == (all ? Language::TensorCore : Language::Bitmap));
            CHECK(plan.layout_of(variant) == (all ? "cuda-k16" : "cuda-bitmap"));
            // A dense call has as many tokens as are typical, in one block.
            CHECK((all || !variant.dense || variant.theta.at("pixels") == 8));
            dense += all && variant.dense ? 1 : 0;
        }
        CHECK(dense == 1);
        check_buildable(plan);
        CHECK(plans.back().features() == "sm_70");
        CHECK_FALSE(plans.back().has(Language::Bitmap));
        const std::string c = emit_polykernels(plans, "s");
        for (const std::string word :
             {"distile_call_cuda_bitmap(&code, call);", "#include \"kernels/bitmap.h\"", ".layout = \"cuda-bitmap\"",
              ".nonzeros = 838861,", ".fallback = &polykernel_1"}) {
            CAPTURE(word, c);
            CHECK(contains(c, word));
        }
        CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
        Plan other = plan;
        other.op.typical_zeros = .95;
        CHECK(plan_hash(other) != plan_hash(plan));
        Plan wrong = plan;
        wrong.variants.resize(1);
        const auto check_refused = [&](const Theta &theta, const char *why) {
            wrong.variants.front().theta = theta;
            refuse([&] { check_buildable(wrong); }, {why});
        };
        const Theta theta = {{"tile_h", 1},    {"tile_w", 1},  {"pixels", 16},
                             {"channels", 16}, {"splits", 16}, {"ahead", 0}};
        wrong.variants.front().theta = theta;
        check_buildable(wrong);
        for (const auto &[knob, value, why] :
             {std::tuple{"pixels", 48, "8, 16, 32, 64"}, std::tuple{"channels", 48, "16, 32, 64, 128"},
              std::tuple{"pixels", 32, "at least 32 output channels"},
              std::tuple{"splits", 17, "a unit of 128 columns"}}) {
            Theta changed = theta;
            changed[knob] = value;
            check_refused(changed, why);
        }
        wrong.target = "x86-64-linux-cuda-cuda_capability_75";
        refuse([&] { read_plan(folder.write("wrong.json", to_json(wrong).dump())); }, {"compute capability 80 or 86"});
    }
    // Without code for tensor cores, with few zeros, with many tokens, or in float32, there are the other plans.
    for (const auto &[op, tensor_cores] :
         {std::pair{linear("float16", .9, 8), false}, std::pair{linear("float16", .8, 8), true},
          std::pair{linear("float16", .9, 9), true}, std::pair{linear("float32", .9, 8), true}}) {
        if (left_out(number++)) {
            continue;
        }
        for (const Plan &plan : bound_plans(op, cuda_backend(), tensor_cores, platform)) {
            CHECK_FALSE(plan.has(Language::Bitmap));
        }
    }
    for (const Backend *other : {&cpu_backend(), &opencl_backend()}) {
        for (const Plan &plan : bound_plans(linear("float16", .9, 8), *other, false, platform)) {
            CHECK_FALSE(plan.has(Language::Bitmap));
        }
    }
    CHECK_FALSE(why_no_bitmap(parse_operator(operator_file(.9, "float16"), "test")).empty());
}

TEST_CASE("Plans for GPUs keep two of four weights where operators promise the pattern", "[plan]") {
    const TemporaryFolder folder;
    const auto file_of = [](const char *dtype, nlohmann::json typical, int32_t inputs = 2048, int32_t groups = 1) {
        typical.update({{"batch", 1}, {"height", 32}, {"width", 32}});
        return nlohmann::json{{"distile_operator", 1},
                              {"name", "pruned"},
                              {"generator", "masked_conv2d"},
                              {"params",
                               {{"dtype", dtype},
                                {"in_channels", inputs},
                                {"out_channels", 512},
                                {"kernel_h", 1},
                                {"kernel_w", 1},
                                {"groups", groups}}},
                              {"typical", typical}};
    };
    const nlohmann::json pattern = {{"weight_pattern", "2:4"}};
    const Platform &platform = get_platform("x86-64-linux");
    int number = 0;
    for (const char *dtype : {"float16", "bfloat16"}) {
        if (left_out(number++)) {
            continue;
        }
        const Operator op = parse_operator(file_of(dtype, pattern), "test");
        CHECK(keeps_two_of_four(op));
        CHECK(op.typical_zeros == .5);
        CHECK(to_json(op)["typical"]["weight_pattern"] == "2:4");
        CHECK_FALSE(to_json(op)["typical"].contains("weight_zeros"));
        CHECK(to_json(parse_operator(to_json(op), "test")) == to_json(op));
        const std::vector<Plan> plans = bound_plans(op, cuda_backend(), true, platform);
        REQUIRE(plans.size() == 3);
        CHECK(plans[0].features() == "sm_90a");
        CHECK(plans[1].features() == "sm_80");
        CHECK(plans[2].features() == "sm_70");
        CHECK_FALSE(plans[2].has(Language::TwoFour));
        for (int32_t i = 0; i < 2; i++) {
            const Plan &plan = plans[i];
            CAPTURE(plan.name);
            CHECK(contains(plan.name, "two_four"));
            CHECK(plan.layout == "cuda-two-four");
            int dense = 0;
            for (const PlanVariant &variant : plan.variants) {
                CAPTURE(variant.name);
                const bool all = variant.name.rfind(all_weights_prefix, 0) == 0;
                CHECK(variant.language == (all ? Language::TensorCore : Language::TwoFour));
                CHECK(plan.layout_of(variant) == (all ? "cuda-k16" : "cuda-two-four"));
                dense += all && variant.dense ? 1 : 0;
            }
            CHECK(dense == 1);
            check_buildable(plan);
            CHECK(to_json(read_plan(folder.write("plan.json", to_json(plan).dump()))) == to_json(plan));
        }
        const std::string c = emit_polykernels(plans, "s");
        for (const std::string word :
             {"distile_call_cuda_two_four_sm90(&code, call);", "distile_call_cuda_two_four(&code, call);",
              "#include \"kernels/two_four.h\"", ".layout = \"cuda-two-four\"", ".fallback = &polykernel_1",
              ".fallback = &polykernel_2"}) {
            CAPTURE(word, c);
            CHECK(contains(c, word));
        }
        Plan wrong = plans[1];
        wrong.variants.resize(1);
        const Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 64}, {"channels", 128}, {"splits", 8}};
        wrong.variants.front().theta = theta;
        check_buildable(wrong);
        for (const auto &[knob, value, why] :
             {std::tuple{"pixels", 96, "64, 128"}, std::tuple{"channels", 256, "64, 128"},
              std::tuple{"splits", 33, "a unit of 64 input channels"}}) {
            Theta changed = theta;
            changed[knob] = value;
            wrong.variants.front().theta = changed;
            refuse([&] { check_buildable(wrong); }, {why});
        }
        wrong = plans[0];
        wrong.variants.resize(1);
        wrong.variants.front().theta = {
            {"tile_h", 1}, {"tile_w", 1}, {"pixels", 256}, {"channels", 256}, {"splits", 1}};
        refuse([&] { check_buildable(wrong); }, {"256 pixels with 128 output channels"});
        wrong.target = "x86-64-linux-cuda-cuda_capability_75";
        refuse([&] { read_plan(folder.write("wrong.json", to_json(wrong).dump())); }, {"compute capability 80, 86"});
    }
    // Without code for tensor cores, in float32, without the promise, and where there is no such code, there are the
    // other plans.
    for (const auto &[file, tensor_cores] :
         {std::pair{file_of("float16", pattern), false}, std::pair{file_of("float32", pattern), true},
          std::pair{file_of("float16", {{"weight_zeros", .5}}), true},
          std::pair{file_of("float16", pattern, 2048, 2), true}, std::pair{file_of("float16", pattern, 2044), true}}) {
        CAPTURE(file.dump());
        if (left_out(number++)) {
            continue;
        }
        for (const Plan &plan : bound_plans(parse_operator(file, "test"), cuda_backend(), tensor_cores, platform)) {
            CHECK_FALSE(plan.has(Language::TwoFour));
        }
    }
    for (const Backend *other : {&cpu_backend(), &opencl_backend()}) {
        for (const Plan &plan :
             bound_plans(parse_operator(file_of("float16", pattern), "test"), *other, false, platform)) {
            CHECK_FALSE(plan.has(Language::TwoFour));
        }
    }
    CHECK(contains(why_no_two_four(parse_operator(file_of("float16", pattern, 2048, 2), "test")), "without groups"));
    refuse([&] { parse_operator(file_of("float16", {{"weight_pattern", "4:8"}}), "test"); }, {"4:8", "\"2:4\""});
    refuse([&] { parse_operator(file_of("float16", {{"weight_pattern", 2}}), "test"); }, {"weight_pattern"});
    refuse(
        [&] {
            parse_operator(file_of("float16", {{"weight_pattern", "2:4"}, {"weight_zeros", .4}}), "test");
        },
        {"at least half"});
    const Operator sparser =
        parse_operator(file_of("float16", {{"weight_pattern", "2:4"}, {"weight_zeros", .7}}), "test");
    CHECK(sparser.typical_zeros == .7);
    CHECK(to_json(sparser)["typical"]["weight_zeros"] == .7);
    CHECK(keeps_two_of_four(sparser));
    CHECK(with_all_weights(sparser).typical_pattern == WeightPattern::None);
}

TEST_CASE("Schedules for nonzero weights are checked", "[plan]") {
    const Operator op = parse_operator(operator_file(.9), "test");
    Plan plan = bound_plans(op, cpu_backend(), false, get_platform("x86-64-linux")).back();
    PlanVariant &variant = plan.variants.front();
    const auto check_refused = [&](const Theta &theta, const char *why) {
        variant.theta = theta;
        refuse([&] { check_buildable(plan); }, {why});
    };
    const Theta window = {{"tile_h", 8}, {"tile_w", 8}, {"vectors", 8}, {"channel_splits", 1}};
    variant.theta = window;
    check_buildable(plan);
    Theta other = window;
    other["tile_w"] = 16;
    check_refused(other, "one vector wide");
    other = window;
    other["vectors"] = 10;
    check_refused(other, "one vector wide");
    check_refused({{"tile_h", 1}, {"tile_w", 1}, {"vectors", 16}, {"channel_splits", 1}}, "vector registers");
    plan.op.params["dilation_h"] = "2";
    check_refused(window, "neighbours");
}
