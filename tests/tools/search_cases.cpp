#include "tests/tools/search_cases.h"
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace distile {

Operator small_operator(const std::string &name, int out_channels) {
    return parse_operator({{"distile_operator", 1},
                           {"name", name},
                           {"generator", "masked_conv2d"},
                           {"params", {{"in_channels", 64}, {"out_channels", out_channels}}},
                           {"typical", {{"height", 24}, {"width", 24}}}},
                          "here");
}

MaskSet some_masks() {
    return read_mask_set({"blob:0.05:1", "blob:0.1:2", "blob:0.2:3", "blob:0.4:4", "random:0.3:5", "random:0.05:6"},
                         small_operator());
}

Theta a_theta(int tile_h, int tile_w, int pixels) {
    return {{"tile_h", tile_h}, {"tile_w", tile_w},    {"pixels", pixels}, {"channels", 16},
            {"group", 4},       {"channel_splits", 1}, {"order", 0},       {"unroll", 1}};
}

Measurement measured(const Theta &theta, bool dense, const std::vector<std::pair<int64_t, double>> &times) {
    Measurement measurement;
    measurement.theta = theta;
    measurement.dense = dense;
    for (const auto &[tiles, us] : times) {
        measurement.times.push_back({tiles, us, us, us});
    }
    measurement.compile_s = 2;
    measurement.measure_s = 0.5;
    return measurement;
}

LogHeader some_header() {
    LogHeader header;
    header.op = small_operator();
    header.backend = "cpu";
    header.target = "x86-64-linux-avx-avx2-f16c-fma-sse41";
    header.device = generic_device_profile("generic_avx2");
    header.threads = 2;
    header.knobs = knob_names(space_of("cpu"));
    header.seed = 7;
    header.masks = {"blob:0.1:1"};
    return header;
}

std::string contents(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
}

std::string message_of(const std::function<void()> &call) {
    try {
        call();
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "";
}

}  // namespace distile
