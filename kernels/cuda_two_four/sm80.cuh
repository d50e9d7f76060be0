/** \file
 * Layers with weights of the pattern 2:4 by sparse tensor cores of compute capability 8.0 and later
 * (kernels/two_four.h). The kernels read the operator at run time, so one unit serves all.
 *
 * The weights are the rows of the products, because only rows may be sparse, and pixels the columns. A block of threads
 * computes some output pixels and channels. All threads copy 64 input channels of the pixels and of the weights at a
 * time to shared memory, some steps ahead, and all multiply. Sums stay in registers until the reduction ends; then they
 * go through shared memory, because a thread has few channels of many pixels.
 */
#ifndef DISTILE_CUDA_TWO_FOUR_SM80_CUH
#define DISTILE_CUDA_TWO_FOUR_SM80_CUH

#include "kernels/cuda_two_four/sparse_products.cuh"
#include "kernels/cuda_two_four/steps.cuh"
#include "kernels/tensor_core/mma.cuh"

namespace distile::cuda_two_four {

/** The products of m16n8k32: a warp has 64 output channels and some pixels. */
template<class Element, int32_t Pixels, int32_t Channels> class Sm80Products {
    static constexpr Block block{Cores::Sm80, Pixels, Channels};
    static constexpr int32_t pixel_warps = block.warps() / block.units(), warp_pixels = Pixels / pixel_warps,
                             tiles = warp_pixels / 8, row_tiles = unit_rows / 16;

public:
    __device__ explicit Sm80Products(uint32_t stages) : sums_{} {
        const uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, unit = warp % block.units(),
                       row = lane % 16, pixel = warp / block.units() * warp_pixels + lane % 8;
        first_channel_ = static_cast<int32_t>(unit) * unit_rows;
        first_pixel_ = static_cast<int32_t>(warp) / block.units() * warp_pixels;
        // Lanes name lines of four matrices: of weights two of rows below each other, then two of the next piece; of
        // pixels four of neighbouring pieces.
        rows_ = stages + block.input_bytes() + unit * unit_bytes + row * 64;
        row_piece_ = lane / 16 ^ (row / 2 % 4);
        places_ = stages + block.input_bytes() + unit * unit_bytes + value_bytes + lane * 4;
        columns_ = stages + pixel * 128;
        column_piece_ = lane / 8 ^ pixel % 8;
    }
    /** Multiplies what is staged at a place. */
    __device__ void multiply(int32_t stage) {
        const uint32_t at = static_cast<uint32_t>(stage) * block.stage_bytes();
        uint32_t places[row_tiles];
#pragma unroll
        for (int32_t i = 0; i < row_tiles; i++) {
            places[i] = load_shared(places_ + at + i * (lanes * 4));
        }
        multiply_step<0>(at, places);
        multiply_step<1>(at, places);
    }
    /** Calls store(pixel, channel, sum) for each sum. */
    template<class Store> __device__ void visit(const Store &store) const {
        const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes, channel = first_channel_ + lane / 4,
                      pixel = first_pixel_ + lane % 4 * 2;
#pragma unroll
        for (int32_t i = 0; i < row_tiles; i++) {
#pragma unroll
            for (int32_t tile = 0; tile < tiles; tile++) {
#pragma unroll
                for (int32_t j = 0; j < 4; j++) {
                    store(pixel + tile * 8 + j % 2, channel + i * 16 + j / 2 * 8, sums_[i][tile][j]);
                }
            }
        }
    }

private:
    template<int32_t Step> __device__ void multiply_step(uint32_t at, const uint32_t (&places)[row_tiles]) {
        uint32_t rows[row_tiles][4];
#pragma unroll
        for (int32_t i = 0; i < row_tiles; i++) {
            tensor_core::load_matrices(rows[i], rows_ + at + i * (16 * 64) + (row_piece_ ^ (Step * 2)) * piece_bytes);
        }
#pragma unroll
        for (int32_t tile = 0; tile < tiles; tile++) {
            uint32_t columns[4];
            tensor_core::load_matrices(columns,
                                       columns_ + at + tile * (8 * 128) + (column_piece_ ^ (Step * 4)) * piece_bytes);
#pragma unroll
            for (int32_t i = 0; i < row_tiles; i++) {
                multiply_add_sparse<Step>(Element{}, sums_[i][tile], rows[i], columns, places[i]);
            }
        }
    }

    float sums_[row_tiles][tiles][4];
    int32_t first_channel_, first_pixel_;
    uint32_t rows_, row_piece_, places_, columns_, column_piece_;
};

/** Computes such a block, or a part of its reduction. */
template<class Element, int32_t Pixels, int32_t Channels> class Sm80Layer {
    static constexpr Block block{Cores::Sm80, Pixels, Channels};
    static constexpr int32_t threads = block.threads(), stages = block.stages(), stage_bytes = block.stage_bytes();
    // Eight threads copy the 64 input channels of a pixel.
    static constexpr int32_t row_pieces = unit_columns / piece_channels, row_step = threads / row_pieces,
                             rows = Pixels / row_step;
    static constexpr int32_t unit_pieces = unit_bytes / piece_bytes, weight_pieces = block.units() * unit_pieces,
                             weight_copies = (weight_pieces + threads - 1) / threads;
    static constexpr int32_t ahead = stages - 1;
    // Behind the sums of a pixel. So lanes with two pixels and eight channels store to different banks.
    static constexpr int32_t padding = 4, sums_stride = Channels + padding;
    static_assert(rows * row_step == Pixels && row_step % 8 == 0 && ahead >= 1);
    static_assert(Pixels * sums_stride * static_cast<int32_t>(sizeof(float)) <= stages * stage_bytes);

    /** Behind the stages. */
    struct Listing {
        Pixel pixels[Pixels];
        Source sources[Pixels];
        int32_t is_last;
    };
    static_assert(stages * stage_bytes + static_cast<int32_t>(sizeof(Listing)) <= block.shared_bytes());

    /** What a thread copies next. */
    struct Copies {
        Source sources[rows];
        int32_t weights[weight_copies];
        const char *from;  ///< The weights of the step.
        int32_t left, slot;
        Place place;
    };

    const Arguments &a_;
    char *const memory_;
    Listing &listing_;
    const uint32_t pixel_block_;
    const int32_t first_unit_;  ///< The first 64 output channels.

public:
    __device__ Sm80Layer(const Arguments &arguments, char *memory)
        : a_(arguments), memory_(memory), listing_(*reinterpret_cast<Listing *>(memory + stages * stage_bytes)),
          pixel_block_(blockIdx.x / arguments.channel_blocks),
          first_unit_(static_cast<int32_t>(blockIdx.x - pixel_block_ * arguments.channel_blocks) * block.units()) {
    }

    __device__ void compute() const {
        const uint32_t count = *a_.count, first_pixel = pixel_block_ * Pixels;
        if (first_pixel >= int64_t{count} * (a_.rows.tile * a_.columns.tile)) {
            return;
        }
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Pixels; i += threads) {
            const Pixel pixel = cuda_nonzeros::pixel_of(a_, cuda_nonzeros::listed_of(a_, first_pixel + i), count);
            listing_.pixels[i] = pixel;
            listing_.sources[i] = Source::of(a_, pixel);
        }
        __syncthreads();
        const Steps steps = Steps::of(a_, static_cast<int32_t>(blockIdx.y));
        Copies copies = copies_from(steps);
        const uint32_t memory = tensor_core::shared_address(memory_);
#pragma unroll 1
        for (int32_t i = 0; i < ahead; i++) {
            copy(copies, memory);
        }
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Pixels; i += threads) {
            if (!is_stored(a_, listing_.pixels[i])) {
                listing_.pixels[i].image = -1;
            }
        }
        Sm80Products<Element, Pixels, Channels> products(memory);
        int32_t slot = 0;
#pragma unroll 1
        for (int32_t step = 0; step < steps.count; step++) {
            wait_for_groups<ahead - 1>();
            __syncthreads();
            copy(copies, memory);
            products.multiply(slot);
            slot = slot + 1 == stages ? 0 : slot + 1;
        }
        wait_for_groups<0>();
        __syncthreads();
        const Eight bias = Eight::of(a_.bias, own_channel(), a_.out_channels);
        auto *const sums = reinterpret_cast<float *>(memory_);
        products.visit([&](int32_t pixel, int32_t channel, float sum) { sums[pixel * sums_stride + channel] = sum; });
        __syncthreads();
        const auto output = static_cast<int32_t>(blockIdx.x);
        if (a_.splits == 1 || is_last_to_join(output, static_cast<int32_t>(blockIdx.y))) {
            store(output, bias);
        }
    }

