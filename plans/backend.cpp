#include "plans/backend.h"
#include "plans/json_file.h"
#include <algorithm>
#include <sstream>

namespace distile {

const std::vector<const Backend *> &backends() {
    static const std::vector<const Backend *> all = {&cpu_backend(), &cuda_backend(), &opencl_backend()};
    return all;
}

const Backend *find_backend(const std::string &name) {
    for (const Backend *backend : backends()) {
        if (name == backend->name) {
            return backend;
        }
    }
    return nullptr;
}

const Backend &get_backend(const std::string &name) {
    const Backend *backend = find_backend(name);
    if (!backend) {
        std::string known;
        for (const std::string &other : backend_names()) {
            known.append(known.empty() ? "" : ", ").append(quote(other));
        }
        throw FileError("there is no backend " + quote(name) + ": this program knows " + known);
    }
    return *backend;
}

const Backend &backend_of_target(const std::string &target) {
    return backend_of_words(target_words(target));
}

const Backend &backend_of_words(const std::vector<std::string> &words) {
    const Backend *other = backends().front();
    for (const Backend *backend : backends()) {
        if (!backend->target_word) {
            other = backend;
        } else if (std::find(words.begin(), words.end(), backend->target_word) != words.end()) {
            return *backend;
        }
    }
    return *other;
}

std::vector<std::string> backend_names() {
    std::vector<std::string> names;
    for (const Backend *backend : backends()) {
        names.emplace_back(backend->name);
    }
    return names;
}

const BackendLayout *find_layout(const Backend &backend, const std::string &name) {
    for (const BackendLayout &layout : backend.layouts) {
        if (name == layout.name) {
            return &layout;
        }
    }
    return nullptr;
}

const BackendLayout *layout_for(const Backend &backend, Language language, const DataType &type) {
    for (const BackendLayout &layout : backend.layouts) {
        if (layout.language == language && (layout.bytes_of_type == 0 || layout.bytes_of_type == type.bytes)) {
            return &layout;
        }
    }
    return nullptr;
}

std::vector<std::string> target_words(const std::string &target) {
    const Platform *platform = find_platform(target);
    if (!platform) {
        std::string known;
        for (const std::string &name : platform_names()) {
            known.append(known.empty() ? "" : " or ").append(name);
        }
        throw FileError("the target " + quote(target) + " does not begin with " + known);
    }
    if (target.back() == '-') {
        throw FileError("the target " + quote(target) + " ends with '-'");
    }
    return split_words(target.substr(platform->name().size()));
}

std::vector<std::string> split_words(const std::string &text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; std::getline(stream, word, '-');) {
        if (!word.empty()) {
            words.push_back(word);
        }
    }
    return words;
}

}  // namespace distile
