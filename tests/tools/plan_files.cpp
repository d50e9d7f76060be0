#include "tests/tools/plan_files.h"
#include "plans/json_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include <utility>

using nlohmann::json;

namespace distile {

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

Theta depthwise_theta() {
    return {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 6}, {"channels", 16}, {"tasks", 2}, {"unroll", 2}};
}

json tensor_core_theta() {
    return json::parse(R"({"tile_h": 1, "tile_w": 1, "block_pixels": 128, "block_channels": 64, "stages": 4,
                           "splits": 2, "balanced": 0})");
}

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

json tensor_core_plan_in(const char *type) {
    json plan = tensor_core_plan();
    plan.erase("math");
    plan["layout"] = "cuda-k16";
    plan["operator"]["params"]["dtype"] = type;
    return plan;
}

Change set(const std::string &pointer, const json &value, std::vector<std::string> words) {
    return {[=](json &file) { file[json::json_pointer(pointer)] = value; }, std::move(words)};
}

Change erase(const std::string &parent, const std::string &member) {
    return {[=](json &file) { file[json::json_pointer(parent)].erase(member); }, {member}};
}

void refuse_changes(const json &good, const std::vector<Change> &changes,
                    const std::function<void(const std::string &)> &read) {
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

}  // namespace distile
