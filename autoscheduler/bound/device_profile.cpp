#include "device_profile.h"
#include "generic_devices.h"
#include "operator.h"
#include <cmath>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

using nlohmann::json;

constexpr int profile_version = 1;

/** Reads the members of one object, and names the one that is wrong. */
class Members {
public:
    Members(const json &object, std::string where) : object_(object), where_(std::move(where)) {
        if (!object.is_object()) {
            refuse("it is " + std::string(object.type_name()) + ", not an object");
        }
    }

    [[noreturn]] void refuse(const std::string &what) const {
        throw FileError(where_ + ": " + what);
    }

    const json &get(const char *name) const {
        if (!object_.contains(name)) {
            refuse(std::string("the member \"") + name + "\" is missing");
        }
        return object_.at(name);
    }

    std::string text(const char *name) const {
        const json &value = get(name);
        if (!value.is_string() || value.get<std::string>().empty()) {
            refuse(std::string("the member \"") + name + "\" is " + value.dump() + ", not a text");
        }
        return value.get<std::string>();
    }

    bool boolean(const char *name) const {
        const json &value = get(name);
        if (!value.is_boolean()) {
            refuse(std::string("the member \"") + name + "\" is " + value.dump() + ", not true or false");
        }
        return value.get<bool>();
    }

    double number(const char *name, double least, double most) const {
        const json &value = get(name);
        if (!value.is_number() || value < least || value > most) {
            refuse(std::string("the member \"") + name + "\" is " + value.dump() + ", not a number from " +
                   json(least).dump() + " to " + json(most).dump());
        }
        return value.get<double>();
    }

    int64_t integer(const char *name, int64_t least, int64_t most) const {
        const json &value = get(name);
        if (!value.is_number_integer() || value < least || value > most) {
            refuse(std::string("the member \"") + name + "\" is " + value.dump() + ", not an integer from " +
                   std::to_string(least) + " to " + std::to_string(most));
        }
        return value.get<int64_t>();
    }

    int count(const char *name, int most) const {
        return static_cast<int>(integer(name, 1, most));
    }

private:
    const json &object_;
    std::string where_;
};

MemoryLevel parse_level(const json &json, const std::string &where, bool is_last) {
    const Members members(json, where);
    MemoryLevel level;
    level.name = members.text("name");
    level.bytes = members.integer("bytes", is_last ? 0 : 1, int64_t{1} << 50);
    level.shared = members.boolean("shared");
    level.gb_per_s = members.number("gb_per_s", 1e-3, 1e9);
    // At least an element.
    level.transaction_bytes = static_cast<int>(members.integer("transaction_bytes", 4, 1 << 20));
    level.latency_ns = members.number("latency_ns", 0, 1e9);
    return level;
}

/** Six digits: what a measurement is worth. */
double rounded(double value) {
    if (value == 0) {
        return 0;
    }
    const double scale = std::pow(10, 5 - std::floor(std::log10(std::abs(value))));
    return std::round(value * scale) / scale;
}

}  // namespace

const MemoryLevel &DeviceProfile::level(const std::string &level_name) const {
    for (const MemoryLevel &level : memory) {
        if (level.name == level_name) {
            return level;
        }
    }
    throw FileError("the device profile of '" + name + "' has no memory level \"" + level_name + "\"");
}

std::string DeviceProfile::id() const {
    return name + ", " + features + ", " + std::to_string(cores) + (backend == "cuda" ? " multiprocessors" : " cores");
}

