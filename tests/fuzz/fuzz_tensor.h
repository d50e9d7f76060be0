/** \file
 * Tensors that the input spells, for the targets that run operators.
 */
#ifndef DISTILE_FUZZ_TENSOR_H
#define DISTILE_FUZZ_TENSOR_H

#include "tests/fuzz/fuzz.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>
#include <memory>
#include <vector>

namespace distile {

constexpr __int128 most_elements = 1 << 20;
constexpr uint32_t untouched = 0x7fc0beef;  // A NaN that no kernel makes.

/** What a task of the library does needs no threads to be seen; the last goes first. */
inline void run_backwards(void *, distile_task task, void *closure, int32_t count) {
    for (int32_t i = count - 1; i >= 0; i--) {
        task(closure, i);
    }
}

/** A tensor that the input spells, and the memory that it may touch. */
struct Tensor {
    distile_tensor view{};
    std::unique_ptr<GuardedMemory> memory;
    size_t element_bytes = sizeof(float); /**< At least those of the type that the call takes. */
    bool huge = false;                    /**< It may be legal, but is too large to be tried. */

    const distile_tensor *address() const {
        return &view;
    }
    /** `bordered`: of a run's inputs, whose borders are read; those of others are ignored, whatever they are. */
    void place(Bytes &bytes, bool bordered) {
        const auto extent = [](int32_t value) { return value >= 1 && value <= 65535; };
        const auto border = [&](int32_t value) { return !bordered || (value >= 0 && value <= 65535); };
        const int32_t top = bordered ? view.border_top : 0, bottom = bordered ? view.border_bottom : 0;
        const int32_t left = bordered ? view.border_left : 0, right = bordered ? view.border_right : 0;
        const auto stride = [](int64_t value) { return value >= 1 && value < int64_t{1} << 31; };
        const bool may_be_legal = extent(view.batch) && extent(view.height) && extent(view.width) &&
                                  view.channels >= 1 && border(view.border_top) && border(view.border_bottom) &&
                                  border(view.border_left) && border(view.border_right) && stride(view.stride_w) &&
                                  stride(view.stride_h) && (view.batch == 1 || stride(view.stride_n));
        __int128 elements = 0, origin = 0;
        if (may_be_legal) {
            origin = __int128{top} * view.stride_h + __int128{left} * view.stride_w;
            elements = origin + __int128{view.height - 1 + bottom} * view.stride_h +
                       __int128{view.width - 1 + right} * view.stride_w + view.channels +
                       (view.batch > 1 ? __int128{view.batch - 1} * view.stride_n : 0);
            huge = elements > most_elements;
        }
        memory = std::make_unique<GuardedMemory>(huge ? 0 : static_cast<size_t>(elements) * element_bytes,
                                                 bytes.flag() ? Flush::Front : Flush::Back);
        std::fill_n(memory->words(), memory->num_words(), untouched);
        // The guard page itself where no access is legal.
        view.data = may_be_legal && !huge
                        ? static_cast<char *>(memory->data()) + static_cast<size_t>(origin) * element_bytes
                        : static_cast<void *>(memory->words() + memory->num_words());
    }
    std::vector<uint32_t> contents() const {
        return {memory->words(), memory->words() + memory->num_words()};
    }
};

/** What an enumeration holds: any number, if the input spelt it. */
inline int32_t number(const distile_dtype &dtype) {
    int32_t value = 0;
    std::memcpy(&value, &dtype, sizeof(value));
    return value;
}

inline void spell(Bytes &bytes, distile_tensor &view) {
    if (bytes.choice(15) == 0) {
        view.batch = bytes.extent(3);
    }
    if (bytes.choice(15) == 0) {
        view.height = bytes.extent(12);
    }
    if (bytes.choice(15) == 0) {
        view.width = bytes.extent(12);
    }
    if (bytes.choice(31) == 0) {
        view.channels = bytes.extent(64);
    }
    const bool bordered = bytes.choice(3) == 0;
    for (int32_t *border : {&view.border_top, &view.border_bottom, &view.border_left, &view.border_right}) {
        *border = bordered ? bytes.extent(3) : 0;
    }
    if (bytes.choice(31) == 0) {
        const auto dtype = bytes.take<int32_t>();
        std::memcpy(&view.dtype, &dtype, sizeof(dtype));
    } else {
        view.dtype = DISTILE_FLOAT32;
    }
    // Rows that share their borders, or have one each.
    constexpr int64_t range = int64_t{1} << 31;
    const int64_t shared = bytes.choice(1);
    view.stride_w = bytes.stride(view.channels);
    const auto spanned = [&](int64_t extent, int64_t before, int64_t after, int64_t stride) {
        return (extent + before + (shared != 0 ? 0 : after)) % range * (stride % range);
    };
    view.stride_h = bytes.stride(spanned(view.width, view.border_left, view.border_right, view.stride_w));
    view.stride_n = bytes.stride(spanned(view.height, view.border_top, view.border_bottom, view.stride_h));
}

}  // namespace distile

#endif
