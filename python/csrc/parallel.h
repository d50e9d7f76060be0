/** \file
 * Groups of devices and their chains (group.h of the runtime) by numbers, for python/distile/parallel.py.
 */
#ifndef DISTILE_PYTHON_PARALLEL_H
#define DISTILE_PYTHON_PARALLEL_H

#include "python/csrc/tensors.h"

namespace distile::python {

/** The number of a new group of contexts. Each has the number of a GPU and a CUstream of its own, which lives as long
 * as PyTorch does; or -1 for CPUs and a number of threads. `speeds` has two numbers for each, or none. With ranks above
 * 0 they are one context, and `exchange` is the address of their transport's function (group.h). */
int64_t make_group(const Ints &devices, const Ints &streams, const Ints &threads, const std::vector<double> &speeds,
                   double imbalance, int64_t timeout_ms, int64_t overlap, bool any_order, int64_t rank, int64_t ranks,
                   int64_t exchange, bool asynchronous);
/** It is freed with the last of its chains. */
void free_group(int64_t group);

/** The layers, as make_chain() has them, for which no PolyKernel is there. */
Ints lacking_polykernels(int64_t group, const std::vector<Tensor> &parameters, ScalarType type, const Ints &layers,
                         const std::string &activations);
/** The number of a new chain of layers, which compute in a type. `layers` has the numbers of each (ChainLayer in
 * parallel.cpp), and `activations` their activations, with commas between. Without a PolyKernel, a layer runs by code
 * for any shape. */
int64_t make_chain(int64_t group, const std::vector<Tensor> &parameters, ScalarType type, const Ints &layers,
                   const std::string &activations);
/** Runs a chain with a mask for each layer. Without an input, it takes the images that the devices keep; without an
 * output, they keep the result. Packs the weights again if they are others, or were written. Sizes are those of an
 * input or an output that other ranks have. */
void run_chain(const OptionalTensor &input, const std::vector<Tensor> &masks, const OptionalTensor &output,
               const std::vector<Tensor> &parameters, int64_t chain, bool zero, const Ints &input_sizes,
               const Ints &output_sizes);
/** The sizes of the images that the devices keep; none if they keep none. */
Ints kept_images(int64_t chain);
/** With ranks, an output without elements stands for none. */
void collect_images(const Tensor &output, int64_t chain);
/** The numbers of distile_chain_info, in their order. */
std::vector<double> chain_info(int64_t chain);
void free_chain(int64_t chain);

}  // namespace distile::python

#endif
