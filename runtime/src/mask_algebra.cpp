#include "bit_rows.h"
#include "context.h"
#include "difference.h"
#include "kernel.h"
#include "mask.h"
#include "polyphase.h"
#include "tensor.h"
#include <algorithm>
#include <distile/mask_algebra.h>

using namespace distile;

namespace {

/** The work space of a call's tasks. */
std::vector<RowMemory> &memory_of_tasks(distile_mask &result, size_t num_tasks) {
    result.row_memory.resize(std::max(result.row_memory.size(), num_tasks));
    for (RowMemory &memory : result.row_memory) {
        memory.reset();
    }
    return result.row_memory;
}

distile_status transfer(const char *call, distile_mask *result, const distile_mask *from, const distile_window *window,
                        int32_t height, int32_t width, Direction direction) {
    const distile_status status = check_transfer(call, result, from, window, direction, height, width);
    if (status != DISTILE_OK) {
        return status;
    }
    const bool to_input = direction == Direction::ToInput;
    // A transposed convolution is the convolution from its output to its input.
    const auto bits = window->kind == DISTILE_WINDOW_UPSAMPLED
                          ? (to_input ? scatter_upsampled_bits : gather_upsampled_bits)
                      : to_input == (window->kind == DISTILE_WINDOW_CONV) ? scatter_bits
                                                                          : gather_bits;
    return guarded(result->context, [&] {
        RowMemory &memory = memory_of_tasks(*result, 1)[0];
        result->set_words(from->bits.batch, height, width,
                          [&](uint64_t *words) { bits(from->bits, window_of(*window), height, width, words, memory); });
        return DISTILE_OK;
    });
}

/** result = combine(a, b), word by word. */
template<typename Combine> distile_status combine_words(const char *call, distile_mask *result, const distile_mask *a,
                                                        const distile_mask *b, const Combine &combine) {
    const distile_status status = check_combination(call, result, a, b);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(result->context, [&] {
        const Bitmask &left = a->bits, &right = b->bits;
        result->set_words(left.batch, left.height, left.width, [&](uint64_t *words) {
            const int64_t count = int64_t{left.batch} * left.height * left.words_per_row();
            for (int64_t i = 0; i < count; i++) {
                words[i] = combine(left.words[i], right.words[i]);
            }
        });
        return DISTILE_OK;
    });
}

/** Compares rows of two tensors, in a work space that no other task uses. */
class RowDifference {
public:
    RowDifference(const distile_tensor &a, const distile_tensor &b, float threshold, RowMemory &memory)
        : a_(a), b_(b), threshold_(threshold), level_(supported_difference_levels().best()),
          packed_(is_packed(a) && is_packed(b)),
          channels_(packed_ ? WindowAxis{a.channels, a.channels, 0, 1} : WindowAxis{1, 1, 0, 1},
                    packed_ ? pixels_at_once * a.channels : 1, packed_ ? pixels_at_once : 1, memory),
          bits_(memory.take(packed_ ? pixels_at_once / 64 * int64_t{a.channels} : (a.channels + 63) / 64)) {
    }

    /** Row y of image n. */
    void compare(int32_t n, int32_t y, uint64_t *words) {
        const float *a = row(a_, n, y), *b = row(b_, n, y);
        for (int32_t x = 0; x < a_.width; x += pixels_at_once, words += pixels_at_once / 64) {
            const int32_t pixels = std::min(a_.width - x, pixels_at_once);
            if (packed_) {
                compare_packed(a + int64_t{x} * a_.channels, b + int64_t{x} * b_.channels, pixels, words);
            } else {
                compare_pixels(a + x * a_.stride_w, b + x * b_.stride_w, pixels, words);
            }
        }
    }

private:
    static constexpr int32_t pixels_at_once = 512;

    static bool is_packed(const distile_tensor &tensor) {
        return tensor.stride_w == tensor.channels && tensor.channels <= largest_extent;
    }

