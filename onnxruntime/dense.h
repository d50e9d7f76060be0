/** \file
 * ONNX Runtime's own operators on a CPU, which run where no PolyKernel does.
 */
#ifndef DISTILE_ONNXRUNTIME_DENSE_H
#define DISTILE_ONNXRUNTIME_DENSE_H

#include "onnxruntime/tensors.h"
#include <utility>

namespace distile::ort {

/** An operator of ONNX Runtime. */
class DenseNode {
public:
    /** Every attribute that the operator knows must be there: ONNX Runtime adds no defaults here. */
    struct Attributes {
        std::vector<std::pair<const char *, int64_t>> integers;
        std::vector<std::pair<const char *, float>> numbers;
        std::vector<std::pair<const char *, Shape>> lists;
    };
    /** The operator's type parameters with the types that they stand for. */
    using Types = std::vector<std::pair<const char *, ElementType>>;
    DenseNode(const NodeView &node, const char *name, int version, const Types &types, int num_inputs,
              const Attributes &attributes);
    ~DenseNode();
    DenseNode(const DenseNode &) = delete;
    DenseNode &operator=(const DenseNode &) = delete;

    /** Writes the output, which has the right shape. */
    void run(const Call &call, const std::vector<Tensor> &inputs, const Tensor &output) const;

private:
    const OrtApi *api_;
    OrtOp *node_ = nullptr;
};

/** The dense form of an operator with weights: its result without residual and activation, in scratch memory. */
class Dense {
public:
    Dense() = default;
    virtual ~Dense() = default;
    Dense(const Dense &) = delete;
    Dense &operator=(const Dense &) = delete;
    virtual distile_tensor run(const Call &call, const Lease &lease, const Tensor &input, const Tensor &filter,
                               const std::optional<Tensor> &bias) const = 0;
};

/** The first number of scratch memory that dense forms use, beside those of their operands. */
constexpr size_t dense_scratch = 4;

}  // namespace distile::ort

#endif
