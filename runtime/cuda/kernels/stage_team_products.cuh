/** \file
 * How the eight warps that multiply compute residual blocks.
 *
 * A block of the team keeps its part of the image's channels in shared memory. The first two convolutions share the
 * reduction: each block multiplies what it has of the input channels, and hands each other block what that needs of the
 * sums. The results of the second are handed to all, and of the third each computes its own channels, which need no
 * exchange. Two warp groups have a half of the output channels each; rows of a product are pixels, gathered by ldmatrix
 * from where they lie.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_TEAM_PRODUCTS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_TEAM_PRODUCTS_CUH

#include "kernels/tensor_core/mma.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "runtime/cuda/kernels/stage_team_exchange.cuh"
#include <type_traits>

namespace distile {

template<class Element, class Exchange> class TeamMultiplier {
public:
    using Part = typename Exchange::Part;

    __device__ TeamMultiplier(const TeamProgram &program, const TeamShared<Part> &shared)
        : program_(program), shared_(shared), control_(shared.control),
          exchange_(shared, program), times_{program.times + size_t{blockIdx.x} * program.timed_items,
                                             program.timed_items} {
    }

    __device__ void run() {
        // What no pixel has.
        for (uint32_t i = threadIdx.x; i < mapped_extent * mapped_extent; i += multiply_threads) {
            control_.rows.map[i] = TeamRows::zero_row;
        }
        if (threadIdx.x < Part::inner_bytes / 8) {
            store_shared(shared_.reduced + TeamRows::zero_row * Part::inner_bytes + threadIdx.x * 8, uint2{});
        }
        for_each_team_image<Part>(program_, [&](uint32_t image) {
            image_ = image;
            load_image();
            sync_multipliers();
            for (uint32_t number = 0; number < program_.num_blocks; number++, blocks_++) {
                tc::wait(tc::shared_address(control_.described + blocks_ % 2), blocks_ / 2 & 1);
                __syncwarp();
                compute(control_.described_blocks[blocks_ % 2], number);
                if (lane() == 0) {
                    tc::arrive(tc::shared_address(control_.done + blocks_ % 2));
                }
            }
            store_image();
            sync_multipliers();
        });
        exchange_.end();
    }

private:
    using Described = DescribedBlock<Part>;
    using Storage = tc::Storage<Element>;

    static constexpr uint32_t shares = Part::shares;
    static constexpr uint32_t units_of_half = 128 / inner_of_share;  ///< Shares of a warp group's sums.
    static constexpr uint32_t expand_sums = Part::outer / 4;         ///< A thread's of a tile.

    __device__ static uint32_t warp_group() {
        return threadIdx.x / 128;
    }
    __device__ static uint32_t warp_of_group() {
        return threadIdx.x / 32 % 4;
    }

    // ---- The image -------------------------------------------------------------------------------

    __device__ uint32_t num_pixels() const {
        return program_.height * program_.width.value;
    }
    /** Where a piece of 8 of the block's channels of a pixel is. */
    __device__ uint32_t image_piece(uint32_t pixel, uint32_t piece) const {
        return shared_.image + pixel * Part::outer_bytes + (piece ^ pixel % 8) * 16;
    }
    __device__ int64_t offset_in(const StageView &view, uint32_t pixel) const {
        const uint32_t y = divide(pixel, program_.width), x = pixel - y * program_.width.value;
        return int64_t{view.stride_n} * image_ + int64_t{view.stride_h} * y + int64_t{view.stride_w} * x;
    }
    template<class Visit> __device__ void for_each_piece(const Visit &visit) const {
        constexpr uint32_t pieces = Part::outer / 8;
        for (uint32_t i = threadIdx.x; i < num_pixels() * pieces; i += multiply_threads) {
            const uint32_t pixel = i / pieces, piece = i % pieces;
            const int64_t at = offset_in(program_.image, pixel) + exchange_.rank() * Part::outer + piece * 8;
            visit(reinterpret_cast<uint4 *>(program_.image.data + at * 2), image_piece(pixel, piece));
        }
    }
    __device__ void load_image() const {
        for_each_piece([](const uint4 *from, uint32_t to) { store_shared(to, __ldcg(from)); });
    }
    __device__ void store_image() const {
        for_each_piece([](uint4 *to, uint32_t from) { __stcg(to, load_shared(from)); });
    }

    // ---- Pixels ----------------------------------------------------------------------------------

    /** Whether this thread's pixel is above the threshold. All threads of the team find the same. */
    __device__ bool has_score(const Described &described) {
        const uint32_t pixel = threadIdx.x;
        float sum = 0;
        if (pixel < num_pixels()) {
#pragma unroll
            for (uint32_t piece = 0; piece < Part::outer / 8; piece++) {
                float values[8];
                unpack_channels<Element>(load_shared(image_piece(pixel, piece)), values);
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    sum += values[i] * described.scores[piece * 8 + i];
                }
            }
        }
        // Each thread of four sends the scores of all four, to a fourth of the blocks.
        uint32_t four[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            four[i] = __float_as_uint(__shfl_sync(all_lanes, sum, static_cast<int>(lane() / 4 * 4 + i)));
        }
        exchange_.begin(Part::blocks * Part::scores_bytes);
        if (pixel < Part::scores_bytes / 4) {
            exchange_.send_to_all(exchange_.rank() * Part::scores_bytes + pixel / 4 * 16,
                                  uint4{four[0], four[1], four[2], four[3]}, pixel % 4, 4);
        }
        exchange_.end_sending_to_all();
        exchange_.wait();
        if (pixel >= num_pixels()) {
            return false;
        }
        sum = 0;
