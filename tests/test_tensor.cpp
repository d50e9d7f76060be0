#include "test_tensor.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <sstream>
#include <sys/mman.h>
#include <unistd.h>

namespace distile {

namespace {

/** The view without its address. */
distile_tensor make_view(int32_t batch, int32_t height, int32_t width, int32_t channels, const Layout &layout) {
    distile_tensor view{};
    view.dtype = DISTILE_FLOAT32;
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

/** Elements from the first to the last one of a view, its border included. */
size_t elements(const distile_tensor &view) {
    return static_cast<size_t>((view.batch - 1) * view.stride_n +
                               (view.height + view.border_top + view.border_bottom - 1) * view.stride_h +
                               (view.width + view.border_left + view.border_right - 1) * view.stride_w + view.channels);
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

}  // namespace

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

TestTensor::TestTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, const Layout &layout,
                       Flush flush)
    : memory_(elements(make_view(batch, height, width, channels, layout)) * sizeof(float), flush),
      view_(make_view(batch, height, width, channels, layout)) {
    view_.data =
        static_cast<float *>(memory_.data()) + view_.border_top * view_.stride_h + view_.border_left * view_.stride_w;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = -view_.border_top; y < height + view_.border_bottom; y++) {
            for (int32_t x = -view_.border_left; x < width + view_.border_right; x++) {
                if (y < 0 || y >= height || x < 0 || x >= width) {
                    std::fill_n(&at(n, y, x, 0), channels, 0.0f);
                }
            }
        }
    }
}

void TestTensor::draw(Values values, std::mt19937 &random) const {
    for (int32_t n = 0; n < view_.batch; n++) {
        for (int32_t y = 0; y < view_.height; y++) {
            for (int32_t x = 0; x < view_.width; x++) {
                std::generate_n(&at(n, y, x, 0), view_.channels, [&] { return distile::draw(values, random); });
            }
        }
    }
}

std::vector<uint32_t> TestTensor::snapshot() const {
    return {memory_.words(), memory_.words() + memory_.num_words()};
}

size_t TestTensor::num_own_words() const {
    return elements(view_);
}

std::string TestTensor::difference(const std::vector<uint32_t> &before, const ReferenceOutput &expected,
                                   double tolerance) {
    const char *const names[] = {"kept", "zeroed", "computed"};
    std::ostringstream text;
    std::vector<uint32_t> now = snapshot();
    const auto first = reinterpret_cast<uint32_t *>(view_.data) - memory_.words();
    int64_t pixel = 0, wrong = 0;
    for (int32_t n = 0; n < view_.batch; n++) {
        for (int32_t y = 0; y < view_.height; y++) {
            for (int32_t x = 0; x < view_.width; x++, pixel++) {
                const PixelState state = expected.states[pixel];
                const int64_t origin = first + n * view_.stride_n + y * view_.stride_h + x * view_.stride_w;
                for (int32_t c = 0; c < view_.channels; c++) {
                    const float value = expected.values[pixel * view_.channels + c];
                    const uint32_t due = state == PixelState::Kept ? before[origin + c] : bits_of(value);
                    const float got = float_of(now[origin + c]);
                    const bool close = state == PixelState::Computed && std::abs(double{got} - value) <= tolerance;
                    if (now[origin + c] != due && !close && wrong++ == 0) {
                        text << "image " << n << ", row " << y << ", column " << x << ", channel " << c << " ("
                             << names[static_cast<int>(state)] << ") is " << got << ", due is " << float_of(due)
                             << " with an error of at most " << tolerance << "; ";
                    }
                    // What is right here is taken out of the comparison of everything else below.
                    now[origin + c] = before[origin + c];
                }
            }
        }
    }
    if (wrong > 0) {
        text << wrong << " of " << pixel * view_.channels << " elements are wrong; ";
    }
    const auto changed = std::mismatch(now.begin(), now.end(), before.begin()).first;
    if (changed != now.end()) {
        text << "the word " << changed - now.begin() - first
             << " from the view's first, which is not of the view, changed";
    }
    return text.str();
}

}  // namespace distile
