#include "masks/mask_files.h"
#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
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

/** A NumPy file of bytes: a header, which is a Python dictionary, followed by the elements. Written for untrusted
 * files, which general readers trust too much. Throws a std::invalid_argument that says what is wrong, and a
 * std::domain_error with the type of elements that are no bytes. */
class NpyFile {
public:
    explicit NpyFile(std::string file) : file_(std::move(file)) {
        const auto byte = [&](size_t place) { return static_cast<size_t>(static_cast<uint8_t>(file_[place])); };
        constexpr size_t least = 12;
        if (file_.size() < least || file_.compare(0, 6, "\x93NUMPY") != 0) {
            throw std::invalid_argument("there is no NumPy header");
        }
        const bool long_header = byte(6) > 1;
        const size_t begin = long_header ? 12 : 10;
        const size_t length = byte(8) | byte(9) << 8 | (long_header ? byte(10) << 16 | byte(11) << 24 : 0);
        if (length > file_.size() - begin) {
            throw std::invalid_argument("the file ends inside its header");
        }
        elements_ = begin + length;
        header_ = file_.substr(begin, length);
        header_.erase(std::remove(header_.begin(), header_.end(), ' '), header_.end());
        if (!has("'descr':", "'|b1'") && !has("'descr':", "'|u1'")) {
            throw std::domain_error(type());
        }
        columns_first_ = has("'fortran_order':", "True");
        read_shape();
    }

    const std::vector<size_t> &shape() const {
        return shape_;
    }
    /** All elements, with the last dimension contiguous. */
    std::vector<uint8_t> elements() const {
        const auto begin = file_.begin() + static_cast<ptrdiff_t>(elements_);
        std::vector<uint8_t> values(begin, begin + static_cast<ptrdiff_t>(size_));
        if (columns_first_) {
            std::vector<size_t> place(shape_.size(), 0);
            for (uint8_t &value : values) {
                size_t from = 0;
                for (size_t i = shape_.size(); i > 0; i--) {
                    from = from * shape_[i - 1] + place[i - 1];
                }
                value = static_cast<uint8_t>(begin[static_cast<ptrdiff_t>(from)]);
                for (size_t i = shape_.size(); i > 0 && ++place[i - 1] == shape_[i - 1]; i--) {
                    place[i - 1] = 0;
                }
            }
        }
        return values;
    }

private:
    /** The type of the elements as NumPy writes it, for instance "<f4"; "another" if it is no such word. */
    std::string type() const {
        const std::string key = "'descr':'";
        const size_t found = header_.find(key), begin = found + key.size();
        const size_t end = found == std::string::npos ? found : header_.find('\'', begin);
        const std::string word = end == std::string::npos ? "" : header_.substr(begin, end - begin);
        const bool is_word = !word.empty() && word.size() <= 8 &&
                             std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c <= '~'; });
        return is_word ? word : "another";
    }

    /** True if a key's value in the header starts with `text`. */
    bool has(const char *key, const std::string &text) const {
        const size_t found = header_.find(key);
        return found != std::string::npos && header_.compare(found + std::strlen(key), text.size(), text) == 0;
    }

    void read_shape() {
        const std::string key = "'shape':(";
        const size_t found = header_.find(key), end = found == std::string::npos ? found : header_.find(')', found);
        if (end == std::string::npos) {
            throw std::invalid_argument("the header has no shape");
        }
        const size_t available = file_.size() - elements_;
        const char *next = header_.data() + found + key.size(), *const last = header_.data() + end;
        for (size_ = 1; next < last; next++) {
            size_t extent = 0;
            const auto [rest, error] = std::from_chars(next, last, extent);
            constexpr size_t most_dimensions = 8;
            if (error != std::errc() || (rest != last && *rest != ',') || shape_.size() == most_dimensions) {
                throw std::invalid_argument("the header has a malformed shape");
            }
            if (extent != 0 && size_ > available / extent) {
                throw std::invalid_argument("the file is shorter than its shape");
            }
            size_ *= extent;
            shape_.push_back(extent);
            next = rest;
        }
    }

    std::string file_, header_;
    size_t elements_ = 0; /**< Offset of the first element. */
    bool columns_first_ = false;
    std::vector<size_t> shape_;
    size_t size_ = 0; /**< The product of the shape, at most the number of elements in the file. */
};

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
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw std::runtime_error("the file '" + path + "' cannot be opened");
    }
    std::vector<size_t> shape;
    std::vector<uint8_t> elements;
    try {
        const NpyFile file(std::string(std::istreambuf_iterator<char>(stream), {}));
        shape = file.shape();
        elements = file.elements();
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
        std::string extents;
        for (size_t i = 0; i < shape.size(); i++) {
            extents += (i > 0 ? ", " : "") + std::to_string(shape[i]);
        }
        refuse(path, "have the shape (" + extents + "), not [height, width] or [masks, height, width]");
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

std::string png_of_mask(const ByteMask &mask) {
    std::vector<uint8_t> gray(mask.bytes.size());
    std::transform(mask.bytes.begin(), mask.bytes.end(), gray.begin(),
                   [](uint8_t byte) { return byte != 0 ? 255 : 0; });
    std::string file;
    const auto append = [](void *to, void *data, int size) {
        static_cast<std::string *>(to)->append(static_cast<const char *>(data), size);
    };
    if (stbi_write_png_to_func(append, &file, mask.width, mask.height, 1, gray.data(), mask.width) == 0) {
        throw std::runtime_error("a mask of " + std::to_string(mask.height) + " x " + std::to_string(mask.width) +
                                 " pixels cannot be written as a PNG file");
    }
    return file;
}

}  // namespace distile
