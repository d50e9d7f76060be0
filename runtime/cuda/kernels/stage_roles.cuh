/** \file
 * What the warps of a block of a stage do beside multiplying.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_ROLES_CUH
#define DISTILE_CUDA_KERNELS_STAGE_ROLES_CUH

#include "runtime/cuda/kernels/stage_block.cuh"
#include "runtime/cuda/kernels/stage_pieces.cuh"
#include "runtime/cuda/kernels/stage_queries.cuh"

namespace distile {

__device__ inline StageItems load_acquired(const StageItems *from) {
    StageItems value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ inline uint32_t images_of(StageItems items) {
    return static_cast<uint32_t>(items);
}
__device__ inline uint32_t masks_of(StageItems items) {
    return static_cast<uint32_t>(items >> 32);
}

/** One thread waits until all blocks together have done this many items. It knows that they have done some, and returns
 * how many they have. */
__device__ inline StageItems wait_for_items(const StageItems *done, StageItems items, StageItems found) {
    while (images_of(found) < images_of(items) || masks_of(found) < masks_of(items)) {
        found = load_acquired(done);
    }
    return found;
}

__device__ inline StageItems one_item(const StageStep &step) {
    return step.work == StageWork::Score || step.work == StageWork::Count ? one_item_of_masks : 1;
}

struct TileShape {
    uint32_t rows, columns;
};

/** The tile that should take least time for some rows of a step, each lane having timed one. */
__device__ inline TileShape choose_tile(const StageSettings &settings, const StageStep &step, uint32_t all_rows) {
    constexpr TileShape tiles[] = {
#define DISTILE_ROW(rows, columns) {rows, columns},
        DISTILE_STAGE_TILES(DISTILE_ROW)
#undef DISTILE_ROW
    };
    constexpr uint32_t count = sizeof(tiles) / sizeof(tiles[0]);
    TileShape tile = tiles[0];
#pragma unroll
    for (uint32_t i = 1; i < count; i++) {
        if (lane() == i) {
            tile = tiles[i];
        }
    }
    float clocks = 3e38f;
    // Zeros fill up a last group, and then the last pair.
    const uint32_t pairs = (step.channels + stage_columns_together - 1) / stage_columns_together;
    const bool is_alone = step.channels <= stage_columns;
    const bool fits =
        tile.columns <= (is_alone ? stage_columns : stage_columns_together) || (!is_alone && pairs % 2 == 0);
    if (lane() < count && (settings.tiles >> lane() & 1) != 0 && fits) {
        // Rows and columns are powers of 2.
        const uint32_t slices = (step.channels + tile.columns - 1) >> (__ffs(tile.columns) - 1);
        const uint32_t items = ((all_rows + tile.rows - 1) >> (__ffs(tile.rows) - 1)) * slices;
        const StageCosts &costs = settings.costs;
        const uint32_t waves = divide(items + settings.blocks.value - 1, settings.blocks);
        clocks = waves * (costs.start + padded_reduction(step) * (costs.row * tile.rows + costs.column * tile.columns));
    }
    float least = clocks;
    for (int distance = 4; distance > 0; distance /= 2) {
        least = fminf(least, __shfl_xor_sync(all_lanes, least, distance));
    }
    static_assert(count <= 8, "eight lanes compare their times");
    const uint32_t best = __ffs(__ballot_sync(all_lanes, clocks == least)) - 1;
    return {__shfl_sync(all_lanes, tile.rows, best), __shfl_sync(all_lanes, tile.columns, best)};
}

/** The items of a step that takes each channel by itself which should take least time. */
template<class Element>
__device__ TileShape choose_channels(const StageSettings &settings, const StageStep &step, uint32_t all_rows) {
    const uint32_t slices = (step.channels + step_channels<Element> - 1) / step_channels<Element>;
    const ChannelCosts &costs = settings.channel_costs;
    TileShape best{channel_rows, step_channels<Element>};
    float least = 3e38f;
    const uint32_t first = step.window_work == WindowWork::Weigh ? 1 : least_plain_rows;
#pragma unroll 1
    for (uint32_t of_thread = first; of_thread <= most_channel_rows; of_thread *= 2) {
        const uint32_t rows = of_thread * channel_rows, items = (all_rows + rows - 1) / rows * slices;
        const uint32_t waves = divide(items + settings.blocks.value - 1, settings.blocks);
        const float clocks = waves * (costs.start + of_thread * (costs.pixel + costs.tap * step.reduction));
        if (clocks < least) {
            least = clocks;
            best.rows = rows;
        }
    }
    return best;
}

