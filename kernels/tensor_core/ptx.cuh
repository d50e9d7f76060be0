/** \file
 * Instructions that CUDA C++ has no functions for. Barriers and shared memory are named by their shared addresses.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_PTX_CUH
#define DISTILE_CUDA_TENSOR_CORE_PTX_CUH

#include <cstdint>

namespace distile::tensor_core {

__device__ inline uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/** A value that all lanes of a warp have, for instructions that take addresses from uniform registers. Otherwise each
 * of them becomes a loop over the lanes' values. */
__device__ inline uint32_t uniform(uint32_t value) {
    return __shfl_sync(~0u, value, 0);
}

/** Keeps a value in a register, where the compiler would compute it in every iteration. */
__device__ inline uint32_t keep_value(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

/** Stores to shared memory without a branch, so that the compiler overlaps many of these. */
__device__ inline void store_shared_if(bool condition, uint32_t to, uint16_t value) {
    asm volatile("{\n\t.reg .pred stores;\n\tsetp.ne.u32 stores, %0, 0;\n\t"
                 "@stores st.shared.u16 [%1], %2;\n\t}" ::"r"(static_cast<uint32_t>(condition)),
                 "r"(to), "h"(value)
                 : "memory");
}

/** Copies 16 bytes from global to shared memory, or writes zeros. */
__device__ inline void copy_or_zero(uint32_t to, const char *from, bool copies) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copies ? 16 : 0)
                 : "memory");
}

/** Waits for all copies of this thread. */
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/** Waits for the kernels before this one, which may start before they end. Does nothing before compute capability 9.0.
 */
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/** Lets the next kernel start, which waits for this one before it uses memory. */
__device__ inline void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void init_barrier(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/** Makes initialised barriers known to other blocks of the cluster and to bulk copies. */
__device__ inline void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Arrives at the barrier when the copies that this thread has begun are done. */
__device__ inline void arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred done;\n"
                 "again_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/** Arrives at the barrier, which then also waits for `bytes` bytes. */
__device__ inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/** Copies whole 16 bytes from global to shared memory and counts them at the barrier. */
__device__ inline void copy_bulk(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/** Copies a box of a tensor to shared memory, with zeros for what is not in the tensor. */
__device__ inline void copy_box(uint32_t to, const void *map, int32_t channel, int32_t x, int32_t y, int32_t image,
                                uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
                 "%5}], [%6];" ::"r"(to),
                 "l"(map), "r"(channel), "r"(x), "r"(y), "r"(image), "r"(barrier)
                 : "memory");
}

/** Synchronises some of a block's threads; barrier 0 is that of __syncthreads(). */
template<int Threads> __device__ inline void sync_threads(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}

/** The number of a block in its cluster. */
__device__ inline uint32_t number_in_cluster() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}

/** The address of another block's shared memory. */
__device__ inline uint32_t remote_address(uint32_t address, uint32_t block) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}

__device__ inline void arrive_remote(uint32_t barrier, uint32_t block) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_address(barrier, block))
                 : "memory");
}

/** Waits for arrivals from the whole cluster. */
__device__ inline void wait_for_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred done;\n"
                 "again_%=:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/** Copies shared memory to that of another block, whose barrier counts the bytes. Multiples of 16. */
__device__ inline void copy_bulk_remote(uint32_t remote, uint32_t from, uint32_t bytes, uint32_t remote_barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(remote),
        "r"(from), "r"(bytes), "r"(remote_barrier)
        : "memory");
}

/** Orders this thread's accesses of shared memory before later bulk copies and products that read or write it, which
 * came with compute capability 9.0. */
__device__ inline void fence_shared() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/** Makes what the block wrote before visible to whoever reads the signal. */
__device__ inline void set_signal(uint32_t *signal) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(signal) : "memory");
}
__device__ inline void wait_for_signal(const uint32_t *signal) {
    uint32_t value;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(signal) : "memory");
    } while (value == 0);
}

__device__ inline void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/** Gives back or takes registers, for the whole warp group. */
template<int Registers> __device__ inline void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template<int Registers> __device__ inline void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace distile::tensor_core

#endif
