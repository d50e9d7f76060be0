/** \file
 * What the multiprocessors of NVIDIA GPUs have for the blocks of the templates for tensor cores.
 */
#ifndef DISTILE_SCHEDULES_MULTIPROCESSOR_H
#define DISTILE_SCHEDULES_MULTIPROCESSOR_H

#include "schedules/space.h"
#include <cstdint>

namespace distile {

/** The shared memory of a multiprocessor. Each block takes reserved_bytes besides its own. */
inline int64_t all_shared_bytes(TensorCores cores) {
    // Some chips from 8.0 on have no more than 8.6 has.
    return (cores == TensorCores::Sm90 ? 228 : 100) << 10;
}
constexpr int64_t reserved_bytes = 1 << 10;

}  // namespace distile

#endif
