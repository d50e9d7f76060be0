// Operator and plan files, the spaces of schedules, and the plugin: what they accept, and how they refuse the rest.
#include "Halide.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/device_profile.h"
#include "autoscheduler/bound/rank.h"
#include "facts/activation_names.h"
#include "kernels/dot_products.h"
#include "kernels/halide/code.h"
#include "kernels/tensor_core/code.h"
#include "plans/architecture.h"
#include "plans/emit.h"
#include "plans/operator_schema.h"
#include "plans/plan.h"
#include "plans/tensor_core.h"
#include "schedules/attention_space.h"
#include "schedules/cpu.h"
#include "schedules/cuda_direct_space.h"
#include "schedules/cuda_schedule.h"
#include "schedules/cuda_space.h"
#include "schedules/depthwise_space.h"
#include "schedules/space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/check_facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace distile;
using nlohmann::json;

namespace {

const char *const avx2 = "x86-64-linux-avx-avx2-f16c-fma-sse41";
const char *const avx512 = "x86-64-linux-avx-avx2-avx512-avx512_skylake-f16c-fma-sse41";

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

/** What a function throws as a FileError, which must name `words`. */
void refuse(const std::function<void()> &read, const std::vector<std::string> &words) {
    std::string message = "(nothing was thrown)";
    try {
        read();
    } catch (const FileError &error) {
        message = error.what();
    } catch (const std::exception &error) {
        message = std::string("(another exception) ") + error.what();
    }
    INFO("the message is: " << message);
    for (const std::string &word : words) {
        CHECK(contains(message, word));
    }
    CHECK(message.front() != '(');
}

distile_conv2d conv_of(const Operator &op) {
    return op.schema().convolution(op).conv;
}

json good_operator() {
    return json::parse(R"({"distile_operator": 1, "name": "conv", "generator": "masked_conv2d",
        "params": {"dtype": "float32", "in_channels": 16, "out_channels": 48, "kernel_h": 3, "kernel_w": 3,
                   "pad_top": 1, "pad_bottom": 1, "pad_left": 1, "pad_right": 1, "epilogue": "relu", "residual": false},
        "typical": {"batch": 1, "height": 20, "width": 30}})");
}

json good_theta() {
    return json::parse(R"({"tile_h": 1, "tile_w": 2, "pixels": 6, "channels": 16, "group": 4, "channel_splits": 1,
                           "order": 0, "unroll": 2})");
}

/** The hash of good_plan(), which changes only where what it covers changes. */
const char *const good_hash = "05bc71bae5e7d356";

json good_plan() {
    return {{"distile_plan", 2},
            {"name", "conv_avx2"},
            {"operator", good_operator()},
            {"backend", "cpu"},
            {"layout", "cpu-o16"},
            {"target", avx2},
            {"variants",
             {{{"name", "sparse"}, {"code", {{"halide", good_theta()}}}},
              {{"name", "dense"}, {"dense", true}, {"code", {{"halide", good_theta()}}}}}},
            {"profile",
             {{"plan_hash", good_hash},
              {"device", "a machine"},
              {"times",
               {{{"variant", "sparse"}, {"threads", 2}, {"tiles", 10}, {"us", 12.25}},
                {{"variant", "dense"}, {"threads", 1}, {"tiles", 7}, {"us", 3.5}},
                {{"variant", "sparse"}, {"threads", 1}, {"tiles", 10}, {"us", 24.5}},
                {{"variant", "sparse"}, {"threads", 1}, {"tiles", 5}, {"us", 12.5}}}}}}};
}

/** A change of a good file, and what must be said about it. */
struct Change {
    std::function<void(json &)> make;
    std::vector<std::string> words;
};

/** Sets the value at a JSON pointer to one that is refused with a message that has all of `words`. */
Change set(const std::string &pointer, const json &value, std::vector<std::string> words) {
    return {[=](json &file) { file[json::json_pointer(pointer)] = value; }, std::move(words)};
}

Change erase(const std::string &parent, const std::string &member) {
    return {[=](json &file) { file[json::json_pointer(parent)].erase(member); }, {member}};
}

