/** \file
 * Products with the nonzero weights alone (distile_nonzero_weights in dot_products.h).
 *
 * A block of pixels is staged with its channels outermost, in words of 32 bits, so that a weight multiplies vectors of
 * pixels: the sums of an output channel stay in registers, one vector of them for each vector of pixels. What is staged
 * are the channels of one chunk, which the nearest cache holds. An instruction set is a class `Isa`:
 *
 *     static constexpr int32_t lanes;       // Pixels of a vector.
 *     static constexpr int32_t most_rows;   // The most vectors of a block, whose sums fit the registers.
 *     // Output channels that share columns: those that are multiplied at a time, and the vectors of their sums.
 *     static constexpr int32_t most_shared, shared_sums;
 *
 * What differs between types is a class `Numbers`, FloatNumbers below or QuadNumbers in quad_nonzeros.h:
 *
 *     using Types = ...;                                // As in product.h.
 *     static constexpr int32_t word_channels;           // Input channels of a staged word, and of a weight.
 *     static constexpr bool stores_words;               // Types may narrow four sums to a word, as Int8 does.
 *     using Products = ...;                             // How weights are multiplied, for an `Isa`:
 *         // A vector of sums, and a weight in all lanes.
 *         using Total = ..., Weight = ...;
 *         static void clear(Total &), load(const float *, Total &), store(const Total &, float *);
 *         static void spread(const float *word, Weight &weight);
 *         static void add(Total &total, const float *pixels, const Weight &weight);
 *     // Stages `count` channels from `first` on of the pixels of a vector; what counts as 0 for pixels that are null.
 *     // Words are `distance` apart; `room` holds 16 words for each pixel.
 *     void stage(const Types &types, const Element *const *pixels, int32_t first, int32_t count, float *room,
 *                float *to, int64_t distance) const;
 *
 * Words are declared as float, whatever they hold: they are only copied.
 */
#ifndef DISTILE_DOT_PRODUCT_NONZEROS_H
#define DISTILE_DOT_PRODUCT_NONZEROS_H

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/float16.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/transpose.h"
#include <utility>

namespace distile::dot_product {

/** The packed weights of a call. */
class NonzeroWeights {
public:
    explicit NonzeroWeights(const distile_array &array) : words_(static_cast<const char *>(array.data)) {
        std::memcpy(&header_, words_, sizeof(header_));
    }
    const distile_nonzero_weights &header() const {
        return header_;
    }
    /** The nonzeros of a block of output channels in a chunk. */
    struct Part {
        const uint32_t *rows, *end_of_rows;
        const uint16_t *columns;
        const float *values;
    };
    Part part(int32_t chunk, int32_t block) const {
        const int32_t *const begin = at<int32_t>(header_.parts) + 3 * (int64_t{chunk} * header_.blocks + block);
        const auto *const rows = at<uint32_t>(header_.rows);
        return {rows + begin[0], rows + begin[3], at<uint16_t>(header_.columns) + begin[1],
                at<float>(header_.values) + begin[2]};
    }

private:
    template<typename Number> const Number *at(int32_t word) const {
        return reinterpret_cast<const Number *>(words_ + int64_t{word} * 4);
    }

