#include "masks/mask_files.h"
#include "masks/npy_file.h"
#include <algorithm>
#include <iterator>
#include <memory>
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#include <stdexcept>

namespace distile {

namespace {

[[noreturn]] void refuse(const std::string &path, const std::string &what) {
    throw std::runtime_error("the masks '" + path + "' " + what);
}

}  // namespace

MaskImage read_png_mask(const std::string &path) {
    MaskImage image;
    const std::unique_ptr<stbi_uc, void (*)(void *)> gray(
        stbi_load(path.c_str(), &image.width, &image.height, nullptr, 1), stbi_image_free);
    if (!gray) {
        refuse(path, std::string("cannot be read as a PNG file (") + stbi_failure_reason() + ")");
    }
    image.name = path;
    image.bytes.assign(gray.get(), gray.get() + static_cast<ptrdiff_t>(image.height) * image.width);
    return image;
}

bool ends_with(const std::string &path, const std::string &extension) {
    return path.size() >= extension.size() &&
           path.compare(path.size() - extension.size(), extension.size(), extension) == 0;
}

std::vector<MaskImage> read_npy_masks(const std::string &path) {
    std::vector<size_t> shape;
    std::vector<uint8_t> elements;
    std::string shape_text;
    try {
        const NpyFile file(path, {"|b1", "|u1"});
        shape = file.shape();
        shape_text = file.shape_text();
        elements = file.bytes();
    } catch (const std::domain_error &type) {
        refuse(path, std::string("are of the type ") + type.what() +
                         ", not bool or uint8: save which pixels are active, as numpy.save(\"masks.npy\", masks > 0.5) "
                         "does");
    } catch (const std::invalid_argument &error) {
        refuse(path, std::string("are not a NumPy array of type bool or uint8 (") + error.what() +
                         "); save them with numpy.save");
    }
    constexpr size_t most = 65535;
    const size_t height = shape.size() < 2 ? 0 : shape[shape.size() - 2], width = shape.empty() ? 0 : shape.back();
    if (shape.size() > 3 || elements.empty() || height < 1 || width < 1 || height > most || width > most) {
        refuse(path, "have the shape " + shape_text + ", not [height, width] or [masks, height, width]");
    }
    const size_t pixels = height * width, count = elements.size() / pixels;
    std::vector<MaskImage> masks;
    for (size_t i = 0; i < count; i++) {
        MaskImage mask;
        mask.name = count == 1 ? path : path + "[" + std::to_string(i) + "]";
        mask.height = static_cast<int>(height);
        mask.width = static_cast<int>(width);
        const auto begin = elements.begin() + static_cast<ptrdiff_t>(i * pixels);
        mask.bytes.assign(begin, begin + static_cast<ptrdiff_t>(pixels));
        masks.push_back(std::move(mask));
    }
    return masks;
}

std::string npy_of_masks(const std::vector<ByteMask> &masks) {
    const ByteMask &first = masks.front();
    int64_t images = 0;
    for (const ByteMask &mask : masks) {
        images += mask.batch;
    }
    const std::string size = std::to_string(first.height) + ", " + std::to_string(first.width);
    std::string header = "{'descr': '|b1', 'fortran_order': False, 'shape': (" +
                         (images == 1 ? "" : std::to_string(images) + ", ") + size + "), }";
    // The elements begin at a multiple of 64 bytes, behind 10 bytes and a header that ends with a line break.
    constexpr size_t before = 10, alignment = 64;
    header.resize((before + header.size() + 1 + alignment - 1) / alignment * alignment - before - 1, ' ');
    header += '\n';
    std::string file("\x93NUMPY\1\0", 8);
    file += static_cast<char>(header.size() & 0xff);
    file += static_cast<char>(header.size() >> 8);
    file += header;
    for (const ByteMask &mask : masks) {
        std::transform(mask.bytes.begin(), mask.bytes.end(), std::back_inserter(file),
                       [](uint8_t byte) { return static_cast<char>(byte != 0 ? 1 : 0); });
    }
    return file;
}

std::string png_of(const GrayImage &image) {
    std::string file;
    const auto append = [](void *to, void *data, int size) {
        static_cast<std::string *>(to)->append(static_cast<const char *>(data), size);
    };
    if (stbi_write_png_to_func(append, &file, image.width, image.height, 1, image.pixels.data(), image.width) == 0) {
        throw std::runtime_error("a picture of " + std::to_string(image.height) + " x " + std::to_string(image.width) +
                                 " pixels cannot be written as a PNG file");
    }
    return file;
}

std::string png_of_mask(const ByteMask &mask) {
    GrayImage image{mask.height, mask.width, std::vector<uint8_t>(mask.bytes.size())};
    std::transform(mask.bytes.begin(), mask.bytes.end(), image.pixels.begin(),
                   [](uint8_t byte) { return byte != 0 ? 255 : 0; });
    return png_of(image);
}

}  // namespace distile
