/** \file
 * PolyKernels of attention and its products in plain C++: what the runtime does with keys, values and their masks is
 * seen without a generator, on any CPU. They read rows and keys by the lists of a call.
 */
#ifndef DISTILE_TESTS_PLAIN_ATTENTION_H
#define DISTILE_TESTS_PLAIN_ATTENTION_H

#include "kernels/call.h"
#include "reference/conv2d_reference.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <distile/polykernel.h>
#include <vector>

namespace distile {

class PlainAttention {
public:
    PlainAttention(int32_t heads, int32_t head_dim, bool causal = false, distile_dtype dtype = DISTILE_FLOAT32)
        : attention_{heads, head_dim, causal ? 1 : 0}, operands_{{DISTILE_ROLE_INPUT, dtype, heads * head_dim},
                                                                 {DISTILE_ROLE_KEY, dtype, heads * head_dim},
                                                                 {DISTILE_ROLE_VALUE, dtype, heads * head_dim},
                                                                 {DISTILE_ROLE_OUTPUT, dtype, heads * head_dim}} {
        polykernel_.kind = DISTILE_MASKED_ATTENTION;
        polykernel_.op = &attention_;
        variants_ = {{"plain", 1, 1, 0, nullptr, causal ? run_attention<true> : run_attention<false>, {}, 0, 0, 0}};
        finish();
    }
    PlainAttention(int32_t heads, int32_t head_dim, distile_product product, bool packed_columns = false)
        : matmul_{heads, head_dim, product, 0, packed_columns ? 1 : 0} {
        const int32_t channels = heads * head_dim;
        if (product == DISTILE_SCORES) {
            operands_ = {{DISTILE_ROLE_INPUT, DISTILE_FLOAT32, channels},
                         {DISTILE_ROLE_KEY, DISTILE_FLOAT32, channels},
                         {DISTILE_ROLE_OUTPUT, DISTILE_FLOAT32, 0}};
        } else {
            operands_ = {{DISTILE_ROLE_INPUT, DISTILE_FLOAT32, 0},
                         {DISTILE_ROLE_VALUE, DISTILE_FLOAT32, channels},
                         {DISTILE_ROLE_OUTPUT, DISTILE_FLOAT32, channels}};
        }
        polykernel_.kind = DISTILE_MASKED_MATMUL;
        polykernel_.op = &matmul_;
        const auto run_any_scores = packed_columns ? run_scores<true> : run_scores<false>;
        const auto run_any_values = packed_columns ? run_values<true> : run_values<false>;
        variants_ = {
            {"plain", 1, 1, 0, nullptr, product == DISTILE_SCORES ? run_any_scores : run_any_values, {}, 0, 0, 0}};
        finish();
    }
    PlainAttention(const PlainAttention &) = delete;
    PlainAttention &operator=(const PlainAttention &) = delete;

    const distile_polykernel &polykernel() const {
        return polykernel_;
    }

private:
    void finish() {
        polykernel_.version = DISTILE_POLYKERNEL_VERSION;
        polykernel_.name = "plain_attention";
        polykernel_.num_operands = static_cast<int32_t>(operands_.size());
        polykernel_.operands = operands_.data();
        polykernel_.device = DISTILE_CPU;
        polykernel_.features = "";
        polykernel_.plan_hash = 9;
        polykernel_.num_variants = static_cast<int32_t>(variants_.size());
        polykernel_.variants = variants_.data();
    }

    static char *place(const distile_array &array, int32_t channel, int32_t x, int32_t y, int32_t image) {
        const auto *dim = array.dim;
        const int64_t at =
            channel + int64_t{x} * dim[1].stride + int64_t{y} * dim[2].stride + int64_t{image} * dim[3].stride;
        return static_cast<char *>(array.data) + at * static_cast<int64_t>(distile_dtype_size(array.dtype));
    }
    static float load(const distile_array &array, int32_t channel, int32_t x, int32_t y, int32_t image) {
        return load_as(array.dtype, place(array, channel, x, y, image));
    }