/** The rows of items of a norm: no more items than blocks, if rows allow it. */
__device__ inline uint32_t choose_norm_rows(const StageSettings &settings, uint32_t all_rows) {
    constexpr uint32_t least = 8, most = 128;
    uint32_t rows = least;
    while (rows < most && all_rows > rows * settings.blocks.value) {
        rows *= 2;
    }
    return rows;
}

/** By how many bits a place is shifted to the left of the elements that it counts, so that three are free. */
template<class Element> constexpr uint32_t place_shift = piece_channels<Element> == 4 ? 1 : 0;

/** Where a step of the reduction reads, from where a window begins, with the pieces that are missing; no_place behind
 * the last one. */
template<class Element> __device__ int32_t place_of(const StageStep &step, uint32_t at) {
    const uint32_t tap = divide(at, step.channel_steps), ky = divide(tap, step.kernel_w);
    const uint32_t channel_step = at - tap * step.channel_steps.value;
    const int32_t kx = tap - ky * step.kernel_w.value, channel = channel_step * step_channels<Element>;
    const int32_t place = (static_cast<int32_t>(ky) * step.down.dilation * step.input.stride_h +
                           kx * step.across.dilation * step.input.stride_w + channel)
                          << place_shift<Element>;
    const int32_t missing = channel_step + 1 == step.channel_steps.value ? step.missing : 0;
    return at < step.reduction ? place | missing : no_place;
}

