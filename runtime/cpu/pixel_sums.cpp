#include "runtime/cpu/pixel_sums.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/cpu/mask_parts.h"

namespace distile {

PixelSums::PixelSums(CpuDevice &device, const distile_tensor &tensor, const distile_mask *mask, bool largest)
    : tensor_(tensor), mask_(mask), largest_(largest), words_((int64_t{tensor.width} + 63) / 64 * tensor.height),
      pieces_(1) {
    const int64_t bytes = int64_t{tensor.height} * tensor.width * tensor.channels * element_bytes(tensor.dtype);
    const int64_t images = tensor.batch, threads = device.context.options.threads;
    const int64_t most = std::max<int64_t>(4 * threads / images, 1);
    pieces_ = std::min(num_tasks(device.context, bytes, words_), most);
    const int64_t tasks = images * pieces_;
    memory_ = device.take_scratch(static_cast<size_t>(tasks * doubles_of_piece()) * sizeof(double));
    const auto run = [](void *closure, int32_t task) { static_cast<const PixelSums *>(closure)->sum(task); };
    if (num_tasks(device.context, images * bytes, tasks) == 1) {
        for (int64_t task = 0; task < tasks; task++) {
            sum(task);
        }
    } else {
        device.context.run_parallel(run, this, static_cast<int32_t>(tasks));
    }
    for (int64_t image = 0; image < images; image++) {
        merge(image);
    }
}

int64_t PixelSums::doubles_of_piece() const {
    // Sums and squares, or maxima; a row to convert; the number of pixels. In whole cache lines.
    return (3 * int64_t{tensor_.channels} + 1 + 7) / 8 * 8;
}

PixelSums::Piece PixelSums::piece(int64_t number) const {
    double *const memory = static_cast<double *>(memory_.get()) + number * doubles_of_piece();
    const int64_t within = number % pieces_, channels = tensor_.channels;
    double *const rest = memory + 2 * channels;
    return {words_ * within / pieces_,
            words_ * (within + 1) / pieces_,
            memory,
            memory + channels,
            reinterpret_cast<float *>(memory),
            reinterpret_cast<float *>(rest),
            reinterpret_cast<int64_t *>(rest + channels)};
}

void PixelSums::sum(int64_t number) const {
    const Piece of = piece(number);
    const int64_t image = number / pieces_, channels = tensor_.channels, words_per_row = (tensor_.width + 63) / 64;
    const ChannelLoops &loops = supported_simd_levels().best().channels;
    const SimdLevel &level = supported_simd_levels().best();
    *of.pixels = 0;
    if (!largest_) {
        std::fill_n(of.sums, 2 * channels, 0.0);
    }
    const auto add = [&](int64_t row, int32_t begin, int32_t end) {
        const PixelRow from(tensor_, row);
        for (int32_t x = begin; x < end; x++) {
            if (largest_ && *of.pixels == 0) {
                to_float32(level, from.dtype, from.at(x), of.largest, channels);
            } else if (const float *values = floats_at(level, from, x, of.row); largest_) {
                loops.maximize(of.largest, values, channels, of.largest);
            } else {
                loops.add_moments(values, channels, of.sums, of.squares);
            }
            ++*of.pixels;
        }
    };
    const int64_t first = image * words_;
    if (mask_) {
        for_each_run(cpu_mask(*mask_).bitmask(), MaskPart{first + of.begin, first + of.end, 0}, true, add);
        return;
    }
    for (int64_t word = first + of.begin; word < first + of.end; word++) {
        const auto x = static_cast<int32_t>(64 * (word % words_per_row));
        add(word / words_per_row, x, std::min(x + 64, tensor_.width));
    }
}

void PixelSums::merge(int64_t image) const {
    const ChannelLoops &loops = supported_simd_levels().best().channels;
    const int64_t channels = tensor_.channels;
    const Piece all = piece(image * pieces_);
    for (int64_t number = 1; number < pieces_; number++) {
        const Piece more = piece(image * pieces_ + number);
        if (*more.pixels == 0) {
            continue;
        }
        if (!largest_) {
            for (int64_t c = 0; c < 2 * channels; c++) {
                all.sums[c] += more.sums[c];
            }
        } else if (*all.pixels == 0) {
            std::copy_n(more.largest, channels, all.largest);
        } else {
            loops.maximize(all.largest, more.largest, channels, all.largest);
        }
        *all.pixels += *more.pixels;
    }
}

void PixelSums::find_means(int64_t image, float *means) const {
    const Piece all = piece(image * pieces_);
    const auto pixels = static_cast<double>(*all.pixels);
    for (int64_t c = 0; c < tensor_.channels; c++) {
        means[c] = *all.pixels == 0 ? 0 : largest_ ? all.largest[c] : static_cast<float>(all.sums[c] / pixels);
    }
}

void PixelSums::find_statistics(int64_t image, int32_t groups, float *means, float *variances) const {
    const Piece all = piece(image * pieces_);
    const int64_t size = tensor_.channels / groups;
    const double count = static_cast<double>(*all.pixels) * static_cast<double>(size);
    for (int64_t group = 0; group < groups; group++) {
        double sum = 0, squares = 0;
        for (int64_t c = group * size; c < (group + 1) * size; c++) {
            sum += all.sums[c];
            squares += all.squares[c];
        }
        const double mean = count == 0 ? 0 : sum / count, variance = count == 0 ? 0 : squares / count - mean * mean;
        means[group] = static_cast<float>(mean);
        // Rounding may leave less than 0; NaN stays.
        variances[group] = variance < 0 ? 0 : static_cast<float>(variance);
    }
}

}  // namespace distile
