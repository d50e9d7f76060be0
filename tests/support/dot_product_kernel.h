/** \file
 * PolyKernels of code for dot products, written by hand: their code reads the operator at run time, so nothing is
 * generated.
 */
#ifndef DISTILE_TESTS_DOT_PRODUCT_KERNEL_H
#define DISTILE_TESTS_DOT_PRODUCT_KERNEL_H

#include "kernels/dot_products.h"
#include "runtime/kinds/dot_product_layout.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <distile/polykernel.h>
#include <string>
#include <utility>
#include <vector>

namespace distile {

using DotProductCall = int (*)(const distile_dot_product_code *code, const distile_kernel_call *call);

/** An instruction set, and the blocks of three variants. */
struct InstructionSet {
    static constexpr int num_variants = 3;

    const char *name, *features;
    DotProductCall call;
    struct {
        int32_t pixels, channels;
    } blocks[num_variants];
    bool depthwise = true; /**< Has code for depthwise convolutions, if it is for quantized numbers. */
    distile_device device = DISTILE_CPU;
    int32_t tiles[num_variants][2] = {{1, 1}, {2, 3}, {1, 8}}; /**< Height and width. */
    int32_t reduction_splits[num_variants] = {1, 1, 1};
};

/** What an operator is, and what is packed before its output. */
struct DotProductOperator {
    distile_operator_kind kind;
    const distile_conv2d &conv;
    distile_dtype output;
    const char *layout;
    std::vector<distile_operand> operands; /**< All before the residual. */
};

/** A PolyKernel of a convolution or a linear layer. The last variant is dense. Only one can be in use. */
class DotProductKernel {
public:
    DotProductKernel(const InstructionSet &set, DotProductOperator of)
        : conv_(of.conv), linear_{conv_.in_channels, conv_.out_channels, conv_.epilogue, conv_.residual},
          taps_(dot_product_taps(of.kind, conv_, std::max(1, pack_of(*find_layout(of.layout))))), name_(set.name),
          operands_(std::move(of.operands)) {
        if (conv_.residual != 0) {
            operands_.push_back({DISTILE_ROLE_RESIDUAL, of.output, conv_.out_channels});
        }
        operands_.push_back({DISTILE_ROLE_OUTPUT, of.output, conv_.out_channels});
        constexpr int32_t staged[num_variants] = {2, 1, 3}, splits[num_variants] = {1, 2, 4};
        constexpr const char *names[num_variants] = {"fine", "coarse", "dense"};
        constexpr distile_kernel_function runs[num_variants] = {run<0>, run<1>, run<2>};
        call_of_all_ = set.call;
        for (int i = 0; i < num_variants; i++) {
            codes_[i] = {conv_.epilogue,         set.tiles[i][0],    set.tiles[i][1],   set.blocks[i].pixels,
                         set.blocks[i].channels, staged[i],          splits[i],         taps_.scale_h,
                         taps_.scale_w,          taps_.stride_h,     taps_.stride_w,    taps_.read_channels,
                         taps_.section_channels, taps_.apart_groups, taps_.rows.data(), taps_.columns.data(),
                         set.reduction_splits[i]};
            variants_[i] = {
                names[i], set.tiles[i][0], set.tiles[i][1], i + 1 == num_variants ? 1 : 0, of.layout, runs[i], {}, 0, 0,
                0};
        }
        polykernel_.version = DISTILE_POLYKERNEL_VERSION;
        polykernel_.name = name_.c_str();
        polykernel_.kind = of.kind;
        polykernel_.op = of.kind == DISTILE_MASKED_LINEAR ? static_cast<const void *>(&linear_) : &conv_;
        polykernel_.num_operands = static_cast<int32_t>(operands_.size());
        polykernel_.operands = operands_.data();
        polykernel_.device = set.device;
        polykernel_.features = set.features;
        polykernel_.num_variants = num_variants;
        polykernel_.variants = variants_.data();
    }
    DotProductKernel(const DotProductKernel &) = delete;
    DotProductKernel &operator=(const DotProductKernel &) = delete;

    const distile_polykernel &polykernel() const {
        return polykernel_;
    }
    std::vector<distile_operand> &operands() {
        return operands_;
    }

private:
    static constexpr int num_variants = InstructionSet::num_variants;

    template<int Variant> static int run(const distile_kernel_call *call) {
        return call_of_all_(&codes_[Variant], call);
    }

    // Functions of a PolyKernel know no object.
    static inline std::array<distile_dot_product_code, num_variants> codes_;
    static inline DotProductCall call_of_all_ = nullptr;

    distile_conv2d conv_;
    distile_linear linear_;
    DotProductTaps taps_;
    std::string name_;
    std::vector<distile_operand> operands_;
    std::array<distile_variant, num_variants> variants_{};
    distile_polykernel polykernel_{};
};

}  // namespace distile

#endif
