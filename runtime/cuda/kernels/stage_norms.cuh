/** \file
 * How the eight warps that multiply normalize pixels. Eight neighbouring threads have a pixel, or 16 or a warp if it
 * has many channels, and keep it in registers.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_NORMS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_NORMS_CUH

#include "runtime/cuda/kernels/stage_channels.cuh"

namespace distile {

/** The channels, and the pieces of them, that a thread has at most. */
constexpr uint32_t most_norm_channels = 64;
template<class Element> constexpr uint32_t most_norm_pieces = most_norm_channels / piece_channels<Element>;
static_assert(32 * most_norm_channels == DISTILE_STAGE_NORMALIZED, "a warp has a pixel");

/** Adds up a number of neighbouring lanes, as many as a power of 2. */
__device__ inline float sum_of_lanes(float value, uint32_t lanes) {
#pragma unroll 1
    for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(all_lanes, value, static_cast<int>(distance));
    }
    return value;
}

template<class Element> class PixelNorm {
public:
    __device__ PixelNorm(const StageStep &step, const ItemRows &rows)
        : step_(step), rows_(rows), pieces_(step.channels / piece_channels<Element>), lanes_(lanes_of(pieces_)),
          own_(threadIdx.x % lanes_) {
    }

    /** Called by all threads of a warp, also for rows that do not exist. */
    __device__ void compute(uint32_t row) {
        const int32_t output = rows_.output[row];
        load(rows_.input[row], output != ItemRows::none);
        const float count = static_cast<float>(step_.channels);
        const float mean =
            step_.is_centred != 0 ? sum_of_lanes(sum([](float value) { return value; }), lanes_) / count : 0;
        const float squares = sum_of_lanes(sum([&](float value) { return (value - mean) * (value - mean); }), lanes_);
        const float factor = 1 / sqrtf(squares / count + step_.number);
        if (output != ItemRows::none) {
            store(output, mean, factor);
        }
    }

    __device__ uint32_t lanes() const {
        return lanes_;
    }

private:
    static constexpr uint32_t most_pieces = most_norm_pieces<Element>;

    __device__ static uint32_t lanes_of(uint32_t pieces) {
        return pieces <= 8 * most_pieces ? 8 : pieces <= 16 * most_pieces ? 16 : 32;
    }

    __device__ void load(int32_t input, bool exists) {
        const uint4 *const from = piece_at<Element>(step_.input.data, exists ? input : 0);
#pragma unroll
        for (uint32_t i = 0; i < most_pieces; i++) {
            const uint32_t piece = own_ + i * lanes_;
            kept_[i] = exists && piece < pieces_ ? __ldcg(from + piece) : uint4{};
        }
    }

    /** The sum of what a function makes of a thread's channels. */
    template<class Function> __device__ float sum(const Function &of) const {
        float all = 0;
#pragma unroll
        for (uint32_t i = 0; i < most_pieces; i++) {
            if (own_ + i * lanes_ < pieces_) {
                float values[piece_channels<Element>];
                unpack_channels<Element>(kept_[i], values);
#pragma unroll
                for (const float value : values) {
                    all += of(value);
                }
            }
        }
        return all;
    }

    __device__ void store(int32_t output, float mean, float factor) const {
        const float *const gamma = reinterpret_cast<const float *>(step_.weights), *const beta = step_.bias;
#pragma unroll
        for (uint32_t i = 0; i < most_pieces; i++) {
            const uint32_t piece = own_ + i * lanes_, channel = piece * piece_channels<Element>;
            if (piece >= pieces_) {
                break;
            }
            float values[piece_channels<Element>];
            unpack_channels<Element>(kept_[i], values);
#pragma unroll
            for (uint32_t c = 0; c < piece_channels<Element>; c++) {
                values[c] = (values[c] - mean) * factor * (gamma ? __ldg(gamma + channel + c) : 1) +
                            (beta ? __ldg(beta + channel + c) : 0);
            }
            __stcg(piece_at<Element>(step_.output.data, int64_t{output} + channel), pack_channels<Element>(values));
        }
    }

    const StageStep &step_;
    const ItemRows &rows_;
    const uint32_t pieces_, lanes_, own_;
    uint4 kept_[most_pieces];
};

/** Computes an item of a norm. */
template<class Element> __device__ void normalize_pixels(const StagePlan &plan, const Shared &shared, uint32_t item) {
    PixelNorm<Element> norm(plan.step, shared.block.rows[item % listed_items]);
    wait_for_use(shared.block.may_start, item);
    __syncwarp();
    // A warp's rows are all within the tile, or none is.
    const uint32_t at_once = multiply_warps * 32 / norm.lanes();
#pragma unroll 1
    for (uint32_t row = threadIdx.x / norm.lanes(); row < plan.tile_rows; row += at_once) {
        norm.compute(row);
    }
    __syncwarp();
}

}  // namespace distile

#endif