/** Plans the steps. */
template<class Element> class Planner {
public:
    __device__ Planner(const StageSettings &settings, const StageStep *steps, const Shared &shared)
        : settings_(settings), steps_(steps), block_(shared.block) {
        fetch(0, even_);
        fetch(1, odd_);
    }

    __device__ void run() {
        for (uint32_t number = 0; number < settings_.num_steps; number++) {
            if (number >= planned_steps) {
                wait_for_use(block_.plan_left, number - planned_steps);
                __syncwarp();
            }
            StagePlan &plan = block_.plans[number % planned_steps];
            if (number % 2 == 0) {
                store(even_, plan.step);
                fetch(number + 2, even_);
            } else {
                store(odd_, plan.step);
                fetch(number + 2, odd_);
            }
            plan_step(plan);
            if (lane() == 0) {
                plan.number = number;
                arrive_at_use(block_.planned, number);
            }
        }
    }

private:
    static constexpr uint32_t step_words = sizeof(StageStep) / sizeof(uint32_t), fetched_words = (step_words + 31) / 32;

    /** A few words of a step in each lane. */
    using Fetched = uint32_t[fetched_words];

    /** Loads a step before it is needed. */
    __device__ void fetch(uint32_t number, Fetched &to) const {
        const uint32_t *const from = reinterpret_cast<const uint32_t *>(steps_ + number);
#pragma unroll
        for (uint32_t i = 0; i < fetched_words; i++) {
            const uint32_t word = i * 32 + lane();
            to[i] = number < settings_.num_steps && word < step_words ? __ldcg(from + word) : 0;
        }
    }
    __device__ static void store(const Fetched &from, StageStep &to) {
#pragma unroll
        for (uint32_t i = 0; i < fetched_words; i++) {
            const uint32_t word = i * 32 + lane();
            if (word < step_words) {
                reinterpret_cast<uint32_t *>(&to)[word] = from[i];
            }
        }
        __syncwarp();
    }

    __device__ uint32_t count(const StageStep &step) {
        if (!step.rows.words) {
            return step.batch * step.height.value * step.width.value;
        }
        wait_for_use(block_.prepared, masks_ - 1);
        __syncwarp();
        return MaskedRows(step, block_.kept).count();
    }

    __device__ static void store_tiles(StagePlan &plan, uint32_t rows, const TileShape &tile, uint32_t slices) {
        if (lane() == 0) {
            plan.rows = rows;
            plan.tile_rows = tile.rows;
            plan.tile_columns = tile.columns;
            plan.slices = slices;
        }
    }

    __device__ void plan_step(StagePlan &plan) {
        const StageStep &step = plan.step;
        if (step.starts_level != 0) {
            before_ = items_;
        }
        uint32_t items = 0;
        StageItems plan_before = before_;
        if (step.work == StageWork::Score) {
            const uint32_t bytes = step.batch * step.height.value * step.row_bytes.value;
            const bool few = bytes <= 2 * settings_.blocks.value;  // Then a block shares out a byte's pixels.
            // Where there are many, each warp has several, so that it loads some while it adds up others.
            const uint32_t of_warp = min(max(divide(bytes / multiply_warps, settings_.blocks), 1u), most_scored_bytes);
            const uint32_t of_item = few ? 1 : of_warp * multiply_warps;
            items = (bytes + of_item - 1) / of_item;
            if (lane() == 0) {
                plan.tile_rows = few ? 1 : 8 * of_warp;
            }
        } else if (step.work == StageWork::Count) {
            items = (CountedChunks(step).all() + multiply_warps - 1) / multiply_warps;
            plan_before = items_ >> 32 << 32;  // The masks before.
        } else if (step.work == StageWork::Prepare) {
            items = settings_.blocks.value;
            plan_before = items_ >> 32 << 32;
            masks_++;
        } else if (step.work == StageWork::Normalize) {
            const uint32_t rows = count(step), of_item = choose_norm_rows(settings_, rows);
            items = (rows + of_item - 1) / of_item;
            store_tiles(plan, rows, {of_item, 0}, 1);
        } else if (step.work == StageWork::Attend) {
            const uint32_t rows = count(step);
            const ImageRows images(step, block_.kept);
            const uint32_t of_item = choose_query_rows<Element>(settings_, step, images, rows);
            items = images.count_blocks(of_item) * step.heads;
            store_tiles(plan, rows, {of_item, 0}, step.heads);
        } else {
            // Before the wait for a mask.
            for (uint32_t at = lane(); at < min(padded_reduction(step), listed_places); at += 32) {
                plan.places[at] = place_of<Element>(step, at);
            }
            const uint32_t rows = count(step);
            const TileShape tile = step.work == StageWork::Convolve ? choose_tile(settings_, step, rows)
                                                                    : choose_channels<Element>(settings_, step, rows);
            const uint32_t slices = (step.channels + tile.columns - 1) >> (__ffs(tile.columns) - 1);
            items = ((rows + tile.rows - 1) >> (__ffs(tile.rows) - 1)) * slices;
            store_tiles(plan, rows, tile, slices);
        }
        // The first blocks behind those that had one more item of the steps before have one more now.
        const uint32_t blocks = settings_.blocks.value;
        const uint32_t share = divide(items, settings_.blocks), rest = items - share * blocks;
        const uint32_t rank = blockIdx.x >= turn_ ? blockIdx.x - turn_ : blockIdx.x + blocks - turn_;
        if (lane() == 0) {
            plan.before = plan_before;
            plan.first = rank * share + min(rank, rest);
            plan.end = plan.first + share + (rank < rest ? 1 : 0);
        }
        __syncwarp();
        turn_ += rest;
        turn_ -= turn_ >= blocks ? blocks : 0;
        // Nobody waits for what every block prepares for itself.
        items_ += step.work == StageWork::Prepare ? 0 : items * one_item(step);
    }

    const StageSettings &settings_;
    const StageStep *const steps_;
    StageBlock &block_;
    Fetched even_, odd_;
    StageItems items_ = 0, before_ = 0;
    uint32_t masks_ = 0, turn_ = 0;
};

/** Opens items whose inputs are there. */
__device__ inline void open_items_of(uint32_t num_steps, const StageItems *done, const Shared &shared) {
    StageBlock &block = shared.block;
    uint32_t own = 0, before = 0;
    StageItems found = 0;
    for_each_item<Walker::Warp>(num_steps, block, [&](const StageStep &, const StagePlan &plan, uint32_t) {
        if (own >= open_items) {
            wait_for_use(block.finished, own - open_items);
        }
        // A level waits for the block's own items, too: asking others before these are done would but disturb, because
        // the first-level cache forgets everything each time.
        if (images_of(plan.before) > before) {
            before = images_of(plan.before);
            if (own > 0) {
                wait_for_use(block.finished, own - 1);
            }
        }
        if (lane() == 0) {
            found = wait_for_items(done, plan.before, found);
            arrive_at_use(block.may_start, own);
            shared.clock.note(own, &StageItemTimes::open);
        }
        __syncwarp();
        own++;
    });
}

