#include "runtime/cpu/tensor_difference.h"
#include "runtime/cpu/pixel_runs.h"
#include "runtime/cpu/to_float32.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>

namespace distile {

namespace {

/** Compares rows of two tensors in one task's workspace. */
class RowDifference {
public:
    RowDifference(const distile_tensor &a, const distile_tensor &b, float threshold, RowMemory &memory)
        : a_(a), b_(b), type_(*find_type(a.dtype)), threshold_(threshold), level_(supported_simd_levels().best()),
          packed_(is_packed(a) && is_packed(b)),
          channels_(packed_ ? WindowAxis{a.channels, a.channels, 0, 1} : WindowAxis{1, 1, 0, 1},
                    packed_ ? pixels_at_once * a.channels : 1, packed_ ? pixels_at_once : 1, memory),
          bits_(memory.take(packed_ ? pixels_at_once / 64 * int64_t{a.channels} : (a.channels + 63) / 64)) {
        if (type_.dtype != DISTILE_FLOAT32) {
            const int64_t elements = (packed_ ? pixels_at_once : 1) * int64_t{a.channels};
            const auto words = static_cast<size_t>(elements / 2 + 1);
            floats_a_ = &memory.take(words);
            floats_b_ = &memory.take(words);
        }
    }

    /** Compares row `row`, counted over all images. */
    void compare(int64_t row, uint64_t *words) {
        const char *a = row_of(a_, row), *b = row_of(b_, row);
        for (int32_t x = 0; x < a_.width; x += pixels_at_once, words += pixels_at_once / 64) {
            const int32_t pixels = std::min(a_.width - x, pixels_at_once);
            const char *first_a = a + x * a_.stride_w * type_.bytes, *first_b = b + x * b_.stride_w * type_.bytes;
            if (packed_) {
                compare_packed(first_a, first_b, pixels, words);
            } else {
                compare_pixels(first_a, first_b, pixels, words);
            }
        }
    }

private:
    static constexpr int32_t pixels_at_once = 512;

    /** Whether to compare the elements of contiguous pixels as one vector. Types other than float32 need a conversion
     * first, so for them this pays only with few channels. */
    static bool is_packed(const distile_tensor &tensor) {
        constexpr int32_t most_converted = 16;
        const int32_t most = tensor.dtype == DISTILE_FLOAT32 ? largest_extent : most_converted;
        return tensor.stride_w == tensor.channels && tensor.channels <= most;
    }

    /** Elements as float32: in place, or converted into `memory`. */
    const float *floats(const char *from, int64_t count, HostVector<uint64_t> *memory) const {
        if (type_.dtype == DISTILE_FLOAT32) {
            return reinterpret_cast<const float *>(from);
        }
        auto *converted = reinterpret_cast<float *>(memory->data());
        to_float32(level_, type_.dtype, from, converted, count);
        return converted;
    }

    /** Pixels without gaps: compares all elements as one vector. */
    void compare_packed(const char *a, const char *b, int32_t pixels, uint64_t *words) {
        const int64_t count = int64_t{pixels} * a_.channels;
        level_.compare(floats(a, count, floats_a_), floats(b, count, floats_b_), count, threshold_,
                       a_.channels == 1 ? words : bits_.data());
        if (a_.channels > 1) {
            std::fill(bits_.begin() + (count + 63) / 64, bits_.end(), 0);
            uint64_t any[pixels_at_once / 64];
            channels_.gather(bits_.data(), any);
            std::copy_n(any, (pixels + 63) / 64, words);
        }
    }

    void compare_pixels(const char *a, const char *b, int32_t pixels, uint64_t *words) {
        std::fill_n(words, (pixels + 63) / 64, uint64_t{0});
        const int64_t bytes_a = a_.stride_w * type_.bytes, bytes_b = b_.stride_w * type_.bytes;
        for (int32_t x = 0; x < pixels; x++, a += bytes_a, b += bytes_b) {
            level_.compare(floats(a, a_.channels, floats_a_), floats(b, a_.channels, floats_b_), a_.channels,
                           threshold_, bits_.data());
            const bool differs = std::any_of(bits_.begin(), bits_.end(), [](uint64_t word) { return word != 0; });
            words[x / 64] |= static_cast<uint64_t>(differs) << (x % 64);
        }
    }

    const distile_tensor &a_, &b_;
    const Type &type_;
    float threshold_;
    const SimdLevel &level_;
    bool packed_;
    RowWindow channels_;
    HostVector<uint64_t> &bits_;
    // For elements converted to float32.
    HostVector<uint64_t> *floats_a_ = nullptr, *floats_b_ = nullptr;
};

/** The rows of all images, split into parts. */
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
            difference.compare(row, words + row * words_per_row);
        }
    }
};

}  // namespace

void find_difference(distile_context &context, const distile_tensor &a, const distile_tensor &b, float threshold,
                     uint64_t *words,
                     const std::function<std::vector<RowMemory> &(size_t num_tasks)> &memory_of_tasks) {
    // Below this many elements a second thread costs more than it saves.
    constexpr int32_t elements_per_task = 1 << 16;
    const int64_t rows = int64_t{a.batch} * a.height;
    const int64_t wanted = rows * a.width / std::max(elements_per_task / a.channels, 1) + 1;
    const int64_t num_tasks = std::min<int64_t>({wanted, rows, context.options.threads});
    Difference difference{a, b, threshold, words, num_tasks, memory_of_tasks(num_tasks)};
    // Allocate everything here, where failure is allowed: tasks must not throw.
    for (int64_t task = 0; task < num_tasks; task++) {
        difference.rows_of(task);
    }
    context.run_parallel([](void *closure, int32_t task) { static_cast<Difference *>(closure)->run(task); },
                         &difference, static_cast<int32_t>(num_tasks));
}

}  // namespace distile
