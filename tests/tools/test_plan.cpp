// Operator and plan files, and what backends and platforms say of them: what they accept, and how they refuse the rest.
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/device_profile.h"
#include "facts/activation_names.h"
#include "kernels/halide/code.h"
#include "plans/architecture.h"
#include "plans/emit.h"
#include "plans/plan.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/plan_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace distile;
using nlohmann::json;

TEST_CASE("A good operator file is read, and written as it was", "[plan]") {
    const TemporaryFolder folder;
    json file = good_operator();
    const Operator op = read_operator(folder.write("op.json", "// A comment.\n" + file.dump()));
    CHECK(op.name == "conv");
    CHECK(op.generator == "masked_conv2d");
    CHECK(op.typical_height == 20);
    CHECK(op.typical_output().height == 20);
    CHECK(op.typical_output().width == 30);
    // What was left out is written with its default.
    json whole = file;
    whole["params"].update({{"groups", 1}, {"stride_h", 1}, {"stride_w", 1}, {"dilation_h", 1}, {"dilation_w", 1}});
    CHECK(to_json(op) == whole);
    CHECK(parse_operator(to_json(op), "here") == op);
    const distile_conv2d conv = conv_of(op);
    CHECK(conv.in_channels == 16);
    CHECK(conv.out_channels == 48);
    CHECK(conv.stride_h == 1);
    CHECK(conv.dilation_w == 1);
    CHECK(conv.epilogue == DISTILE_ACTIVATION_RELU);
    CHECK(conv.residual == 0);
    CHECK(contains(op.summary(), "3x3"));
    CHECK(contains(op.summary(), "16 -> 48"));
    CHECK(contains(op.summary(), "relu"));

    // What is left out has the generator's defaults, and is the same operator as where they are named.
    file["params"] = json::object();
    file.erase("typical");
    const Operator defaults = parse_operator(file, "here");
    for (const json &same : {json{{"groups", 1}}, json{{"dtype", "float32"}}, json{{"epilogue", "none"}},
                             json{{"residual", false}, {"kernel_w", 3}, {"in_channels", 64}}}) {
        json spelled = file;
        spelled["params"] = same;
        CHECK(parse_operator(spelled, "here") == defaults);
        CHECK(to_json(parse_operator(spelled, "here")) == to_json(defaults));
    }
    for (const json &other : {json{{"groups", 2}}, json{{"epilogue", "silu"}}, json{{"residual", true}}}) {
        json spelled = file;
        spelled["params"] = other;
        CHECK_FALSE(parse_operator(spelled, "here") == defaults);
    }
    CHECK(conv_of(defaults).in_channels == 64);
    CHECK(conv_of(defaults).kernel_w == 3);
    CHECK(conv_of(defaults).pad_left == 1);
    CHECK(defaults.typical_height == 40);
    CHECK_FALSE(defaults == op);

    file["params"] = {{"kernel_h", 5},   {"stride_h", 2},    {"dilation_h", 2},   {"pad_top", 0},
                      {"pad_bottom", 1}, {"residual", true}, {"epilogue", "silu"}};
    const Operator other = parse_operator(file, "here");
    CHECK(conv_of(other).residual == 1);
    CHECK(conv_of(other).epilogue == DISTILE_ACTIVATION_SILU);
    // Rows of 40 pixels and one of padding, of which the kernel spans nine.
    CHECK(other.typical_output().height == (40 + 1 - 9) / 2 + 1);
    for (const char *word : {"5x3", "stride 2x1", "dilation 2x1", "residual", "silu", "0/1/1/1"}) {
        CHECK(contains(other.summary(), word));
    }
}

TEST_CASE("An operator may store its weights in 16 bits", "[plan]") {
    json file = good_operator();
    file["params"]["weights_dtype"] = "bfloat16";
    const Operator op = parse_operator(file, "here");
    CHECK(op.weights_dtype().dtype == DISTILE_BFLOAT16);
    CHECK(op.operands()[1].type == &op.weights_dtype());
    CHECK(op.summary().find("weights in bfloat16") != std::string::npos);
    CHECK(parse_operator(to_json(op), "here") == op);
    CHECK_FALSE(op == parse_operator(good_operator(), "here"));
    refuse_changes(file, {set("/params/dtype", "uint8", {"weights_dtype", "int8 or int4"})},
                   [](const std::string &path) { return read_operator(path); });
    file["params"]["weights_dtype"] = "float32";
    CHECK(parse_operator(file, "here") == parse_operator(good_operator(), "here"));
}

