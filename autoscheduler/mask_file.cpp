#include "mask_file.h"
#include "operator.h"
#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace distile {

double MaskImage::density() const {
    const auto active = std::count_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; });
    return bytes.empty() ? 0 : static_cast<double>(active) / static_cast<double>(bytes.size());
}

int64_t MaskImage::tiles(int tile_h, int tile_w) const {
    int64_t count = 0;
    const int columns = (width + tile_w - 1) / tile_w;
    std::vector<uint8_t> row(columns);
    for (int top = 0; top < height; top += tile_h) {
        std::fill(row.begin(), row.end(), 0);
        for (int y = top; y < std::min(top + tile_h, height); y++) {
            for (int x = 0; x < width; x++) {
                row[x / tile_w] |= bytes[static_cast<size_t>(y) * width + x];
            }
        }
        count += columns - std::count(row.begin(), row.end(), 0);
    }
    return count;
}

std::vector<MaskImage> read_masks(const std::string &path) {
    const auto refuse = [&](const std::string &what) {
        throw FileError("the file of masks '" + path + "' " + what +
                        "; save masks with numpy.save as bool or uint8 arrays [height, width] or "
                        "[masks, height, width]");
    };
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw FileError("the file '" + path + "' cannot be opened");
    }
    // The format of NumPy's files: a magic word, a version, the length of the header, and the header as a Python
    // dictionary.
    std::string start(10, '\0');
    stream.read(start.data(), 10);
    if (!stream || start.compare(0, 6, "\x93NUMPY") != 0) {
        refuse("is no NumPy array");
    }
    const auto byte_at = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(start[i])); };
    size_t length = byte_at(8) | byte_at(9) << 8;
    if (byte_at(6) > 1) {
        std::string more(2, '\0');
        stream.read(more.data(), 2);
        start += more;
        length |= byte_at(10) << 16 | byte_at(11) << 24;
    }
    if (!stream || length > 1 << 16) {
        refuse("has a broken header");
    }
    std::string header(length, '\0');
    stream.read(header.data(), static_cast<std::streamsize>(length));
    std::smatch type, shape;
    if (!std::regex_search(header, type, std::regex("'descr': *'\\|([bu])1'"))) {
        refuse("holds neither bool nor uint8");
    }
    if (header.find("'fortran_order': False") == std::string::npos) {
        refuse("holds an array in Fortran's order");
    }
    if (!std::regex_search(header, shape, std::regex(R"('shape': *\(([0-9, ]*)\))"))) {
        refuse("has a broken header");
    }
    std::vector<int64_t> extents;
    std::istringstream numbers(shape[1].str());
    std::string number;
    while (std::getline(numbers, number, ',')) {
        if (number.find_first_of("0123456789") != std::string::npos) {
            extents.push_back(number.size() > 9 ? 0 : std::stoll(number));
        }
    }
    if (extents.size() == 2) {
        extents.insert(extents.begin(), 1);
    }
    if (extents.size() != 3 || extents[0] < 1 || extents[1] < 1 || extents[2] < 1 || extents[1] > 65535 ||
        extents[2] > 65535) {
        refuse("has the shape (" + shape[1].str() + ")");
    }
    std::vector<MaskImage> masks;
    const int64_t pixels = extents[1] * extents[2];
    for (int64_t i = 0; i < extents[0]; i++) {
        MaskImage mask;
        mask.name = extents[0] == 1 ? path : path + "[" + std::to_string(i) + "]";
        mask.height = static_cast<int>(extents[1]);
        mask.width = static_cast<int>(extents[2]);
        mask.bytes.resize(pixels);
        stream.read(reinterpret_cast<char *>(mask.bytes.data()), pixels);
        if (!stream) {
            refuse("ends too early");
        }
        masks.push_back(std::move(mask));
    }
    return masks;
}

}  // namespace distile
