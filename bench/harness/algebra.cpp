#include "bench/harness/algebra.h"
#include <map>
#include <stdexcept>

namespace distile::bench {

Algebra find_algebra(const std::string &name, int32_t row_height, int32_t row_width) {
    using Call = decltype(Algebra::call);
    const int32_t growth = name == "needed_input_3x3_stride2" || name == "upsample_2" ? 2 : 1;
    const int32_t height = row_height / growth, width = row_width / growth;
    const auto needed = [&](int32_t stride) -> Call {
        const distile_window window{3, 3, stride, stride, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
        return [=](distile_mask *result, distile_mask *a, distile_mask *) {
            return distile_mask_needed_input(result, a, &window, height * stride, width * stride);
        };
    };
    const auto affected = [&](const distile_window &window, int32_t out_height, int32_t out_width) -> Call {
        return [=](distile_mask *result, distile_mask *a, distile_mask *) {
            return distile_mask_affected_output(result, a, &window, out_height, out_width);
        };
    };
    const auto convolved = [&](int32_t stride) {
        return affected({3, 3, stride, stride, 1, 1, 1, 1, DISTILE_WINDOW_CONV}, (height - 1) / stride + 1,
                        (width - 1) / stride + 1);
    };
    const auto of_extents = [](auto function, int32_t extent) -> Call {
        return
            [=](distile_mask *result, distile_mask *a, distile_mask *) { return function(result, a, extent, extent); };
    };
    const std::map<std::string, Call> calls = {
        {"needed_input_3x3", needed(1)},
        {"needed_input_3x3_stride2", needed(2)},
        {"affected_output_3x3", convolved(1)},
        {"affected_output_3x3_stride2", convolved(2)},
        {"upsample_2", affected({1, 1, 2, 2, 1, 1, 0, 0, DISTILE_WINDOW_UPSAMPLED}, height * 2, width * 2)},
        {"dilate_1", of_extents(distile_mask_dilate, 1)},
        {"dilate_8", of_extents(distile_mask_dilate, 8)},
        {"pool_2", of_extents(distile_mask_pool, 2)},
        {"pool_8", of_extents(distile_mask_pool, 8)},
        {"unite", distile_mask_unite},
        {"intersect", distile_mask_intersect},
        {"subtract", distile_mask_subtract},
        {"invert",
         [](distile_mask *result, distile_mask *a, distile_mask *) { return distile_mask_invert(result, a); }},
    };
    const auto found = calls.find(name);
    if (found == calls.end()) {
        throw std::runtime_error("this program knows no function of masks '" + name + "'");
    }
    return {found->second, height, width};
}

}  // namespace distile::bench
