/** \file
 * Hashes that files may keep: the same on every machine.
 */
#ifndef DISTILE_COMMAND_HASH_H
#define DISTILE_COMMAND_HASH_H

#include <cstdint>
#include <fmt/core.h>
#include <string>

namespace distile {

/** 64-bit FNV-1a. */
class Hash {
public:
    /** Adds bytes: a text, or a vector of them. */
    template<class Bytes> void add(const Bytes &bytes) {
        for (const auto byte : bytes) {
            hash_ = (hash_ ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
        }
    }
    /** 16 hexadecimal digits. */
    std::string text() const {
        return fmt::format("{:016x}", hash_);
    }

private:
    uint64_t hash_ = 0xcbf29ce484222325;
};

/** The hash of some bytes. */
template<class Bytes> std::string hash_text(const Bytes &bytes) {
    Hash hash;
    hash.add(bytes);
    return hash.text();
}

}  // namespace distile

#endif
