/** \file
 * Parts of a mask with nearly equal work, for several threads. Unlike the rows of pixel_runs.h, they also share out the
 * tokens of one image.
 */
#ifndef DISTILE_MASK_PARTS_H
#define DISTILE_MASK_PARTS_H

#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/pixel_runs.h"

namespace distile {

/** The words [begin, end) of a mask, and the number of active pixels before them. */
struct MaskPart {
    int64_t begin, end, active_before;
};

/** The bytes that work reads and writes at a pixel. */
struct PixelBytes {
    int64_t active, inactive;
};

class MaskParts {
public:
    /** `active` is the mask's number of active pixels. */
    MaskParts(distile_context &context, const Bitmask &bits, int64_t active, const PixelBytes &bytes)
        : context_(context), bits_(bits), words_(int64_t{bits.batch} * bits.height * bits.words_per_row()),
          bytes_(bytes), all_(active * bytes.active + (64 * words_ - active) * bytes.inactive),
          count_(num_tasks(context, all_, words_)) {
    }

    int64_t count() const {
        return count_;
    }
    /** Calls visit(index, part) for every part, on several threads. */
    template<typename Visit> void for_each(const Visit &visit) const {
        if (count_ == 1) {
            visit(0, MaskPart{0, words_, 0});
            return;
        }
        struct Tasks {
            const MaskParts &parts;
            const Visit &visit;
        } tasks{*this, visit};
        context_.run_parallel(
            [](void *closure, int32_t index) {
                const auto &all = *static_cast<const Tasks *>(closure);
                all.visit(index, all.parts.find(index));
            },
            &tasks, static_cast<int32_t>(count_));
    }

private:
    /** Counts from the first word on: for every part this takes a fraction of the time of its work. */
    MaskPart find(int64_t index) const {
        MaskPart part{0, 0, 0};
        int64_t word = 0, active = 0, bytes = 0;
        const auto pass = [&](int64_t share) {
            while (word < words_ && bytes < share) {
                const int64_t found = __builtin_popcountll(bits_.words[word++]);
                active += found;
                bytes += found * bytes_.active + (64 - found) * bytes_.inactive;
            }
        };
        pass(all_ / count_ * index);
        part.begin = word;
        part.active_before = active;
        if (index == count_ - 1) {
            word = words_;
        } else {
            pass(all_ / count_ * (index + 1));
        }
        part.end = word;
        return part;
    }

    distile_context &context_;
    const Bitmask bits_;
    const int64_t words_;
    const PixelBytes bytes_;
    const int64_t all_, count_;
};

/** Calls visit(row, begin, end) for every run of pixels in a part of a mask whose state is `active`, with the rows
 * counted over all images. */
template<typename Visit> void for_each_run(const Bitmask &bits, const MaskPart &part, bool active, const Visit &visit) {
    const int64_t words_per_row = bits.words_per_row();
    for (int64_t word = part.begin; word < part.end;) {
        const int64_t row = word / words_per_row, first = word % words_per_row;
        const int64_t last = std::min(words_per_row, first + part.end - word);
        const auto x = static_cast<int32_t>(64 * first);
        const auto width = static_cast<int32_t>(std::min<int64_t>(64 * last, bits.width)) - x;
        for_each_run(bits.words + word, width, active,
                     [&](int32_t begin, int32_t end) { visit(row, x + begin, x + end); });
        word += last - first;
    }
}

/** Writes zeros to the inactive pixels of a part. */
inline void zero_inactive(const Bitmask &bits, const MaskPart &part, const distile_tensor &tensor) {
    for_each_run(bits, part, false,
                 [&](int64_t row, int32_t begin, int32_t end) { zero_pixels(PixelRow(tensor, row), begin, end); });
}

}  // namespace distile

#endif
