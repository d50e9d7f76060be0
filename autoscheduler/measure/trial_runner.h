/** \file
 * Running one compiled schedule on a device, to check and to time it.
 */
#ifndef DISTILE_TRIAL_RUNNER_H
#define DISTILE_TRIAL_RUNNER_H

#include "plans/operator.h"
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <distile/quantize.h>
#include <memory>
#include <string>
#include <vector>

namespace distile {

/** The tensors of a call, contiguous, and its weights: drawn numbers, except for weights that are given. */
struct TrialData {
    /** With `bordered`, the input gets a zero border as wide as the padding where the device takes one. `weights`:
     * those of read_weights(); empty: drawn ones. */
    TrialData(const Operator &of, int images, const Extents &extents, bool bordered, std::vector<float> weights = {});

    Operator op;
    int batch;
    Extents input_extents, output_extents;
    bool border;
    std::vector<float> input, residual, bias;
    std::vector<float> key, value; /**< The typical number of tokens, all active; empty if the operator has none. */
    std::vector<float> filter;     /**< [output channel][kernel row][kernel column][input channel] */
    // For quantized operators. Stored inputs and residuals equal the real numbers; results are in units of a sixteenth.
    std::vector<int8_t> quantized_filter;
    std::vector<float> filter_scales;
    distile_quantization quantization{};

    /** The rows and columns of masks. */
    Extents mask_extents() const {
        return op.mask_of(output_extents);
    }
    size_t output_pixels() const {
        return static_cast<size_t>(batch) * output_extents.height * output_extents.width;
    }
    /** In real numbers. */
    distile_weights_source weights() const;
    /** The packed weights; null for an operator without any. */
    Weights pack(const Context &context, const Kernel &kernel) const;

private:
    void quantize();
};

/** A variant of a compiled plan with tensors on a device. Everything throws std::exception. */
class TrialRunner {
public:
    virtual ~TrialRunner() = default;
    /** Keeps a byte mask over the output, and returns its number. */
    virtual size_t add_mask(const std::vector<uint8_t> &bytes) = 0;
    /** Runs the variant for a mask, in the mode that keeps inactive pixels. */
    virtual void run(size_t mask) = 0;
    /** Microseconds of a call, after an untimed one. */
    virtual double time_us(size_t mask) = 0;
    virtual void set_output(const std::vector<float> &values) = 0;
    virtual std::vector<float> output() = 0;
};

/** One variant of a PolyKernel, as a PolyKernel without a time table and without others behind it. */
distile_polykernel alone(const distile_polykernel &polykernel, size_t variant);

class TrialDevice {
public:
    virtual ~TrialDevice() = default;
    /** The device's name for itself. */
    virtual std::string name() const = 0;
    /** The first variant of a plan. `data` and the device must outlive the result. */
    virtual std::unique_ptr<TrialRunner> runner(const distile_polykernel &polykernel, const TrialData &data) = 0;
};

/** This machine's CPU with some threads. */
std::unique_ptr<TrialDevice> make_cpu_device(int threads);
/** The first GPU, with `multiprocessors` of its multiprocessors; 0: all. Throws std::runtime_error where there is none,
 * or no support for one in this program. */
std::unique_ptr<TrialDevice> make_cuda_device(int multiprocessors);
/** The first OpenCL device, which must have `units` compute units; 0: any number. Throws std::runtime_error where there
 * is none, or no support for one in this program. */
std::unique_ptr<TrialDevice> make_opencl_device(int units);
/** Its number of compute units. */
int opencl_units();

/** "" if the variant computes what it should for a mask and leaves the rest of the output alone, otherwise what is
 * wrong. `polykernel` is the one of the runner. At most `pixels` active pixels are compared. */
std::string check_output(TrialRunner &runner, const TrialData &data, const distile_polykernel &polykernel,
                         const std::vector<uint8_t> &mask, size_t pixels);

/** A key or a value in memory with as many tokens as typical; without data if that is null. */
distile_tensor tokens_of(const Operator &op, int batch, void *data);

}  // namespace distile

#endif
