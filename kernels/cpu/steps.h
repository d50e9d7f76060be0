/** \file
 * Rows staged in steps of the reduction, [step][row][64 bytes], for instructions that multiply a group of a row with
 * those of many output channels. Such instructions are a class `Isa`:
 *
 *     using Types = ...;                      // As in product.h.
 *     static constexpr int32_t tile_rows;     // Sums are stored for whole multiples of this number of rows.
 *     static constexpr bool balances;         // A block of fewer rows takes less time.
 *     static constexpr CostModel cost_model;   // As in partition.h.
 *     static void begin(), end();             // Around the work of a task.
 *     // The steps of the reduction that are multiplied with all staged blocks before the next ones, so that their
 *     // weights stay in the nearest cache; 0: all steps.
 *     static constexpr int32_t chunk_steps;
 *     static constexpr bool loads_in_place;   // Takes rows from the input, where they lie side by side.
 *     static constexpr bool keeps_apart;      // Multiplies lanes with what their groups read, as an ApartLanes says.
 *     // Makes the sums of `rows` rows and `vectors` vectors, or adds to them if `adds`: sums[row][16 * vectors].
 *     static void multiply(const Block &block, int32_t rows, int32_t vectors, bool adds, Sum *sums);
 *
 * The output channels of a section read the same input channels. Where it has several groups, the weights of other
 * groups are 0, but sets that keep groups apart multiply none of these.
 */
#ifndef DISTILE_DOT_PRODUCT_STEPS_H
#define DISTILE_DOT_PRODUCT_STEPS_H

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/packed_weights.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/rows.h"
#include "kernels/dot_products.h"

