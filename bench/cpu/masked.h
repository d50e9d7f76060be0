/** \file
 * Our side of a row: a masked operator from the raw byte mask to the result.
 */
#ifndef DISTILE_BENCH_MASKED_H
#define DISTILE_BENCH_MASKED_H

#include "bench/harness/masks.h"
#include "bench/harness/problem.h"
#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

void set_mask(const Context &context, const Mask &mask, const ByteMask &bytes);

class MaskedOperator {
public:
    /** Computes into `output`, which has problem.output_size() floats or narrower elements. Reads those of `times`,
     * files of `distile profile`, that belong to the operator. */
    MaskedOperator(const Context &context, Problem &problem, const std::vector<std::string> &times,
                   AlignedFloats output)
        : MaskedOperator(context, problem, *problem.op().polykernel, times, std::move(output)) {
    }
    /** Computes by another PolyKernel of the operator. */
    MaskedOperator(const Context &context, Problem &problem, const distile_polykernel &polykernel,
                   const std::vector<std::string> &times, AlignedFloats output);

    /** Adds a dense candidate to those that the dispatcher chooses from. */
    void link(const distile_dense_candidate &candidate);
    /** Gives the dispatcher the time of a candidate for all pixels. */
    void set_time(const char *candidate, double microseconds);

    /** What the dispatcher would choose for a mask. */
    distile_choice choose(const ByteMask &mask);
    /** Packs the mask and computes its pixels. `variant` is null to let the dispatcher choose. */
    void run(const ByteMask &mask, bool bordered, bool zero, const char *variant);
    /** Computes every pixel with our dense candidate. The mask is made beforehand, because a dense operator needs none.
     */
    void run_dense(bool bordered, const distile_tensor &output);

    /** The name of our dense candidate; null if the PolyKernel has none. */
    const char *dense_variant() const;
    /** The PolyKernel of the chain that this machine runs. */
    const distile_polykernel &polykernel() const {
        return polykernel_;
    }

    /** Fills the output with a value that no result has, so that check_output() sees which pixels were written. */
    void spoil_output();
    /** The largest difference to the reference on active pixels, relative to the largest value of the reference.
     * Throws std::runtime_error if it is too large, or if an inactive pixel is not what the mode asks for. */
    double check_output(const ByteMask &mask, bool zero);

private:
    const Context &context_;
    Problem &problem_;
    Kernel kernel_;
    const distile_polykernel &polykernel_;
    Weights weights_;
    Mask mask_, full_mask_;
    AlignedFloats output_memory_;
    distile_tensor output_;
};

/** The largest difference between two results, relative to the largest magnitude of the second. */
double relative_error(const float *result, const std::vector<float> &reference);

}  // namespace distile::bench

#endif
