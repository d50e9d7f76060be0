// The JSON files of the command except plans. The first byte of an input says which: the log of a search, the profile
// of a device, or the result of a trial.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/search/search_log.h"
#include "plans/operator.h"
#include "tests/fuzz/fuzz.h"
#include <nlohmann/json.hpp>

using namespace distile;

namespace {

void judge(const Workload &workload, const Theta &theta) {
    for (int64_t tiles : {int64_t{1}, int64_t{1} << 40}) {
        require(bound(workload, theta, tiles).us > 0, "a schedule has no bound");
    }
}

void read_log(const std::string &path) {
    const LogContents log = read_search_log(path);
    to_json(log.header).dump();
    const Workload workload = workload_of(log.header);
    for (const Measurement &measurement : log.measured) {
        judge(workload, measurement.theta);
    }
    for (const Measurement &measurement : log.measured) {
        if (measurement.ok()) {
            for (int64_t tiles : {int64_t{1}, int64_t{1} << 40}) {
                require(measurement.at(tiles) > 0, "a measured schedule takes no time");
            }
        }
    }
}

void read_profile(const std::string &path) {
    const DeviceProfile device = read_device_profile(path);
    require(!device.id().empty() && !halide_target(device).empty(), "a device has no name");
    // Numbers are rounded when they are written, and not again.
    const nlohmann::json written = to_json(device);
    require(to_json(parse_device_profile(written, "written")) == written, "a profile is read another than written");
    static const Operator op = parse_operator(nlohmann::json::parse(R"({
        "distile_operator": 1, "name": "conv", "generator": "masked_conv2d",
        "params": {"in_channels": 64, "out_channels": 64, "kernel_h": 3, "kernel_w": 3}})"),
                                              "operator");
    const Theta theta = device.backend == "cpu"
                            ? Theta{{"tile_h", 1}, {"tile_w", 2}, {"pixels", 1},         {"channels", 16},
                                    {"group", 4},  {"order", 0},  {"channel_splits", 1}, {"unroll", 4}}
                            : Theta{{"tile_h", 1},     {"tile_w", 2},          {"block_pixels", 64},
                                    {"splits", 1},     {"block_channels", 64}, {"thread_pixels", 4},
                                    {"chunk", 16},     {"thread_channels", 4}, {"weights_staged", 1},
                                    {"transposed", 1}, {"padding", 4},         {"prefetch", 0},
                                    {"halo", 0}};
    const Workload workload = workload_of(op, device);
    if (space_of(device.backend, workload.problem).why_illegal(theta, workload.problem).empty()) {
        judge(workload, theta);
    }
}

void read_result(const std::string &path) {
    const Measurement measurement = parse_measurement(read_json(path), "the result");
    to_json(measurement).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile file;
    if (size == 0) {
        return 0;
    }
    file.write(data + 1, size - 1);
    try {
        switch (data[0] % 3) {
        case 0:
            read_log(file.path());
            break;
        case 1:
            read_profile(file.path());
            break;
        default:
            read_result(file.path());
        }
    } catch (const FileError &) {}
    return 0;
}
