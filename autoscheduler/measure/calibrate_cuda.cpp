#include "autoscheduler/measure/calibrate.h"
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "calibrate_ptx.h"
#include "plans/backend.h"
#include "plans/operator.h"
#include "runtime/cuda/driver.h"
#include <algorithm>
#include <numeric>
#include <random>

namespace distile {

namespace {

/** Microseconds of a launch: the least of several, each of some launches in a graph. */
template<typename... Args>
double time_us(const GpuSlice &slice, CUfunction function, int blocks, int threads, int shared, Args... args) {
    void *parameters[] = {static_cast<void *>(&args)..., nullptr};
    const GpuGraph graph(slice, [&] {
        CU(cuLaunchKernel, function, static_cast<unsigned>(blocks), 1U, 1U, static_cast<unsigned>(threads), 1U, 1U,
           static_cast<unsigned>(shared), static_cast<CUstream>(slice.stream()), static_cast<void **>(parameters),
           static_cast<void **>(nullptr));
    });
    double best = graph.time();
    for (int i = 0; i < 9; i++) {
        best = std::min(best, graph.time());
    }
    return best;
}

int attribute(CUdevice_attribute what, CUdevice device) {
    int value = 0;
    CU(cuDeviceGetAttribute, &value, what, device);
    return value;
}

/** A cycle through the lines of 128 bytes of a buffer, in random order. */
std::vector<unsigned> chase(int64_t bytes) {
    constexpr int64_t words_of_line = 32;
    const int64_t lines = bytes / 4 / words_of_line;
    std::vector<unsigned> order(lines), next(lines * words_of_line);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin() + 1, order.end(), std::mt19937_64(1));
    for (int64_t i = 0; i < lines; i++) {
        next[order[i] * words_of_line] = static_cast<unsigned>(order[(i + 1) % lines] * words_of_line);
    }
    return next;
}

/** The profile, where the driver can refuse any step with an exception. */
DeviceProfile calibrate(int multiprocessors, const Progress &progress) {
    progress("opening the GPU", 0);
    const GpuSlice slice(multiprocessors);
    CUdevice gpu = 0;
    CU(cuDeviceGet, &gpu, 0);
    DeviceProfile device;
    device.name = slice.device();
    device.backend = cuda_backend().name;
    device.features = "sm_" + std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu)) +
                      std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu));
    device.cores = slice.multiprocessors();
    device.max_threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, gpu);
    device.max_blocks = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, gpu);
    device.registers = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, gpu);
    device.shared_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, gpu);
    device.shared_banks = 32;
    set_derived(device);
    const int64_t l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, gpu);

    const Module kernels(distile_calibrate_ptx);
    const std::vector<float> values = {0.5F, 1.0F, -1.0F};
    const DeviceArray<float> coefficients(values), results(size_t{1});
    const DeviceArray<long long> cycles(size_t{1});
    const float *const read_only = coefficients.data();
    float *const result = results.data();

    progress("cycles", 0.1);
    constexpr int long_chain = 1 << 20;
    const double chain_us =
        time_us(slice, kernels.find("distile_one_chain"), 1, 32, 0, long_chain, read_only, result, cycles.data());
    device.ghz = static_cast<double>(cycles.get()[0]) / chain_us * 1e-3;
    device.fma_latency = static_cast<double>(cycles.get()[0]) / long_chain;

    // A block takes more than half of a multiprocessor's shared memory, so that blocks beyond the multiprocessors
    // make further rounds.
    progress("tasks", 0.2);
    CUfunction chains = kernels.find("distile_chains");
    const int lone = static_cast<int>(device.shared_bytes / 2 + 1024);
    CU(cuFuncSetAttribute, chains, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, lone);
    std::vector<TaskTime> times;
    for (int steps : {32, 128, 512, 2048}) {
        for (int warps : {4, 8, 16, 32}) {
            for (int rounds : {1, 2, 4, 8}) {
                const double us =
                    time_us(slice, chains, rounds * device.cores, 32 * warps, lone, steps, read_only, result);
                times.push_back({8.0 * steps * warps * rounds, static_cast<double>(rounds), us});
            }
        }
    }
    const TaskFit fit = fit_task_times(times);
    device.alpha_us = fit.alpha_us;
    device.gamma_us = fit.gamma_us;
    device.launch_us = time_us(slice, kernels.find("distile_nothing"), 1, 32, 0);
    device.fma_per_cycle = 32 / (device.alpha_us * 1e3 * device.ghz);

    progress("shared memory", 0.5);
    constexpr int shared_steps = 4096, chase_loads = 1 << 16;
    const double shared_us =
        time_us(slice, kernels.find("distile_read_shared"), device.cores, 1024, 0, shared_steps, result);
    MemoryLevel shared{"shared", device.shared_bytes, false, 0, 32 * 4, 0};
    shared.gb_per_s = 1024.0 * shared_steps * 8 * 16 / shared_us * 1e-3;
    shared.latency_ns = time_us(slice, kernels.find("distile_chase_shared"), 1, 1, 0, chase_loads,
                                reinterpret_cast<unsigned *>(result)) /
                        chase_loads * 1e3;
    // A load of four words for each thread is what a warp's load of vectors takes.
    device.load_per_cycle = shared.gb_per_s / 512 / device.ghz;

    // A quarter of the cache fits it whichever half of the chip asks; memory is read beyond any cache.
    const auto measure_level = [&](MemoryLevel &level, int64_t about_bytes, int passes, int64_t chase_bytes) {
        progress("bandwidth of " + level.name, level.bytes > 0 ? 0.6 : 0.8);
        constexpr int threads = 1024;
        const int64_t vectors_at_once = int64_t{4} * threads * device.cores;
        const long long vectors = std::max<int64_t>(1, about_bytes / 16 / vectors_at_once) * vectors_at_once;
        const DeviceArray<float> data(std::vector<float>(static_cast<size_t>(4 * vectors)));
        const double us = time_us(slice, kernels.find("distile_read"), device.cores, threads, 0,
                                  static_cast<const float *>(data.data()), vectors, passes, result);
        level.gb_per_s = 16.0 * static_cast<double>(vectors) * passes / us * 1e-3;
        const DeviceArray<unsigned> next(chase(chase_bytes)), place(std::vector<unsigned>{0});
        level.latency_ns = time_us(slice, kernels.find("distile_chase"), 1, 1, 0,
                                   static_cast<const unsigned *>(next.data()), chase_loads, place.data()) /
                           chase_loads * 1e3;
    };
    MemoryLevel l2{"L2", l2_bytes, true, 0, 32, 0}, dram{"DRAM", 0, true, 0, 32, 0};
    measure_level(l2, l2_bytes / 4, 20, int64_t{4} << 20);
    measure_level(dram, int64_t{2} << 30, 1, int64_t{512} << 20);
    device.memory = {shared, l2, dram};
    return device;
}

}  // namespace

DeviceProfile calibrate_cuda(int multiprocessors, const Progress &progress) {
    DriverFailure missing;
    if (!load_driver(missing)) {
        throw FileError("the GPU cannot be calibrated: " + missing.message);
    }
    try {
        return calibrate(multiprocessors, progress);
    } catch (const FileError &) {
        throw;
    } catch (const std::runtime_error &error) {
        throw FileError(std::string("the GPU cannot be calibrated: ") + error.what());
    }
}

}  // namespace distile
