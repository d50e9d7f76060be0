#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <sstream>
#include <sys/mman.h>
#include <unistd.h>

namespace distile {

namespace {

/** Whether a value is right: the NaN or infinity that is due, or no further from the exact value than a tolerance. */
bool is_right(float got, float due, double exact, double tolerance) {
    if (!std::isfinite(got) || !std::isfinite(due)) {
        return std::isnan(due) ? std::isnan(got) : got == due;
    }
    return std::abs(got - exact) <= tolerance;
}

}  // namespace

distile_tensor make_view(int32_t batch, int32_t height, int32_t width, int32_t channels, const TensorLayout &layout,
                         distile_dtype dtype) {
    distile_tensor view{};
    view.dtype = dtype;
    view.batch = batch;
    view.height = height;
    view.width = width;
    view.channels = channels;
    view.border_top = layout.border_top;
    view.border_bottom = layout.border_bottom;
    view.border_left = layout.border_left;
    view.border_right = layout.border_right;
    const auto both = [&](int32_t before, int32_t after) {
        return layout.shared_border ? std::max(before, after) : before + after;
    };
    view.stride_w = channels + layout.pixel_gap;
    view.stride_h = view.stride_w * (width + both(view.border_left, view.border_right)) + layout.row_gap;
    view.stride_n = view.stride_h * (height + both(view.border_top, view.border_bottom)) + layout.image_gap;
    return view;
}

size_t elements_of(const distile_tensor &view) {
    return static_cast<size_t>((view.batch - 1) * view.stride_n +
                               (view.height + view.border_top + view.border_bottom - 1) * view.stride_h +
                               (view.width + view.border_left + view.border_right - 1) * view.stride_w + view.channels);
}

GuardedMemory::GuardedMemory(size_t bytes, Flush flush) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    const size_t inner = (std::max<size_t>(bytes, 1) + page_ - 1) / page_ * page_;
    void *pages = mmap(nullptr, inner + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        throw std::bad_alloc();
    }
    pages_ = static_cast<char *>(pages);
    if (mprotect(pages_ + page_, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages_, inner + 2 * page_);
        throw std::bad_alloc();
    }
    words_ = reinterpret_cast<uint32_t *>(pages_ + page_);
    num_words_ = inner / sizeof(uint32_t);
    data_ = pages_ + page_ + (flush == Flush::Front ? 0 : inner - bytes);
    // A NaN that is read shows in the result, and one that is written shows in the comparison.
    for (size_t i = 0; i < num_words_; i++) {
        words_[i] = 0x7fc00000 | (i & 0x3fffff);
    }
}

GuardedMemory::~GuardedMemory() {
    munmap(pages_, num_words_ * sizeof(uint32_t) + 2 * page_);
}

float draw(Values values, std::mt19937 &random) {
    // Not std::uniform_*_distribution, whose results differ between libraries.
    return values == Values::Integers ? static_cast<float>(static_cast<int32_t>(random() % 9) - 4)
                                      : static_cast<float>(random() % (1 << 24)) / (1 << 23) - 1;
}

std::vector<float> draw(Values values, size_t count, std::mt19937 &random) {
    std::vector<float> drawn(count);
    std::generate(drawn.begin(), drawn.end(), [&] { return draw(values, random); });
    return drawn;
}

TestTensor::TestTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, const TensorLayout &layout,
                       Flush flush, distile_dtype dtype)
    : memory_(elements_of(make_view(batch, height, width, channels, layout, dtype)) * distile_dtype_size(dtype), flush),
      view_(make_view(batch, height, width, channels, layout, dtype)) {
    const auto bytes = static_cast<int64_t>(distile_dtype_size(dtype));
    view_.data = static_cast<char *>(memory_.data()) +
                 (view_.border_top * view_.stride_h + view_.border_left * view_.stride_w) * bytes;
    if (bytes == 1) {
        // Four NaNs a word, of either type of 8 bits, which have few: their signs differ.
        for (size_t i = 0; i < memory_.num_words(); i++) {
            memory_.words()[i] = 0x7f7f7f7f | (i & 1) << 7 | (i & 2) << 14 | (i & 4) << 21 | (i & 8) << 28;
        }
    }
    if (bytes == 2) {
        // Two NaNs a word, of either type of 16 bits.
        for (size_t i = 0; i < memory_.num_words(); i++) {
            memory_.words()[i] = 0x7fc07fc0 | (i & 0x3f) | (i >> 6 & 0x3f) << 16;
        }
    }
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = -view_.border_top; y < height + view_.border_bottom; y++) {
            for (int32_t x = -view_.border_left; x < width + view_.border_right; x++) {
                for (int32_t c = 0; c < channels && (y < 0 || y >= height || x < 0 || x >= width); c++) {
                    set(n, y, x, c, 0);
                }
            }
        }
    }
}

