// Gathers the rows of a list, or scatters to them: what a library for contiguous rows needs beside it. A block moves a
// row.
#include <cstdint>

namespace {

__device__ void move_row(const uint4 *from, uint4 *to, uint32_t pieces) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
        to[i] = __ldg(from + i);
    }
}

}  // namespace

/** Gathers rows of `pieces` pieces of 16 bytes. */
extern "C" __global__ void gather_rows(const uint4 *from, uint4 *to, const uint32_t *list, uint32_t pieces) {
    move_row(from + uint64_t{list[blockIdx.x]} * pieces, to + uint64_t{blockIdx.x} * pieces, pieces);
}

extern "C" __global__ void scatter_rows(const uint4 *from, uint4 *to, const uint32_t *list, uint32_t pieces) {
    move_row(from + uint64_t{blockIdx.x} * pieces, to + uint64_t{list[blockIdx.x]} * pieces, pieces);
}