DeviceProfile parse_device_profile(const json &json, const std::string &where) {
    const Members members(json, where);
    if (!json.contains("distile_device")) {
        members.refuse("the member \"distile_device\" is missing: this is not a device profile");
    }
    if (json.at("distile_device") != profile_version) {
        members.refuse("it has version " + json.at("distile_device").dump() + "; this program reads version " +
                       std::to_string(profile_version) + ". Run distile calibrate again");
    }
    DeviceProfile device;
    device.name = members.text("name");
    device.backend = members.text("backend");
    if (device.backend != "cpu" && device.backend != "cuda") {
        members.refuse("the backend \"" + device.backend + "\" is neither \"cpu\" nor \"cuda\"");
    }
    device.features = members.text("features");
    device.cores = members.count("cores", 1 << 16);
    device.ghz = members.number("ghz", 1e-3, 100);
    device.fma_per_cycle = members.number("fma_per_cycle", 1e-3, 1e6);
    device.fma_latency = members.number("fma_latency", 1e-3, 1e6);
    device.load_per_cycle = members.number("load_per_cycle", 1e-3, 1e6);
    device.alpha_us = members.number("alpha_us", 1e-12, 1e6);
    device.gamma_us = members.number("gamma_us", 0, 1e6);
    device.launch_us = members.number("launch_us", 0, 1e6);
    const auto &memory = members.get("memory");
    if (!memory.is_array() || memory.size() < 2 || memory.size() > 8) {
        members.refuse("the member \"memory\" is not an array of 2 to 8 levels");
    }
    for (size_t i = 0; i < memory.size(); i++) {
        device.memory.push_back(
            parse_level(memory[i], where + ", memory level " + std::to_string(i), i + 1 == memory.size()));
    }
    if (device.backend == "cpu") {
        device.vector_lanes = members.count("vector_lanes", 1024);
        device.vector_registers = members.count("vector_registers", 1024);
    } else {
        device.max_threads = members.count("max_threads", 1 << 20);
        device.max_blocks = members.count("max_blocks", 1 << 20);
        device.registers = members.count("registers", 1 << 30);
        device.shared_banks = members.count("shared_banks", 64);
        device.shared_bytes = members.integer("shared_bytes", 1, 1 << 30);
        const auto is_level = [&](size_t i, const char *name) { return device.memory[i].name == name; };
        if (device.memory.size() != 3 || !is_level(0, "shared") || !is_level(1, "L2") || !is_level(2, "DRAM")) {
            members.refuse("the member \"memory\" does not hold the levels \"shared\", \"L2\" and \"DRAM\"");
        }
    }
    return device;
}

DeviceProfile read_device_profile(const std::string &path) {
    return parse_device_profile(read_json(path), "the device profile '" + path + "'");
}

DeviceProfile generic_device_profile(const std::string &name) {
    for (const GenericDevice &generic : generic_devices) {
        if (name == generic.name) {
            return parse_device_profile(json::parse(generic.json), "the device profile \"" + name + "\"");
        }
    }
    throw FileError("there is no built-in device profile \"" + name + "\"");
}

const char *generic_device_of(const std::string &target) {
    const auto has = [&](const char *feature) { return target.find(feature) != std::string::npos; };
    return has("-cuda")     ? "generic_cuda"
           : has("-avx512") ? "generic_avx512"
           : has("-avx2")   ? "generic_avx2"
                            : "generic_x86_64";
}

std::string halide_target(const DeviceProfile &device) {
    if (device.backend == "cuda") {
        // Later GPUs run the code of earlier ones.
        return "x86-64-linux-cuda-cuda_capability_70";
    }
    const auto has = [&](const char *feature) { return device.features.find(feature) != std::string::npos; };
    return !has("avx2") ? std::string("x86-64-linux")
                        : std::string("x86-64-linux-avx-avx2-") + (has("avx512vl") ? "avx512-avx512_skylake-" : "") +
                              "f16c-fma-sse41";
}

json to_json(const DeviceProfile &device) {
    json memory = json::array();
    for (const MemoryLevel &level : device.memory) {
        memory.push_back({{"name", level.name},
                          {"bytes", level.bytes},
                          {"shared", level.shared},
                          {"gb_per_s", rounded(level.gb_per_s)},
                          {"transaction_bytes", level.transaction_bytes},
                          {"latency_ns", rounded(level.latency_ns)}});
    }
    json result = {{"distile_device", profile_version},
                   {"name", device.name},
                   {"backend", device.backend},
                   {"features", device.features},
                   {"cores", device.cores},
                   {"ghz", rounded(device.ghz)},
                   {"fma_per_cycle", rounded(device.fma_per_cycle)},
                   {"fma_latency", rounded(device.fma_latency)},
                   {"load_per_cycle", rounded(device.load_per_cycle)},
                   {"memory", memory},
                   {"alpha_us", rounded(device.alpha_us)},
                   {"gamma_us", rounded(device.gamma_us)},
                   {"launch_us", rounded(device.launch_us)}};
    if (device.backend == "cpu") {
        result["vector_lanes"] = device.vector_lanes;
        result["vector_registers"] = device.vector_registers;
    } else {
        result["max_threads"] = device.max_threads;
        result["max_blocks"] = device.max_blocks;
        result["registers"] = device.registers;
        result["shared_banks"] = device.shared_banks;
        result["shared_bytes"] = device.shared_bytes;
    }
    return result;
}

}  // namespace distile
