/** \file
 * Switches of captured CUDA graphs (cuda.h of the runtime) by numbers, for python/distile/capturing.py.
 */
#ifndef DISTILE_PYTHON_SWITCHES_H
#define DISTILE_PYTHON_SWITCHES_H

#include "python/csrc/tensors.h"

namespace distile::python {

/** The number of a new switch on a GPU. `graphs` are the addresses of CUgraphs; what they use, and the masks, must live
 * as long as the switch. */
int64_t make_switch(const std::vector<Tensor> &masks, int64_t device_index, const Ints &graphs, double budget);
/** On PyTorch's current stream. */
void launch_switch(int64_t number);
void set_switch(int64_t number, int64_t way);
/** The last way, its density, and for each way its runs and its microseconds. */
std::vector<double> switch_info(int64_t number);
void free_switch(int64_t number);

}  // namespace distile::python

#endif