    static const float *row(const distile_tensor &tensor, int32_t n, int32_t y) {
        return static_cast<const float *>(tensor.data) + n * tensor.stride_n + y * tensor.stride_h;
    }

    /** Pixels without gaps: all elements are compared as one vector. */
    void compare_packed(const float *a, const float *b, int32_t pixels, uint64_t *words) {
        const int64_t count = int64_t{pixels} * a_.channels;
        level_.compare(a, b, count, threshold_, a_.channels == 1 ? words : bits_.data());
        if (a_.channels > 1) {
            std::fill(bits_.begin() + (count + 63) / 64, bits_.end(), 0);
            uint64_t any[pixels_at_once / 64];
            channels_.gather(bits_.data(), any);
            std::copy_n(any, (pixels + 63) / 64, words);
        }
    }

    void compare_pixels(const float *a, const float *b, int32_t pixels, uint64_t *words) {
        std::fill_n(words, (pixels + 63) / 64, uint64_t{0});
        for (int32_t x = 0; x < pixels; x++, a += a_.stride_w, b += b_.stride_w) {
            level_.compare(a, b, a_.channels, threshold_, bits_.data());
            const bool differs = std::any_of(bits_.begin(), bits_.end(), [](uint64_t word) { return word != 0; });
            words[x / 64] |= static_cast<uint64_t>(differs) << (x % 64);
        }
    }

    const distile_tensor &a_, &b_;
    float threshold_;
    const DifferenceLevel &level_;
    bool packed_;
    RowWindow channels_;
    std::vector<uint64_t> &bits_;
};

/** The rows of all images, in parts. */
struct Difference {
    const distile_tensor &a, &b;
    float threshold;
    uint64_t *words;
    int64_t num_tasks;
    std::vector<RowMemory> &memory;

    RowDifference rows_of(int64_t task) const {
        memory[task].reset();
        return {a, b, threshold, memory[task]};
    }
    void run(int64_t task) const {
        RowDifference difference = rows_of(task);
        const int64_t rows = int64_t{a.batch} * a.height, words_per_row = (a.width + 63) / 64;
        for (int64_t row = rows * task / num_tasks; row < rows * (task + 1) / num_tasks; row++) {
            difference.compare(static_cast<int32_t>(row / a.height), static_cast<int32_t>(row % a.height),
                               words + row * words_per_row);
        }
    }
};

// The tasks write to the words.
// NOLINTBEGIN(readability-non-const-parameter)
void find_difference(distile_mask &result, const distile_tensor &a, const distile_tensor &b, float threshold,
                     uint64_t *words) {
    // NOLINTEND(readability-non-const-parameter)
    // Below this many elements a second thread costs more than it saves.
    constexpr int32_t elements_per_task = 1 << 16;
    distile_context &context = *result.context;
    const int64_t rows = int64_t{a.batch} * a.height;
    const int64_t wanted = rows * a.width / std::max(elements_per_task / a.channels, 1) + 1;
    const int64_t num_tasks = std::min<int64_t>({wanted, rows, context.options.threads});
    Difference difference{a, b, threshold, words, num_tasks, memory_of_tasks(result, num_tasks)};
    // What is allocated is allocated here, where it may fail: no exception may leave a task.
    for (int64_t task = 0; task < num_tasks; task++) {
        difference.rows_of(task);
    }
    context.run_parallel([](void *closure, int32_t task) { static_cast<Difference *>(closure)->run(task); },
                         &difference, static_cast<int32_t>(num_tasks));
}

}  // namespace

