/** \file
 * Dense convolutions by oneDNN on the tensors of distile: what masked convolutions are measured against.
 */
#ifndef DISTILE_ONEDNN_CONV2D_H
#define DISTILE_ONEDNN_CONV2D_H

#include <distile/polykernel.h>
#include <memory>
#include <string>

namespace distile {

/** oneDNN's CPU engine and a stream on it. Copies share them; so may any number of convolutions of one thread.
 *
 * oneDNN takes its number of threads from the cores that the process may run on when the first engine is made. The
 * wheel's runtime (SYCL above TBB) has no other limit: restrict the process with sched_setaffinity() or taskset. */
class OneDnnEngine {
public:
    /** Throws std::runtime_error that says what is missing. The wheel's runtime finds its CPU driver through the
     * environment variable OCL_ICD_FILENAMES; where it is unset and the driver lies beside the library, this sets
     * it, so make the first engine before other threads read the environment. */
    OneDnnEngine();

    /** The version and the runtime of the library, for instance "3.13.2 (SYCL, TBB)". */
    static std::string version();

private:
    friend class OneDnnConv2d;
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

/** What oneDNN may do to float32 values inside. */
enum class OneDnnMath {
    strict, /**< It computes in float32. */
    any     /**< It may round them, for instance to bfloat16, where the CPU is faster with that. */
};

/** One convolution of any kind with its weights. Shapes may change from call to call: the primitives of the last few
 * are kept, and the weights are repacked once for every layout that a primitive asks for. Belongs to one thread at a
 * time. Every function throws std::runtime_error. */
class OneDnnConv2d {
public:
    /** Copies the weights, with batch normalisation folded in; the source may be freed afterwards. */
    OneDnnConv2d(const OneDnnEngine &engine, const distile_conv2d &conv, const distile_weights_source &weights,
                 OneDnnMath math = OneDnnMath::strict, distile_operator_kind kind = DISTILE_MASKED_CONV2D);
    ~OneDnnConv2d();
    OneDnnConv2d(OneDnnConv2d &&) noexcept;
    OneDnnConv2d &operator=(OneDnnConv2d &&) noexcept;

    /** Computes every output pixel: output = epilogue(conv(input) + bias [+ residual]). `residual` is null exactly for
     * operators without one, and may be the very same view as the output.
     *
     * The border of an input is read in place: oneDNN sees a larger image with less padding. That of a transposed
     * convolution, or of one after upsampling, is not read. Rows and images of the input need not
     * be contiguous, but oneDNN may then take its slow reference code: implementation() says. */
    void run(const distile_tensor &input, const distile_tensor *residual, const distile_tensor &output);

    /** oneDNN's name for the code that run() uses, for instance "brg_conv_fwd:avx512_core". */
    std::string implementation(const distile_tensor &input, const distile_tensor *residual,
                               const distile_tensor &output);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace distile

#endif
