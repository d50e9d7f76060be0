/** \file
 * Every product that plans for compute capability 9.0 can ask for, to be assembled: with values of block_channels and
 * block_keys (schedules/tensor_core_space.cpp, attention_space.cpp) as columns, and with the channels of heads.
 */
#include "kernels/tensor_core/wgmma.cuh"

using namespace distile::tensor_core;

template<class Element, class Sum, int Columns>
__device__ void multiply_memory(Sum *to, const SharedMatrix &rows, const SharedMatrix &columns) {
    Sum sums[Columns / 2];
    begin_products();
    multiply_add(Element{}, sums, rows.at(0), columns.at(0), false);
    multiply_add(Element{}, sums, rows.at(2), columns.at(2), true);
    commit_products();
    wait_for_products<0>();
    fence_registers(sums);
    for (int i = 0; i < Columns / 2; i++) {
        to[i] = sums[i];
    }
}

template<class Element, int Columns>
__device__ void multiply_registers(float *to, uint32_t (&rows)[4], const SharedMatrix &columns) {
    float sums[Columns / 2];
    fence_registers(rows);
    begin_products();
    multiply_add(Element{}, sums, rows, columns.at(0), false);
    commit_products();
    wait_for_products<0>();
    fence_registers(sums);
    for (int i = 0; i < Columns / 2; i++) {
        to[i] = sums[i];
    }
}

template<class Element, class Sum> __device__ void multiply_all(Sum *to) {
    const SharedMatrix rows(0, 128), columns(1024, 128);
    multiply_memory<Element, Sum, 32>(to, rows, columns);
    multiply_memory<Element, Sum, 64>(to, rows, columns);
    multiply_memory<Element, Sum, 96>(to, rows, columns);
    multiply_memory<Element, Sum, 128>(to, rows, columns);
    multiply_memory<Element, Sum, 192>(to, rows, columns);
    multiply_memory<Element, Sum, 256>(to, rows, columns);
}

template<class Element> __device__ void multiply_values(float *to) {
    uint32_t rows[4] = {};
    const SharedMatrix columns(0, 64, 4096);
    multiply_registers<Element, 32>(to, rows, columns);
    multiply_registers<Element, 64>(to, rows, columns);
    multiply_registers<Element, 96>(to, rows, columns);
    multiply_registers<Element, 128>(to, rows, columns);
}

extern "C" __global__ void multiply(float *to, int32_t *integers) {
    multiply_all<Float16>(to);
    multiply_all<Bfloat16>(to);
    multiply_all<Tf32>(to);
    multiply_all<uint8_t>(integers);
    multiply_all<int8_t>(integers);
    multiply_values<Float16>(to);
    multiply_values<Bfloat16>(to);
}