/** Tells the other blocks about finished items, so that those who multiply need not wait for a fence. One thread. */
__device__ inline void tell_items(uint32_t num_steps, StageItems *done, const Shared &shared) {
    StageBlock &block = shared.block;
    uint32_t own = 0;
    for_each_item<Walker::Thread>(num_steps, block, [&](const StageStep &step, const StagePlan &, uint32_t) {
        wait_for_use(block.finished, own);
        if (step.work != StageWork::Prepare) {
            asm volatile("fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(done),
                         "l"(one_item(step))
                         : "memory");
        }
        arrive_at_use(block.told, own);
        shared.clock.note(own, &StageItemTimes::told);
        own++;
    });
}

/** Fetches weights ahead of all waits. Weights are packed in groups of columns, step by step of the reduction, and a
 * slot has the groups of a tile side by side. */
__device__ inline void fetch_weights(uint32_t num_steps, const Shared &shared) {
    constexpr uint32_t piece = stage_columns * row_bytes;
    constexpr Walker walker = architecture::fetching_threads == 1 ? Walker::Thread : Walker::Warp;
    StageBlock &block = shared.block;
    uint32_t use = 0, read_by_threads = 0;  // Uses up to this one.
    for_each_item<walker>(num_steps, block, [&](const StageStep &step, const StagePlan &plan, uint32_t item) {
        if (step.work != StageWork::Convolve) {
            return;
        }
        const uint32_t reduction = padded_reduction(step), groups = plan.tile_columns / stage_columns;
        const uint32_t steps = weight_slot / (groups * piece);  // Steps of the reduction in a slot.
        const char *const from = step.weights + uint64_t{item % plan.slices} * groups * reduction * piece;
        for (uint32_t begin = 0; begin < reduction; begin += steps, use++) {
            const uint32_t slot = use % weight_slots, barrier = barrier_of(block.weights_full[slot]);
            if (use >= weight_slots) {
                wait_for_use(block.weights_empty, use - weight_slots);
                if (use - weight_slots < read_by_threads) {
                    tc::fence_shared();  // Copies would not wait for what threads have read.
                }
            }
            architecture::begin_weights(barrier, weight_slot);
            const uint32_t to = shared.weights + slot * weight_slot;
            if (groups == 1) {
                architecture::copy_weights(to, from + begin * piece, weight_slot, barrier);
            } else {
                for (uint32_t i = 0; i < steps; i++) {
                    for (uint32_t group = 0; group < groups; group++) {
                        architecture::copy_weights(to + (i * groups + group) * piece,
                                                   from + (group * reduction + begin + i) * piece, piece, barrier);
                    }
                }
            }
            architecture::end_weights(barrier);
        }
        read_by_threads = plan.tile_rows < 64 ? use : read_by_threads;  // In small tiles.
    });
}

/** Lists rows and gathers their pixels. A slot has a step of the reduction for 64 rows, or several for fewer. All warps
 * fill each slot together, so that a thread has few rows, whose places it keeps in registers for all of an item. */
