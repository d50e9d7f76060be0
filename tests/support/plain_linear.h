/** \file
 * PolyKernels of masked linear layers in plain C++, of any storage type: what the runtime does with kinds, types and
 * calls is seen without a generator, on any CPU.
 */
#ifndef DISTILE_TESTS_PLAIN_LINEAR_H
#define DISTILE_TESTS_PLAIN_LINEAR_H

#include "kernels/call.h"
#include "reference/conv2d_reference.h"
#include <algorithm>
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

/** Variants of 1 x 1 and 2 x 3 pixels, and a dense one of 1 x 8. There is no epilogue but gelu, if any. */
class PlainLinear {
public:
    PlainLinear(distile_dtype dtype, int32_t in_channels, int32_t out_channels, bool gelu = false,
                bool residual = false)
        : linear_{in_channels, out_channels, gelu ? DISTILE_ACTIVATION_GELU : DISTILE_ACTIVATION_NONE,
                  residual ? 1 : 0},
          operands_{{DISTILE_ROLE_INPUT, dtype, in_channels},
                    {DISTILE_ROLE_WEIGHTS, dtype, out_channels},
                    {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, out_channels}} {
        if (residual) {
            operands_.push_back({DISTILE_ROLE_RESIDUAL, dtype, out_channels});
        }
        operands_.push_back({DISTILE_ROLE_OUTPUT, dtype, out_channels});
        variants_ = {{"fine", 1, 1, 0, "cpu-o16", gelu ? run<1, 1, true> : run<1, 1, false>, {}, 0, 0, 0},
                     {"coarse", 2, 3, 0, "cpu-o16", gelu ? run<2, 3, true> : run<2, 3, false>, {}, 0, 0, 0},
                     {"dense", 1, 8, 1, "cpu-o16", gelu ? run<1, 8, true> : run<1, 8, false>, {}, 0, 0, 0}};
        polykernel_.version = DISTILE_POLYKERNEL_VERSION;
        polykernel_.name = "plain_linear";
        polykernel_.kind = DISTILE_MASKED_LINEAR;
        polykernel_.op = &linear_;
        polykernel_.num_operands = static_cast<int32_t>(operands_.size());
        polykernel_.operands = operands_.data();
        polykernel_.device = DISTILE_CPU;
        polykernel_.features = "";
        polykernel_.plan_hash = 7;
        polykernel_.num_variants = static_cast<int32_t>(variants_.size());
        polykernel_.variants = variants_.data();
    }
    PlainLinear(const PlainLinear &) = delete;
    PlainLinear &operator=(const PlainLinear &) = delete;

    const distile_polykernel &polykernel() const {
        return polykernel_;
    }

private:
    static const char *element(const distile_array &array, std::initializer_list<int32_t> place) {
        int64_t at = 0;
        const auto *dim = array.dim;
        for (int32_t coordinate : place) {
            at += int64_t{coordinate - dim->min} * dim->stride;
            dim++;
        }
        return static_cast<const char *>(array.data) + at * static_cast<int64_t>(distile_dtype_size(array.dtype));
    }
    static float load(const distile_array &array, std::initializer_list<int32_t> place) {
        return load_as(array.dtype, element(array, place));
    }

    template<int32_t tile_h, int32_t tile_w, bool gelu> static int run(const distile_kernel_call *call) {
        struct Loop {
            const distile_kernel_call *call;
            static void task(void *closure, int32_t index) {
                run_tile<tile_h, tile_w, gelu>(*static_cast<Loop *>(closure)->call, index);
            }
        } loop{call};
        call->hooks->parallel_for(call->hooks, Loop::task, &loop, call->num_tiles);
        return 0;
    }
    template<int32_t tile_h, int32_t tile_w, bool gelu>
    static void run_tile(const distile_kernel_call &call, int32_t tile) {
        const distile_array &output = call.operands[call.num_operands - 1];
        const auto x0 = static_cast<int32_t>(call.tile_xy[tile] & 0xffff);
        const auto y0 = static_cast<int32_t>(call.tile_xy[tile] >> 16);
        const auto n = static_cast<int32_t>(call.tile_xy[call.tile_capacity + tile]);
        for (int32_t y = y0; y < std::min(y0 + tile_h, output.dim[2].extent); y++) {
            for (int32_t x = x0; x < std::min(x0 + tile_w, output.dim[1].extent); x++) {
                const uint32_t word = call.bits[(n * call.height + y) * call.words_per_row + x / 32];
                if (call.store_tiles != 0 || (word >> (x % 32) & 1) != 0) {
                    run_pixel<gelu>(call, n, y, x);
                }
            }
        }
    }
    template<bool gelu> static void run_pixel(const distile_kernel_call &call, int32_t n, int32_t y, int32_t x) {
        const distile_array &input = call.operands[0], &weights = call.operands[1], &bias = call.operands[2];
        const distile_array &output = call.operands[call.num_operands - 1];
        for (int32_t o = 0; o < output.dim[0].extent; o++) {
            float sum = load(bias, {o});
            for (int32_t i = 0; i < input.dim[0].extent; i++) {
                sum += load(input, {i, x, y, n}) * load(weights, {o % 16, i, 0, 0, o / 16});
            }
            if (call.num_operands == 5) {
                sum += load(call.operands[3], {o, x, y, n});
            }
            const double result = gelu ? apply_epilogue(DISTILE_ACTIVATION_GELU, sum) : sum;
            store_as(output.dtype, static_cast<float>(result), const_cast<char *>(element(output, {o, x, y, n})));
        }
    }

    distile_linear linear_;
    std::vector<distile_operand> operands_;
    std::vector<distile_variant> variants_;
    distile_polykernel polykernel_{};
};

}  // namespace distile

#endif
