/** \file
 * Layers with weights of the pattern 2:4 by sparse tensor cores of compute capability 9.0 (kernels/two_four.h). The
 * kernels read the operator at run time, so one unit serves all.
 *
 * The weights are the rows of the products, because only rows may be sparse, and pixels the columns. A block of threads
 * computes some output pixels and channels at a time. Blocks of a cluster have neighbouring pixels and share the
 * weights, of which each copies a part to all, because what comes from the L2 cache limits them. Four warps of a block
 * copy 64 input channels of the pixels and of the weights at a time to shared memory, stages ahead, also for what the
 * block computes next. The other warps multiply, in groups of four, and store their sums through shared memory of their
 * own, because a thread has few channels of many pixels. Blocks stay and take further work.
 */
#ifndef DISTILE_CUDA_TWO_FOUR_SM90_CUH
#define DISTILE_CUDA_TWO_FOUR_SM90_CUH

#include "kernels/cuda_two_four/sparse_products.cuh"
#include "kernels/cuda_two_four/steps.cuh"

namespace distile::cuda_two_four {

constexpr uint32_t group_threads = 128;

/** Copies whole 16 bytes from global memory to the same place in all blocks of a cluster, and counts them at their
 * barriers. */
template<int32_t Blocks>
__device__ inline void copy_to_cluster(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
    constexpr uint16_t all = (1 << Blocks) - 1;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"(all)
                 : "memory");
}

/** Arrives at a barrier of another block of the cluster, for what this block has read. Nothing is published: that would
 * write and empty caches. */
__device__ inline void arrive_at(uint32_t barrier, uint32_t block) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(tensor_core::remote_address(barrier, block))
                 : "memory");
}

/** The products of m64nNk32: four warps have some 64 output channels and all pixels. They go on while others begin. */
template<class Element, int32_t Pixels, int32_t Channels> class Sm90Products {
    static constexpr Block block{Cores::Sm90, Pixels, Channels};

public:
    static constexpr int32_t repeats = block.units() / block.groups();
    static_assert(repeats * block.groups() == block.units());

    __device__ explicit Sm90Products(uint32_t stages)
        : first_(tensor_core::uniform(threadIdx.x / group_threads) * repeats),
          rows_(stages + block.input_bytes() + first_ * unit_bytes, 64), columns_(stages, 128),
          places_(stages + block.input_bytes() + first_ * unit_bytes + value_bytes + threadIdx.x % group_threads * 4),
          kept_{} {
    }
    /** Begins other sums. */
    __device__ void clear() {
#pragma unroll
        for (int32_t i = 0; i < repeats; i++) {
#pragma unroll
            for (float &sum : sums_[i]) {
                sum = 0;
            }
        }
    }
    template<int32_t Parity> __device__ void multiply(int32_t stage) {
        constexpr uint32_t pieces = block.stage_bytes() / piece_bytes, unit_pieces = unit_bytes / piece_bytes;
        const auto number = static_cast<uint32_t>(stage);
        // The places of products that are under way stay in registers of their own.
        uint32_t(&places)[repeats] = kept_[Parity];
#pragma unroll
        for (int32_t i = 0; i < repeats; i++) {
            places[i] = load_shared(places_ + number * block.stage_bytes() + i * unit_bytes);
            tensor_core::fence_registers(sums_[i]);
        }
        tensor_core::fence_registers(places);
        tensor_core::begin_products();
#pragma unroll
        for (int32_t i = 0; i < repeats; i++) {
            const uint32_t rows = number * pieces + i * unit_pieces, columns = number * pieces;
            multiply_add_sparse<0>(Element{}, sums_[i], rows_.at(rows), columns_.at(columns), places[i]);
            multiply_add_sparse<1>(Element{}, sums_[i], rows_.at(rows + 2), columns_.at(columns + 4), places[i]);
        }
        tensor_core::commit_products();
    }
    /** Waits for the products of the step before one with such a parity. */
    template<int32_t Parity> __device__ void wait_for_last() {
        tensor_core::wait_for_products<1>();
        fence_all();
        tensor_core::fence_registers(kept_[1 - Parity]);
    }
    __device__ void finish() {
        tensor_core::wait_for_products<0>();
        fence_all();
        tensor_core::fence_registers(kept_[0]);
        tensor_core::fence_registers(kept_[1]);
    }
    /** The first 64 output channels of this group of warps, in the block. */
    __device__ int32_t first_unit() const {
        return static_cast<int32_t>(first_);
    }
    /** The sums of some 64 output channels: as a thread of tensor_core/wgmma.cuh has them. */
    __device__ float (&sums(int32_t repeat))[Pixels / 2] {
        return sums_[repeat];
    }

private:
    __device__ void fence_all() {
#pragma unroll
        for (int32_t i = 0; i < repeats; i++) {
            tensor_core::fence_registers(sums_[i]);
        }
    }

    uint32_t first_;  ///< The first unit of this group of warps.
    tensor_core::SharedMatrix rows_, columns_;
    uint32_t places_;
    float sums_[repeats][Pixels / 2];
    uint32_t kept_[2][repeats];
};