    static std::vector<int32_t> keys_of(const distile_kernel_call &call, int32_t image, int32_t tokens) {
        std::vector<int32_t> keys;
        for (int32_t i = 0; !call.key_xy && i < tokens; i++) {
            keys.push_back(i);
        }
        for (uint32_t i = call.key_xy ? call.key_starts[image] : 0; call.key_xy && i < call.key_starts[image + 1];
             i++) {
            keys.push_back(static_cast<int32_t>(call.key_xy[i]));
        }
        return keys;
    }

    /** Calls visit(image, row) for the listed rows. */
    template<typename Visit> static void for_each_row(const distile_kernel_call &call, const Visit &visit) {
        for (int32_t n = 0; n < call.batch; n++) {
            for (uint32_t i = call.row_starts[n]; i < call.row_starts[n + 1]; i++) {
                visit(n, static_cast<int32_t>(call.tile_xy[i]));
            }
        }
    }

    static double score(const distile_kernel_call &call, int32_t n, int32_t row, int32_t key, int32_t first,
                        int32_t head_dim) {
        double sum = 0;
        for (int32_t d = first; d < first + head_dim; d++) {
            sum += static_cast<double>(load(call.operands[0], d, row, 0, n)) * load(call.operands[1], d, key, 0, n);
        }
        return sum * call.scale;
    }

    /** Four channels are a head's. */
    static constexpr int32_t head_dim = 4;

    template<bool causal> static int run_attention(const distile_kernel_call *call) {
        const distile_array &key = call->operands[1], &value = call->operands[2], &output = call->operands[3];
        const int32_t shift = key.dim[1].extent - output.dim[1].extent;
        for_each_row(*call, [&](int32_t n, int32_t row) {
            for (int32_t first = 0; first < output.dim[0].extent; first += head_dim) {
                double sums[head_dim] = {}, all = 0;
                for (int32_t j : keys_of(*call, n, key.dim[1].extent)) {
                    const bool seen = !causal || j <= row + shift;
                    const double weight = seen ? std::exp(score(*call, n, row, j, first, head_dim)) : 0;
                    all += weight;
                    for (int32_t d = 0; seen && d < head_dim; d++) {
                        sums[d] += weight * load(value, first + d, j, 0, n);
                    }
                }
                for (int32_t d = 0; d < head_dim; d++) {
                    store_as(output.dtype, static_cast<float>(all > 0 ? sums[d] / all : 0),
                             place(output, first + d, row, 0, n));
                }
            }
        });
        return 0;
    }

    template<bool packed> static int run_scores(const distile_kernel_call *call) {
        const distile_array &key = call->operands[1], &output = call->operands[2];
        for_each_row(*call, [&](int32_t n, int32_t row) {
            for (int32_t head = 0; head < output.dim[2].extent; head++) {
                int32_t column = 0;
                for (int32_t j : keys_of(*call, n, key.dim[1].extent)) {
                    store_as(output.dtype, static_cast<float>(score(*call, n, row, j, head * head_dim, head_dim)),
                             place(output, packed ? column++ : j, row, head, n));
                }
            }
        });
        return 0;
    }

    template<bool packed> static int run_values(const distile_kernel_call *call) {
        const distile_array &input = call->operands[0], &value = call->operands[1], &output = call->operands[2];
        for_each_row(*call, [&](int32_t n, int32_t row) {
            for (int32_t channel = 0; channel < output.dim[0].extent; channel++) {
                double sum = 0;
                int32_t column = 0;
                for (int32_t j : keys_of(*call, n, value.dim[1].extent)) {
                    const float weight = load(input, packed ? column++ : j, row, channel / head_dim, n);
                    sum += static_cast<double>(weight) * load(value, channel, j, 0, n);
                }
                store_as(output.dtype, static_cast<float>(sum), place(output, channel, row, 0, n));
            }
        });
        return 0;
    }

    distile_attention attention_{};
    distile_matmul matmul_{};
    std::vector<distile_operand> operands_;
    std::vector<distile_variant> variants_;
    distile_polykernel polykernel_{};
};

}  // namespace distile

#endif