namespace distile::dot_product {

/** The groups of a step of a block of the weights: [group][output channel][4 bytes]. */
constexpr int32_t step_groups = 16;

/** Rows that an instruction loads at once, staged or in place. */
template<class Element> struct TileRows {
    const Element *first;
    const int64_t *steps;  ///< How far each step is from the first one, in elements.
    int32_t distance;      ///< Bytes between rows.
    const Element *pixel;  ///< The input pixel of the first row's first tap, to load in place; null: staged.
};

/** Which packs of a step, of 4 bytes each, the lanes of a vector multiply where groups are kept apart. A window of
 * packs is what a section reads of a pixel; each of its groups has `depth` packs. The weights of a window are a vector
 * for each of these. */
struct ApartLanes {
    const int32_t *first;  ///< The first pack of each lane's group in a window.
    int32_t window, depth;
};

/** What one call of an instruction set's code multiplies. Distances in elements. */
template<class Types> struct Block {
    using Element = typename Types::Element;
    using Weight = typename Types::Weight;
    static constexpr int32_t step_elements = step_bytes / static_cast<int32_t>(sizeof(Element)),
                             group_elements = step_elements / step_groups,
                             weight_part = step_elements * vector_channels,
                             weight_step = weight_part * Types::parts;  ///< The parts of a step follow each other.

    const Element *staged;
    int32_t staged_step;  ///< Between the steps of a staged block, which hold one part of all rows after the other.
    LoadedWeights<Weight> weights;
    int32_t steps;
    int32_t last_groups;             ///< Groups of the last step; its other groups are padding.
    const TileRows<Element> *tiles;  ///< Set for instructions that load in place.
    const ApartLanes *lanes;         ///< Null: all lanes multiply all packs.
};

/** A Method, as in product.h. */
template<class Isa> class Steps {
public:
    using Types = typename Isa::Types;
    using Element = typename Types::Element;
    using Weight = typename Types::Weight;
    using Sum = typename Types::Sum;
    static constexpr int32_t tile_rows = Isa::tile_rows;
    static constexpr bool balances = Isa::balances;
    static constexpr CostModel cost_model = Isa::cost_model;

    Steps(const distile_dot_product_code &code, const distile_kernel_call &call, const Types &types)
        : code_(code), input_(call.operands[0]), weights_(call.operands[1]),
          is_even_(types.stages_as_stored() && code.read_channels % step_elements == 0),
          in_channels_(call.operands[0].dim[Channel].extent), apart_groups_(Isa::keeps_apart ? code.apart_groups : 1),
          shift_of_last_(last_section(call) * code.read_channels - least_first(last_section(call))) {
        for (int32_t row = 0; row < code.scale_h; row++) {
            for (int32_t column = 0; column < code.scale_w; column++) {
                const int32_t steps = steps_of(code.rows[row], code.columns[column]);
                most_steps_ = steps > most_steps_ ? steps : most_steps_;
                const int32_t taps = code.rows[row].taps * code.columns[column].taps;
                most_taps_ = taps > most_taps_ ? taps : most_taps_;
            }
        }
        set_lanes();
    }
    Steps(const Steps &) = delete;
    Steps &operator=(const Steps &) = delete;

    static void begin() {
        Isa::begin();
    }
    static void end() {
        Isa::end();
    }
    int32_t steps_of(const distile_taps &rows, const distile_taps &columns) const {
        return (rows.taps * columns.taps * code_.read_channels + step_elements - 1) / step_elements;
    }
    int64_t block_elements() const {
        return head_elements() + int64_t{most_steps_} * staged_step();
    }
    /** The first input channel. */
    int32_t first_input(const ChannelBlock &channels) const {
        return least_first(channels.section);
    }
    /** Finds what rows read, for all sections. */
    void prepare(const Phase &phase, const Rows<Types> &source, const Row *rows, int32_t count, Element *to) const {
        if constexpr (Isa::loads_in_place) {
            for (int32_t first = 0; first < count; first += tile_rows) {
                prepare_tile(phase, source, rows + first, rows_of_tile(first, count), first / tile_rows, to);
            }
        } else {
            source.find(phase, rows, count, pixels_of(to, 0));
        }
    }
    void stage(const Phase &phase, const Rows<Types> &source, const Row * /*rows*/, int32_t count,
               const ChannelBlock &channels, Element *to) const {
        Element *const room = to + head_elements();
        if constexpr (Isa::loads_in_place) {
            for (int32_t first = 0; first < count; first += tile_rows) {
                stage_tile(phase, source, rows_of_tile(first, count), first_input(channels), first / tile_rows, to);
            }
        } else {
            source.stage(pixels_to_stage(phase, count, first_input(channels), 0, to), room, staged_step());
        }
    }
    /** At least one, for a phase that reads nothing. */
    int32_t chunks(const Phase &phase) const {
        return Isa::chunk_steps == 0 || phase.steps == 0 ? 1 : (phase.steps + chunk_steps() - 1) / chunk_steps();
    }
    int64_t weight_elements() const {
        const int64_t weights = most_of(most_steps_) * weight_step,
                      room = weights_.room(weights, code_.block_channels / vector_channels);
        return apart_groups_ > 1 && room < weights ? weights : room;
    }
    LoadedWeights<Weight> load(const Phase &phase, int32_t chunk, const ChannelBlock &channels, Weight *room) const {
        const int32_t steps = steps_in(phase, chunk);
        const LoadedWeights<Weight> loaded = weights_.load(
            channels, (phase.first_step + int64_t{chunk} * chunk_steps()) * weight_step, steps * weight_step, room);
        if (apart_groups_ == 1) {
            return loaded;
        }
        join(loaded.first, steps, room);
        return {room, 0};
    }
    void multiply(const Phase &phase, int32_t chunk, const LoadedWeights<Weight> &weights, const Element *staged,
                  const Row * /*rows*/, int32_t count, const ChannelBlock &channels, Sum *sums) const {
        const int64_t first = head_elements() + int64_t{chunk} * chunk_steps() * staged_step();
        const int32_t groups = chunk + 1 == chunks(phase) ? last_groups(phase) : step_groups;
        const ApartLanes lanes{lanes_[least_first(channels.section) == channels.section * code_.read_channels ? 0 : 1],
                               window(), window() / apart_groups_};
        Isa::multiply({staged + first, staged_step(), weights, steps_in(phase, chunk), groups, head_of(staged),
                       apart_groups_ > 1 ? &lanes : nullptr},
                      count, channels.vectors, chunk != 0, sums);
    }

private:
    static constexpr int32_t step_elements = Block<Types>::step_elements, group_elements = Block<Types>::group_elements;
    static constexpr int64_t weight_step = Block<Types>::weight_part;  // The elements of a step of the stored weights.

    static constexpr int32_t chunk_steps() {
        return Isa::chunk_steps;
    }
    /** The steps of a chunk where `steps` steps are left. */
    static constexpr int32_t most_of(int32_t steps) {
        return chunk_steps() == 0 || steps < chunk_steps() ? steps : chunk_steps();
    }
    static int32_t steps_in(const Phase &phase, int32_t chunk) {
        return most_of(phase.steps - chunk * chunk_steps());
    }
    /** The groups of a phase's last step. */
    int32_t last_groups(const Phase &phase) const {
        const int32_t left = phase.rows.taps * phase.columns.taps * code_.read_channels % step_elements;
        return left == 0 ? step_groups : (left + group_elements - 1) / group_elements;
    }
    int32_t staged_step() const {
        return code_.block_pixels * step_elements * Types::parts;
    }
    int32_t least_first(int32_t section) const {
        const int32_t first = section * code_.read_channels, last = in_channels_ - code_.read_channels;
        return first < last ? first : last;
    }
    int32_t last_section(const distile_kernel_call &call) const {
        return (call.operands[call.num_operands - 1].dim[Channel].extent - 1) / code_.section_channels;
    }

    /** The packs that a section reads of a pixel. */
    int32_t window() const {
        return code_.read_channels / group_elements;
    }
    void set_lanes() {
        const int32_t depth = window() / apart_groups_, channels = code_.section_channels / apart_groups_;
        for (int32_t lane = 0; apart_groups_ > 1 && lane < vector_channels; lane++) {
            const int32_t group = lane / channels, last = apart_groups_ - 1,
                          shifted = group + shift_of_last_ / (code_.read_channels / apart_groups_);
            lanes_[0][lane] = (group < last ? group : last) * depth;
            lanes_[1][lane] = (shifted < last ? shifted : last) * depth;
        }
    }
    /** Joins the vectors of weights that lanes of different groups multiply. In each, the weights of other lanes are 0.
     * `to` may be `from`. */
    void join(const Weight *from, int32_t steps, Weight *to) const {
        using Vector = uint8_t __attribute__((vector_size(step_bytes)));
        constexpr int64_t vector = int64_t{group_elements} * vector_channels;
        const int32_t depth = window() / apart_groups_;
        for (int32_t first = 0; first < steps * step_groups; first += window()) {
            for (int32_t pack = first; pack < first + depth; pack++, to += vector) {
                Vector joined{};
                for (int32_t group = 0; group < apart_groups_; group++) {
                    Vector own;
                    std::memcpy(&own, from + (pack + group * depth) * vector, sizeof(own));
                    joined |= own;
                }
                std::memcpy(to, &joined, sizeof(joined));
            }
        }
    }

    /** Before the staged rows of a block: of a set that loads in place, where the rows of each tile are, and then
     * their steps; and the pixels of those that are staged. */
    int64_t head_elements() const {
        const size_t pixels = int64_t{code_.block_pixels} * most_taps_ * sizeof(const Element *);
        return static_cast<int64_t>((tile_bytes() + pixels + step_bytes - 1) / step_bytes) * step_elements;
    }
    size_t tile_bytes() const {
        return Isa::loads_in_place ? tiles() * (sizeof(TileRows<Element>) + most_steps_ * sizeof(int64_t)) : 0;
    }
    size_t tiles() const {
        return (code_.block_pixels + tile_rows - 1) / tile_rows;
    }
    static int32_t rows_of_tile(int32_t first, int32_t count) {
        return count - first < tile_rows ? count - first : tile_rows;
    }
    static const TileRows<Element> *head_of(const Element *block) {
        return reinterpret_cast<const TileRows<Element> *>(block);
    }
    static TileRows<Element> *head_of(Element *block) {
        return reinterpret_cast<TileRows<Element> *>(block);
    }
    int64_t *steps_of_tiles(Element *block) const {
        return reinterpret_cast<int64_t *>(head_of(block) + tiles());
    }
    /** The pixels that the rows of a tile read. */
    const Element **pixels_of(Element *block, int32_t tile) const {
        return reinterpret_cast<const Element **>(reinterpret_cast<char *>(block) + tile_bytes()) +
               int64_t{tile} * tile_rows * most_taps_;
    }
    typename Rows<Types>::Pixels pixels_to_stage(const Phase &phase, int32_t count, int32_t first_channel, int32_t tile,
                                                 Element *block) const {
        return {pixels_of(block, tile), count, phase.rows.taps * phase.columns.taps, first_channel,
                code_.read_channels};
    }
    /** Finds the rows of a tile: where they can be loaded, or what is to be staged. */
    void prepare_tile(const Phase &phase, const Rows<Types> &source, const Row *rows, int32_t count, int32_t index,
                      Element *block) const {
        TileRows<Element> &tile = head_of(block)[index];
        int64_t *steps = steps_of_tiles(block) + int64_t{index} * most_steps_;
        tile.steps = steps;
        if (is_even_ && count == tile_rows && source.are_even(phase, rows, count)) {
            tile.pixel = source.pixel(rows[0], 0, 0);
            tile.distance = static_cast<int32_t>((rows[1].input - rows[0].input) * int64_t{sizeof(Element)});
            for (int32_t ty = 0; ty < phase.rows.taps; ty++) {
                for (int32_t tx = 0; tx < phase.columns.taps; tx++) {
                    const int64_t tap = int64_t{ty} * phase.rows.step * input_.dim[Y].stride +
                                        int64_t{tx} * phase.columns.step * input_.dim[X].stride;
                    for (int32_t first = 0; first < code_.read_channels; first += step_elements) {
                        *steps++ = tap + first;
                    }
                }
            }
        } else {
            tile.pixel = nullptr;
            tile.distance = step_bytes;
            for (int32_t step = 0; step < phase.steps; step++) {
                steps[step] = int64_t{step} * staged_step();
            }
            source.find(phase, rows, count, pixels_of(block, index));
        }
    }
    /** Stages the rows of a tile, unless they can be loaded where they are. */
    void stage_tile(const Phase &phase, const Rows<Types> &source, int32_t count, int32_t first_channel, int32_t index,
                    Element *block) const {
        TileRows<Element> &tile = head_of(block)[index];
        if (tile.pixel) {
            tile.first = tile.pixel + first_channel;
            return;
        }
        Element *const to = block + head_elements() + int64_t{index} * tile_rows * step_elements;
        tile.first = to;
        source.stage(pixels_to_stage(phase, count, first_channel, index, block), to, staged_step());
        if constexpr (Types::parts == 2) {
            for (int32_t step = 0; step < phase.steps; step++) {
                Element *const high = to + int64_t{step} * staged_step();
                Types::split(high, int64_t{count} * step_elements, high, high + staged_step() / 2);
            }
        }
    }

    const distile_dot_product_code &code_;
    const distile_array &input_;
    const PackedWeights<Types> weights_;
    bool is_even_;  ///< Whole steps are read of each pixel, as they are stored.
    int32_t in_channels_, apart_groups_, most_steps_ = 0, most_taps_ = 0;
    int32_t shift_of_last_;  ///< The input channels by which the last section begins earlier, to end with the input.
    int32_t lanes_[2][vector_channels] = {};  ///< The lanes of an ApartLanes, and of the last section's.
};

}  // namespace distile::dot_product

#endif
