#include "plans/platform.h"
#include "plans/json_file.h"
#include <algorithm>

namespace distile {

namespace {

const System linux_system = {"linux", {"-lm", "-ldl", "-lpthread"}};
// Threads are in its C library, and Halide's runtime writes to its log.
const System android = {"android", {"-llog", "-ldl", "-lm"}};

}  // namespace

std::string Platform::name() const {
    return std::string(architecture.name) + "-" + system.name;
}

std::string Platform::target(const std::string &words) const {
    return words.empty() ? name() : name() + "-" + words;
}

const std::vector<Platform> &platforms() {
    static const std::vector<Platform> all = {
        {x86_64_architecture(), linux_system},
        {arm_64_architecture(), linux_system},
        {arm_64_architecture(), android},
    };
    return all;
}

std::vector<std::string> platform_names() {
    std::vector<std::string> names;
    for (const Platform &platform : platforms()) {
        names.push_back(platform.name());
    }
    return names;
}

const Platform &get_platform(const std::string &name) {
    std::string known;
    for (const Platform &platform : platforms()) {
        if (name == platform.name()) {
            return platform;
        }
        known.append(known.empty() ? "" : ", ").append(quote(platform.name()));
    }
    throw FileError("there are no plans for the platform " + quote(name) + ": this program knows " + known);
}

const Platform *find_platform(const std::string &target) {
    for (const Platform &platform : platforms()) {
        const std::string beginning = platform.name();
        if (target == beginning || target.rfind(beginning + "-", 0) == 0) {
            return &platform;
        }
    }
    return nullptr;
}

const Platform &host_platform() {
    // What nothing is known of runs no plan anyway.
    const Platform *own = find_platform(DISTILE_HALIDE_TARGET);
    return own ? *own : platforms().front();
}

const Platform &platform_with(const Architecture &architecture) {
    if (&host_platform().architecture == &architecture) {
        return host_platform();
    }
    return *std::find_if(platforms().begin(), platforms().end(),
                         [&](const Platform &platform) { return &platform.architecture == &architecture; });
}

}  // namespace distile
