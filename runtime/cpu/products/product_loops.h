/** \file
 * The loops of products.h, in registers of the instruction set of the file that includes this. The sums of a group of
 * pixels and a set of panels stay in registers; each weight is read once for the group, and each input once for the
 * set.
 */
#ifndef DISTILE_CPU_PRODUCT_LOOPS_H
#define DISTILE_CPU_PRODUCT_LOOPS_H

#include "kernels/cpu/activation.h"
#include "runtime/cpu/products/products.h"
#include <cstring>

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

        [[gnu::always_inline]] void start(const GroupProduct &product) {
#pragma GCC unroll 16
            for (int64_t pixel = 0; pixel < Pixels; pixel++) {
#pragma GCC unroll 16
                for (int64_t v = 0; v < vectors; v++) {
                    of[pixel][v] = Floats{};
                    if (product.adds) {
                        load(product.sums + pixel * channels + v * lanes, of[pixel][v]);
                    }
                }
            }
        }
        /** Stores the sums, or what they become. */
        [[gnu::always_inline]] void store(const GroupProduct &product) {
            if (product.results) {
                finish(*product.results);
                return;
            }
#pragma GCC unroll 16
            for (int64_t pixel = 0; pixel < Pixels; pixel++) {
#pragma GCC unroll 16
                for (int64_t v = 0; v < vectors; v++) {
                    std::memcpy(product.sums + pixel * channels + v * lanes, &of[pixel][v], sizeof(Floats));
                }
            }
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
        [[gnu::always_inline]] void finish(const GroupResults &results) {
            Floats term;
            if (results.factors) {
                for_each([&](Floats &sum, int64_t channel, int64_t) {
                    load(results.factors + channel, term);
                    sum *= term;
                });
            }
            if (results.bias) {
                for_each([&](Floats &sum, int64_t channel, int64_t) {
                    load(results.bias + channel, term);
                    sum += term;
                });
            }
            if (results.residuals) {
                for_each([&](Floats &sum, int64_t channel, int64_t pixel) {
                    if (pixel < results.pixels) {
                        load(results.residuals[pixel] + channel, term);
                        sum += term;
                    }
                });
            }
            for_each([&](Floats &sum, int64_t channel, int64_t pixel) {
                if (pixel < results.pixels) {
                    dot_product::Activation<Isa>::limit(sum, results.least, results.most);
                    std::memcpy(results.outputs[pixel] + channel, &sum, sizeof(sum));
                }
            });
        }
    };
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
        sums.start(product);
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
        sums.store(product);
    }

    template<class Weight, int Panels, int Pixels> static void multiply_group_depthwise(const GroupProduct &product) {
        constexpr int64_t vectors = Panels * panel_vectors;
        Sums<Panels, Pixels> sums;
        sums.start(product);
        const auto *weights = static_cast<const Weight *>(product.weights);
        for (int32_t tap = 0; tap < product.num_pieces; tap++, weights += panel_channels) {
            Floats factors[vectors];
            load_panels<Weight, Panels>(weights, product.panel_distance, factors);
#pragma GCC unroll 16
            for (int64_t pixel = 0; pixel < Pixels; pixel++) {
                const float *const channels = product.inputs[tap * most_group_pixels + pixel] + product.input_offset;
#pragma GCC unroll 16
                for (int64_t v = 0; v < vectors; v++) {
                    Floats input;
                    load(channels + v * lanes, input);
                    sums.of[pixel][v] += input * factors[v];
                }
            }
        }
        sums.store(product);
    }

    /** Calls the code for the fewest pixels that are enough, of those that a set of these panels has. */
    template<bool Depthwise, class Weight> struct Choice {
        template<int Panels, int Pixels, int... More> static void call(const GroupProduct &product) {
            if constexpr (sizeof...(More) > 0) {
                if (product.pixels > Pixels) {
                    call<Panels, More...>(product);
                    return;
                }
            }
            if constexpr (Depthwise) {
                multiply_group_depthwise<Weight, Panels, Pixels>(product);
            } else {
                multiply_group<Weight, Panels, Pixels>(product);
            }
        }
    };
    template<bool Depthwise, class Weight> static void multiply(const GroupProduct &product) {
        Isa::template multiply<Choice<Depthwise, Weight>>(product);
    }

    template<distile_activation Kind> static void finish_group(const GroupResults &results) {
        const int64_t distance = results.panels * panel_channels;
        for (int64_t pixel = 0; pixel < results.pixels; pixel++) {
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
};

/** The products of an instruction set. */
template<class Isa> constexpr PixelProducts make_products(const char *features) {
    using Loops = ProductLoops<Isa>;
    return {features,
            Isa::set_panels,
            Isa::group_pixels,
            {Loops::template multiply<false, float>, Loops::template multiply<false, uint16_t>,
             Loops::template multiply<false, int8_t>},
            {Loops::template multiply<true, float>, Loops::template multiply<true, uint16_t>,
             Loops::template multiply<true, int8_t>},
            Loops::finish};
}

}  // namespace distile

#endif