    const char *words_;
    distile_nonzero_weights header_;
};

/** Products in float32. */
template<class Isa> struct FloatProducts {
    using Total = typename FloatVector<Isa::lanes>::Type;
    using Weight = Total;

    static void clear(Total &total) {
        total = Total{};
    }
    static void load(const float *from, Total &total) {
        total = *reinterpret_cast<const Total *>(from);
    }
    static void store(const Total &total, float *to) {
        *reinterpret_cast<Total *>(to) = total;
    }
    static void spread(const float *word, Weight &weight) {
        weight = *word - Weight{};
    }
    static void add(Total &total, const float *pixels, const Weight &weight) {
        total += weight * *reinterpret_cast<const Total *>(pixels);
    }
};

/** Numbers of floating-point types, which are multiplied in float32. `Format` as in float_types.h. */
template<class Isa, class Format> class FloatNumbers {
public:
    using Types = FloatTypes<Isa, Format>;
    using Element = typename Format::Element;
    using Products = FloatProducts<Isa>;
    static constexpr int32_t word_channels = 1;
    static constexpr bool stores_words = false;

    explicit FloatNumbers(const Types & /*types*/) {
    }

    void stage(const Types & /*types*/, const Element *const *pixels, int32_t first, int32_t count, float *room,
               float *to, int64_t distance) const {
        int32_t c = 0;
        if constexpr (sizeof(Element) == sizeof(float)) {
            alignas(64) static constexpr float zeros[lanes] = {};
            const float *read[lanes];
            for (; count - c >= lanes; c += lanes) {
                for (int32_t i = 0; i < lanes; i++) {
                    read[i] = pixels[i] ? pixels[i] + first + c : zeros;
                }
                Transpose<Isa, lanes>::run(read, to + c * distance, distance);
            }
        }
        // Converted first, or up to a part of a vector.
        for (; c < count; c += vector_channels) {
            const int32_t some = count - c < vector_channels ? count - c : vector_channels;
            for (int64_t i = 0; i < lanes; i++) {
                typename Format::Stored stored{};
                if (pixels[i]) {
                    Epilogue<Isa>::template copy_channels<Element>(&stored, pixels[i] + first + c, some);
                }
                typename Epilogue<Isa>::Floats values;
                Format::widen(stored, values);
                std::memcpy(room + i * vector_channels, &values, sizeof(values));
            }
            for (int32_t part = 0; part < some; part += lanes) {
                const float *read[lanes];
                for (int64_t i = 0; i < lanes; i++) {
                    read[i] = room + i * vector_channels + part;
                }
                Transpose<Isa, lanes>::run(read, to + (c + part) * distance, distance);
            }
        }
    }

private:
    static constexpr int32_t lanes = Isa::lanes;
};

/** Multiplies a staged block of `Vectors` vectors. Where it is a window, a vector begins `distance` words behind the
 * one before; otherwise they follow each other. */
template<class Isa, class Products, int Vectors, bool Window> class NonzeroCode {
public:
    /** Sums are [output channel][vector]. */
    static void run(const NonzeroWeights::Part &part, const float *staged, int64_t distance, float *sums) {
        const uint16_t *columns = part.columns;
        const float *values = part.values;
        for (const uint32_t *row = part.rows; row != part.end_of_rows;) {
            const Entry entry = {row, columns, values, staged, Window ? distance : Isa::lanes};
            const int32_t channels = entry.channels();
            if (channels == 1) {
                multiply<1, 1, 0, Vectors>(entry, 0, sums);
            } else if (channels == 2) {
                multiply_shared<2>(entry, sums);
            } else {
                multiply_shared<4>(entry, sums);
            }
            row += channels;
            columns += entry.count();
            values += int64_t{entry.count()} * channels;
        }
    }

private:
    static constexpr int64_t lanes = Isa::lanes, column = Window ? lanes : lanes * Vectors;

    /** Output channels that share columns, and what they multiply. */
    struct Entry {
        const uint32_t *row;
        const uint16_t *columns;
        const float *values;
        const float *staged;
        int64_t step;  ///< From a vector to the next.

        int32_t channels() const {
            return static_cast<int32_t>(*row >> 8 & 0x7f);
        }
        bool adds() const {
            return (*row & 0x8000) != 0;
        }
        int32_t count() const {
            return static_cast<int32_t>(*row >> 16);
        }
    };

    /** Some channels after the other. */
    template<int Shared> [[gnu::always_inline]] static void multiply_shared(const Entry &entry, float *sums) {
        constexpr int channels = Shared < Isa::most_shared ? Shared : Isa::most_shared;
#pragma GCC unroll 1
        for (int first = 0; first < Shared; first += channels) {
            multiply_vectors<Shared, channels, 0>(entry, first, sums);
        }
    }

    /** The vectors from `First` on, as many at a time as the registers hold. */
    template<int Shared, int Channels, int First>
    [[gnu::always_inline]] static void multiply_vectors(const Entry &entry, int first_channel, float *sums) {
        constexpr int most = Isa::shared_sums / Channels, times = (Vectors + most - 1) / most,
                      each = (Vectors + times - 1) / times, some = Vectors - First < each ? Vectors - First : each;
        multiply<Shared, Channels, First, some>(entry, first_channel, sums);
        if constexpr (First + some < Vectors) {
            multiply_vectors<Shared, Channels, First + some>(entry, first_channel, sums);
        }
    }

    /** `Count` vectors from `First` on, of some of the channels that share columns. What is loaded of the pixels
     * multiplies the weights of all. */
    template<int Shared, int Channels, int First, int Count>
    // NOLINTNEXTLINE(readability-non-const-parameter): sums are written through other pointers.
    [[gnu::always_inline]] static void multiply(const Entry &entry, int first_channel, float *sums) {
        typename Products::Total totals[Channels][Count];
        float *of_channel[Channels];
#pragma GCC unroll 4
        for (int c = 0; c < Channels; c++) {
            of_channel[c] = sums + (int64_t{entry.row[first_channel + c] & 0xff} * Vectors + First) * lanes;
#pragma GCC unroll 16
            for (int v = 0; v < Count; v++) {
                Products::clear(totals[c][v]);
            }
        }
        if (entry.adds()) {
#pragma GCC unroll 4
            for (int c = 0; c < Channels; c++) {
#pragma GCC unroll 16
                for (int v = 0; v < Count; v++) {
                    Products::load(of_channel[c] + v * lanes, totals[c][v]);
                }
            }
        }
        const uint16_t *columns = entry.columns;
        const float *values = entry.values + first_channel;
        const float *const end = values + int64_t{entry.count()} * Shared;
        const float *const staged = entry.staged + First * entry.step;
#pragma GCC unroll 1
        for (; values != end; values += Shared, columns++) {
            const float *const pixels = staged + *columns * column;
            typename Products::Weight weights[Channels];
#pragma GCC unroll 4
            for (int c = 0; c < Channels; c++) {
                Products::spread(values + c, weights[c]);
            }
#pragma GCC unroll 16
            for (int v = 0; v < Count; v++) {
#pragma GCC unroll 4
                for (int c = 0; c < Channels; c++) {
                    Products::add(totals[c][v], pixels + v * entry.step, weights[c]);
                }
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < Channels; c++) {
#pragma GCC unroll 16
            for (int v = 0; v < Count; v++) {
                Products::store(totals[c][v], of_channel[c] + v * lanes);
            }
        }
    }
};

/** The code for each number of vectors. */
template<class Isa, class Products, bool Window> struct NonzeroCodes {
    using Code = void (*)(const NonzeroWeights::Part &, const float *, int64_t, float *);

    static Code find(int32_t vectors) {
        return find(vectors, std::make_integer_sequence<int, Isa::most_rows>());
    }

private:
    template<int... Indices> static Code find(int32_t vectors, std::integer_sequence<int, Indices...>) {
        static constexpr Code codes[] = {NonzeroCode<Isa, Products, Indices + 1, Window>::run...};
        return codes[vectors - 1];
    }
};

/** Computes a call. */
template<class Isa, class Numbers> class NonzeroProduct {
public:
    NonzeroProduct(const distile_dot_product_code &code, const distile_kernel_call &call)
        : code_(code), call_(call), types_(code, call), numbers_(types_), weights_(call.operands[1]),
          input_(call.operands[0]), out_channels_(call.operands[call.num_operands - 1].dim[Channel].extent),
          vectors_(code.block_pixels / lanes),
          is_window_(code.tile_w == lanes && code.tile_h == vectors_ && code.rows->step == 1) {
        phase_.rows = code.rows[0];
        phase_.columns = code.columns[0];
        set_tasks(weights_.header().blocks);
    }

    /** The return value is that of a distile_kernel_function. */
    int run() {
        call_.hooks->parallel_for(
            call_.hooks,
            [](void *closure, int32_t index) {
                auto &product = *static_cast<NonzeroProduct *>(closure);
                product.compute(index / product.splits_, index % product.splits_);
            },
            this, parts_ * splits_);
        return out_of_memory_ ? DISTILE_CALL_OUT_OF_MEMORY : 0;
    }

private:
    using Types = typename Numbers::Types;
    using Element = typename Types::Element;
    using Vector = typename Activation<Isa>::Floats;
    static_assert(Isa::lanes == register_lanes);
    static constexpr int32_t lanes = Isa::lanes, block_channels = DISTILE_NONZERO_BLOCK;

    static int32_t least(int32_t a, int32_t b) {
        return a < b ? a : b;
    }
    static int32_t most(int32_t a, int32_t b) {
        return a > b ? a : b;
    }
    static int32_t divide_up(int32_t a, int32_t b) {
        return static_cast<int32_t>((int64_t{a} + b - 1) / b);
    }
    static int32_t begin_of(int32_t part, int32_t parts, int32_t count) {
        return static_cast<int32_t>(int64_t{count} * part / parts);
    }

    /** Cuts the call into parts of its tiles and, if these are few, of its blocks of output channels. */
    void set_tasks(int32_t blocks) {
        // Several parts for each thread, because some have fewer pixels.
        constexpr int32_t parts_of_thread = 4;
        const int32_t wanted = parts_of_thread * call_.threads;
        if (!is_window_) {
            const int32_t tile_pixels = code_.tile_h * code_.tile_w,
                          pixels = static_cast<int32_t>(int64_t{call_.num_tiles} * tile_pixels);
            int32_t unit = code_.block_pixels;
            if (divide_up(pixels, unit) < wanted) {
                // All threads have as many pixels.
                const int32_t rounds = divide_up(divide_up(pixels, unit), call_.threads);
                unit = divide_up(divide_up(pixels, rounds * call_.threads), lanes) * lanes;
            }
            unit_ = divide_up(unit, tile_pixels);
        }
        const int32_t units = divide_up(call_.num_tiles, unit_);
        parts_ = least(units, wanted);
        splits_ =
            least(blocks, most(code_.channel_splits, call_.threads > 1 ? divide_up(2 * call_.threads, units) : 1));
    }

    /** The memory of a task. Each of its arrays has a multiple of 64 bytes. */
    struct Task {
        float *staged;
        float *sums;     ///< [block of output channels][output channel][pixel].
        float *results;  ///< A block of them: [active pixel][output channel], and a pixel for all others.
        float *widened;  ///< 16 words of the pixels of a vector.
        Row *rows;
        const Element **read;  ///< What each staged vector reads: [vector][lane]; null beyond the input.
        int32_t *places;       ///< Where each pixel is in the results.
        int32_t first_block, last_block;
    };

    int32_t columns() const {
        return phase_.columns.taps * weights_.header().channels;
    }
    /** Rows of the input that a window reads. */
    int32_t window_rows() const {
        return (vectors_ - 1) * code_.stride_h + phase_.rows.taps;
    }

    void compute(int32_t part, int32_t split) {
        const int32_t units = divide_up(call_.num_tiles, unit_), pixels = vectors_ * lanes,
                      blocks = weights_.header().blocks;
        Task task{};
        task.first_block = begin_of(split, splits_, blocks);
        task.last_block = begin_of(split + 1, splits_, blocks);
        const int64_t staged = int64_t{columns()} * (is_window_ ? window_rows() * lanes : phase_.rows.taps * pixels),
                      sums = int64_t{task.last_block - task.first_block} * block_channels * pixels,
                      results = int64_t{pixels + 1} * block_channels, widened = int64_t{lanes} * vector_channels;
        const size_t row_bytes = sizeof(Row) * pixels, place_bytes = sizeof(int32_t) * pixels,
                     read_bytes = staged / weights_.header().channels * sizeof(const Element *);
        void *const memory = call_.hooks->allocate(call_.hooks, (staged + sums + results + widened) * sizeof(float) +
                                                                    row_bytes + read_bytes + place_bytes);
        if (!memory) {
            __atomic_store_n(&out_of_memory_, true, __ATOMIC_RELAXED);
            return;
        }
        task.staged = static_cast<float *>(memory);
        task.sums = task.staged + staged;
        task.results = task.sums + sums;
        task.widened = task.results + results;
        task.rows = reinterpret_cast<Row *>(task.widened + widened);
        task.read = reinterpret_cast<const Element **>(reinterpret_cast<char *>(task.rows) + row_bytes);
        task.places = reinterpret_cast<int32_t *>(reinterpret_cast<char *>(task.read) + read_bytes);
        const int32_t first = least(begin_of(part, parts_, units) * unit_, call_.num_tiles),
                      last = least(begin_of(part + 1, parts_, units) * unit_, call_.num_tiles);
        if (is_window_) {
            for (int32_t tile = first; tile < last; tile++) {
                compute_window(task, tile);
            }
        } else {
            Rows<Types> source(code_, call_, types_, first, last);
            while (const int32_t count = source.take(phase_, task.rows, pixels)) {
                for (int32_t i = 0; i < count; i++) {
                    task.places[i] = i;
                }
                compute_pixels(task, source, count);
            }
        }
        call_.hooks->deallocate(call_.hooks, memory);
    }

    /** Pixels that lie anywhere. What each of their taps reads is staged. */
    void compute_pixels(const Task &task, const Rows<Types> &source, int32_t count) const {
        const int32_t vectors = divide_up(count, lanes), pixels = vectors * lanes;
        for (int32_t i = count; i < pixels; i++) {
            task.places[i] = count;
        }
        const int32_t taps = phase_.rows.taps * phase_.columns.taps;
        for (int32_t tap = 0; tap < taps; tap++) {
            const int32_t down = tap / phase_.columns.taps * phase_.rows.step,
                          right = tap % phase_.columns.taps * phase_.columns.step;
            for (int32_t i = 0; i < pixels; i++) {
                task.read[tap * pixels + i] = i < count ? source.pixel(task.rows[i], down, right) : nullptr;
            }
        }
        for (int32_t chunk = 0; chunk < weights_.header().chunks; chunk++) {
            for (int32_t tap = 0; tap < taps; tap++) {
                float *const to = task.staged + int64_t{tap} * weights_.header().channels * pixels;
                for (int32_t first = 0; first < pixels; first += lanes) {
                    stage(task, task.read + tap * pixels + first, chunk, to + first, pixels);
                }
            }
            multiply<false>(task, chunk, vectors);
        }
        store(task, count, vectors);
    }

    /** The pixels of a tile that lie side by side. Rows of the input are staged once for all taps above each other. */
    void compute_window(const Task &task, int32_t tile) const {
        Rows<Types> source(code_, call_, types_, tile, tile + 1);
        const int32_t pixels = vectors_ * lanes, count = source.take(phase_, task.rows, pixels);
        if (count == 0) {
            return;
        }
        const auto x = static_cast<int32_t>(call_.tile_xy[tile] & 0xffff),
                   y = static_cast<int32_t>(call_.tile_xy[tile] >> 16);
        for (int32_t i = 0; i < pixels; i++) {
            task.places[i] = count;
        }
        for (int32_t i = 0; i < count; i++) {
            const Row &row = task.rows[i];
            task.places[((row.y - phase_.rows.first) / code_.stride_h - y) * lanes +
                        (row.x - phase_.columns.first) / code_.stride_w - x] = i;
        }
        // The row of the tile's first pixel, whether or not it is active.
        const int32_t down = y * code_.stride_h + phase_.rows.first - task.rows[0].y,
                      right = x * code_.stride_w + phase_.columns.first - task.rows[0].x;
        // Staged as [row][tap of the row][channel][pixel].
        const int32_t taps = phase_.columns.taps, vectors = window_rows() * taps;
        for (int32_t v = 0; v < vectors; v++) {
            for (int32_t i = 0; i < lanes; i++) {
                task.read[v * lanes + i] = source.pixel(task.rows[0], down + v / taps,
                                                        right + i * code_.stride_w + v % taps * phase_.columns.step);
            }
        }
        for (int32_t chunk = 0; chunk < weights_.header().chunks; chunk++) {
            for (int32_t v = 0; v < vectors; v++) {
                stage(task, task.read + v * lanes, chunk, task.staged + int64_t{v} * weights_.header().channels * lanes,
                      lanes);
            }
            multiply<true>(task, chunk, vectors_);
        }
        store(task, count, vectors_);
    }

    /** Stages a chunk's channels of a vector of pixels, words `distance` apart. */
    void stage(const Task &task, const Element *const *pixels, int32_t chunk, float *to, int64_t distance) const {
        const int32_t channels = weights_.header().channels * Numbers::word_channels, first = chunk * channels;
        numbers_.stage(types_, pixels, first, least(channels, input_.dim[Channel].extent - first), task.widened, to,
                       distance);
    }

    template<bool Window> void multiply(const Task &task, int32_t chunk, int32_t vectors) const {
        const auto code = NonzeroCodes<Isa, typename Numbers::Products, Window>::find(vectors);
        const int64_t distance = int64_t{columns()} * lanes * code_.stride_h;
        float *sums = task.sums;
        for (int32_t block = task.first_block; block < task.last_block; block++) {
            code(weights_.part(chunk, block), task.staged, distance, sums);
            sums += int64_t{block_channels} * vectors * lanes;
        }
    }

    /** Stores the sums of all active pixels. */
    void store(const Task &task, int32_t count, int32_t vectors) const {
        const float *sums = task.sums;
        for (int32_t block = task.first_block; block < task.last_block; block++) {
            ChannelBlock channels{};
            channels.first = channels.place = block * block_channels;
            channels.count = least(block_channels, out_channels_ - channels.first);
            channels.vectors = divide_up(channels.count, vector_channels);
            channels.padded = channels.vectors * vector_channels;
            store_block({task, count, vectors, sums, channels});
            sums += int64_t{block_channels} * vectors * lanes;
        }
    }

    /** The sums of a block of output channels. */
    struct Block {
        const Task &task;
        int32_t count, vectors;  ///< Active pixels, and vectors of pixels.
        const float *sums;
        const ChannelBlock &channels;

        /** Gets `lanes` channels of each pixel of a vector. */
        [[gnu::always_inline]] void turn(int32_t channel, int32_t vector, Vector (&turned)[lanes]) const {
            const float *read[lanes];
            for (int32_t i = 0; i < lanes; i++) {
                read[i] = sums + (int64_t{channel + i} * vectors + vector) * lanes;
            }
            Transpose<Isa, lanes>::run(read, turned);
        }
    };

    void store_block(const Block &block) const {
        if constexpr (sizeof(Element) == sizeof(float)) {
            store_floats(block);
            return;
        } else if constexpr (Numbers::stores_words) {
            if (types_.narrows_sums()) {
                store_words(block);
                return;
            }
        }
        turn(block);
        types_.store(phase_, block.task.rows, block.count,
                     reinterpret_cast<const typename Types::Sum *>(block.task.results), block.channels);
    }

    /** Stores bytes, which are turned four at a time. */
    void store_words(const Block &block) const {
        constexpr int32_t turned_channels = 4 * lanes;
        auto *const output = static_cast<uint8_t *>(call_.operands[call_.num_operands - 1].data) + block.channels.first;
        const int64_t distance = int64_t{block.vectors} * lanes;
        for (int32_t c = 0; c < block.channels.count; c += turned_channels) {
            const int32_t some = least(turned_channels, block.channels.count - c), quads = divide_up(some, 4);
            alignas(64) float words[lanes * lanes];
            std::memset(words, 0, sizeof(words));
            const float *read[lanes];
            for (int32_t q = 0; q < lanes; q++) {
                read[q] = words + q * lanes;
            }
            for (int32_t v = 0; v < block.vectors; v++) {
                for (int32_t q = 0; q < quads; q++) {
                    const float *const sums = block.sums + (c + 4 * q) * distance + int64_t{v} * lanes;
                    types_.narrow(reinterpret_cast<const typename Types::Sum *>(sums), distance,
                                  block.channels.place + c + 4 * q, reinterpret_cast<uint32_t *>(words + q * lanes));
                }
                Vector turned[lanes];
                Transpose<Isa, lanes>::run(read, turned);
                ShortCopy<Types>::with(some, 0, [&](const auto &copy_one) {
                    for (int32_t i = 0; i < lanes; i++) {
                        const int32_t place = block.task.places[v * lanes + i];
                        if (place != block.count) {
                            copy_one(reinterpret_cast<const uint8_t *>(&turned[i]),
                                     output + block.task.rows[place].output + c);
                        }
                    }
                });
            }
        }
    }

    /** Makes results of sums, as [active pixel][output channel]. */
    void turn(const Block &block) const {
        for (int32_t c = 0; c < block.channels.padded; c += lanes) {
            for (int32_t v = 0; v < block.vectors; v++) {
                Vector turned[lanes];
                block.turn(c, v, turned);
                for (int32_t i = 0; i < lanes; i++) {
                    std::memcpy(block.task.results + int64_t{block.task.places[v * lanes + i]} * block.channels.padded +
                                    c,
                                &turned[i], sizeof(turned[i]));
                }
            }
        }
    }

    /** Stores float32 as it is turned. */
    void store_floats(const Block &block) const {
        switch (code_.epilogue) {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        return store_activated<DISTILE_ACTIVATION_##NAME>(block);
            DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
        }
    }
    template<distile_activation Kind> [[gnu::noinline]] void store_activated(const Block &block) const {
        const auto *const bias = static_cast<const float *>(call_.operands[2].data) + block.channels.place;
        const bool adds = call_.num_operands == 5;
        const auto *const residual = static_cast<const float *>(call_.operands[3].data) + block.channels.first;
        auto *const output = static_cast<float *>(call_.operands[call_.num_operands - 1].data) + block.channels.first;
        for (int32_t v = 0; v < block.vectors; v++) {
            // A pixel's channels follow each other: pixels may be so far apart that a cache keeps few of them.
            float *to[lanes];
            const float *added[lanes];
            bool are_active = true;
            for (int32_t i = 0; i < lanes; i++) {
                const int32_t place = block.task.places[v * lanes + i];
                const bool is_active = place != block.count;
                to[i] = is_active ? output + block.task.rows[place].output : nullptr;
                added[i] = is_active && adds ? residual + block.task.rows[place].residual : nullptr;
                are_active = are_active && is_active;
            }
            for (int32_t c = 0; c < block.channels.count; c += lanes) {
                Vector biases, turned[lanes];
                std::memcpy(&biases, bias + c, sizeof(biases));
                block.turn(c, v, turned);
                if (are_active && !adds && block.channels.count - c >= lanes) {
#pragma GCC unroll 1
                    for (int32_t i = 0; i < lanes; i++) {
                        Vector value = turned[i] + biases;
                        Activation<Isa>::template activate<Kind>(value, call_.slope);
                        std::memcpy(to[i] + c, &value, sizeof(value));
                    }
                    continue;
                }
                const int32_t some = least(lanes, block.channels.count - c);
#pragma GCC unroll 1
                for (int32_t i = 0; i < lanes; i++) {
                    if (!to[i]) {
                        continue;
                    }
                    Vector value = turned[i] + biases;
                    if (adds) {
                        Vector more{};
                        copy(&more, added[i] + c, some);
                        value += more;
                    }
                    Activation<Isa>::template activate<Kind>(value, call_.slope);
                    copy(to[i] + c, &value, some);
                }
            }
        }
    }
    /** Up to a vector. */
    [[gnu::always_inline]] static void copy(void *to, const void *from, int32_t count) {
        if (count == lanes) {
            std::memcpy(to, from, sizeof(Vector));
        } else {
            std::memcpy(to, from, count * sizeof(float));
        }
    }

    const distile_dot_product_code &code_;
    const distile_kernel_call &call_;
    const Types types_;
    const Numbers numbers_;
    const NonzeroWeights weights_;
    const distile_array &input_;
    int32_t out_channels_, vectors_;
    bool is_window_;
    Phase phase_{};
    int32_t unit_ = 1, parts_ = 1, splits_ = 1;
    bool out_of_memory_ = false;
};

/** Computes a call in the type of its input. */
template<class Isa> int call_nonzeros(const distile_dot_product_code &code, const distile_kernel_call &call) {
    switch (call.operands[0].dtype) {
    case DISTILE_BFLOAT16:
        return NonzeroProduct<Isa, FloatNumbers<Isa, Bfloat16Format<Isa>>>(code, call).run();
    case DISTILE_FLOAT16:
        return NonzeroProduct<Isa, FloatNumbers<Isa, Float16Format<Isa>>>(code, call).run();
    case DISTILE_FLOAT32:
        return NonzeroProduct<Isa, FloatNumbers<Isa, Float32Format<Isa>>>(code, call).run();
    default:
        call.hooks->report(call.hooks, "the code for nonzero weights does not multiply this type");
        return 1;
    }
}

}  // namespace distile::dot_product

#endif
