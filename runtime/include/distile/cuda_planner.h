/** \file
 * Output buffers on an NVIDIA GPU for a chain of masked operators: as planner.h, with the same options and errors,
 * and those of cuda.h.
 *
 *     distile_cuda_planner_next(planner, &spec, mask, DISTILE_STORE_EXACT, &output);
 *     distile_cuda_run(kernel, &(distile_cuda_run_args){.input = &input, .output = &output, .weights = weights,
 *                                                       .mask = mask});
 *
 * Nothing waits. What was written to a buffer is recorded on the device, its mask too, which may be set anew at once.
 * So calls can be captured in a graph once every buffer met its largest tensor, and each replay clears what was written
 * last, by whatever wrote it. The tensors of a graph stay those of its capture.
 */
#ifndef DISTILE_CUDA_PLANNER_H
#define DISTILE_CUDA_PLANNER_H

#include <distile/cuda.h>
#include <distile/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct distile_cuda_planner distile_cuda_planner;

/** As distile_planner_create; `options` may be null. DISTILE_CLEAR_BACKGROUND clears on a stream of the planner's, as
 * soon as a buffer is free. On a GPU the mode DISTILE_ZERO is mostly faster than any planner: docs/cuda.md has
 * figures. */
DISTILE_API distile_status distile_cuda_planner_create(distile_cuda *cuda, const distile_planner_options *options,
                                                       distile_cuda_planner **planner);
/** Frees the buffers too, once the GPU is done with them. Null is allowed. */
DISTILE_API void distile_cuda_planner_destroy(distile_cuda_planner *planner);

/** As distile_planner_next, for a tensor and a mask on the device: the tensor is zero for what is put on the stream
 * next. What was put on it before may still read and write the buffer that becomes free. */
DISTILE_API distile_status distile_cuda_planner_next(distile_cuda_planner *planner, const distile_output_spec *spec,
                                                     distile_cuda_mask *mask, distile_store store,
                                                     distile_tensor *output);

/** Lets the stream wait for what is being cleared in the background, if anything is. To be called before a capture with
 * the planner begins, before it ends, and before its graph is replayed. Errors: NULL_POINTER. */
DISTILE_API distile_status distile_cuda_planner_join(distile_cuda_planner *planner);

/** Bytes that the planner's buffers hold at present; 0 if `planner` is null. Buffers that were outgrown are kept,
 * because a graph may use them. */
DISTILE_API int64_t distile_cuda_planner_bytes(const distile_cuda_planner *planner);

#ifdef __cplusplus
}
#endif

#endif
