/** \file
 * The types of factors that C++ lacks, as they lie in memory. Instructions are chosen by them.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ELEMENTS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ELEMENTS_CUH

#include <cstdint>

namespace distile::tensor_core {

struct Float16 {
    uint16_t bits;
};
struct Bfloat16 {
    uint16_t bits;
};
/** A float32 whose last 13 bits tensor cores ignore. */
struct Tf32 {
    uint32_t bits;
};

}  // namespace distile::tensor_core

#endif