template<class Element, bool tokens> class Gatherer {
public:
    __device__ explicit Gatherer(const Shared &shared)
        : shared_(shared), warp_(threadIdx.x / 32 % gather_warps), row_(threadIdx.x % gather_threads / pieces),
          piece_(threadIdx.x % pieces) {
    }

    __device__ void run(uint32_t num_steps) {
        StageBlock &block = shared_.block;
        for_each_item<Walker::Warp>(num_steps, block, [&](const StageStep &step, const StagePlan &plan, uint32_t item) {
            if (own_items_ >= listed_items) {
                wait_for_use(block.finished, own_items_ - listed_items);
            }
            const bool convolves = step.work == StageWork::Convolve, attends = tokens && step.work == StageWork::Attend;
            QueryBlock queries{};
            if (convolves || (tokens && step.work == StageWork::Normalize)) {
                list<false>(step, plan, item);
            } else if (attends) {
                queries = list_queries(step, plan, item);
            } else if (step.work == StageWork::Channels) {
                list<true>(step, plan, item);
            } else if (step.work == StageWork::Prepare) {
                prepare(step);
            }
            __syncwarp();
            if (lane() == 0) {
                arrive_at_use(block.listed, own_items_);
            }
            if (threadIdx.x % gather_threads == 0) {
                shared_.clock.note_step(own_items_, plan.number);
                shared_.clock.note(own_items_, &StageItemTimes::listed);
            }
            if (convolves && step.missing == 0) {
                gather<true>(plan);
            } else if (convolves) {
                gather<false>(plan);
            } else if (attends) {
                gather_attention(step, plan, queries);
            }
            own_items_++;
        });
    }

private:
    static constexpr uint32_t gather_threads = gather_warps * 32;
    static_assert(gather_threads == sizeof(ItemRows::input) / sizeof(int32_t), "each thread lists a row");
    static constexpr uint32_t pieces = row_bytes / 16, rows_at_once = gather_threads / pieces;
    static constexpr uint32_t warp_rows = 32 / pieces;     ///< A warp's at once.
    static constexpr uint32_t copies = 64 / rows_at_once;  ///< A thread's of a slot.

    __device__ void prepare(const StageStep &step) {
        StageBlock &block = shared_.block;
        wait_for_use(block.may_start, own_items_);
        const auto came = [&] {
            if (threadIdx.x % gather_threads == 0) {
                shared_.clock.note(own_items_, &StageItemTimes::begun);
            }
        };
        prepare_rows<gather_threads>(
            step, block.kept, [] { sync_gatherers(); }, came);
        __syncwarp();
        if (lane() == 0) {
            arrive_at_use(block.prepared, masks_);
        }
        masks_++;
    }

    /** The threads that gather wait for each other. */
    __device__ static void sync_gatherers() {
        __syncwarp();
        tc::sync_threads<gather_threads>(2);
    }

    /** Lists the rows of an item, one in each thread. `by_channel`: the step takes each channel by itself. */
    template<bool by_channel> __device__ void list(const StageStep &step, const StagePlan &plan, uint32_t item) {
        if (step.later) {
            wait_for_use(shared_.block.may_start, own_items_);  // A step of the stage may make that mask.
        }
        ItemRows &rows = shared_.block.rows[own_items_ % listed_items];
        const uint32_t row = threadIdx.x % gather_threads, part = item / plan.slices, slice = item - part * plan.slices;
        const uint32_t column = slice * plan.tile_columns + row;
        const float bias =
            step.bias && row < plan.tile_columns && column < step.channels ? __ldg(step.bias + column) : 0;
        const uint32_t first = part * plan.tile_rows, count = min(plan.tile_rows, plan.rows - first);
        if (!step.rows.words || step.rows.fits != 0) {
            if (row < count) {
                put<by_channel>(step, rows, row,
                                step.rows.words ? MaskedRows(step, shared_.block.kept).find(first + row)
                                                : dense_pixel(step, first + row));
            } else {
                rows.input[row] = rows.output[row] = ItemRows::none;
            }
        } else {
            list_unkept<by_channel>(step, rows, first, count);
        }
        rows.bias[row] = bias;
        if (row == 0) {
            rows.slice = slice;
        }
        sync_gatherers();
    }

    /** Lists rows of a mask whose words are not kept, 32 in each warp. */
    template<bool by_channel>
    __device__ void list_unkept(const StageStep &step, ItemRows &rows, uint32_t first, uint32_t count) const {
        const uint32_t begin = warp_ * 32;
        rows.input[begin + lane()] = rows.output[begin + lane()] = ItemRows::none;
        __syncwarp();
        if (begin < count) {
            MaskedRows(step, shared_.block.kept)
                .visit(first + begin, min(32u, count - begin),
                       [&](uint32_t row, const StagePixel &pixel) { put<by_channel>(step, rows, row - first, pixel); });
        }
    }

    /** The first position along an axis that the window of an output reads. */
    template<bool by_channel>
    __device__ static int32_t begin_of(const StageStep &step, const StageWindow &window, int32_t output) {
        if (by_channel && step.window_work == WindowWork::Repeat) {
            return static_cast<int32_t>(static_cast<uint32_t>(output) / static_cast<uint32_t>(window.stride));
        }
        return output * window.stride - window.pad;
    }

    template<bool by_channel>
    __device__ static void put(const StageStep &step, ItemRows &rows, uint32_t row, const StagePixel &pixel) {
        // Nothing is stored before the last is found: the compiler would read the step again.
        const int32_t input = pixel.image * step.input.stride_n +
                              begin_of<by_channel>(step, step.down, pixel.y) * step.input.stride_h +
                              begin_of<by_channel>(step, step.across, pixel.x) * step.input.stride_w;
        const int32_t output =
            (pixel.image * step.output.stride_n + pixel.y * step.output.stride_h + pixel.x * step.output.stride_w) |
            (is_later(step, pixel) ? keeps_sums : 0);
        const int32_t residual =
            pixel.image * step.residual.stride_n + pixel.y * step.residual.stride_h + pixel.x * step.residual.stride_w;
        rows.input[row] = input;
        rows.output[row] = output;
        rows.residual[row] = residual;
    }

    __device__ static bool is_later(const StageStep &step, const StagePixel &pixel) {
        if (!step.later) {
            return false;
        }
        const uint32_t line = pixel.image * step.height.value + pixel.y;
        return (__ldcg(step.later + line * step.words_per_row.value + pixel.x / 32) >> pixel.x % 32 & 1) != 0;
    }

    /** Lists the queries of an item, one in each thread. */
    __device__ QueryBlock list_queries(const StageStep &step, const StagePlan &plan, uint32_t item) {
        ItemRows &rows = shared_.block.rows[own_items_ % listed_items];
        const ImageRows images(step, shared_.block.kept);
        const uint32_t part = item / plan.slices, row = threadIdx.x % gather_threads;
        const QueryBlock block = images.find_block(part, plan.tile_rows);
        if (row < block.count) {
            put<false>(step, rows, row, images.query(block, block.first + row));
        } else {
            rows.input[row] = rows.output[row] = ItemRows::none;
        }
        if (row == 0) {
            rows.slice = item - part * plan.slices;
            rows.keys = images.count_keys(block);
        }
        sync_gatherers();
        return block;
    }

    /** Gathers queries, and then keys and values in turns. A slot has a step's channels of 64 of them. */
    __device__ void gather_attention(const StageStep &step, const StagePlan &plan, const QueryBlock &block) {
        const ItemRows &rows = shared_.block.rows[own_items_ % listed_items];
        const ImageRows images(step, shared_.block.kept);
        const uint32_t keys = images.count_keys(block), slots = head_slots<Element>(step);
        // Each of these lanes finds the place of a row that its warp copies.
        const bool finds = lane() < warp_rows * copies;
        const uint32_t own_row = lane() / warp_rows * rows_at_once + warp_ * warp_rows + lane() % warp_rows;
        const auto place_of_key = [&](uint32_t begin) {
            const uint32_t key = begin + own_row;
            return finds && key < keys ? place_in(step.residual, images.key(block, key)) : ItemRows::none;
        };
        const auto fill = [&](const char *tensor, int32_t place) {
#pragma unroll 1
            for (uint32_t slot = 0; slot < slots; slot++) {
                const uint32_t channel = slot * step_channels<Element> + piece_ * piece_channels<Element>;
                fill_slot(tensor + (rows.slice * step.head_channels + channel) * element_bytes<Element>, place,
                          channel < step.head_channels);
            }
        };
        int32_t place = place_of_key(0);  // Found before what the steps before make.
        wait_for_use(shared_.block.may_start, own_items_);
        const uint32_t parts = query_slots(plan.tile_rows);
#pragma unroll 1
        for (uint32_t part = 0; part < parts; part++) {
            fill(step.input.data, finds ? rows.input[part * keys_at_once + own_row] : ItemRows::none);
        }
#pragma unroll 1
        for (uint32_t begin = 0; begin < keys;) {
            fill(step.residual.data, place);
            fill(step.weights, place);
            begin += keys_at_once;
            place = place_of_key(begin);
        }
    }

    __device__ static int32_t place_in(const StageView &view, const StagePixel &pixel) {
        return pixel.image * view.stride_n + pixel.y * view.stride_h + pixel.x * view.stride_w;
    }

    /** Fills a slot with the warp's pieces of 64 rows, whose places lanes know; with zeros for those that do not exist.
     */
    __device__ void fill_slot(const char *data, int32_t place, bool exists) {
        StageBlock &block = shared_.block;
        const uint32_t slot = use_ % pixel_slots;
        if (use_ >= pixel_slots) {
            wait_for_use(block.pixels_empty, use_ - pixel_slots);
        }
        __syncwarp();
        const uint32_t to = shared_.pixels + slot * pixel_slot + row_ * row_bytes + (piece_ ^ row_ % 8) * 16;
#pragma unroll
        for (uint32_t i = 0; i < copies; i++) {
            const int32_t begins = __shfl_sync(all_lanes, place, static_cast<int>(i * warp_rows + row_ % warp_rows));
            const bool copied = exists && begins != ItemRows::none;
            tc::copy_or_zero(to + i * rows_at_once * row_bytes,
                             copied ? data + int64_t{begins} * element_bytes<Element> : data, copied);
        }
        tc::arrive_after_copies(barrier_of(block.pixels_full[slot]));
        use_++;
    }

    /** `whole`: no piece of a step is missing. */
    template<bool whole> __device__ void gather(const StagePlan &plan) {
        switch (plan.tile_rows) {
        case 16:
            fill_slots<whole, 4, 1>(plan);
            break;
        case 32:
            fill_slots<whole, 2, 1>(plan);
            break;
        case 64:
            fill_slots<whole, 1, 1>(plan);
            break;
        default:
            fill_slots<whole, 1, 2>(plan);
        }
    }

    /** A slot has `steps` steps of the reduction, and each step `halves` slots. */
    template<bool whole, uint32_t steps, uint32_t halves> __device__ void fill_slots(const StagePlan &plan) {
        StageBlock &block = shared_.block;
        constexpr uint32_t rows = 64 / steps, of_step = copies / steps;
        const int32_t *const input = block.rows[own_items_ % listed_items].input;
        int32_t begins[halves][of_step];
#pragma unroll
        for (uint32_t half = 0; half < halves; half++) {
#pragma unroll
            for (uint32_t i = 0; i < of_step; i++) {
                const int32_t begin = input[half * rows + i * rows_at_once + row_];
                begins[half][i] =
                    begin == ItemRows::none ? no_place : begin + static_cast<int32_t>(piece_ * piece_channels<Element>);
            }
        }
        const StageStep &step = plan.step;
        const char *const data = step.input.data;
        const uint32_t reduction = padded_reduction(step),
                       to = shared_.pixels + row_ * row_bytes + (piece_ ^ row_ % 8) * 16;
        wait_for_use(block.may_start, own_items_);
#pragma unroll 1
        for (uint32_t begin = 0; begin < reduction; begin += steps) {
            int32_t places[steps];
#pragma unroll
            for (uint32_t i = 0; i < steps; i++) {
                places[i] = begin + i < listed_places ? plan.places[begin + i] : place_of<Element>(step, begin + i);
            }
#pragma unroll
            for (uint32_t half = 0; half < halves; half++, use_++) {
                const uint32_t slot = use_ % pixel_slots;
                if (use_ >= pixel_slots) {
                    wait_for_use(block.pixels_empty, use_ - pixel_slots);
                }
#pragma unroll
                for (uint32_t i = 0; i < copies; i++) {
                    copy_piece<whole>(to + slot * pixel_slot + i * rows_at_once * row_bytes, data,
                                      begins[half][i % of_step], places[i / of_step]);
                }
                tc::arrive_after_copies(barrier_of(block.pixels_full[slot]));
            }
        }
    }

    /** Copies a piece of the pixel that begins somewhere, of the step of the reduction at a place. */
    template<bool whole>
    __device__ void copy_piece(uint32_t to, const char *data, int32_t begins, int32_t place) const {
        if (begins == no_place) {
            return;
        }
        const bool exists =
            place != no_place && (whole || piece_ + static_cast<uint32_t>(place & missing_pieces) < pieces);
        const int32_t from =
            exists ? begins + ((whole ? place : place & ~missing_pieces) >> place_shift<Element>) : begins;
        tc::copy_or_zero(to, data + int64_t{from} * element_bytes<Element>, exists);
    }

    const Shared &shared_;
    const uint32_t warp_, row_, piece_;
    uint32_t use_ = 0, own_items_ = 0, masks_ = 0;
};

}  // namespace distile

#endif
