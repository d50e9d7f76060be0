/** \file
 * Windows over rows of bits: the arithmetic behind mask algebra. Pure functions on caller-owned memory.
 */
#ifndef DISTILE_BIT_ROWS_H
#define DISTILE_BIT_ROWS_H

#include "runtime/base/host_memory.h"
#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/simd/simd_level.h"
#include "runtime/mask/window_axis.h"
#include <cstddef>
#include <deque>

namespace distile {

/** Workspace: rows of words, kept so that the steady state allocates nothing. */
class RowMemory {
public:
    explicit RowMemory(const HostMemory &memory) : memory_(memory) {
    }

    /** A row of zeros, valid until reset(). */
    HostVector<uint64_t> &take(size_t words) {
        if (taken_ == rows_.size()) {
            rows_.emplace_back(memory_);
        }
        rows_[taken_].assign(words, 0);
        return rows_[taken_++];
    }
    void reset() {
        taken_ = 0;
    }

private:
    HostMemory memory_;
    std::deque<HostVector<uint64_t>> rows_;  // A deque, so rows in use never move.
    size_t taken_ = 0;
};

/** A window over rows of one length. Rows are padded to whole words with 0 bits. */
class RowWindow {
public:
    RowWindow(const WindowAxis &axis, int32_t in_width, int32_t out_width, RowMemory &memory,
              const SimdLevel &level = supported_simd_levels().best());

    /** out[o] = any in[x] that output o reads. */
    void gather(const uint64_t *in, uint64_t *out);
    /** in[x] = any out[o] that reads input x. */
    void scatter(const uint64_t *out, uint64_t *in);

private:
    WindowAxis axis_;
    int32_t in_width_, out_words_;
    const SimdLevel &level_;
    /** A row of inputs, shifted by the padding: output o reads from bit o * stride on. */
    HostVector<uint64_t> &padded_;
    /** The bits at o * stride, for outputs that read any input. */
    HostVector<uint64_t> &places_;
};

/** Writes out[o] = any in[x] that output o reads, for images of out_height x out_width. */
void gather_bits(const Bitmask &in, const Window &window, int32_t out_height, int32_t out_width, uint64_t *out,
                 RowMemory &memory);

/** Writes in[x] = any out[o] that reads input x, for images of in_height x in_width. */
void scatter_bits(const Bitmask &out, const Window &window, int32_t in_height, int32_t in_width, uint64_t *in,
                  RowMemory &memory);

// These two read through a window after nearest upsampling by the strides: output o reads the inputs floor((o - pad + i
// * dilation) / stride).
void gather_upsampled_bits(const Bitmask &in, const Window &window, int32_t out_height, int32_t out_width,
                           uint64_t *out, RowMemory &memory);
void scatter_upsampled_bits(const Bitmask &out, const Window &window, int32_t in_height, int32_t in_width, uint64_t *in,
                            RowMemory &memory);

}  // namespace distile

#endif