extern "C" {

distile_window distile_kernel_window(const distile_kernel *kernel) {
    distile_window window{};
    if (kernel) {
        const distile_conv2d &conv = kernel->polykernel->conv2d;
        const auto phases = polyphase_of(kernel->polykernel->kind, conv);
        window = {conv.kernel_h,
                  conv.kernel_w,
                  conv.stride_h,
                  conv.stride_w,
                  conv.dilation_h,
                  conv.dilation_w,
                  conv.pad_top,
                  conv.pad_left,
                  !phases                ? DISTILE_WINDOW_CONV
                  : phases->rows.nearest ? DISTILE_WINDOW_UPSAMPLED
                                         : DISTILE_WINDOW_TRANSPOSED};
    }
    return window;
}

distile_status distile_mask_needed_input(distile_mask *result, distile_mask *output, const distile_window *window,
                                         int32_t in_height, int32_t in_width) {
    return transfer("distile_mask_needed_input", result, output, window, in_height, in_width, Direction::ToInput);
}

distile_status distile_mask_affected_output(distile_mask *result, distile_mask *input, const distile_window *window,
                                            int32_t out_height, int32_t out_width) {
    return transfer("distile_mask_affected_output", result, input, window, out_height, out_width, Direction::ToOutput);
}

distile_status distile_mask_dilate(distile_mask *result, distile_mask *mask, int32_t radius_h, int32_t radius_w) {
    constexpr const char *call = "distile_mask_dilate";
    distile_window window{};
    distile_status status = check_masks<distile_mask>(call, {mask}, result);
    if (status == DISTILE_OK) {
        status = make_dilation(result->context, call, radius_h, radius_w, window);
    }
    return status != DISTILE_OK
               ? status
               : transfer(call, result, mask, &window, mask->bits.height, mask->bits.width, Direction::ToOutput);
}

distile_status distile_mask_pool(distile_mask *result, distile_mask *mask, int32_t factor_h, int32_t factor_w) {
    constexpr const char *call = "distile_mask_pool";
    distile_window window{};
    MaskShape pooled{};
    distile_status status = check_masks<distile_mask>(call, {mask}, result);
    if (status == DISTILE_OK) {
        pooled = mask->shape();
        status = make_pooling(result->context, call, factor_h, factor_w, window, pooled);
    }
    return status != DISTILE_OK
               ? status
               : transfer(call, result, mask, &window, pooled.height, pooled.width, Direction::ToOutput);
}

distile_status distile_mask_unite(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine_words("distile_mask_unite", result, a, b, [](uint64_t x, uint64_t y) { return x | y; });
}

distile_status distile_mask_intersect(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine_words("distile_mask_intersect", result, a, b, [](uint64_t x, uint64_t y) { return x & y; });
}

distile_status distile_mask_subtract(distile_mask *result, distile_mask *a, distile_mask *b) {
    return combine_words("distile_mask_subtract", result, a, b, [](uint64_t x, uint64_t y) { return x & ~y; });
}

distile_status distile_mask_invert(distile_mask *result, distile_mask *a) {
    const distile_status status = check_masks<distile_mask>("distile_mask_invert", {a}, result);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(result->context, [&] {
        const Bitmask &bits = a->bits;
        result->set_words(bits.batch, bits.height, bits.width, [&](uint64_t *words) {
            const int32_t words_per_row = bits.words_per_row();
            const uint64_t last = ~uint64_t{0} >> (64 * words_per_row - bits.width);
            const int64_t count = int64_t{bits.batch} * bits.height * words_per_row;
            for (int64_t i = 0; i < count; i++) {
                words[i] = ~bits.words[i];
            }
            for (int64_t i = words_per_row - 1; i < count; i += words_per_row) {
                words[i] &= last;
            }
        });
        return DISTILE_OK;
    });
}

distile_status distile_mask_set_difference(distile_mask *result, const distile_tensor *a, const distile_tensor *b,
                                           float threshold) {
    constexpr const char *call = "distile_mask_set_difference";
    if (!result) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = result->context;
    distile_status status = check_difference(context, call, a, b, threshold);
    if (status == DISTILE_OK) {
        status = result->check_shape(call, {a->batch, a->height, a->width});
    }
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(context, [&] {
        result->set_words(a->batch, a->height, a->width,
                          [&](uint64_t *words) { find_difference(*result, *a, *b, threshold, words); });
        return DISTILE_OK;
    });
}

}  // extern "C"
