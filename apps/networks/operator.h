/** \file
 * Operators of networks, and the PolyKernels that compute them: those linked into the program, and those in the cache
 * folder of the Python package (docs/python.md), where build_polykernels() adds what is missing.
 */
#ifndef DISTILE_NETWORKS_OPERATOR_H
#define DISTILE_NETWORKS_OPERATOR_H

#include "bindings/registry.h"
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace distile::networks {

/** A float32 operator with all that its PolyKernel fixes. */
struct Operator {
    distile_operator_kind kind = DISTILE_MASKED_CONV2D;
    distile_conv2d conv{}; /**< A linear layer is a 1x1 convolution; unused for attention. */
    distile_attention attention{};

    /** This operator with an epilogue. */
    Operator then(distile_activation epilogue) const;
    /** This operator with a residual, which it adds before the epilogue. */
    Operator with_residual() const;

    bindings::OperatorKey key() const;
    /** The PolyKernel; null if there is none. */
    const distile_polykernel *polykernel() const;
    /** A C name that no other operator has. */
    std::string name() const;
    /** "convolution 3x3", "linear" or "attention". */
    std::string type() const;
    /** The operator file. `typical` is the size at which it runs, as a tensor of its output. */
    std::string file(const distile_tensor &typical) const;
};

/** A convolution with zero padding that keeps the size at stride 1. */
Operator conv2d(int32_t in, int32_t out, int32_t kernel, int32_t stride = 1);
Operator linear(int32_t in, int32_t out);
Operator attention(int32_t heads, int32_t head_dim);

/** Compiles PolyKernels into the cache folder and loads them. Each takes some seconds, and `progress` is called with
 * the number that is done. Throws std::runtime_error, also after Ctrl-C; then those done stay, and the same call goes
 * on. `sized` has the sizes of operators, as in Operator::file(). */
void build_polykernels(const std::vector<std::pair<Operator, distile_tensor>> &sized,
                       const std::function<void(size_t)> &progress);

}  // namespace distile::networks

#endif
