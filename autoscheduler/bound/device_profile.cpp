#include "autoscheduler/bound/device_profile.h"
#include "autoscheduler/bound/bound_backend.h"
#include "generic_devices.h"
#include "plans/operator.h"
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

    void check_known(const std::vector<std::string> &known) const {
        check_members(object_, known, where_);
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
            refuse(std::string("the member \"") + name + "\" is " + value.dump() + ", not a string");
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
    members.check_known({"name", "bytes", "shared", "gb_per_s", "transaction_bytes", "latency_ns"});
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
    return name + ", " + features + ", " + std::to_string(cores) + " " + get_backend(backend).core + "s";
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
    if (!find_backend(device.backend)) {
        members.refuse("there is no backend " + quote(device.backend));
    }
    const BoundBackend &backend = bound_backend(device.backend);
    std::vector<std::string> known = {
        "distile_device", "name",           "backend", "features", "cores",    "ghz",      "fma_per_cycle",
        "fma_latency",    "load_per_cycle", "memory",  "alpha_us", "gamma_us", "launch_us"};
    for (const ProfileField &field : backend.fields) {
        known.emplace_back(field.name);
    }
    members.check_known(known);
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
    set_derived(device);
    for (const ProfileField &field : backend.fields) {
        if (!field.default_value || json.contains(field.name)) {
            device.*field.value =
                static_cast<int>(members.integer(field.name, field.default_value ? 0 : 1, field.most));
        }
    }
    std::string levels;
    bool has_levels = backend.levels.empty() || device.memory.size() == backend.levels.size();
    for (size_t i = 0; i < backend.levels.size(); i++) {
        has_levels = has_levels && device.memory[i].name == backend.levels[i];
        levels.append(i == 0 ? "" : i + 1 == backend.levels.size() ? " and " : ", ").append(quote(backend.levels[i]));
    }
    if (!has_levels) {
        members.refuse("the member \"memory\" must hold the levels " + levels);
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

void set_derived(DeviceProfile &device) {
    for (const ProfileField &field : bound_backend(device.backend).fields) {
        if (field.default_value) {
            device.*field.value = field.default_value(device.features);
        }
    }
}

const char *generic_device_of(const std::string &target) {
    return backend_of_target(target).generic_profile(target);
}

std::string halide_target(const DeviceProfile &device) {
    const Backend &backend = get_backend(device.backend);
    // The features of a CPU say its architecture.
    return halide_target(device, backend.target_word ? host_platform()
                                                     : platform_with(architecture_of_features(device.features)));
}

std::string halide_target(const DeviceProfile &device, const Platform &platform) {
    return get_backend(device.backend).target_of(device.features, platform);
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
    for (const ProfileField &field : bound_backend(device.backend).fields) {
        // What follows from the features is not repeated.
        if (!field.default_value || device.*field.value != field.default_value(device.features)) {
            result[field.name] = device.*field.value;
        }
    }
    return result;
}

}  // namespace distile
