/** \file
 * NumPy files, also untrusted ones, which general readers trust too much.
 */
#ifndef DISTILE_NPY_FILE_H
#define DISTILE_NPY_FILE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** An array: a header, which is a Python dictionary, followed by the elements. */
class NpyFile {
public:
    /** `types` are those that may be read, as NumPy writes them, for instance "<f4". Throws a std::runtime_error if the
     * file cannot be opened, a std::invalid_argument that says what is wrong with it, and a std::domain_error with the
     * name of a type that is none of these. */
    NpyFile(const std::string &path, const std::vector<std::string> &types);

    const std::string &type() const {
        return type_;
    }
    const std::vector<size_t> &shape() const {
        return shape_;
    }
    /** The shape in words, for instance "(9, 12)". */
    std::string shape_text() const;
    /** The number of elements. */
    size_t size() const {
        return size_;
    }
    /** The bytes of all elements, with the last dimension contiguous. */
    std::vector<uint8_t> bytes() const;

private:
    /** The type of the elements as the header has it; "another" if it is no such word. */
    std::string type_in_header() const;
    /** True if a key's value in the header starts with `text`. */
    bool has(const char *key, const std::string &text) const;
    void read_shape();

    std::string file_, header_, type_;
    size_t elements_ = 0;      /**< Offset of the first element. */
    size_t element_bytes_ = 1; /**< The size of an element. */
    bool columns_first_ = false;
    std::vector<size_t> shape_;
    size_t size_ = 0; /**< The product of the shape, at most the number of elements in the file. */
};

}  // namespace distile

#endif
