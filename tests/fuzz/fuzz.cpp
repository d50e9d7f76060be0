#include "tests/fuzz/fuzz.h"
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace distile {

void require(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "fuzz: %s\n", what);
        std::abort();
    }
}

InputFile::InputFile(const std::string &extension) : file_(memfd_create("input", MFD_CLOEXEC)) {
    path_ = "/proc/self/fd/" + std::to_string(file_);
    if (file_ < 0) {
        throw std::runtime_error("no file can be made in memory");
    }
    if (!extension.empty()) {
        const auto link = std::filesystem::temp_directory_path() /
                          ("distile-fuzz-" + std::to_string(getpid()) + "-" + std::to_string(file_) + extension);
        std::error_code ignored;
        std::filesystem::remove(link, ignored);
        std::filesystem::create_symlink(path_, link);
        path_ = link.string();
    }
}

InputFile::~InputFile() {
    close(file_);
    std::error_code ignored;
    if (path_.rfind("/proc", 0) != 0) {
        std::filesystem::remove(path_, ignored);
    }
}

void InputFile::write(const void *data, size_t size) const {
    require(ftruncate(file_, 0) == 0 && pwrite(file_, data, size, 0) == static_cast<ssize_t>(size),
            "the input cannot be written to a file in memory");
}

int32_t Bytes::extent(int32_t usual) {
    constexpr int32_t limits[] = {0,
                                  -1,
                                  65535,
                                  65536,
                                  32767,
                                  32768,
                                  63,
                                  64,
                                  65,
                                  1 << 20,
                                  std::numeric_limits<int32_t>::max(),
                                  std::numeric_limits<int32_t>::min()};
    constexpr int32_t num_limits = sizeof(limits) / sizeof(limits[0]);
    const auto selector = take<uint8_t>();
    return selector < 224                ? selector % usual + 1
           : selector < 224 + num_limits ? limits[selector - 224]
                                         : take<int32_t>();
}

int64_t Bytes::stride(int64_t usual) {
    constexpr int64_t largest = (int64_t{1} << 31) - 1;
    const auto selector = take<uint8_t>();
    switch (selector) {
    case 255:
        return take<int64_t>();
    case 254:
        return usual - 1;
    case 253:
        return -usual;
    case 252:
        return largest;
    case 251:
        return largest + 1;
    case 250:
        return largest / 2;
    case 249:
        return std::numeric_limits<int64_t>::max();
    case 248:
        return std::numeric_limits<int64_t>::min();
    case 247:
        return 0;
    default:
        return usual + (selector < 192 ? 0 : selector - 192);
    }
}

}  // namespace distile
