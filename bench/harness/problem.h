/** \file
 * The tensors of a measured operator, and its expected result.
 */
#ifndef DISTILE_BENCH_PROBLEM_H
#define DISTILE_BENCH_PROBLEM_H

#include "bench/harness/operators.h"
#include "bench/harness/typed_tensor.h"
#include "reference/conv2d_reference.h"
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace distile::bench {

/** Seeded values for one operator and batch. Masked and dense code read the same input and the same weights. */
class Problem {
public:
    Problem(const BenchOperator &op, int32_t batch);

    const BenchOperator &op() const {
        return op_;
    }
    int32_t batch() const {
        return batch_;
    }
    const TypedTensor &stored_input(bool bordered) const {
        return bordered ? *bordered_ : *plain_;
    }
    const distile_tensor &input(bool bordered) const {
        return stored_input(bordered).view();
    }
    /** In float32, whatever the operator stores. */
    distile_weights_source weights() const;
    /** What is added to every result; null for operators that add nothing. */
    const distile_tensor *residual() const {
        return op_.conv.residual != 0 ? &residual_->view() : nullptr;
    }

    /** The residual with its memory; null for operators that add nothing. */
    const TypedTensor *stored_residual() const {
        return op_.conv.residual != 0 ? &*residual_ : nullptr;
    }

    /** A contiguous tensor for a result in `memory`, which must hold output_size() elements. */
    distile_tensor output(void *memory) const;
    size_t output_size() const;

    /** The dense result by plain loops with sums in double precision; made by the first call, which takes seconds. */
    const std::vector<float> &reference();

    /** For every channel of one output pixel, the sum of the convolution, the bias and, if wanted, the residual. */
    void sum_pixel(int32_t n, int32_t y, int32_t x, std::vector<double> &sums, bool with_residual = true) const;

private:
    BenchOperator op_;
    int32_t batch_;
    std::optional<TypedTensor> plain_, bordered_, residual_;
    std::vector<float> filter_, bias_;
    std::unique_ptr<const Conv2dReference> loops_;
    std::vector<float> reference_;
};

}  // namespace distile::bench

#endif