TEST_CASE("Every activation is an epilogue of operator files", "[plan]") {
    json file = good_operator();
    int32_t number = 0;
    for (const char *const name : activation_names) {
        file["params"]["epilogue"] = name;
        const Operator op = parse_operator(file, "here");
        CHECK(conv_of(op).epilogue == static_cast<distile_activation>(number));
        CHECK(to_json(op)["params"]["epilogue"] == name);
        // C calls it so, in capitals.
        std::string enumerator = std::string("DISTILE_ACTIVATION_") + name;
        std::transform(enumerator.begin(), enumerator.end(), enumerator.begin(),
                       [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
        CHECK(op.epilogue() == enumerator);
        number++;
    }
}

TEST_CASE("Operators with larger outputs have parameters of their own", "[plan]") {
    json file = good_operator();
    file["generator"] = "masked_conv_transpose2d";
    file["params"].update({{"stride_h", 2}, {"stride_w", 3}, {"output_padding_h", 1}, {"dilation_w", 2}});
    const Operator transposed = parse_operator(file, "here");
    CHECK(transposed.schema().kind == DISTILE_MASKED_CONV_TRANSPOSE2D);
    for (const auto &[name, value] : file["params"].items()) {
        CHECK(to_json(transposed)["params"][name] == value);
    }
    // As PyTorch counts: (input - 1) * stride - 2 * padding + dilation * (kernel - 1) + output padding + 1.
    CHECK(transposed.typical_output().height == 19 * 2 - 2 + 2 + 1 + 1);
    CHECK(transposed.typical_output().width == 29 * 3 - 2 + 2 * 2 + 1);
    CHECK(conv_of(transposed).pad_bottom == 0);
    for (const char *word :
         {"3x3 transposed convolution", "stride 2x3", "dilation 1x2", "1/1/1/1", "output padding 1x0"}) {
        CHECK(contains(transposed.summary(), word));
    }
    file["params"]["output_padding_h"] = 3;
    refuse([&] { parse_operator(file, "here"); }, {"here", "output padding", "stride"});
    file["params"]["output_padding_h"] = -1;
    refuse([&] { parse_operator(file, "here"); }, {"output_padding_h", "-1"});
    file["params"].erase("output_padding_h");
    file["params"]["scale_h"] = 2;
    refuse([&] { parse_operator(file, "here"); }, {"masked_conv_transpose2d", "scale_h"});

    file["generator"] = "masked_upsample_conv2d";
    refuse([&] { parse_operator(file, "here"); }, {"masked_upsample_conv2d", "stride_h"});
    file["params"].erase("stride_h");
    file["params"].erase("stride_w");
    const Operator upsampled = parse_operator(file, "here");
    CHECK(upsampled.schema().kind == DISTILE_MASKED_UPSAMPLE_CONV2D);
    CHECK(conv_of(upsampled).stride_h == 2);
    CHECK(conv_of(upsampled).stride_w == 2);
    CHECK(upsampled.typical_output().height == 40);
    CHECK(upsampled.typical_output().width == 60 - 2);
    for (const char *word : {"3x3 convolution after nearest upsampling", "scale 2x2"}) {
        CHECK(contains(upsampled.summary(), word));
    }
    file["params"]["scale_w"] = 0;
    refuse([&] { parse_operator(file, "here"); }, {"scale_w", "0"});
}

TEST_CASE("A linear layer is an operator over tokens", "[plan]") {
    const json file = {{"distile_operator", 1},
                       {"name", "mlp"},
                       {"generator", "masked_linear"},
                       {"params",
                        {{"dtype", "bfloat16"},
                         {"in_channels", 384},
                         {"out_channels", 1536},
                         {"epilogue", "gelu"},
                         {"residual", false}}},
                       {"typical", {{"batch", 2}, {"tokens", 197}}}};
    const Operator op = parse_operator(file, "here");
    CHECK(to_json(op) == file);
    CHECK(op.typical_batch == 2);
    CHECK(op.typical_output().height == 1);
    CHECK(op.typical_output().width == 197);
    CHECK(op.typical_input() == "2 x 197");
    CHECK(op.dtype().bytes == 2);
    CHECK(op.summary() == "linear layer, 384 -> 1536 channels, bfloat16, epilogue gelu");
    CHECK(facts_of(op).in_channels == 384);
    CHECK(facts_of(op).bytes_per_element == 2);
    CHECK(facts_of(op).kernel_h * facts_of(op).kernel_w == 1);
    CHECK(conv_of(op).kernel_h == 1);
    std::string operands;
    for (const Operand &operand : op.operands()) {
        operands +=
            std::string(operand.role) + " " + operand.type->name + " " + std::to_string(operand.channels) + ", ";
    }
    CHECK(operands == "DISTILE_ROLE_INPUT bfloat16 384, DISTILE_ROLE_WEIGHTS float32 1536, "
                      "DISTILE_ROLE_BIAS float32 1536, DISTILE_ROLE_OUTPUT bfloat16 1536, ");
    for (const auto &[pointer, value, word] :
         {std::tuple{"/typical/height", json(3), "height"}, {"/params/kernel_h", json(3), "kernel_h"}}) {
        json bad = file;
        bad[json::json_pointer(pointer)] = value;
        refuse([&] { parse_operator(bad, "here"); }, {"here", "masked_linear", word});
    }
}

TEST_CASE("A wrong operator file is refused with the file and the member", "[plan]") {
    std::vector<Change> changes = {
        erase("", "distile_operator"),
        erase("", "name"),
        erase("", "generator"),
        erase("", "params"),
        set("/distile_operator", 2, {"distile_operator", "2", "1"}),
        set("/typcal", 2, {"no member", "\"typcal\"", "nearest", "\"typical\""}),
        set("/comment", 2, {"no member", "\"comment\"", "\"distile_operator\", \"name\", \"generator\", \"params\""}),
        set("/typical/widht", 2, {"typical", "no member", "\"widht\"", "nearest", "\"width\""}),
        set("/params/stride_height", 2, {"no parameter", "\"stride_height\"", "nearest", "\"stride_h\""}),
        set("/distile_operator", "1", {"distile_operator"}),
        set("/name", "3x3", {"name", "3x3"}),
        set("/name", "a b", {"name", "a b"}),
        set("/name", "", {"name"}),
        set("/name", 5, {"name", "5"}),
        set("/name", std::string(129, 'a'), {"name"}),
        set("/generator", "conv3d", {"generator", "conv3d", "masked_conv2d", "masked_depthwise_conv2d"}),
        set("/generator", 3, {"generator", "3", "masked_conv2d"}),
        // The rest of the parameters are of other operators.
        set("/generator", "masked_depthwise_conv2d", {"masked_depthwise_conv2d", "no parameter", "in_channels"}),
        // Numbers of groups that do not divide 16 -> 48 channels.
        set("/params/groups", 3, {"groups", "3", "16 input", "48 output"}),
        set("/params/groups", 32, {"groups", "32"}),
        set("/params", json::array(), {"params"}),
        set("/params/tile_h", 1, {"tile_h"}),
        set("/params/dtype", "float64", {"dtype", "float64", "float32", "bfloat16"}),
        set("/params/dtype", "int4", {"dtype", "int4"}),
        set("/params/dtype", 32, {"dtype", "32"}),
        set("/params/weights_dtype", "int8", {"weights_dtype", "int8", "bfloat16"}),
        set("/params/weights_dtype", "float8_e5m2", {"weights_dtype", "float8_e5m2", "float16"}),
        set("/params/epilogue", "swish", {"epilogue", "swish", "silu", "gelu"}),
        set("/params/epilogue", json(), {"epilogue", "null"}),
        set("/params/residual", "yes", {"residual", "yes"}),
        set("/params/residual", 1, {"residual", "1"}),
        set("/typical", 40, {"typical"}),
        set("/typical/tokens", 4, {"typical", "tokens", "masked_conv2d"}),
        set("/typical/height", 0, {"typical", "height", "0"}),
        set("/typical/width", 65536, {"typical", "width", "65536"}),
        set("/typical/batch", 1.5, {"typical", "batch", "1.5"}),
        set("/params/kernel_h", 23, {"typical", "kernel"}),
        set("/params", {{"in_channels", 1 << 20}, {"out_channels", 1 << 10}}, {"weights", "2^31"}),
        set("/typical", {{"batch", 65535}, {"height", 65535}, {"width", 65535}}, {"typical", "2^31"}),
    };
    const std::pair<const char *, std::vector<int>> ranges[] = {{"in_channels", {0, (1 << 20) + 1}},
                                                                {"out_channels", {0, (1 << 20) + 1}},
                                                                {"groups", {0, (1 << 20) + 1}},
                                                                {"kernel_h", {0, 1025}},
                                                                {"kernel_w", {0, 1025}},
                                                                {"stride_h", {0, 1025}},
                                                                {"stride_w", {0, 1025}},
                                                                {"pad_top", {-1, 65537}},
                                                                {"pad_bottom", {-1, 65537}},
                                                                {"pad_left", {-1, 65537}},
                                                                {"pad_right", {-1, 65537}},
                                                                {"dilation_h", {0, 1025}},
                                                                {"dilation_w", {0, 1025}}};
    for (const auto &[param, values] : ranges) {
        const std::string pointer = std::string("/params/") + param;
        for (int value : values) {
            changes.push_back(set(pointer, value, {param, std::to_string(value)}));
        }
        changes.push_back(set(pointer, 2.5, {param, "2.5"}));
        changes.push_back(set(pointer, "3", {param, "\"3\""}));
        changes.push_back(set(pointer, uint64_t{1} << 63, {param}));
    }
    refuse_changes(good_operator(), changes, [](const std::string &path) { return read_operator(path); });
}

TEST_CASE("A good plan is read, and written as it was", "[plan]") {
    const TemporaryFolder folder;
    const json file = good_plan();
    const Plan plan = read_plan(folder.write("plan.json", file.dump()));
    CHECK(plan.name == "conv_avx2");
    CHECK(plan.op == parse_operator(good_operator(), "here"));
    CHECK(plan.target == avx2);
    REQUIRE(plan.variants.size() == 2);
    CHECK(plan.variants[0].theta.at("pixels") == 6);
    CHECK_FALSE(plan.variants[0].dense);
    CHECK(plan.variants[1].dense);
    CHECK(plan.profiled_device == "a machine");
    CHECK(plan.doubt.empty());
    json doubtful = good_plan();
    doubtful["profile"]["doubt"] = "the machine was busy";
    const Plan read = read_plan(folder.write("doubtful.json", doubtful.dump()));
    CHECK(read.doubt == "the machine was busy");
    CHECK(to_json(read).at("profile") == doubtful.at("profile"));
    CHECK(time_table_of(read).at("doubt") == "the machine was busy");
    CHECK_FALSE(time_table_of(plan).contains("doubt"));
    REQUIRE(plan.times.size() == 4);
    CHECK(plan.times[1].variant == "dense");
    CHECK(plan.times[1].tiles == 7);
    CHECK(plan.times[1].microseconds == 3.5);
    json whole = file;
    whole["operator"] = to_json(plan.op);
    CHECK(to_json(plan) == whole);

    const std::string copy = folder.path() + "/copy.json";
    write_file(copy, to_json(plan).dump(1));
    CHECK(to_json(read_plan(copy)) == whole);
    // Nothing but the two plans above and the copy.
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 3);

    whole.erase("profile");
    CHECK(to_json(read_plan(folder.write("plan.json", whole.dump()))) == whole);
}

TEST_CASE("A variant may name an order of its tiles", "[plan]") {
    const TemporaryFolder folder;
    json file = good_plan();
    file.erase("profile");
    const std::string hash = plan_hash_text(read_plan(folder.write("plan.json", file.dump())));
    for (const auto &[name, order] : {std::pair{"rows", DISTILE_TILES_BY_ROWS},
                                      {"morton", DISTILE_TILES_ALONG_MORTON},
                                      {"hilbert", DISTILE_TILES_ALONG_HILBERT}}) {
        file["variants"][0]["order"] = name;
        const Plan plan = read_plan(folder.write("plan.json", file.dump()));
        CHECK(plan.variants[0].order == order);
        CHECK(plan.variants[1].order == DISTILE_TILES_BY_ROWS);
        CHECK(std::string(order_name(order)) == name);
        CHECK(to_json(plan).at("variants")[0].contains("order") == (order != DISTILE_TILES_BY_ROWS));
        CHECK(read_plan(folder.write("copy.json", to_json(plan).dump())).variants[0].order == order);
        // Plans that name none keep their times.
        CHECK((plan_hash_text(plan) == hash) == (order == DISTILE_TILES_BY_ROWS));
    }
}

TEST_CASE("Every plan of the tests is read and written as it was", "[plan]") {
    int plans = 0;
    for (const auto &entry : std::filesystem::directory_iterator(DISTILE_TESTS_FOLDER "/plans")) {
        CAPTURE(entry.path());
        const Plan plan = read_plan(entry.path().string());
        CHECK(plan.name == entry.path().stem().string());
        json file = read_json(entry.path().string());
        for (const auto &[name, value] : file["operator"]["params"].items()) {
            CHECK(to_json(plan.op)["params"][name] == value);
        }
        file["operator"] = to_json(plan.op);
        CHECK(to_json(plan) == file);
        CHECK(plan.op == read_operator(DISTILE_TESTS_FOLDER "/operators/" + plan.op.name + ".json"));
        plans++;
    }
    CHECK(plans >= 10);
}

TEST_CASE("Whatever time a plan may hold is kept when it is written", "[plan]") {
    const TemporaryFolder folder;
    for (double microseconds : {0.001, 0.004, 0.01, 1.0, 123456.78, 1e11}) {
        json file = good_plan();
        file["profile"]["times"][0]["us"] = microseconds;
        std::string text = file.dump();
        try {
            text = to_json(read_plan(folder.write("plan.json", text))).dump();
        } catch (const FileError &) {
            continue;  // Refused from the start: a legal answer for times that are too short to be kept.
        }
        CAPTURE(microseconds, text);
        const double kept = read_plan(folder.write("plan.json", text)).times[0].microseconds;
        CHECK(kept == Approx(microseconds).epsilon(0.01));
    }
}

TEST_CASE("A wrong plan is refused with the file and the member", "[plan]") {
    const auto many = [](size_t count) {
        json variants = json::array();
        for (size_t i = 0; i < count; i++) {
            variants.push_back({{"name", "v" + std::to_string(i)}, {"code", {{"halide", good_theta()}}}});
        }
        return variants;
    };
    std::vector<Change> changes = {
        erase("", "distile_plan"),
        erase("", "name"),
        erase("", "operator"),
        erase("", "backend"),
        erase("", "layout"),
        erase("", "target"),
        erase("", "variants"),
        set("/distile_plan", 1, {"version 1", "version 2"}),
        set("/mth", "tf32", {"no member", "\"mth\"", "nearest", "\"math\""}),
        set("/operator/typcal", 2, {"\"operator\"", "no member", "\"typcal\"", "nearest", "\"typical\""}),
        set("/variants/1/dens", true, {"variant 1", "no member", "\"dens\"", "nearest", "\"dense\""}),
        set("/variants/0/code/halid", 2, {"variant 0", "code"}),
        set("/profile/hash", 2, {"profile", "no member", "\"hash\""}),
        set("/profile/times/1/thread", 2, {"time 1", "no member", "\"thread\"", "nearest", "\"threads\""}),
        set("/distile_plan", "new", {"new"}),
        set("/name", "a-b", {"name"}),
        set("/name", 3, {"name"}),
        set("/operator", "conv", {"operator", "string"}),
        set("/operator/params/kernel_h", 0, {"operator", "kernel_h", "0"}),
        set("/operator/distile_operator", 3, {"operator", "distile_operator", "3"}),
        set("/backend", "gpu", {"backend", "gpu"}),
        set("/backend", 1, {"backend"}),
        set("/layout", "cpu-o8", {"layout", "cpu-o8"}),
        set("/target", "x86-64-linux-avx10_1", {"target", "avx10_1"}),
        set("/target", "riscv-64-linux", {"target", "riscv-64-linux", "x86-64-linux or arm-64-linux"}),
        set("/target", "arm-64-linux-avx2", {"target", "'avx2'"}),
        set("/target", "arm-64-linux-sve2", {"target", "'sve2'"}),
        set("/target", "", {"target"}),
        set("/target", json::array(), {"target"}),
        set("/variants", json::object(), {"variants", "object"}),
        set("/variants", json::array(), {"0 variants"}),
        set("/variants", many(65), {"65 variants"}),
        set("/variants/1", 3, {"variant 1"}),
        set("/variants/1/name", "sparse", {"variant 1", "sparse", "twice"}),
        set("/variants/0/name", "p 4", {"variant 0", "name"}),
        set("/variants/0/dense", 1, {"variant 0", "dense"}),
        set("/variants/1/code/halide", json::array(), {"variant 1", "halide", "array"}),
        set("/variants/1/code/halide/unroll", -1, {"variant 1", "unroll", "-1"}),
        set("/variants/1/code/halide/group", 4097, {"variant 1", "group", "4097"}),
        set("/variants/1/code/halide/group", 1.5, {"variant 1", "group", "1.5"}),
        set("/variants/1/code/halide/group", "4", {"variant 1", "group", "4"}),
        set("/variants/1/code/halide/tile_h", 0, {"variant 1", "tile_h"}),
        set("/variants/1/code/halide/a;b", 1, {"variant 1", "knob", "a;b"}),
        set("/target", "x86-64-linux-avx2-", {"target", "ends with"}),
        set("/target", "x86-64-linux-avx2-no_asserts", {"target", "no_asserts"}),
        set("/target", "x86-64-linux-avx2-no_bounds_query", {"target", "no_bounds_query"}),
        set("/target", "x86-64-linux-avx2\nx", {"target", "control"}),
        set("/profile/device", "\x1b[2J", {"device", "control"}),
        set("/profile", json::array(), {"profile"}),
        set("/profile/device", 1, {"profile", "device"}),
        set("/profile/times", "fast", {"profile", "times"}),
        set("/profile/times/2", 4, {"profile", "time 2", "variant"}),
        set("/profile/times/2/variant", "unknown", {"profile", "time 2", "unknown"}),
        set("/profile/times/2/threads", 0, {"time 2", "threads"}),
        set("/profile/times/2/threads", 4097, {"time 2", "threads"}),
        set("/profile/times/2/tiles", 0, {"time 2", "tiles"}),
        set("/profile/times/2/tiles", -3, {"time 2", "tiles"}),
        set("/profile/times/2/us", 0, {"time 2", "us"}),
        set("/profile/times/2/us", "1", {"time 2", "us"}),
        erase("/variants/0", "code"),
        erase("/variants/0/code", "halide"),
        set("/variants/0/code/tensor_core", good_theta(), {"variant 0", "code", "one member", "halide", "tensor_core"}),
        set("/variants/0/code", {{"opencl", good_theta()}}, {"variant 0", "code", "halide"}),
        set("/variants/0/code", {{"cuda", good_theta()}}, {"variant 0", "code", "tensor_core"}),
        set("/variants/0/code", {{"tensor_core", good_theta()}}, {"variant 0", "tensor cores", "CPUs", avx2}),
        set("/math", "tf32", {"variant 0", "math", "tf32", "Halide"}),
        set("/math", "float16", {"math", "float16"}),
        set("/variants/0/layout", "cuda-o32", {"variant 0", "layout", "cuda-o32", "cpu-o16"}),
        set("/variants/0/layout", 16, {"variant 0", "layout"}),
        set("/variants/0/order", 2, {"variant 0", "order"}),
        set("/variants/0/order", "zigzag", {"variant 0", "no order", "zigzag", "hilbert"}),
        set("/variants/1/order", "hilbert", {"variant 1", "order", "masked variants on CPUs"}),
        // Times are those of an order.
        set("/variants/0/order", "hilbert", {"profile", "plan_hash", good_hash, "distile profile"}),
        set("/profile/plan_hash", "0123456789abcdef", {"profile", "0123456789abcdef", good_hash, "another plan"}),
        set("/profile/plan_hash", 5, {"profile", "plan_hash"}),
        erase("/profile", "plan_hash"),
        // Another schedule has other times.
        set("/variants/0/code/halide/group", 3, {"profile", "plan_hash", good_hash, "distile profile"}),
        erase("/variants/0", "name"),
        erase("/variants/0/code/halide", "tile_w"),
        erase("/profile", "device"),
        erase("/profile", "times"),
        erase("/profile/times/1", "variant"),
        erase("/profile/times/1", "threads"),
        erase("/profile/times/1", "tiles"),
        erase("/profile/times/1", "us"),
    };
    refuse_changes(good_plan(), changes, [](const std::string &path) { return read_plan(path); });
}

TEST_CASE("JSON that nobody means is refused before it is looked at", "[plan]") {
    const TemporaryFolder folder;
    const auto message = [&](const std::string &text) {
        const std::string path = folder.write("hostile.json", text);
        try {
            read_json(path);
        } catch (const FileError &error) {
            INFO(error.what());
            CHECK(contains(error.what(), path));
            return std::string(error.what());
        }
        return std::string();
    };
    const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    CHECK(message(nested(32)).empty());
    CHECK(contains(message(nested(33)), "nested deeper than 32 levels"));
    CHECK(contains(message("// [[[[\n\"\\\"[[\"/*"), "is not JSON"));
    // Deep enough to exhaust any stack, also where it does not end.
    CHECK(contains(message(nested(1000000)), "nested deeper"));
    CHECK(contains(message(std::string(1000000, '[')), "nested deeper"));
    std::string objects;
    for (int i = 0; i < 100000; i++) {
        objects += R"({"a":)";
    }
    CHECK(contains(message(objects), "nested deeper"));
    CHECK(contains(message(R"({"a": 1, "b": {"a": 2}, "a": 3})"), "\"a\" twice"));
    CHECK(message(R"([{"a": 1, "b": {"a": 2}}, {"a": 3}])").empty());
    CHECK(contains(message("1e999"), "is not JSON"));
    CHECK(contains(message("\"\xff\""), "is not JSON"));
    CHECK(contains(message(""), "is not JSON"));
}

TEST_CASE("Variants are found by name, and else by index", "[plan]") {
    const TemporaryFolder folder;
    json file = good_plan();
    file.erase("profile");
    file["variants"].push_back({{"name", "0"}, {"code", {{"halide", good_theta()}}}});
    const Plan plan = read_plan(folder.write("plan.json", file.dump()));
    CHECK(plan.find("dense") == &plan.variants[1]);
    CHECK(plan.find("1") == &plan.variants[1]);
    // A build asks by name, so that a name is not taken for an index.
    CHECK(plan.find("0") == &plan.variants[2]);
    CHECK(plan.find("3") == nullptr);
    CHECK(plan.find("") == nullptr);
    CHECK(plan.find("spars") == nullptr);
}

TEST_CASE("A file that cannot be written is reported, and nothing is left behind", "[plan]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/no_such_folder/file.json";
    refuse([&] { write_file(path, "text"); }, {path, "No such file or directory"});
    std::filesystem::create_symlink("/dev/full", folder.path() + "/full.new");
    refuse([&] { write_file(folder.path() + "/full", "text"); }, {"full", "No space left on device"});
    // A folder of that name cannot be replaced by a file.
    std::filesystem::create_directory(folder.path() + "/taken");
    refuse([&] { write_file(folder.path() + "/taken", "text"); }, {folder.path() + "/taken"});
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("Features are named as the runtime checks them", "[plan]") {
    const auto features = [](const std::string &target) { return backend_of_target(target).features_of(target); };
    CHECK(features("x86-64-linux").empty());
    CHECK(features(avx2) == "avx avx2 f16c fma sse41");
    CHECK(features("x86-64-linux-avx512_skylake") == "avx512f avx512cd avx512bw avx512dq avx512vl");
    CHECK(features("x86-64-linux-avx512-avx512_skylake") == features("x86-64-linux-avx512_skylake"));
    CHECK(features("x86-64-linux-cuda-cuda_capability_80") == "sm_80");
    CHECK(features("arm-64-linux") == "neon");
    CHECK(features("arm-64-linux-arm_dot_prod-arm_fp16") == "neon dotprod fp16");
    refuse([&] { features("arm-64-linux-avx2"); }, {"arm-64-linux-avx2", "'avx2'"});
    refuse([&] { features("x86-64-linux-arm_fp16"); }, {"'arm_fp16'"});
    CHECK(features("arm-64-android-arm_dot_prod-arm_fp16") == "neon dotprod fp16");
    CHECK(features("arm-64-android-opencl") == "opencl_1.2");
    refuse([&] { features("arm-64-ios"); }, {"arm-64-ios", "x86-64-linux or arm-64-linux or arm-64-android"});
    refuse([&] { features("x86-64-linux-avx2-vulkan"); }, {"x86-64-linux-avx2-vulkan", "'vulkan'"});
    CHECK(features("x86-64-linux-opencl") == "opencl_1.2");
    CHECK(features("x86-64-linux-opencl-cl_half") == "opencl_1.2 cl_khr_fp16");
    refuse([&] { features("x86-64-linux-avx2-opencl"); }, {"x86-64-linux-avx2-opencl", "'avx2'"});
    refuse([&] { features("x86-64-windows"); }, {"x86-64-windows"});
    refuse([&] { features("x86-64-linuxx"); }, {"x86-64-linuxx"});
    refuse([&] { features("x86-64-linux-cuda"); }, {"x86-64-linux-cuda", "compute capability"});
    refuse([&] { features("x86-64-linux-cuda-avx2-cuda_capability_80"); }, {"'avx2'"});
    refuse([&] { features("x86-64-linux-cuda-cuda_capability_999"); }, {"'cuda_capability_999'"});
    refuse([&] { features("x86-64-linux-cuda-cuda_capability_70-cuda_capability_80"); }, {"more than one"});
}

TEST_CASE("Every backend says what the tools ask of it", "[plan]") {
    CHECK(backend_names() == std::vector<std::string>{"cpu", "cuda", "opencl"});
    for (const Backend *backend : backends()) {
        CAPTURE(backend->name);
        CHECK(&get_backend(backend->name) == backend);
        REQUIRE_FALSE(backend->layouts.empty());
        CHECK(find_layout(*backend, backend->layouts.front().name) == &backend->layouts.front());
        CHECK(find_layout(*backend, "o7") == nullptr);
        CHECK_FALSE(backend->objects.empty());
        // The target of a built-in profile is the backend's, and leads back to a profile of the same kind.
        const DeviceProfile device = generic_device_profile(backend->generic_profile("x86-64-linux-avx2"));
        CHECK(device.backend == backend->name);
        CHECK(&backend_of_target(halide_target(device)) == backend);
        CHECK_FALSE(backend->needs(backend->features_of(halide_target(device))).empty());
        CHECK_FALSE(bound_backend(backend->name).spaces.empty());
        CHECK(generic_device_profile(backend->usual_profile).backend == backend->name);
    }
    refuse([] { get_backend("vulkan"); }, {"vulkan", "cpu", "cuda", "opencl"});
}

TEST_CASE("What OpenCL devices have includes what code for fewer needs", "[plan]") {
    const Backend &opencl = opencl_backend();
    const std::string plain = "opencl_1.2", half = "opencl_1.2 cl_khr_fp16";
    CHECK(opencl.includes(half, plain));
    CHECK_FALSE(opencl.includes(plain, half));
    for (const Platform &platform : platforms()) {
        CHECK(opencl.target_of(plain, platform) == platform.name() + "-opencl");
        CHECK(opencl.target_of(half, platform) == platform.name() + "-opencl-cl_half");
    }
    CHECK(opencl.needs(plain) == "an OpenCL 1.2 device");
    CHECK(opencl.needs(half) == "an OpenCL 1.2 device with cl_khr_fp16");
    CHECK(opencl.why_no_code(Language::Halide, *find_type("float32"), plain).empty());
    CHECK(contains(opencl.why_no_code(Language::TensorCore, *find_type("float32"), plain), "CUDA"));
    CHECK(contains(opencl.why_no_code(Language::DotProduct, *find_type("float32"), plain), "CPUs"));
}

TEST_CASE("Every platform says what the tools ask of it", "[plan]") {
    CHECK(platform_names() == std::vector<std::string>{"x86-64-linux", "arm-64-linux", "arm-64-android"});
    CHECK(host_platform().name() == DISTILE_HALIDE_TARGET);
    for (const Platform &platform : platforms()) {
        CAPTURE(platform.name());
        CHECK(&get_platform(platform.name()) == &platform);
        CHECK(&platform_with(platform.architecture).architecture == &platform.architecture);
        const Architecture &architecture = platform.architecture;
        for (const CpuLevel &level : architecture.levels) {
            const std::string target = platform.target(level.words);
            CAPTURE(target);
            CHECK(find_platform(target) == &platform);
            const DeviceProfile device = generic_device_profile(level.profile);
            CHECK(halide_target(device, platform) == target);
            CHECK(halide_target(device) == platform_with(architecture).target(level.words));
            CHECK(std::string(generic_device_of(target)) == level.profile);
            const Vectors vectors = cpu_bound_backend().vectors_of(target);
            CHECK(vectors.lanes == device.vector_lanes);
            CHECK(vectors.registers == device.vector_registers);
            const std::string features = cpu_backend().features_of(target);
            const bool is_last = &level == &architecture.levels.back();
            CHECK((features == architecture.everywhere) == is_last);
            CHECK(cpu_backend().needs(features) ==
                  (is_last ? std::string("any ") + architecture.display_name : "a CPU with " + features));
            // A CPU runs code for its architecture that needs no more, and none for others.
            for (const Architecture *other : architectures()) {
                CHECK(cpu_backend().includes(features, other->everywhere) == (other == &architecture));
            }
        }
    }
    // A program for one system cannot run on another.
    CHECK(find_platform("arm-64-linux-arm_fp16") != find_platform("arm-64-android-arm_fp16"));
    CHECK(find_platform("arm-64-linuxx") == nullptr);
    CHECK(find_platform("x86-64-android") == nullptr);
    refuse([] { get_platform("arm-64"); }, {"arm-64", "x86-64-linux", "arm-64-linux", "arm-64-android"});
}

TEST_CASE("A plan for a GPU says so in its backend, its layout and its target", "[plan]") {
    const TemporaryFolder folder;
    json cuda = good_plan();
    cuda.erase("profile");
    cuda["backend"] = "cuda";
    refuse([&] { read_plan(folder.write("plan.json", cuda.dump())); }, {"cuda", "target"});
    cuda["target"] = "x86-64-linux-cuda-cuda_capability_80";
    refuse([&] { read_plan(folder.write("plan.json", cuda.dump())); }, {"cuda", "cpu-o16"});
    cuda["layout"] = "cuda-o32";
    const Plan plan = read_plan(folder.write("plan.json", cuda.dump()));
    CHECK(plan.channel_block(plan.variants[0]) == 32);
    const std::string c = emit_polykernels({plan}, "my_symbol");
    for (const char *word : {".layout = \"cuda-o32\"", ".device = DISTILE_CUDA", ".features = \"sm_80\""}) {
        CAPTURE(word);
        CHECK(contains(c, word));
    }
}
