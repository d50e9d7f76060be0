#include "plans/architecture.h"
#include <algorithm>
#include <iterator>
#include <sstream>

namespace distile {

const std::vector<const Architecture *> &architectures() {
    static const std::vector<const Architecture *> all = {&x86_64_architecture(), &arm_64_architecture()};
    return all;
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

}  // namespace distile
