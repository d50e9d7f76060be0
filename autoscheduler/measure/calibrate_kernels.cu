/** \file
 * The kernels by which a GPU is calibrated. Compiled to PTX and embedded, as the runtime's are.
 */

namespace {

/** Chains of multiply-adds, each of which needs the one before. Their values come from memory and never settle into
 * something the compiler knows. */
template<int chains> __device__ float multiply_add(int steps, const float *values) {
    const float factor = values[0], addend = values[1];
    float sums[chains];
    for (int i = 0; i < chains; i++) {
        sums[i] = static_cast<float>(threadIdx.x + i);
    }
#pragma unroll 16
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int i = 0; i < chains; i++) {
            sums[i] = fmaf(sums[i], factor, addend);
        }
    }
    float result = 0;
    for (int i = 0; i < chains; i++) {
        result += sums[i];
    }
    return result;
}

}  // namespace

extern "C" __global__ void distile_nothing() {
}

/** Eight chains a thread, as many as fill the pipelines of a multiprocessor with four warps. */
extern "C" __global__ void distile_chains(int steps, const float *values, float *result) {
    const float sum = multiply_add<8>(steps, values);
    if (sum == values[2]) {
        *result = sum;
    }
}

/** One chain, and the cycles that it took. */
extern "C" __global__ void distile_one_chain(int steps, const float *values, float *result, long long *cycles) {
    const long long start = clock64();
    const float sum = multiply_add<1>(steps, values);
    *result = sum;
    *cycles = clock64() - start;
}

/** Reads `vectors` vectors of 16 bytes, past the L1 cache, some times over: a multiple of four for every thread. */
extern "C" __global__ void distile_read(const float4 *data, long long vectors, int passes, float *result) {
    float sum = 0;
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    for (int pass = 0; pass < passes; pass++) {
        long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
        for (; i < vectors; i += 4 * stride) {
            float4 loaded[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                loaded[j] = __ldcg(data + i + j * stride);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum += loaded[j].x + loaded[j].y + loaded[j].z + loaded[j].w;
            }
        }
    }
    if (sum == 1) {
        *result = sum;
    }
}

/** Reads shared memory without conflicts: 8 vectors of 16 bytes a thread and step. */
extern "C" __global__ void distile_read_shared(int steps, float *result) {
    __shared__ float4 data[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) {
        data[i] = make_float4(i, i, i, i);
    }
    __syncthreads();
    float4 sum = make_float4(0, 0, 0, 0);
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float4 loaded = data[(threadIdx.x + 32 * (j + 8 * step)) & 2047];
            sum.x += loaded.x;
            sum.y += loaded.y;
            sum.z += loaded.z;
            sum.w += loaded.w;
        }
    }
    if (sum.x + sum.y + sum.z + sum.w == 1) {
        *result = sum.x;
    }
}

/** Loads, each of which takes its place from the one before. A launch goes on where the last one ended, so that it
 * meets no lines that are in the cache for having been read already. */
extern "C" __global__ void distile_chase(const unsigned *next, int loads, unsigned *result) {
    unsigned place = *result;
    for (int i = 0; i < loads; i++) {
        place = __ldcg(next + place);
    }
    *result = place;
}

extern "C" __global__ void distile_chase_shared(int loads, unsigned *result) {
    __shared__ unsigned next[1024];
    for (unsigned i = 0; i < 1024; i++) {
        next[i] = (i * 5 + 7) & 1023;
    }
    unsigned place = 0;
    for (int i = 0; i < loads; i++) {
        place = next[place];
    }
    *result = place;
}
