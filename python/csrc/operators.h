/** \file
 * The operators that library.cpp registers. Where no PolyKernel fits, each calls its dense twin, which Python defines.
 */
#ifndef DISTILE_PYTHON_OPERATORS_H
#define DISTILE_PYTHON_OPERATORS_H

#include "bindings/activation.h"
#include "python/csrc/tensors.h"

namespace distile::python {

using bindings::activation_of;

Tensor conv2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
              const OptionalTensor &residual, const Ints &stride, const Ints &padding, const Ints &dilation,
              int64_t groups, const std::string &activation, int64_t place);
Tensor conv2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                  const OptionalTensor &residual, const Ints &stride, const Ints &padding, const Ints &dilation,
                  int64_t groups, const std::string &activation, int64_t place, bool zero, const Tensor &out);
Tensor conv_transpose2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                        const OptionalTensor &residual, const Ints &stride, const Ints &output_padding,
                        const Ints &padding, const Ints &dilation, int64_t groups, const std::string &activation,
                        int64_t place);
Tensor conv_transpose2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                            const OptionalTensor &residual, const Ints &stride, const Ints &output_padding,
                            const Ints &padding, const Ints &dilation, int64_t groups, const std::string &activation,
                            int64_t place, bool zero, const Tensor &out);
Tensor upsample_conv2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                       const OptionalTensor &residual, const Ints &scale, const Ints &padding, const Ints &dilation,
                       int64_t groups, const std::string &activation, int64_t place);
Tensor upsample_conv2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                           const OptionalTensor &residual, const Ints &scale, const Ints &padding, const Ints &dilation,
                           int64_t groups, const std::string &activation, int64_t place, bool zero, const Tensor &out);

Tensor linear(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
              const OptionalTensor &residual, const std::string &activation, int64_t place);
Tensor linear_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                  const OptionalTensor &residual, const std::string &activation, int64_t place, bool zero,
                  const Tensor &out);

Tensor attention(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                 const OptionalTensor &key_mask, double scale, bool causal);
Tensor attention_out(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                     const OptionalTensor &key_mask, double scale, bool causal, bool zero, const Tensor &out);

Tensor layer_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                  double epsilon);
Tensor layer_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                      double epsilon, bool zero, const Tensor &out);
Tensor rms_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, double epsilon);
Tensor rms_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, double epsilon, bool zero,
                    const Tensor &out);
Tensor pack(const Tensor &input, const Tensor &mask);
Tensor pack_out(const Tensor &input, const Tensor &mask, const Tensor &out);
Tensor unpack(const Tensor &packed, const Tensor &mask);
Tensor unpack_out(const Tensor &packed, const Tensor &mask, bool zero, const Tensor &out);

/** Runs a stage (runtime/include/distile/stage.h), which python/distile/stages.py has recorded. */
void run_stage(const std::vector<Tensor> &tensors, const std::vector<Tensor> &parameters,
               const std::vector<Tensor> &mask_tensors, const Ints &borders, const Ints &made, const Ints &program,
               const std::vector<double> &numbers);
/** Runs a described stage (bindings/stage_program.h). `places` has one for each step, as operators of layers have;
 * `times` are rows of a density and the times of the stage, of its layers and of the dense form; `way` is one of those,
 * from 0, or -1 for the fastest at the density of the masks. Where the device has no such stage, way -1 runs its
 * layers, and way 0 fails. */
std::vector<Tensor> stage(const std::vector<Tensor> &tensors, const std::vector<Tensor> &masks,
                          const std::vector<Tensor> &parameters, const Ints &steps, const std::vector<double> &numbers,
                          const std::string &activations, const Ints &outputs, const Ints &places,
                          const std::vector<double> &times, int64_t way);
/** Begins a trace of all stages that run, or ends it. Returns the items that were traced, as int64 numbers of the CPU
 * [items, columns] (stage_trace.cpp); `like` is a tensor of the CPU. Fails if a trace that begins is within another. */
Tensor trace_stages(bool begins, const Tensor &like);
/** Sets distile_stage_args::teams for the stages that this thread runs from now on, and returns what it was. */
int64_t set_stage_teams(int64_t teams);

/** The weights of a convolution for stages on the device of `like`, in bytes on the CPU. */
Tensor pack_stage_weights(const Tensor &weight, int64_t dtype, int64_t groups, const Tensor &like);

Tensor mask_dilate(const Tensor &mask, int64_t radius_h, int64_t radius_w);
Tensor mask_dilate_out(const Tensor &mask, int64_t radius_h, int64_t radius_w, const Tensor &out);
Tensor mask_pool(const Tensor &mask, int64_t factor_h, int64_t factor_w);
Tensor mask_pool_out(const Tensor &mask, int64_t factor_h, int64_t factor_w, const Tensor &out);
Tensor mask_needed_input(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                         const Ints &dilation, const Ints &padding, int64_t kind);
Tensor mask_needed_input_out(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                             const Ints &dilation, const Ints &padding, int64_t kind, const Tensor &out);
Tensor mask_affected_output(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                            const Ints &dilation, const Ints &padding, int64_t kind);
Tensor mask_affected_output_out(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                                const Ints &dilation, const Ints &padding, int64_t kind, const Tensor &out);
Tensor mask_difference(const Tensor &a, const Tensor &b, double threshold);
Tensor mask_difference_out(const Tensor &a, const Tensor &b, double threshold, const Tensor &out);
Tensor mask_from_indices(const Tensor &indices, int64_t height, int64_t width);
Tensor mask_from_indices_out(const Tensor &indices, int64_t height, int64_t width, const Tensor &out);
Tensor mask_from_bits(const Tensor &words, int64_t width);
Tensor mask_from_bits_out(const Tensor &words, int64_t width, const Tensor &out);

// On a CPU only: the host reads what the mask holds.
Tensor cumulative_lengths(const Tensor &mask);
Tensor cumulative_lengths_out(const Tensor &mask, const Tensor &out);
Tensor mask_to_bits(const Tensor &mask);
Tensor mask_to_bits_out(const Tensor &mask, const Tensor &out);

}  // namespace distile::python

#endif
