/** \file
 * The space of GPU schedules for operators that read a key or a value, CUDA's and OpenCL's. Independent of Halide, so a
 * search can walk it anywhere.
 *
 * A block computes `block_rows` listed rows of an image and a head. It goes through the keys by `block_keys`, which it
 * stages in shared memory with their values. Groups of 8 threads have `thread_rows` rows in common: of scores each
 * thread has every eighth key, of values every eighth vector of 4 channels, both in registers. Between both products
 * the probabilities go through shared memory. Queries come from the cache.
 */
#ifndef DISTILE_SCHEDULES_GPU_TOKEN_SPACE_H
#define DISTILE_SCHEDULES_GPU_TOKEN_SPACE_H

#include "schedules/space.h"
#include <cstdint>

namespace distile {

const Space &gpu_token_space();

/** The threads of a block that have the same rows, and of all rows. */
constexpr int key_threads = 8;
int token_threads(const Theta &theta);

/** Vectors of 4 channels that a thread sums for each of its rows. */
int vectors_per_thread(const Problem &problem);

/** The floats between the staged rows of two keys: a whole vector more than their channels avoids bank conflicts. */
int staged_row(const Problem &problem);

/** Bytes of shared memory per block, at most. */
int64_t token_shared_bytes(const Theta &theta, const Problem &problem);

/** Registers for a thread's sums of either product, with the operands of one step. */
int token_registers(const Theta &theta, const Problem &problem);

}  // namespace distile

#endif
