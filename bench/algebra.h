/** \file
 * The functions of masks that the benchmarks measure, on a CPU and on a GPU, by their names in the files of rows.
 */
#ifndef DISTILE_BENCH_ALGEBRA_H
#define DISTILE_BENCH_ALGEBRA_H

#include <cstdint>
#include <distile/mask_algebra.h>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace distile::bench {

/** The algebra of a kind of masks. */
template<typename Mask> struct AlgebraFunctions {
    distile_status (*needed_input)(Mask *result, Mask *mask, const distile_window *window, int32_t height,
                                   int32_t width);
    distile_status (*affected_output)(Mask *result, Mask *mask, const distile_window *window, int32_t height,
                                      int32_t width);
    distile_status (*dilate)(Mask *result, Mask *mask, int32_t rows, int32_t columns);
    distile_status (*pool)(Mask *result, Mask *mask, int32_t rows, int32_t columns);
    distile_status (*unite)(Mask *result, Mask *a, Mask *b);
    distile_status (*intersect)(Mask *result, Mask *a, Mask *b);
    distile_status (*subtract)(Mask *result, Mask *a, Mask *b);
    distile_status (*invert)(Mask *result, Mask *mask);
};

/** A function of one or two masks of height x width. */
template<typename Mask> using AlgebraCall = std::function<distile_status(Mask *result, Mask *a, Mask *b)>;

/** A function and the size of its operands. */
template<typename Mask> struct Algebra {
    AlgebraCall<Mask> call;
    int32_t height, width;
};

/** The function of a name for a row of height x width: the larger of operand and result has that size. Throws
 * std::runtime_error if there is none. */
template<typename Mask> Algebra<Mask> find_algebra(const AlgebraFunctions<Mask> &functions, const std::string &name,
                                                   int32_t row_height, int32_t row_width) {
    using Call = AlgebraCall<Mask>;
    const int32_t growth = name == "needed_input_3x3_stride2" || name == "upsample_2" ? 2 : 1;
    const int32_t height = row_height / growth, width = row_width / growth;
    const auto needed = [&](int32_t stride) -> Call {
        const distile_window window{3, 3, stride, stride, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
        return [=, call = functions.needed_input](Mask *result, Mask *a, Mask *) {
            return call(result, a, &window, height * stride, width * stride);
        };
    };
    const auto affected = [&](int32_t stride) -> Call {
        const distile_window window{3, 3, stride, stride, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
        return [=, call = functions.affected_output](Mask *result, Mask *a, Mask *) {
            return call(result, a, &window, (height - 1) / stride + 1, (width - 1) / stride + 1);
        };
    };
    const auto upsample = [&](int32_t scale) -> Call {
        const distile_window window{1, 1, scale, scale, 1, 1, 0, 0, DISTILE_WINDOW_UPSAMPLED};
        return [=, call = functions.affected_output](Mask *result, Mask *a, Mask *) {
            return call(result, a, &window, height * scale, width * scale);
        };
    };
    const auto both = [](auto call, int32_t extent) -> Call {
        return [=](Mask *result, Mask *a, Mask *) { return call(result, a, extent, extent); };
    };
    const std::map<std::string, Call> calls = {
        {"needed_input_3x3", needed(1)},
        {"needed_input_3x3_stride2", needed(2)},
        {"affected_output_3x3", affected(1)},
        {"affected_output_3x3_stride2", affected(2)},
        {"upsample_2", upsample(2)},
        {"dilate_1", both(functions.dilate, 1)},
        {"dilate_8", both(functions.dilate, 8)},
        {"pool_2", both(functions.pool, 2)},
        {"pool_8", both(functions.pool, 8)},
        {"unite", functions.unite},
        {"intersect", functions.intersect},
        {"subtract", functions.subtract},
        {"invert", [call = functions.invert](Mask *result, Mask *a, Mask *) { return call(result, a); }},
    };
    const auto found = calls.find(name);
    if (found == calls.end()) {
        throw std::runtime_error("this program knows no function of masks '" + name + "'");
    }
    return {found->second, height, width};
}

}  // namespace distile::bench

#endif
