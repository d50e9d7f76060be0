#include "runtime/cpu/cpu_features.h"
#include "runtime/cpu/architectures/cpu_architecture.h"
#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

namespace distile {

namespace {

std::vector<std::string> words_of(const char *text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool contains(const std::vector<std::string> &words, const std::string &word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::string missing_cpu_feature(const char *features, const char *allowed) {
    std::vector<std::string> present;
    for (const CpuFeature &feature : known_cpu_features()) {
        if (feature.present && (!allowed || feature.everywhere || contains(words_of(allowed), feature.name))) {
            present.emplace_back(feature.name);
        }
    }
    for (const std::string &feature : words_of(features)) {
        if (!contains(present, feature)) {
            return feature;
        }
    }
    return "";
}

std::string present_cpu_features() {
    std::string features;
    for (const CpuFeature &feature : known_cpu_features()) {
        if (feature.present) {
            features.append(features.empty() ? "" : " ").append(feature.name);
        }
    }
    return features;
}

bool are_cpu_features(const char *features) {
    const std::vector<CpuFeature> known = known_cpu_features();
    const std::vector<std::string> words = words_of(features);
    return std::all_of(words.begin(), words.end(), [&](const std::string &word) {
        return std::any_of(known.begin(), known.end(), [&](const CpuFeature &feature) { return word == feature.name; });
    });
}

}  // namespace distile
