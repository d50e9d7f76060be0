/** \file
 * The loops of products.h, in registers of the instruction set of the file that includes this. The sums of a group of
 * pixels and a set of panels stay in registers; each weight is read once for the group, and each input once for the
 * set.
 */
#ifndef DISTILE_CPU_PRODUCT_LOOPS_H
#define DISTILE_CPU_PRODUCT_LOOPS_H

#include "kernels/cpu/activation.h"
#include "runtime/cpu/products/products.h"
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace distile {

/** `Isa` tells the code of instruction sets apart. */
template<class Isa> struct ProductLoops {
    static constexpr int64_t lanes = dot_product::register_lanes;
    static constexpr int64_t panel_vectors = panel_channels / lanes;
    using Floats = typename dot_product::Activation<Isa>::Floats;

    // Weights, widened to float32. How functions return vectors depends on the instruction set, so these take
    // addresses.
    [[gnu::always_inline]] static void load(const float *from, Floats &to) {
        std::memcpy(&to, from, sizeof(to));
    }
    template<typename Weight> [[gnu::always_inline]] static void load(const Weight *from, Floats &to) {
        Isa::widen(from, to);
    }

    /** The sums of a group, in registers. */
    template<int Panels, int Pixels> struct Sums {
        static constexpr int64_t vectors = Panels * panel_vectors, channels = Panels * panel_channels;
        Floats of[Pixels][vectors];

        /** From sums of pixels a distance apart; null: 0. */
        [[gnu::always_inline]] void start(const float *sums, int64_t distance) {
            for_each([&](Floats &sum, int64_t channel, int64_t pixel) {
                sum = Floats{};
                if (sums) {
                    load(sums + pixel * distance + channel, sum);
                }
            });
        }
        [[gnu::always_inline]] void store(float *sums, int64_t distance) {
            for_each([&](const Floats &sum, int64_t channel, int64_t pixel) {
                std::memcpy(sums + pixel * distance + channel, &sum, sizeof(sum));
            });
        }
        /** Calls act(vector, its first channel, the pixel) for each. */
        template<class Act> [[gnu::always_inline]] void for_each(const Act &act) {
#pragma GCC unroll 16
            for (int64_t pixel = 0; pixel < Pixels; pixel++) {
#pragma GCC unroll 16
                for (int64_t v = 0; v < vectors; v++) {
                    act(of[pixel][v], v * lanes, pixel);
                }
            }
        }
        /** Stores what the sums become, from a channel of the results on. If in part, the last channel is among them.
         */
        template<bool InPart> [[gnu::always_inline]] void finish(const GroupResults &results, int64_t first) {
            const int64_t count = results.channels - first;
            Floats term;
            if (results.factors) {
                for_each([&](Floats &sum, int64_t channel, int64_t) {
                    load_channels<InPart>(results.factors + first + channel, count - channel, term);
                    sum *= term;
                });
            }
            if (results.bias) {
                for_each([&](Floats &sum, int64_t channel, int64_t) {
                    load_channels<InPart>(results.bias + first + channel, count - channel, term);
                    sum += term;
                });
            }
            if (results.residuals) {
                for_each([&](Floats &sum, int64_t channel, int64_t pixel) {
                    if (results.stored >> pixel & 1) {
                        load_channels<InPart>(results.residuals[pixel] + first + channel, count - channel, term);
                        sum += term;
                    }
                });
            }
            for_each([&](Floats &sum, int64_t channel, int64_t pixel) {
                if (results.stored >> pixel & 1) {
                    dot_product::Activation<Isa>::limit(sum, results.least, results.most);
                    store_channels<InPart>(results.outputs[pixel] + first + channel, count - channel, sum);
                }
            });
        }
    };
    /** If in part, not more channels than there are, which may be none. */
    template<bool InPart>
    [[gnu::always_inline]] static void load_channels(const float *from, int64_t count, Floats &to) {
        if (!InPart || count >= lanes) {
            load(from, to);
            return;
        }
        to = Floats{};
        if (count > 0) {
            Isa::load_part(from, count, to);
        }
    }
    template<bool InPart>
    [[gnu::always_inline]] static void store_channels(float *to, int64_t count, const Floats &from) {
        if (!InPart || count >= lanes) {
            std::memcpy(to, &from, sizeof(from));
        } else if (count > 0) {
            Isa::store_part(to, count, from);
        }
    }
    /** A number of each panel's channels. */
    template<class Weight, int Panels>
    [[gnu::always_inline]] static void load_panels(const Weight *weights, int64_t distance, Floats *factors) {
#pragma GCC unroll 16
        for (int64_t v = 0; v < Panels * panel_vectors; v++) {
            load(weights + v / panel_vectors * distance + v % panel_vectors * lanes, factors[v]);
        }
    }

    template<class Weight, int Panels, int Pixels> static void multiply_group(const GroupProduct &product) {
        constexpr int64_t vectors = Panels * panel_vectors;
        Sums<Panels, Pixels> sums;
        sums.start(product.adds ? product.sums : nullptr, sums.channels);
        const auto *weights = static_cast<const Weight *>(product.weights);
        const int64_t distance = product.panel_distance;
        constexpr int64_t line = 64;
        const char *fetched = product.fetched, *const end_of_fetched = fetched + product.fetched_bytes;
        for (int32_t piece = 0; piece < product.num_pieces; piece++) {
            const float *inputs[Pixels];
#pragma GCC unroll 16
            for (int64_t pixel = 0; pixel < Pixels; pixel++) {
                inputs[pixel] = product.inputs[piece * most_group_pixels + pixel];
            }
            const int64_t length = product.lengths[piece];
            for (int64_t k = 0; k < length; k++, weights += panel_channels) {
                if (fetched < end_of_fetched) {
                    __builtin_prefetch(fetched, 0, 2);
                    fetched += line;
                }
                Floats factors[vectors];
                load_panels<Weight, Panels>(weights, distance, factors);
#pragma GCC unroll 16
                for (int64_t pixel = 0; pixel < Pixels; pixel++) {
                    const Floats input = Floats{} + inputs[pixel][k];
#pragma GCC unroll 16
                    for (int64_t v = 0; v < vectors; v++) {
                        sums.of[pixel][v] += input * factors[v];
                    }
                }
            }
        }
        if (product.results) {
            sums.template finish<false>(*product.results, 0);
        } else {
            sums.store(product.sums, sums.channels);
        }
    }

    /** Calls the code for the fewest pixels that are enough, of those that a set of these panels has. */
    template<class Weight> struct Choice {
        template<int Panels, int Pixels, int... More> static void call(const GroupProduct &product) {
            if constexpr (sizeof...(More) > 0) {
                if (product.pixels > Pixels) {
                    call<Panels, More...>(product);
                    return;
                }
            }
            multiply_group<Weight, Panels, Pixels>(product);
        }
    };
    template<class Weight> static void multiply(const GroupProduct &product) {
        Isa::template multiply<Choice<Weight>>(product);
    }

    /** How the inputs of pixels lie: with distances of the product; side by side; or shared, a kernel of these columns
     * being 1 pixel after the other, so that each input is loaded once. */
    static constexpr int apart = 0, side_by_side = 1;
    /** Products of the panels from a channel on. */
    template<class Weight, int Panels, int Pixels, int Columns, bool InPart>
    static void multiply_panels(const DepthwiseProduct &product, int64_t first) {
        constexpr int64_t vectors = Panels * panel_vectors;
        const int64_t count = product.channels - first;
        const int64_t distance = (product.channels + panel_channels - 1) / panel_channels * panel_channels;
        Sums<Panels, Pixels> sums;
        sums.start(product.adds ? product.sums + first : nullptr, distance);
        const Weight *weights =
            static_cast<const Weight *>(product.weights) + first / panel_channels * product.panel_distance;
        const float *const *inputs = product.inputs;
        for (int32_t row = 0; row < product.rows;
             row++, inputs += product.row_inputs, weights += product.row_distance) {
            if constexpr (Columns > side_by_side) {
                Floats factors[Columns][vectors];
#pragma GCC unroll 16
                for (int64_t column = 0; column < Columns; column++) {
                    load_panels<Weight, Panels>(weights + column * product.tap_distance, product.panel_distance,
                                                factors[column]);
                }
#pragma GCC unroll 16
                for (int64_t place = 0; place < Pixels + Columns - 1; place++) {
#pragma GCC unroll 16
                    for (int64_t v = 0; v < vectors; v++) {
                        Floats input;
                        load_channels<InPart>(inputs[place] + first + v * lanes, count - v * lanes, input);
                        Isa::keep(input);
#pragma GCC unroll 16
                        for (int64_t column = 0; column < Columns; column++) {
                            const int64_t pixel = place - column;
                            if (pixel >= 0 && pixel < Pixels) {
                                sums.of[pixel][v] += input * factors[column][v];
                            }
                        }
                    }
                }
            } else {
                for (int64_t column = 0; column < product.columns; column++) {
                    Floats factors[vectors];
                    load_panels<Weight, Panels>(weights + column * product.tap_distance, product.panel_distance,
                                                factors);
                    const float *const *const of_column = inputs + column * product.column_inputs;
#pragma GCC unroll 16
                    for (int64_t pixel = 0; pixel < Pixels; pixel++) {
                        const int64_t step = Columns == side_by_side ? 1 : product.pixel_inputs;
                        const float *const channels = of_column[pixel * step] + first;
#pragma GCC unroll 16
                        for (int64_t v = 0; v < vectors; v++) {
                            Floats input;
                            load_channels<InPart>(channels + v * lanes, count - v * lanes, input);
                            sums.of[pixel][v] += input * factors[v];
                        }
                    }
                }
            }
        }
        if (product.results) {
            sums.template finish<InPart>(*product.results, first);
        } else {
            sums.store(product.sums + first, distance);
        }
    }
    template<class Weight, int Pixels, int Columns> static void multiply_channels(const DepthwiseProduct &product) {
        constexpr int64_t together = Isa::depthwise_panels * panel_channels;
        int64_t first = 0;
        for (; first + together <= product.channels; first += together) {
            multiply_panels<Weight, Isa::depthwise_panels, Pixels, Columns, false>(product, first);
        }
        if constexpr (Isa::depthwise_panels > 1) {
            for (; first + panel_channels <= product.channels; first += panel_channels) {
                multiply_panels<Weight, 1, Pixels, Columns, false>(product, first);
            }
        }
        if (first < product.channels) {
            multiply_panels<Weight, 1, Pixels, Columns, true>(product, first);
        }
    }
    /** Calls the code for the fewest pixels that are enough. */
    template<class Weight, int Pixels, int... More>
    static void choose_depthwise(const DepthwiseProduct &product, std::integer_sequence<int, Pixels, More...>) {
        if constexpr (sizeof...(More) > 0) {
            if (product.pixels > Pixels) {
                choose_depthwise<Weight>(product, std::integer_sequence<int, More...>{});
                return;
            }
        }
        const bool share = Pixels > 1 && product.pixel_inputs == 1 && product.column_inputs == 1;
        if (share && product.columns == 3) {
            multiply_channels<Weight, Pixels, 3>(product);
        } else if (share && product.columns == 5) {
            multiply_channels<Weight, Pixels, 5>(product);
        } else if (share && product.columns == 7) {
            multiply_channels<Weight, Pixels, 7>(product);
        } else if (product.pixel_inputs == 1) {
            multiply_channels<Weight, Pixels, side_by_side>(product);
        } else {
            multiply_channels<Weight, Pixels, apart>(product);
        }
    }
    template<class Weight> static void multiply_depthwise(const DepthwiseProduct &product) {
        choose_depthwise<Weight>(product, typename Isa::DepthwisePixels{});
    }

    template<int Channels, int Diagonal> static void add_rotated(const float *made, int64_t count, float *sums) {
        for (int64_t panel = 0; panel < count; panel += panel_channels) {
#pragma GCC unroll 16
            for (int64_t channel = 0; channel < panel_channels; channel++) {
                const int64_t from =
                    channel - channel % Channels + (channel % Channels + Channels - Diagonal) % Channels;
                sums[panel + channel] += made[panel + from];
            }
        }
    }
    template<int Channels, int... Diagonals> static void add_one_of(const float *made, int64_t count, int32_t diagonal,
                                                                    float *sums,
                                                                    std::integer_sequence<int, Diagonals...>) {
        ((diagonal == Diagonals ? add_rotated<Channels, Diagonals>(made, count, sums) : void()), ...);
    }
    template<int Channels> static void add_one_of(const float *made, int64_t count, int32_t diagonal, float *sums) {
        add_one_of<Channels>(made, count, diagonal, sums, std::make_integer_sequence<int, Channels>{});
    }
    static void add_diagonal(const float *made, int64_t count, int32_t channels, int32_t diagonal, float *sums) {
        switch (channels) {
        case 2:
            return add_one_of<2>(made, count, diagonal, sums);
        case 4:
            return add_one_of<4>(made, count, diagonal, sums);
        default:
            return add_one_of<8>(made, count, diagonal, sums);
        }
    }

    template<distile_activation Kind> static void finish_group(const GroupResults &results) {
        const int64_t distance = results.panels * panel_channels;
        uint32_t stored = results.stored;
        for (int64_t pixel = 0; stored != 0; pixel++, stored >>= 1) {
            if ((stored & 1) == 0) {
                continue;
            }
            const float *const sums = results.sums + pixel * distance;
            const float *const residual = results.residuals ? results.residuals[pixel] : nullptr;
            float *const output = results.outputs[pixel];
            const bool activates = (results.without_activation >> pixel & 1) == 0;
            for (int64_t channel = 0; channel < results.channels; channel += lanes) {
                const int64_t left = results.channels - channel;
                const size_t bytes = (left < lanes ? left : lanes) * sizeof(float);
                Floats sum, term = Floats{};
                load(sums + channel, sum);
                if (results.factors) {
                    read(results.factors + channel, bytes, term);
                    sum *= term;
                }
                if (results.bias) {
                    read(results.bias + channel, bytes, term);
                    sum += term;
                }
                if (residual) {
                    read(residual + channel, bytes, term);
                    sum += term;
                }
                if (activates) {
                    dot_product::Activation<Isa>::template activate<Kind>(sum, results.slope);
                }
                if (bytes == sizeof(sum)) {
                    std::memcpy(output + channel, &sum, sizeof(sum));
                } else {
                    std::memcpy(output + channel, &sum, bytes);
                }
            }
        }
    }
    [[gnu::always_inline]] static void read(const float *from, size_t bytes, Floats &to) {
        if (bytes == sizeof(to)) {
            std::memcpy(&to, from, sizeof(to));
        } else {
            std::memcpy(&to, from, bytes);
        }
    }

    static void finish(const GroupResults &results, int32_t activation) {
        switch (activation) {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        finish_group<DISTILE_ACTIVATION_##NAME>(results);                                                              \
        break;
            DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
        default:
            break;
        }
    }

    static void soften(SoftmaxRow &row) {
        hide_missing(row);
        Floats largest = Floats{} + (row.has_scores ? row.most : no_score), score;
        for_each_vector(row, [&](const float *scores) {
            load(scores, score);
            largest = score > largest ? score : largest;
        });
        float most = no_score;
        for (int64_t lane = 0; lane < lanes; lane++) {
            most = largest[lane] > most ? largest[lane] : most;
        }
        const auto make_factors = [&](Floats &scores) {
            scores = (scores - most) * row.scale;
            dot_product::Activation<Isa>::limit(scores, least_power, 0);
            dot_product::Activation<Isa>::exponential(scores);
        };
        Floats left = Floats{} + row.most, sums = Floats{};
        make_factors(left);
        for_each_vector(row, [&](float *scores) {
            load(scores, score);
            make_factors(score);
            std::memcpy(scores, &score, sizeof(score));
            sums += score;
        });
        row.left = row.has_scores ? left[0] : 0;
        row.sum *= row.left;
        for (int64_t lane = 0; lane < lanes; lane++) {
            row.sum += sums[lane];
        }
        row.most = most;
        row.has_scores = true;
    }
    static constexpr float no_score = -std::numeric_limits<float>::infinity();
    /** Its exponential is a little more than float32's least normal number. */
    static constexpr float least_power = -87;
    /** Fills up the last panel. Beside 1, the exponential of the largest score, what that adds is nothing. */
    static void hide_missing(const SoftmaxRow &row) {
        const int32_t last = (row.keys - 1) / row.stretch_keys;
        for (int64_t key = row.keys - int64_t{last} * row.stretch_keys; key % panel_channels != 0; key++) {
            row.stretches[last][key] = no_score;
        }
    }
    template<class Act> [[gnu::always_inline]] static void for_each_vector(const SoftmaxRow &row, const Act &act) {
        for (int32_t first = 0, stretch = 0; first < row.keys; first += row.stretch_keys, stretch++) {
            const int32_t left = row.keys - first, keys = left < row.stretch_keys ? left : row.stretch_keys;
            for (int64_t key = 0; key < keys; key += lanes) {
                act(row.stretches[stretch] + key);
            }
        }
    }
};

template<int... Pixels> constexpr int32_t most_of(std::integer_sequence<int, Pixels...>) {
    return std::max({Pixels...});
}

/** The products of an instruction set. */
template<class Isa> constexpr PixelProducts make_products(const char *features) {
    using Loops = ProductLoops<Isa>;
    return {features,
            Isa::set_panels,
            Isa::group_pixels,
            {Loops::template multiply<float>, Loops::template multiply<uint16_t>, Loops::template multiply<int8_t>},
            most_of(typename Isa::DepthwisePixels{}),
            {Loops::template multiply_depthwise<float>, Loops::template multiply_depthwise<uint16_t>,
             Loops::template multiply_depthwise<int8_t>},
            Loops::add_diagonal,
            Loops::finish,
            Loops::soften};
}

}  // namespace distile

#endif