/** Computes such a layer. */
template<class Element, int32_t Pixels, int32_t Channels> class Sm90Layer {
    static constexpr Block block{Cores::Sm90, Pixels, Channels};
    static constexpr int32_t stages = block.stages(), stage_bytes = block.stage_bytes(), cluster = block.cluster(),
                             units = block.units(), multipliers = block.groups() * group_threads;
    static_assert(block.threads() == multipliers + group_threads);
    // Eight threads copy the 64 input channels of a pixel.
    static constexpr int32_t row_pieces = unit_columns / piece_channels, row_step = group_threads / row_pieces,
                             rows = Pixels / row_step;
    static_assert(rows * row_step == Pixels && row_step % 8 == 0);
    using Products = Sm90Products<Element, Pixels, Channels>;

    // A warp stores 16 channels of as many pixels at a time. Lanes with two pixels and eight channels store to
    // different banks.
    static constexpr int32_t stored_pixels = 16, stored_channels = 16, sums_stride = stored_channels + 4;
    static constexpr int32_t listings = 2;
    static constexpr int32_t copied_ahead = (stages - 1) / 2;  ///< Steps whose copies are under way.
    static constexpr uint32_t copying = 1, first_group = 2;    ///< Barriers of warps.

    /** Behind the stages. */
    struct Shared {
        float sums[multipliers / lanes][stored_pixels * sums_stride];
        Pixel pixels[listings][Pixels];
        /** A stage is filled when what all blocks of the cluster copy for it is there, and emptied when all have
         * multiplied it. A listing is listed when it says which pixels are stored. */
        uint64_t filled[stages], emptied[stages], listed[listings], unlisted[listings];
        int32_t is_last[block.groups()];
    };
    static_assert(stages * stage_bytes + static_cast<int32_t>(sizeof(Shared)) <= block.shared_bytes());

    /** A stage, and how often all have been passed, of which barriers know whether it is odd. */
    struct Turn {
        int32_t stage = 0;
        uint32_t parity = 0;

        __device__ void next() {
            stage++;
            if (stage == stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    };
    /** A listing of pixels, in turns. */
    struct List {
        int32_t number = 0;

        __device__ int32_t place() const {
            return number % listings;
        }
        __device__ uint32_t parity() const {
            return number / listings % 2;
        }
    };

    /** What a block computes at a time. */
    struct Item {
        uint32_t first_pixel;
        int32_t first_unit;  ///< The first 64 output channels.
        int32_t output, split;
    };

    const Arguments &a_;
    const uint32_t stages_;
    Shared &shared_;
    const uint32_t rank_;
    uint32_t items_, count_;

public:
    __device__ Sm90Layer(const Arguments &arguments, char *memory)
        : a_(arguments), stages_(tensor_core::shared_address(memory)),
          shared_(*reinterpret_cast<Shared *>(memory + stages * stage_bytes)), rank_(blockIdx.x % cluster) {
    }

    __device__ void compute() {
        if (threadIdx.x == 0) {
            for (int32_t i = 0; i < stages; i++) {
                // All that copy, and one that says how many bytes of weights come.
                tensor_core::init_barrier(address(shared_.filled[i]), group_threads + 1);
                tensor_core::init_barrier(address(shared_.emptied[i]), block.groups() * cluster);
            }
            for (int32_t i = 0; i < listings; i++) {
                tensor_core::init_barrier(address(shared_.listed[i]), group_threads);
                tensor_core::init_barrier(address(shared_.unlisted[i]), block.groups());
            }
            tensor_core::publish_barriers();
        }
        tensor_core::wait_for_earlier_kernels();
        tensor_core::start_next_kernel();
        count_ = *a_.count;
        constexpr int64_t cluster_pixels = int64_t{Pixels} * cluster;
        const int64_t pixels = int64_t{count_} * (a_.rows.tile * a_.columns.tile);
        items_ = static_cast<uint32_t>((pixels + cluster_pixels - 1) / cluster_pixels) * a_.channel_blocks * a_.splits;
        tensor_core::sync_cluster();
        // Sums take most registers.
        if (threadIdx.x >= multipliers) {
            if constexpr (block.groups() > 1) {
                tensor_core::lower_registers<72>();
            }
            copy();
        } else {
            if constexpr (block.groups() > 1) {
                tensor_core::raise_registers<216>();
            }
            multiply();
        }
        // Others still signal to this block until they are done.
        tensor_core::sync_cluster();
    }

private:
    __device__ static uint32_t address(const uint64_t &barrier) {
        return tensor_core::shared_address(&barrier);
    }

    /** Neighbouring clusters have parts of a reduction, and then neighbouring output channels. */
    __device__ Item item_of(uint32_t number) const {
        const uint32_t output = number / a_.splits, pixel_block = output / a_.channel_blocks;
        return {(pixel_block * cluster + rank_) * Pixels,
                static_cast<int32_t>(output - pixel_block * a_.channel_blocks) * units,
                static_cast<int32_t>(output * cluster + rank_), static_cast<int32_t>(number - output * a_.splits)};
    }
    /** Calls visit(item, listing) for what this block computes. */
    template<class Visit> __device__ void visit_items(const Visit &visit) const {
        List list;
        for (uint32_t number = blockIdx.x / cluster; number < items_; number += gridDim.x / cluster, list.number++) {
            visit(item_of(number), list);
        }
    }

    // ---- Copying ----

    __device__ void copy() const {
        Turn turn;
        visit_items([&](const Item &item, const List &list) { copy(item, list, turn); });
    }
    __device__ void copy(const Item &item, const List &list, Turn &turn) const {
        const uint32_t thread = threadIdx.x - multipliers, piece = thread % row_pieces, first_row = thread / row_pieces;
        Pixel(&pixels)[Pixels] = shared_.pixels[list.place()];
        // Several pixels of a thread, and the words of the mask in which they are.
        constexpr int32_t own = (Pixels + group_threads - 1) / group_threads;
        uint32_t words[own];
        tensor_core::wait(address(shared_.unlisted[list.place()]), list.parity() ^ 1);
#pragma unroll
        for (int32_t i = 0; i < own; i++) {
            const uint32_t number = thread + i * group_threads;
            if (number < Pixels) {
                const Pixel pixel =
                    cuda_nonzeros::pixel_of(a_, cuda_nonzeros::listed_of(a_, item.first_pixel + number), count_);
                pixels[number] = pixel;
                words[i] = cuda_nonzeros::word_of(a_, pixel) >> (pixel.x() % 32);
            }
        }
        tensor_core::sync_threads<group_threads>(copying);
        const char *from[rows];
        uint32_t readable[rows];
#pragma unroll
        for (int32_t i = 0; i < rows; i++) {
            const Source source = Source::of(a_, pixels[first_row + i * row_step]);
            from[i] = a_.input.data + int64_t{source.at} * piece_bytes;
            readable[i] = source.readable;
            // Kept in registers, where the compiler would compute it in each step.
            asm volatile("" : "+l"(from[i]));
        }
        uint32_t valid = 0;  // Bit i: row i may be read.
        const Steps steps = Steps::of(a_, item.split);
        Place place(a_, steps.first, static_cast<int32_t>(piece));
        Turn behind = turn;  // What has been copied so far.
        const auto list_stored = [&] {
        // Inactive pixels of a tile are computed as well.
#pragma unroll
            for (int32_t i = 0; i < own; i++) {
                const uint32_t number = thread + i * group_threads;
                if (number < Pixels && (words[i] & 1) == 0) {
                    pixels[number].image = -1;
                }
            }
            tensor_core::arrive(address(shared_.listed[list.place()]));
        };
#pragma unroll 1
        for (int32_t step = 0; step < steps.count; step++) {
            const uint32_t stage = stages_ + turn.stage * stage_bytes, filled = address(shared_.filled[turn.stage]);
            tensor_core::wait(address(shared_.emptied[turn.stage]), turn.parity ^ 1);
            if (thread == 0) {
                tensor_core::arrive_and_expect(filled, units * unit_bytes);
                copy_weights(item.first_unit, steps.first + step, stage + block.input_bytes(), filled);
            }
            if (step == 0 || place.is_first_of_tap()) {
                const uint32_t needed = place.needed();
                valid = 0;
#pragma unroll
                for (int32_t i = 0; i < rows; i++) {
                    valid |= (~readable[i] & needed) == 0 ? 1u << i : 0;
                }
            }
            const uint32_t copied = place.is_channel(a_) ? valid : 0;
            const int64_t offset = int64_t{place.offset()} * piece_bytes;
            const uint32_t to = stage + first_row * 128 + (piece ^ first_row % 8) * piece_bytes;
#pragma unroll
            for (int32_t i = 0; i < rows; i++) {
                tensor_core::copy_or_zero(to + i * (row_step * 128), from[i] + offset, (copied >> i & 1) != 0);
            }
            end_group_of_copies();
            place.step(a_);
            turn.next();
            if (step >= copied_ahead) {
                wait_for_groups<copied_ahead>();
                fill(behind);
            }
            // What the mask says has come by now.
            if (step == 1) {
                list_stored();
            }
        }
        if (steps.count < 2) {
            list_stored();
        }
        wait_for_groups<0>();
        for (int32_t i = 0; i < min(copied_ahead, steps.count); i++) {
            fill(behind);
        }
    }
    /** Says that this thread has filled its part of a stage. Products read it in another way than threads write it. */
    __device__ void fill(Turn &behind) const {
        tensor_core::fence_shared();
        tensor_core::arrive(address(shared_.filled[behind.stage]));
        behind.next();
    }
    /** Copies this block's part of the weights of a step to all blocks of the cluster: some units, or a part of one. */
    __device__ void copy_weights(int32_t first_unit, int32_t step, uint32_t to, uint32_t barrier) const {
        constexpr int32_t own_units = units >= cluster ? units / cluster : 1,
                          parts = units >= cluster ? 1 : cluster / units, part_bytes = unit_bytes / parts;
        static_assert(own_units * cluster == units * parts && part_bytes % piece_bytes == 0);
        const auto rank = static_cast<int32_t>(rank_);
#pragma unroll
        for (int32_t i = 0; i < own_units; i++) {
            const int32_t of_block = rank / parts * own_units + i, begin = rank % parts * part_bytes;
            // Behind the last output channels, others' weights stand in: results are not stored.
            const int32_t unit = min(first_unit + of_block, a_.row_units - 1);
            copy_to_cluster<cluster>(to + of_block * unit_bytes + begin,
                                     a_.weights + (int64_t{unit} * a_.steps + step) * unit_bytes + begin, part_bytes,
                                     barrier);
        }
    }

    // ---- Multiplying ----

    __device__ void multiply() {
        Products products(stages_);
        Turn turn;
        visit_items([&](const Item &item, const List &list) {
            products.clear();
            const Steps steps = Steps::of(a_, item.split);
            int32_t last = -1;
#pragma unroll 1
            for (int32_t step = 0; step < steps.count; step += 2) {
                advance<0>(products, turn, last);
                if (step + 1 < steps.count) {
                    advance<1>(products, turn, last);
                }
            }
            products.finish();
            empty(last);
            if (a_.splits == 1 || is_last_to_join(item, products)) {
                tensor_core::wait(address(shared_.listed[list.place()]), list.parity());
                store(item, shared_.pixels[list.place()], products);
            }
            tensor_core::sync_threads<group_threads>(first_group + group());
            if (threadIdx.x % group_threads == 0) {
                tensor_core::arrive(address(shared_.unlisted[list.place()]));
            }
        });
    }
    template<int32_t Parity> __device__ void advance(Products &products, Turn &turn, int32_t &last) const {
        tensor_core::wait(address(shared_.filled[turn.stage]), turn.parity);
        products.template multiply<Parity>(turn.stage);
        products.template wait_for_last<Parity>();
        if (last >= 0) {
            empty(last);
        }
        last = turn.stage;
        turn.next();
    }
    /** Tells all blocks of the cluster that these warps need a stage no more. */
    __device__ void empty(int32_t stage) const {
        if (threadIdx.x % group_threads == 0) {
#pragma unroll
            for (uint32_t i = 0; i < cluster; i++) {
                arrive_at(address(shared_.emptied[stage]), i);
            }
        }
    }
    __device__ static uint32_t group() {
        return threadIdx.x / group_threads;
    }

    // ---- Storing ----

    static constexpr int32_t repeat_fours = Pixels / 8, fours = Products::repeats * repeat_fours;

    __device__ float4 *part(int32_t output, int32_t split) const {
        return reinterpret_cast<float4 *>(a_.parts) + (int64_t{output} * a_.splits + split) * (fours * multipliers) +
               threadIdx.x;
    }
    /** Writes sums. If the others that share these outputs have written theirs, adds them in the order of the splits,
     * whoever is the last, and returns true. */
    __device__ bool is_last_to_join(const Item &item, Products &products) {
        float4 *const to = part(item.output, item.split);
#pragma unroll
        for (int32_t i = 0; i < fours; i++) {
            const float *const four = products.sums(i / repeat_fours) + i % repeat_fours * 4;
            __stcg(to + i * multipliers, float4{four[0], four[1], four[2], four[3]});
        }
        __threadfence();
        tensor_core::sync_threads<group_threads>(first_group + group());
        int32_t &is_last = shared_.is_last[group()];
        if (threadIdx.x % group_threads == 0) {
            uint32_t *const signal = a_.signals + item.output * block.groups() + group();
            is_last = atomicAdd(signal, 1) == static_cast<uint32_t>(a_.splits) - 1 ? 1 : 0;
            if (is_last != 0) {
                *signal = 0;
            }
        }
        tensor_core::sync_threads<group_threads>(first_group + group());
        if (is_last == 0) {
            return false;
        }
        __threadfence();
        products.clear();
#pragma unroll 1
        for (int32_t split = 0; split < a_.splits; split++) {
            const float4 *const from = part(item.output, split);
#pragma unroll
            for (int32_t i = 0; i < fours; i++) {
                const float4 more = __ldcg(from + i * multipliers);
                float *const four = products.sums(i / repeat_fours) + i % repeat_fours * 4;
                four[0] += more.x;
                four[1] += more.y;
                four[2] += more.z;
                four[3] += more.w;
            }
        }
        return true;
    }

    __device__ void store(const Item &item, const Pixel (&pixels)[Pixels], Products &products) const {
        const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes,
                      warp = static_cast<int32_t>(threadIdx.x) / lanes;
        const Exchange exchange{shared_.sums[warp] + lane % 4 * 2 * sums_stride + lane / 4,
                                shared_.sums[warp] + lane / 2 * sums_stride + lane % 2 * 8, pixels + lane / 2};
#pragma unroll
        for (int32_t repeat = 0; repeat < Products::repeats; repeat++) {
            float(&sums)[Pixels / 2] = products.sums(repeat);
            const int32_t channel = (item.first_unit + products.first_unit() + repeat) * unit_rows +
                                    warp % 4 * stored_channels + lane % 2 * 8;
            const Eight bias = Eight::of(a_.bias, channel, a_.out_channels);
            uint4 next = residual_of(a_, exchange.pixels[0], channel);
            if (a_.epilogue == DISTILE_ACTIVATION_NONE) {
#pragma unroll
                for (int32_t first = 0; first < Pixels; first += stored_pixels) {
                    exchange.put(sums + first / 2);
                    store<false>(exchange, first, channel, bias, next);
                }
                continue;
            }
            // Activations are much code, so they are there once. A branch chooses the sums, which are registers.
#pragma unroll 1
            for (int32_t first = 0; first < Pixels; first += stored_pixels) {
#pragma unroll
                for (int32_t i = 0; i < Pixels; i += stored_pixels) {
                    if (i == first) {
                        exchange.put(sums + i / 2);
                    }
                }
                store<true>(exchange, first, channel, bias, next);
            }
        }
    }
    /** How lanes exchange the sums of 16 pixels. */
    struct Exchange {
        float *to;            ///< Where a lane puts its first sum.
        const float *from;    ///< Eight channels of a pixel, which it takes.
        const Pixel *pixels;  ///< The first pixel that it takes.

        /** Puts the sums of two tiles. */
        __device__ void put(const float *sums) const {
            static_assert(stored_pixels == 16);
#pragma unroll
            for (int32_t i = 0; i < 8; i++) {
                to[(i / 4 * 8 + i % 2) * sums_stride + i / 2 % 2 * 8] = sums[i];
            }
        }
    };
    /** Stores what was put, from pixel `first` on. `next` is the residual, and then that of the next pixel. */
    template<bool Activates> __device__ void store(const Exchange &exchange, int32_t first, int32_t channel,
                                                   const Eight &bias, uint4 &next) const {
        __syncwarp();
        Eight results{*reinterpret_cast<const float4 *>(exchange.from),
                      *reinterpret_cast<const float4 *>(exchange.from + 4)};
        __syncwarp();
        const Pixel pixel = exchange.pixels[first];
        const uint4 residual = next;
        if (first + stored_pixels < Pixels) {
            next = residual_of(a_, exchange.pixels[first + stored_pixels], channel);
        }
        results.add(bias);
        if (pixel.is_there() && channel < a_.out_channels) {
            *reinterpret_cast<uint4 *>(pixel.in(a_.output) + channel * element_bytes) =
                results_of<Element, Activates>(a_, results, residual);
        }
    }
};

#define DISTILE_TWO_FOUR_SM90_KERNEL(type, Element, pixels, channels)                                                  \
    extern "C" __global__ void __launch_bounds__((Block{Cores::Sm90, pixels, channels}).threads(), 1)                  \
        distile_two_four_sm90_##type##_##pixels##_##channels(const __grid_constant__ Arguments arguments) {            \
        extern __shared__ __align__(1024) char memory[];                                                               \
        Sm90Layer<tensor_core::Element, pixels, channels>(arguments, memory).compute();                                \
    }

}  // namespace distile::cuda_two_four

#endif
