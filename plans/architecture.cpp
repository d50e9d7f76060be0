#include "architecture.h"
#include "json_file.h"
#include <algorithm>
#include <iterator>
#include <sstream>

namespace distile {

const std::vector<const Architecture *> &architectures() {
    static const std::vector<const Architecture *> all = {&x86_64_architecture(), &arm_64_architecture()};
    return all;
}

std::vector<std::string> architecture_names() {
    std::vector<std::string> names;
    for (const Architecture *architecture : architectures()) {
        names.emplace_back(architecture->name);
    }
    return names;
}

const Architecture &get_architecture(const std::string &name) {
    std::string known;
    for (const Architecture *architecture : architectures()) {
        if (name == architecture->name) {
            return *architecture;
        }
        known.append(known.empty() ? "" : ", ").append(quote(architecture->name));
    }
    throw FileError("there are no plans for the architecture " + quote(name) + ": this program knows " + known);
}

const Architecture *find_architecture(const std::string &target) {
    for (const Architecture *architecture : architectures()) {
        const std::string beginning = linux_on(*architecture);
        if (target == beginning || target.rfind(beginning + "-", 0) == 0) {
            return architecture;
        }
    }
    return nullptr;
}

const Architecture &architecture_of_features(const std::string &features) {
    std::istringstream words(features);
    const std::vector<std::string> has(std::istream_iterator<std::string>(words), {});
    for (const Architecture *architecture : architectures()) {
        if (std::find(has.begin(), has.end(), architecture->everywhere) != has.end()) {
            return *architecture;
        }
    }
    return x86_64_architecture();
}

const Architecture &own_architecture() {
    // What nothing is known of runs no plan anyway.
    const Architecture *own = find_architecture(DISTILE_HALIDE_TARGET);
    return own ? *own : x86_64_architecture();
}

std::string linux_on(const Architecture &architecture) {
    return std::string(architecture.name) + "-linux";
}

}  // namespace distile
