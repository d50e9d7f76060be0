/** \file
 * What the fuzz targets share. Each target is one source with the function that libFuzzer calls; without libFuzzer,
 * replay.cpp calls it. A target ends the process where something is wrong, and otherwise returns.
 */
#ifndef DISTILE_TESTS_FUZZ_H
#define DISTILE_TESTS_FUZZ_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace distile {

/** Ends the process with a sentence unless `holds`. */
void require(bool holds, const char *what);

/** A file in memory, for functions that take a path. */
class InputFile {
public:
    /** `extension`, for instance ".png", is what the path ends with. */
    explicit InputFile(const std::string &extension = "");
    ~InputFile();
    InputFile(const InputFile &) = delete;
    InputFile &operator=(const InputFile &) = delete;

    const std::string &path() const {
        return path_;
    }
    void write(const void *data, size_t size) const;

private:
    int file_ = -1;
    std::string path_;
};

/** Takes values from an input, one after the other; 0 beyond its end. */
class Bytes {
public:
    Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {
    }

    bool empty() const {
        return size_ == 0;
    }
    template<typename Value> Value take() {
        Value value{};
        const size_t taken = size_ < sizeof(value) ? size_ : sizeof(value);
        if (taken > 0) {  // An empty input may be null.
            std::memcpy(&value, data_, taken);
            data_ += taken;
        }
        size_ -= taken;
        return value;
    }
    /** From 0 to `last`. */
    int32_t choice(int32_t last) {
        return take<uint8_t>() % (last + 1);
    }
    bool flag() {
        return choice(1) != 0;
    }
    /** Mostly from 1 to `usual`, at times a number at some limit or any. */
    int32_t extent(int32_t usual);
    int64_t stride(int64_t usual);

private:
    const uint8_t *data_;
    size_t size_;
};

}  // namespace distile

#endif
