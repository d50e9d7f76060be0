#include "masks/npy_file.h"
#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace distile {

namespace {

std::string contents_of(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw std::runtime_error("the file '" + path + "' cannot be opened");
    }
    return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

NpyFile::NpyFile(const std::string &path, const std::vector<std::string> &types) : file_(contents_of(path)) {
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
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const std::string &type) { return has("'descr':", "'" + type + "'"); });
    if (found == types.end()) {
        throw std::domain_error(type_in_header());
    }
    type_ = *found;
    element_bytes_ = static_cast<size_t>(type_.back() - '0');
    columns_first_ = has("'fortran_order':", "True");
    read_shape();
}

std::string NpyFile::shape_text() const {
    std::string extents;
    for (size_t i = 0; i < shape_.size(); i++) {
        extents += (i > 0 ? ", " : "") + std::to_string(shape_[i]);
    }
    return "(" + extents + ")";
}

std::vector<uint8_t> NpyFile::bytes() const {
    const auto begin = file_.begin() + static_cast<ptrdiff_t>(elements_);
    std::vector<uint8_t> values(begin, begin + static_cast<ptrdiff_t>(size_ * element_bytes_));
    if (!columns_first_) {
        return values;
    }
    std::vector<size_t> place(shape_.size(), 0);
    for (size_t element = 0; element < size_; element++) {
        size_t from = 0;
        for (size_t i = shape_.size(); i > 0; i--) {
            from = from * shape_[i - 1] + place[i - 1];
        }
        std::memcpy(&values[element * element_bytes_], &file_[elements_ + from * element_bytes_], element_bytes_);
        for (size_t i = shape_.size(); i > 0 && ++place[i - 1] == shape_[i - 1]; i--) {
            place[i - 1] = 0;
        }
    }
    return values;
}

std::string NpyFile::type_in_header() const {
    const std::string key = "'descr':'";
    const size_t found = header_.find(key), begin = found + key.size();
    const size_t end = found == std::string::npos ? found : header_.find('\'', begin);
    const std::string word = end == std::string::npos ? "" : header_.substr(begin, end - begin);
    const bool is_word = !word.empty() && word.size() <= 8 &&
                         std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c <= '~'; });
    return is_word ? word : "another";
}

bool NpyFile::has(const char *key, const std::string &text) const {
    const size_t found = header_.find(key);
    return found != std::string::npos && header_.compare(found + std::strlen(key), text.size(), text) == 0;
}

void NpyFile::read_shape() {
    const std::string key = "'shape':(";
    const size_t found = header_.find(key), end = found == std::string::npos ? found : header_.find(')', found);
    if (end == std::string::npos) {
        throw std::invalid_argument("the header has no shape");
    }
    const size_t available = (file_.size() - elements_) / element_bytes_;
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
    if (size_ > available) {  // The one element of an array without dimensions.
        throw std::invalid_argument("the file is shorter than its shape");
    }
}

}  // namespace distile
