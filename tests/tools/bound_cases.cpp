#include "tests/tools/bound_cases.h"
#include "plans/json_file.h"
#include "tests/support/catch.h"

using nlohmann::json;

namespace distile {

void refuse(const std::function<void()> &function, const std::vector<std::string> &words) {
    std::string message = "(nothing was thrown)";
    try {
        function();
    } catch (const FileError &error) {
        message = error.what();
    }
    INFO("the message is: " << message);
    for (const std::string &word : words) {
        CHECK(message.find(word) != std::string::npos);
    }
    CHECK(message.front() != '(');
}

Operator make_operator(const json &params, int height, int width) {
    return parse_operator({{"distile_operator", 1},
                           {"name", "conv"},
                           {"generator", "masked_conv2d"},
                           {"params", params},
                           {"typical", {{"batch", 1}, {"height", height}, {"width", width}}}},
                          "here");
}

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

}  // namespace distile
