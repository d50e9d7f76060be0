#include "runtime/gpu/code_cache.h"
#include "runtime/base/read_file.h"
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <distile/distile.h>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <unistd.h>

namespace distile {

namespace {

/** FNV-1a, for file names and to detect disk errors. */
uint64_t hash_of(const std::string &text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return hash;
}

/** The header of a file, which must match before the code is used. */
std::string header_of(const std::string &environment, const std::string &source, const std::string &code) {
    std::ostringstream header;
    header << environment << " source " << source.size() << " code " << code.size() << " hash " << hash_of(code)
           << "\n";
    return header.str() + source;
}

}  // namespace

CodeCache::CodeCache(std::string folder, const std::string &environment, std::string ending)
    : folder_(std::move(folder)), ending_(std::move(ending)) {
    std::ostringstream whole;
    whole << "distile code " << DISTILE_VERSION_MAJOR << "." << DISTILE_VERSION_MINOR << "." << DISTILE_VERSION_PATCH
          << " " << environment;
    environment_ = whole.str();
}

std::string CodeCache::path_of(const std::string &source) const {
    char name[64];
    std::snprintf(name, sizeof(name), "distile-%016" PRIx64, hash_of(environment_ + "\n" + source));
    return (std::filesystem::path(folder_) / (name + ending_)).string();
}

std::string CodeCache::find(const std::string &source) const {
    const std::string file = read_file(path_of(source)).value_or("");
    const size_t line = file.find('\n');
    if (line == std::string::npos || file.size() - line - 1 < source.size()) {
        return "";
    }
    std::string code = file.substr(line + 1 + source.size());
    return file.compare(0, file.size() - code.size(), header_of(environment_, source, code)) == 0 ? code : "";
}

void CodeCache::keep(const std::string &source, const std::string &code) const {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    // Write under a temporary name and rename, so readers find the old or the new file, never a part.
    const std::string path = path_of(source), content = header_of(environment_, source, code) + code;
    std::string temporary = path + ".XXXXXX";
    const int file = mkstemp(temporary.data());
    if (file < 0) {
        return;
    }
    // Nothing throws from here on, so the temporary file cannot stay behind.
    size_t written = 0;
    while (written < content.size()) {
        const ssize_t step = write(file, content.data() + written, content.size() - written);
        if (step <= 0) {
            break;
        }
        written += static_cast<size_t>(step);
    }
    const bool complete = close(file) == 0 && written == content.size();
    if (!complete || std::rename(temporary.c_str(), path.c_str()) != 0) {
        unlink(temporary.c_str());
    }
}

}  // namespace distile