#pragma unroll
        for (uint32_t from = 0; from < Part::blocks; from++) {
            sum += exchange_.received_by_all(from * Part::scores_bytes + pixel * 4);
        }
        return sum + described.block.score_bias > described.block.threshold;
    }

    /** A row of the image in bits of pixels, 0 outside. */
    __device__ uint32_t row_of_bits(const uint32_t *bits, uint32_t y) const {
        const uint32_t width = program_.width.value, first = y * width;
        return y < program_.height
                   ? __funnelshift_r(bits[first / 32], bits[first / 32 + 1], first % 32) & ((1u << width) - 1)
                   : 0;
    }
    /** How many pixels come before this thread's. */
    __device__ static uint32_t count_before(const uint32_t *bits) {
        const uint32_t pixel = threadIdx.x;
        uint32_t count = 0;
#pragma unroll
        for (uint32_t word = 0; word < most_team_pixels / 32 + 1; word++) {
            const uint32_t below = pixel / 32 > word ? ~0u : pixel / 32 == word ? (1u << pixel % 32) - 1 : 0;
            count += __popc(bits[word] & below);
        }
        return count;
    }
    __device__ static void keep_bits(uint32_t *bits, bool is_set) {
        const uint32_t word = __ballot_sync(all_lanes, is_set);
        if (lane() == 0 && threadIdx.x / 32 < most_team_pixels / 32 + 2) {
            bits[threadIdx.x / 32] = word;
        }
        sync_multipliers();
    }

    /** Finds the pixels that a residual block computes, one in each thread. */
    __device__ void list_pixels(const Described &described) {
        TeamRows &rows = control_.rows;
        const TeamBlock &block = described.block;
        const uint32_t pixel = threadIdx.x, width = program_.width.value;
        const uint32_t y = divide(pixel, program_.width), x = pixel - y * width;
        const bool exists = pixel < num_pixels();
        uint32_t *const words = block.words + image_ * program_.height;
        const bool is_active = block.scores ? has_score(described) : exists && (__ldcg(words + y) >> x & 1) != 0;
        keep_bits(rows.active, is_active);
        uint32_t around = row_of_bits(rows.active, y) | row_of_bits(rows.active, y + 1);
        around |= y > 0 ? row_of_bits(rows.active, y - 1) : 0;
        const bool is_needed = exists && ((around | around << 1 | around >> 1) >> x & 1) != 0;
        keep_bits(rows.needed, is_needed);
        const uint32_t needed_row = count_before(rows.needed), active_row = count_before(rows.active);
        const uint32_t mapped = (y + 1) * mapped_extent + x + 1;
        if (exists) {
            rows.map[mapped] = is_needed ? needed_row : TeamRows::zero_row;
        }
        if (is_needed) {
            rows.needed_pixels[needed_row] = pixel;
        }
        if (is_active) {
            rows.active_pixels[active_row] = pixel;
            rows.mapped[active_row] = mapped;
        }
        // The last thread comes behind all pixels. Rows that fill up a tile are those of some pixel.
        if (pixel == multiply_threads - 1) {
            rows.num_needed = needed_row;
            rows.num_active = active_row;
        }
        sync_multipliers();
        if (pixel < 16) {
            rows.needed_pixels[rows.num_needed + pixel] = 0;
            rows.active_pixels[rows.num_active + pixel] = 0;
            rows.mapped[rows.num_active + pixel] = mapped_extent + 1;
        }
        if (block.scores && exchange_.rank() == 0) {
            if (pixel < program_.height) {
                __stcg(words + pixel, row_of_bits(rows.active, pixel));
            }
            if (exists && block.mirror.bytes) {
                block.mirror.bytes[block.mirror.stride_n * image_ + block.mirror.stride_h * y + x] = is_active;
            }
        }
        sync_multipliers();
        if (pixel == 0) {
            tc::arrive(tc::shared_address(&control_.listed));
        }
    }

    // ---- Products --------------------------------------------------------------------------------

    __device__ void leave_weights(uint32_t slot) const {
        if (lane() == 0) {
            tc::arrive(tc::shared_address(control_.weights_empty + slot));
        }
    }
    /** Waits for the next slot of weights, and returns its number. */
    __device__ uint32_t take_weights() {
        const uint32_t slot = weights_ % Part::slots;
        tc::wait(tc::shared_address(control_.weights_full + slot), weights_ / Part::slots & 1);
        __syncwarp();
        weights_++;
        return slot;
    }
    __device__ uint32_t weights_in(uint32_t slot) const {
        return tc::uniform(shared_.weights + slot * Part::slot_bytes);
    }

    /** Multiplies `units` slots of weights, each in `steps` instructions for each tile of 64 rows. rows(unit, tile,
     * step) is the shared address of this lane's part of 16 rows; columns(slot, step), what describes the weights. */
    template<uint32_t units, uint32_t steps, uint32_t tiles, uint32_t count, class Rows, class Columns>
    __device__ __forceinline__ void multiply(float (&sums)[tiles][count], const Rows &rows, const Columns &columns) {
        uint32_t factors[2][tiles][steps][4];
        uint32_t before = 0;
#pragma unroll
        for (uint32_t tile = 0; tile < tiles; tile++) {
            tc::fence_registers(sums[tile]);
        }
#pragma unroll
        for (uint32_t unit = 0; unit < units; unit++) {
#pragma unroll
            for (uint32_t tile = 0; tile < tiles; tile++) {
#pragma unroll
                for (uint32_t step = 0; step < steps; step++) {
                    tc::load_matrices(factors[unit % 2][tile][step], rows(unit, tile, step));
                }
            }
            const uint32_t slot = take_weights();
            tc::begin_products();
#pragma unroll
            for (uint32_t step = 0; step < steps; step++) {
                const uint64_t weights = columns(slot, step);
#pragma unroll
                for (uint32_t tile = 0; tile < tiles; tile++) {
                    tc::multiply_along(Element{}, sums[tile], factors[unit % 2][tile][step], weights, true);
                }
            }
            tc::commit_products();
            if (unit > 0) {
                tc::wait_for_products<1>();
                leave_weights(before);
            }
            before = slot;
        }
        tc::wait_for_products<0>();
#pragma unroll
        for (uint32_t tile = 0; tile < tiles; tile++) {
            tc::fence_registers(sums[tile]);
        }
        leave_weights(before);
    }

    /** The weights of a warp group's half of the inner channels: 16 input channels of a share. */
    __device__ auto inner_columns() const {
        return [this](uint32_t slot, uint32_t share) {
            return tc::SharedMatrix(weights_in(slot) + share * team_unit + warp_group() * (team_unit / 2), 32).at(0);
        };
    }

    /** Which tile of 16 rows a warp has. */
    __device__ static uint32_t tile_of_warp(uint32_t tile) {
        return tile * 4 + warp_of_group();
    }
    /** The row of a list that a lane loads for its warp. */
    __device__ static uint32_t loaded_row(uint32_t first, uint32_t tile) {
        return min(first + tile_of_warp(tile) * 16 + lane() % 16, most_team_pixels + 15);
    }

    /** Where pieces of 8 of the inner channels of a row are that a block has. */
    __device__ static uint32_t inner_piece(uint32_t row, uint32_t piece) {
        // Eight neighbouring rows use all banks.
        const uint32_t turned = shares == 2 ? piece ^ row / 2 % 4 : piece ^ row / 4 % 2;
        return row * Part::inner_bytes + turned * 16;
    }

    /** Hands each block the sums of its channels: rounded, and in the order in which threads have them. A
     * thread sends four channels of a share, of two rows. */
    template<uint32_t tiles> __device__ void send_sums(const float (&sums)[tiles][64], uint32_t count) {
        exchange_.begin(Part::blocks * count * shares * 512);
#pragma unroll
        for (uint32_t tile = 0; tile < tiles; tile++) {
            if (tile_of_warp(tile) >= count) {
                continue;
            }
#pragma unroll
            for (uint32_t unit = 0; unit < units_of_half; unit++) {
                const uint32_t share = warp_group() * units_of_half + unit;
                const float *const own = sums[tile] + unit * 8;
                exchange_.send(share / shares,
                               ((exchange_.rank() * count + tile_of_warp(tile)) * shares + share % shares) * 512 +
                                   lane() * 16,
                               uint4{Storage::pack(own[0], own[1]), Storage::pack(own[4], own[5]),
                                     Storage::pack(own[2], own[3]), Storage::pack(own[6], own[7])});
            }
        }
        exchange_.end_sending();
        exchange_.wait();
    }

    /** Adds up what all blocks have sent, and calls store(row, share, numbers) for each four channels of a row. */
    template<class Store>
    __device__ void add_up(uint32_t count, const float *bias, const Activation &activation, const Store &store) const {
        for (uint32_t unit = threadIdx.x; unit < count * shares * 32; unit += multiply_threads) {
            uint4 parts[Part::blocks];
#pragma unroll
            for (uint32_t from = 0; from < Part::blocks; from++) {
                parts[from] = exchange_.received(from * count * shares * 512 + unit * 16);
            }
            float sums[8] = {};
#pragma unroll
            for (uint32_t from = 0; from < Part::blocks; from++) {
                float values[8];
                unpack_channels<Element>(parts[from], values);
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    sums[i] += values[i];
                }
            }
            const uint32_t share = unit / 32 % shares, row = unit / 32 / shares * 16 + unit % 32 / 4;
            const float4 own = *reinterpret_cast<const float4 *>(bias + share * inner_of_share + unit % 4 * 4);
#pragma unroll
            for (uint32_t i = 0; i < 8; i += 4) {
                sums[i] += own.x;
                sums[i + 1] += own.y;
                sums[i + 2] += own.z;
                sums[i + 3] += own.w;
            }
            activate_channels(activation, sums);
            store(row, share, uint2{Storage::pack(sums[0], sums[1]), Storage::pack(sums[2], sums[3])});
            store(row + 8, share, uint2{Storage::pack(sums[4], sums[5]), Storage::pack(sums[6], sums[7])});
        }
    }
    /** Where a thread's four channels of a share are in a row that a block has. */
    __device__ static uint32_t place_of_four(uint32_t row, uint32_t share) {
        return inner_piece(row, share * 2 + lane() % 4 / 2) + lane() % 2 * 8;
    }
    /** Stores four channels of a pixel also in memory, if somebody reads them there. */
    __device__ void store_result(const StageView &view, uint32_t pixel, uint32_t share, const uint2 &numbers) const {
        if (view.data) {
            const uint32_t channel = exchange_.rank() * Part::inner + share * inner_of_share + lane() % 4 * 4;
            __stcg(reinterpret_cast<uint2 *>(view.data + (offset_in(view, pixel) + channel) * 2), numbers);
        }
    }

    /** The first convolution of `count` tiles of 16 needed rows. */
    template<uint32_t tiles> __device__ void reduce(const Described &described, uint32_t first, uint32_t count) {
        const TeamRows &rows = control_.rows;
        {
            float sums[tiles][64] = {};
            uint32_t begins[tiles];
#pragma unroll
            for (uint32_t tile = 0; tile < tiles; tile++) {
                begins[tile] = image_piece(rows.needed_pixels[loaded_row(first, tile)], lane() / 16);
            }
            multiply<reducing_units, shares>(
                sums,
                [&](uint32_t unit, uint32_t tile, uint32_t share) {
                    return begins[tile] ^ (share * (outer_of_share / 8) + unit * 2) * 16;
                },
                inner_columns());
            note(&StageItemTimes::multiplied);
            send_sums(sums, count);
        }
        add_up(count, described.reduce_bias, described.block.reduce.activation,
               [&](uint32_t row, uint32_t share, const uint2 &numbers) {
                   if (first + row < rows.num_needed) {
                       store_shared(shared_.reduced + place_of_four(first + row, share), numbers);
                       store_result(described.block.reduced, rows.needed_pixels[first + row], share, numbers);
                   }
               });
    }

    /** The second convolution of `count` tiles of 16 active rows. Its results go to all blocks. */
    template<uint32_t tiles> __device__ void filter(const Described &described, uint32_t first, uint32_t count) {
        const TeamRows &rows = control_.rows;
        {
            float sums[tiles][64] = {};
            uint32_t places[tiles];
#pragma unroll
            for (uint32_t tile = 0; tile < tiles; tile++) {
                // Rows behind the last ones read something, too.
                places[tile] = min(max(uint32_t{rows.mapped[loaded_row(first, tile)]}, mapped_extent + 1),
                                   mapped_extent * (mapped_extent - 1) - 2);
            }
            multiply<middle_units, shares>(
                sums,
                [&](uint32_t tap, uint32_t tile, uint32_t share) {
                    const uint32_t row = rows.map[places[tile] + tap / 3 * mapped_extent + tap % 3 - mapped_extent - 1];
                    return shared_.reduced + inner_piece(row, share * 2 + lane() / 16);
                },
                inner_columns());
            note(&StageItemTimes::multiplied);
            send_sums(sums, count);
        }
        const uint32_t found = min(rows.num_active - first, count * 16);
        exchange_.begin(Part::blocks * found * Part::inner_bytes);
        add_up(count, described.middle_bias, described.block.middle.activation,
               [&](uint32_t row, uint32_t share, const uint2 &numbers) {
                   if (row < found) {
                       exchange_.send_to_all(
                           exchange_.rank() * count * 16 * Part::inner_bytes + place_of_four(row, share), numbers);
                       store_result(described.block.between, rows.active_pixels[first + row], share, numbers);
                   }
               });
        exchange_.end_sending_to_all();
        exchange_.wait();
    }

    /** The third convolution of the rows of filter(), added to the image. */
    template<uint32_t tiles> __device__ void expand(const Described &described, uint32_t first, uint32_t count) {
        const TeamRows &rows = control_.rows;
        const uint32_t of_block = count * 16 * Part::inner_bytes, begin = exchange_.bring(Part::blocks * of_block);
        float sums[tiles][expand_sums] = {};
        uint32_t begins[tiles];
#pragma unroll
        for (uint32_t tile = 0; tile < tiles; tile++) {
            begins[tile] = begin + inner_piece(min(tile_of_warp(tile) * 16 + lane() % 16, count * 16 - 1), lane() / 16);
        }
        multiply<expanding_units, 4>(
            sums,
            [&](uint32_t unit, uint32_t tile, uint32_t step) {
                const uint32_t share = unit * 4 + step;
                return (begins[tile] ^ share % shares * 32) + share / shares * of_block;
            },
            [&](uint32_t slot, uint32_t step) {
                // With one share, each warp group has a half of its columns.
                const uint32_t columns = warp_group() * (shares == 2 ? team_unit : team_unit / 2);
                return tc::SharedMatrix(weights_in(slot) + columns, 128).at(2 * step);
            });
        note(&StageItemTimes::multiplied);
#pragma unroll
        for (uint32_t tile = 0; tile < tiles; tile++) {
#pragma unroll
            for (uint32_t below = 0; below < 2; below++) {
                const uint32_t row = first + tile_of_warp(tile) * 16 + below * 8 + lane() / 4;
                if (tile_of_warp(tile) >= count || row >= rows.num_active) {
                    continue;
                }
#pragma unroll
                for (uint32_t group = 0; group < expand_sums / 16; group++) {
                    const uint32_t channel = warp_group() * (Part::outer / 2) + group * 32 + lane() % 4 * 8;
                    const uint32_t to = image_piece(rows.active_pixels[row], channel / 8);
                    add_to_image(described, channel, to, sums[tile] + group * 16 + below * 2);
                }
            }
        }
    }
    /** Adds 8 channels to a pixel, of which each two are four sums behind the two before. */
    __device__ void add_to_image(const Described &described, uint32_t channel, uint32_t to, const float *sums) const {
        float values[8];
        unpack_channels<Element>(load_shared(to), values);
        const float *const bias = described.expand_bias + channel;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            values[i] = sums[i / 2 * 4 + i % 2] + (bias[i] + values[i]);
        }
        activate_channels(described.block.expand.activation, values);
        store_shared(to, uint4{Storage::pack(values[0], values[1]), Storage::pack(values[2], values[3]),
                               Storage::pack(values[4], values[5]), Storage::pack(values[6], values[7])});
    }

    // ---- A residual block ------------------------------------------------------------------------

    /** Calls compute(tiles) with how many tiles of 64 rows hold `count` of 16. */
    template<class Compute> __device__ __forceinline__ static void with_tiles(uint32_t count, const Compute &compute) {
        if (count > 4) {
            compute(std::integral_constant<uint32_t, 2>());
        } else {
            compute(std::integral_constant<uint32_t, 1>());
        }
    }

    __device__ void compute(const Described &described, uint32_t number) {
        const TeamRows &rows = control_.rows;
        start_item(items_of_team_block * number);
        list_pixels(described);
        end_item();
        if (rows.num_active == 0) {
            for (uint32_t unit = 0; unit < reducing_units + middle_units + expanding_units; unit++) {
                leave_weights(take_weights());
            }
            for (uint32_t convolution = 1; convolution <= 3; convolution++) {
                start_item(items_of_team_block * number + convolution);
                note(&StageItemTimes::multiplied);
                end_item();
            }
            return;
        }
        const TeamPasses<Part> needed(rows.num_needed), active(rows.num_active);
        uint32_t first = 0;
        start_item(items_of_team_block * number + 1);
        for (uint32_t pass = 0; pass < needed.all; pass++) {
            const uint32_t count = needed.tiles_of(pass);
            with_tiles(count, [&](auto tiles) { reduce<decltype(tiles)::value>(described, first, count); });
            first += count * 16;
            sync_multipliers();  // The rows are complete, and nobody sends what comes next before all have read.
        }
        end_item();
        first = 0;
        for (uint32_t pass = 0; pass < active.all; pass++) {
            const uint32_t count = active.tiles_of(pass);
            start_item(items_of_team_block * number + 2);
            with_tiles(count, [&](auto tiles) { filter<decltype(tiles)::value>(described, first, count); });
            end_item();
            start_item(items_of_team_block * number + 3);
            with_tiles(count, [&](auto tiles) { expand<decltype(tiles)::value>(described, first, count); });
            first += count * 16;
            sync_multipliers();  // The image is complete, and nobody sends what comes next before all have read.
            end_item();
        }
    }

    // ---- Times -----------------------------------------------------------------------------------

    __device__ void note(uint32_t StageItemTimes::*point) const {
        if (threadIdx.x == 0) {
            times_.note(items_, point);
        }
    }
    __device__ void start_item(uint32_t step) const {
        if (threadIdx.x == 0) {
            times_.note_step(items_, step);
            times_.note(items_, &StageItemTimes::listed);
            times_.note(items_, &StageItemTimes::open);
            times_.note(items_, &StageItemTimes::begun);
        }
    }
    __device__ void end_item() {
        note(&StageItemTimes::stored);
        note(&StageItemTimes::told);
        items_++;
    }

    const TeamProgram &program_;
    const TeamShared<Part> &shared_;
    TeamControl<Part> &control_;
    Exchange exchange_;
    const StageClock times_;
    uint32_t image_ = 0, blocks_ = 0, weights_ = 0, items_ = 0;
};

}  // namespace distile

#endif