float TestTensor::get(int32_t n, int32_t y, int32_t x, int32_t channel) const {
    return read_element(view_, n, y, x, channel);
}

void TestTensor::set(int32_t n, int32_t y, int32_t x, int32_t channel, float value) const {
    const int64_t element = n * view_.stride_n + y * view_.stride_h + x * view_.stride_w + channel;
    const auto bytes = static_cast<int64_t>(distile_dtype_size(view_.dtype));
    store_as(view_.dtype, value, static_cast<char *>(view_.data) + element * bytes);
}

void TestTensor::draw(Values values, std::mt19937 &random) const {
    for (int32_t n = 0; n < view_.batch; n++) {
        for (int32_t y = 0; y < view_.height; y++) {
            for (int32_t x = 0; x < view_.width; x++) {
                for (int32_t c = 0; c < view_.channels; c++) {
                    set(n, y, x, c, distile::draw(values, random));
                }
            }
        }
    }
}

std::vector<uint32_t> TestTensor::snapshot() const {
    return {memory_.words(), memory_.words() + memory_.num_words()};
}

size_t TestTensor::num_own_words() const {
    return elements_of(view_);
}

template<typename Element, typename IsClose> std::string
TestTensor::compare(const std::vector<uint32_t> &before, const ReferenceOutput &expected, const IsClose &is_close) {
    const char *const names[] = {"kept", "zeroed", "computed"};
    std::ostringstream text;
    const size_t count = memory_.num_words() * sizeof(uint32_t) / sizeof(Element);
    std::vector<Element> now(count), was(count);
    std::memcpy(now.data(), memory_.words(), count * sizeof(Element));
    std::memcpy(was.data(), before.data(), count * sizeof(Element));
    const auto first = static_cast<const Element *>(view_.data) - reinterpret_cast<const Element *>(memory_.words());
    int64_t pixel = 0, wrong = 0;
    for (int32_t n = 0; n < view_.batch; n++) {
        for (int32_t y = 0; y < view_.height; y++) {
            for (int32_t x = 0; x < view_.width; x++, pixel++) {
                const PixelState state = expected.states[pixel];
                const int64_t origin = first + n * view_.stride_n + y * view_.stride_h + x * view_.stride_w;
                for (int32_t c = 0; c < view_.channels; c++) {
                    const size_t place = pixel * view_.channels + c;
                    Element due = was[origin + c];
                    if (state != PixelState::Kept) {
                        store_as(view_.dtype, expected.values[place], &due);
                    }
                    const float got = load_as(view_.dtype, &now[origin + c]);
                    const bool close = state == PixelState::Computed && is_close(got, place);
                    if (now[origin + c] != due && !close && wrong++ == 0) {
                        text << "image " << n << ", row " << y << ", column " << x << ", channel " << c << " ("
                             << names[static_cast<int>(state)] << ") is " << got << ", due is "
                             << load_as(view_.dtype, &due) << "; ";
                    }
                    // What is right here is taken out of the comparison of everything else below.
                    now[origin + c] = was[origin + c];
                }
            }
        }
    }
    if (wrong > 0) {
        text << wrong << " of " << pixel * view_.channels << " elements are wrong; ";
    }
    const auto changed = std::mismatch(now.begin(), now.end(), was.begin()).first;
    if (changed != now.end()) {
        text << "the element " << changed - now.begin() - first
             << " from the view's first, which is not of the view, changed";
    }
    return text.str();
}

template<typename IsClose> std::string
TestTensor::compare_any(const std::vector<uint32_t> &before, const ReferenceOutput &expected, const IsClose &is_close) {
    switch (distile_dtype_size(view_.dtype)) {
    case sizeof(uint8_t):
        return compare<uint8_t>(before, expected, is_close);
    case sizeof(uint16_t):
        return compare<uint16_t>(before, expected, is_close);
    default:
        return compare<uint32_t>(before, expected, is_close);
    }
}

std::string TestTensor::difference(const std::vector<uint32_t> &before, const ReferenceOutput &expected,
                                   double tolerance) {
    return compare_any(before, expected, [&](float got, size_t place) {
        return is_right(got, expected.values[place], expected.values[place], tolerance);
    });
}

std::string TestTensor::difference(const std::vector<uint32_t> &before, const ReferenceOutput &expected,
                                   distile_math math) {
    return compare_any(before, expected, [&](float got, size_t place) {
        const double exact = expected.exact[place];
        return is_right(got, expected.values[place], exact, error_bound(view_.dtype, exact, expected.largest, math));
    });
}

}  // namespace distile
