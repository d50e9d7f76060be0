/** \file
 * Reads a file as text.
 */
#ifndef DISTILE_READ_FILE_H
#define DISTILE_READ_FILE_H

#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace distile {

/** The whole file; nothing if it cannot be opened or read to the end. A stream iterator would throw exceptions that no
 * caller expects. */
inline std::optional<std::string> read_file(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    std::string text;
    char block[4096];
    while (stream.read(block, sizeof(block)) || stream.gcount() > 0) {
        text.append(block, static_cast<size_t>(stream.gcount()));
    }
    return stream.eof() ? std::optional<std::string>(std::move(text)) : std::nullopt;
}

}  // namespace distile

#endif
