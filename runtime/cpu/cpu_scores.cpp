#include "runtime/cpu/cpu_scores.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/mask/mask.h"

namespace distile {

namespace {

/** The rows of all images, split into tasks. */
struct ScoredRows {
    const distile_tensor &tensor;
    const Scores &scores;
    const float *weights;
    uint64_t *words;
    int64_t num_tasks;
    const FloatRows &memory;

    void run(int64_t task) const {
        const int64_t rows = int64_t{tensor.batch} * tensor.height, words_per_row = (tensor.width + 63) / 64;
        for (int64_t row = rows * task / num_tasks; row < rows * (task + 1) / num_tasks; row++) {
            score(PixelRow(tensor, row), memory.row(task, 0), words + row * words_per_row);
        }
    }
    void score(const PixelRow &row, float *channels, uint64_t *to) const {
        const SimdLevel &level = supported_simd_levels().best();
        for (int32_t x = 0; x < tensor.width; x++) {
            const float *values = floats_at(level, row, x, channels);
            const float sum = level.channels.dot(values, weights, row.channels) + scores.bias;
            to[x / 64] = (x % 64 == 0 ? 0 : to[x / 64]) | static_cast<uint64_t>(sum > scores.threshold) << (x % 64);
        }
    }
};

}  // namespace

void find_scores(CpuDevice &device, const distile_tensor &tensor, const Scores &scores, uint64_t *words) {
    const int64_t rows = int64_t{tensor.batch} * tensor.height;
    const int64_t bytes = rows * tensor.width * tensor.channels * element_bytes(tensor.dtype);
    const int64_t tasks = num_tasks(device.context, bytes, rows);
    // A row of channels for each task, and the weights.
    const FloatRows memory(device, tensor.channels, tasks + 1, 1);
    const float *weights = scores.weights;
    if (!weights) {
        std::fill_n(memory.row(tasks, 0), tensor.channels, 1.0f);
        weights = memory.row(tasks, 0);
    }
    ScoredRows scored{tensor, scores, weights, words, tasks, memory};
    device.context.run_parallel([](void *all, int32_t task) { static_cast<const ScoredRows *>(all)->run(task); },
                                &scored, static_cast<int32_t>(tasks));
}

}  // namespace distile