private:
    __device__ Copies copies_from(const Steps &steps) const {
        Copies copies{{},          {}, nullptr,
                      steps.count, 0,  Place(a_, steps.first, static_cast<int32_t>(threadIdx.x) % row_pieces)};
#pragma unroll
        for (int32_t i = 0; i < rows; i++) {
            copies.sources[i] = listing_.sources[static_cast<int32_t>(threadIdx.x) / row_pieces + i * row_step];
        }
#pragma unroll
        for (int32_t i = 0; i < weight_copies; i++) {
            const int32_t of_block = static_cast<int32_t>(threadIdx.x) + i * threads, unit = of_block / unit_pieces;
            const bool is_there = of_block < weight_pieces && first_unit_ + unit < a_.row_units;
            copies.weights[i] = is_there ? unit * a_.steps * unit_bytes + of_block % unit_pieces * piece_bytes : -1;
        }
        copies.from = a_.weights + (int64_t{first_unit_} * a_.steps + steps.first) * unit_bytes;
        return copies;
    }

    /** Copies a step, if there is another one. */
    __device__ void copy(Copies &copies, uint32_t memory) const {
        if (copies.left > 0) {
            const uint32_t stage = memory + static_cast<uint32_t>(copies.slot) * stage_bytes;
            const uint32_t piece = threadIdx.x % row_pieces, first_row = threadIdx.x / row_pieces;
            const bool is_channel = copies.place.is_channel(a_);
            const uint32_t needed = copies.place.needed();
            const char *const from = a_.input.data + int64_t{copies.place.offset()} * piece_bytes;
            const uint32_t to = stage + first_row * 128 + (piece ^ first_row % 8) * piece_bytes;
#pragma unroll
            for (int32_t i = 0; i < rows; i++) {
                const Source &source = copies.sources[i];
                tensor_core::copy_or_zero(to + i * (row_step * 128), from + int64_t{source.at} * piece_bytes,
                                          is_channel && (~source.readable & needed) == 0);
            }
#pragma unroll
            for (int32_t i = 0; i < weight_copies; i++) {
                const uint32_t of_block = threadIdx.x + i * threads;
                if (weight_pieces % threads == 0 || i + 1 < weight_copies || of_block < weight_pieces) {
                    const bool is_there = copies.weights[i] >= 0;
                    tensor_core::copy_or_zero(stage + block.input_bytes() + of_block * piece_bytes,
                                              copies.from + (is_there ? copies.weights[i] : 0), is_there);
                }
            }
            copies.from += unit_bytes;
            copies.left--;
            copies.slot = copies.slot + 1 == stages ? 0 : copies.slot + 1;
            copies.place.step(a_);
        }
        end_group_of_copies();
    }

    static constexpr int32_t pixel_eights = Channels / 8, block_eights = Pixels * pixel_eights;

    /** The first of the channels that a thread stores, of several pixels. */
    __device__ int32_t own_channel() const {
        return first_unit_ * unit_rows + static_cast<int32_t>(threadIdx.x) % pixel_eights * 8;
    }
    /** The sums of this block. */
    __device__ Eight own_sums(int32_t i) const {
        const int32_t eight = i % pixel_eights;
        const auto *const from = reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(memory_) +
                                                                  i / pixel_eights * sums_stride + eight * 8);
        // Eight neighbouring threads read all banks.
        const bool turned = eight / 4 % 2 != 0;
        const float4 first = from[turned ? 1 : 0], second = from[turned ? 0 : 1];
        return turned ? Eight{second, first} : Eight{first, second};
    }
    /** Whether this block is the last of those that share an output. All write their sums before. */
    __device__ bool is_last_to_join(int32_t output, int32_t split) const {
        float4 *const to = part(output, split);
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < block_eights; i += threads) {
            const Eight sums = own_sums(i);
            __stcg(to + i, sums.low);
            __stcg(to + block_eights + i, sums.high);
        }
        return is_last_of(a_, output, listing_.is_last);
    }
    __device__ float4 *part(int32_t output, int32_t split) const {
        return reinterpret_cast<float4 *>(a_.parts) + (int64_t{output} * a_.splits + split) * (2 * block_eights);
    }
    /** The sums of all splits, in the order of the splits, whoever is the last. */
    __device__ Eight sums_of_splits(int32_t output, int32_t i) const {
        const float4 *const from = part(output, 0) + i;
        Eight sums{__ldcg(from), __ldcg(from + block_eights)};
#pragma unroll 2
        for (int32_t split = 1; split < a_.splits; split++) {
            const float4 *const next = from + int64_t{split} * (2 * block_eights);
            sums.add({__ldcg(next), __ldcg(next + block_eights)});
        }
        return sums;
    }

    __device__ void store(int32_t output, const Eight &bias) const {
        constexpr int32_t pixels_at_once = threads / pixel_eights;
        static_assert(pixels_at_once * pixel_eights == threads);
        const int32_t channel = own_channel();
        if (channel >= a_.out_channels) {
            return;
        }
        uint4 next = residual_of(a_, listing_.pixels[static_cast<int32_t>(threadIdx.x) / pixel_eights], channel);
#pragma unroll 1
        for (int32_t at = static_cast<int32_t>(threadIdx.x) / pixel_eights; at < Pixels; at += pixels_at_once) {
            const Pixel pixel = listing_.pixels[at];
            const int32_t i = at * pixel_eights + static_cast<int32_t>(threadIdx.x) % pixel_eights;
            const uint4 residual = next;
            if (at + pixels_at_once < Pixels) {
                next = residual_of(a_, listing_.pixels[at + pixels_at_once], channel);
            }
            if (!pixel.is_there()) {
                continue;
            }
            Eight sums = a_.splits > 1 ? sums_of_splits(output, i) : own_sums(i);
            sums.add(bias);
            *reinterpret_cast<uint4 *>(pixel.in(a_.output) + channel * element_bytes) =
                results_of<Element, true>(a_, sums, residual);
        }
    }
};

#define DISTILE_TWO_FOUR_SM80_KERNEL(type, Element, pixels, channels)                                                  \
    extern "C" __global__ void __launch_bounds__((Block{Cores::Sm80, pixels, channels}).threads(), 2)                  \
        distile_two_four_sm80_##type##_##pixels##_##channels(const __grid_constant__ Arguments arguments) {            \
        extern __shared__ __align__(128) char memory[];                                                                \
        Sm80Layer<tensor_core::Element, pixels, channels>(arguments, memory).compute();                                \
    }

}  // namespace distile::cuda_two_four

#endif