template<typename Read> void refuse_changes(const json &good, const std::vector<Change> &changes, const Read &read) {
    const TemporaryFolder folder;
    for (const Change &change : changes) {
        json bad = good;
        change.make(bad);
        REQUIRE(bad != good);
        const std::string path = folder.write("file.json", bad.dump(1));
        INFO(bad.dump());
        std::vector<std::string> words = change.words;
        words.push_back(path);
        refuse([&] { read(path); }, words);
    }
    const std::string missing = folder.path() + "/missing.json";
    refuse([&] { read(missing); }, {missing, "opened"});
    refuse([&] { read(folder.path()); }, {folder.path()});
    for (const char *text : {"", "{", "{\"a\": 1}}", "nonsense"}) {
        const std::string path = folder.write("file.json", text);
        refuse([&] { read(path); }, {path, "JSON"});
    }
    const std::string array = folder.write("file.json", "[1, 2]");
    refuse([&] { read(array); }, {array, "missing"});
}

}  // namespace

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
        set("/params/dtype", "float8_e4m3fn", {"dtype", "float8_e4m3fn", "only stored", "bfloat16"}),
        set("/params/dtype", "float8_e5m2", {"dtype", "float8_e5m2", "only stored"}),
        set("/params/dtype", "int4", {"dtype", "int4"}),
        set("/params/dtype", 32, {"dtype", "32"}),
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
    refuse([&] { write_file(path, "text"); }, {path});
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
    CHECK(own_platform().name() == DISTILE_HALIDE_TARGET);
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
                  (is_last ? std::string("any ") + architecture.people_say : "a CPU with " + features));
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

namespace {

json tensor_core_theta() {
    return json::parse(R"({"tile_h": 1, "tile_w": 1, "block_pixels": 128, "block_channels": 64, "stages": 4,
                           "splits": 2, "balanced": 0})");
}

const char *const hopper = "x86-64-linux-cuda-cuda_capability_90a";
const char *const ampere = "x86-64-linux-cuda-cuda_capability_80";

/** A plan of TF32 for tensor cores. */
json tensor_core_plan() {
    json plan = good_plan();
    plan.erase("profile");
    plan["name"] = "conv_sm90";
    plan["backend"] = "cuda";
    plan["layout"] = "cuda-k32";
    plan["math"] = "tf32";
    plan["target"] = hopper;
    plan["operator"]["params"]["in_channels"] = 64;
    for (json &variant : plan["variants"]) {
        variant["code"] = {{"tensor_core", tensor_core_theta()}};
    }
    return plan;
}

/** A plan for tensor cores of an operator of another type. */
json tensor_core_plan_in(const char *type) {
    json plan = tensor_core_plan();
    plan.erase("math");
    plan["layout"] = "cuda-k16";
    plan["operator"]["params"]["dtype"] = type;
    return plan;
}

}  // namespace

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
         {"#include \"sm90.cuh\"", "using Element = Tf32;", " out_channels = 48;", "kernel_h = 3, kernel_w = 3",
          "tile_h = 1, tile_w = 3", "Activation::relu;", "residual = false", "Sm90<Op, 128, 64, 4, 2, false>",
          "Kernel::threads == 384", "extern \"C\" __global__", "struct Of_tiles {", "index = 2;",
          "distile_tiles(__grid_constant__ const Launch<1>", "run_named<Of_tiles>(launch);", "distile_chosen_1(",
          "distile_chosen_0(__grid_constant__ const Launch<2>", "run_chosen<Of_sparse, Of_dense>(launch);",
          "run_chosen<Of_tiles>(launch);"}) {
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
    for (const char *word :
         {"#include \"sm80.cuh\"", "Bfloat16", "kernel_h = 1", "Activation::gelu", "residual = true", "Sm80<"}) {
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
    CHECK(contains(c, ".otherwise = &polykernel_1"));
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
    CHECK_FALSE(contains(c, ".otherwise"));
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
                             ".variants = variants_0,\n    .otherwise = &polykernel_1,\n};",
                             ".variants = variants_1,\n    .otherwise = &polykernel_2,\n};",
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
    // By dot products where CPUs have them.
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
    // On tensor cores where there are kernels, and behind them for every GPU.
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
    // No time is better than that of a schedule that the bound ranks first for its number of tiles.
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

namespace {

/** A legal theta for depthwise convolutions. */
Theta depthwise_theta() {
    return {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 6}, {"channels", 16}, {"tasks", 2}, {"unroll", 2}};
}

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
