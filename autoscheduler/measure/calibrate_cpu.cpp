#include "autoscheduler/measure/calibrate.h"
#include "autoscheduler/measure/vector_code.h"
#include "plans/architecture.h"
#include "plans/backend.h"
#include "plans/operator.h"
#include "reference/processor.h"
#include "runtime/base/thread_pool.h"
#include "runtime/cpu/cpu_features.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <sched.h>

namespace distile {

namespace {

/** Makes a value that nobody needs. */
template<typename T> void keep(T value) {
    __asm__ volatile("" : : "g"(value) : "memory");
}

double seconds_of(const std::function<void()> &work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/** The least time of several calls: on a machine that others use, most noise only adds. */
double best_seconds(int repeats, const std::function<void()> &work) {
    double best = seconds_of(work);
    for (int i = 1; i < repeats; i++) {
        best = std::min(best, seconds_of(work));
    }
    return best;
}

/** Cycles a second in GHz. */
double measure_ghz() {
    constexpr int64_t steps = 200'000;
    return 8 * steps / best_seconds(50, [] { run_cycles(steps); }) * 1e-9;
}

/** The CPUs that this process may use. */
std::vector<int> allowed_cpus() {
    cpu_set_t allowed;
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &allowed)) {
                cpus.push_back(cpu);
            }
        }
    }
    return cpus.empty() ? std::vector<int>{0} : cpus;
}

struct FreeBuffer {
    void operator()(void *memory) const {
        // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): this is the owner.
        std::free(memory);
    }
};
using Buffer = std::unique_ptr<char, FreeBuffer>;

Buffer make_buffer(int64_t bytes) {
    Buffer buffer(static_cast<char *>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    if (!buffer) {
        throw FileError("there is no memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    std::fill_n(buffer.get(), bytes, '\1');
    return buffer;
}

/** Runs one task on each of `threads` threads at once. */
void on_threads(ThreadPool &pool, int threads, const std::function<void(int)> &task) {
    pool.parallel_for(
        [](void *closure, int32_t index) { (*static_cast<const std::function<void(int)> *>(closure))(index); },
        const_cast<std::function<void(int)> *>(&task), threads);
}

/** GB/s at which threads read buffers of their own, in all. */
double read_bandwidth(const VectorCode &code, ThreadPool &pool, int threads, int64_t bytes_each) {
    std::vector<Buffer> buffers(threads);
    for (Buffer &buffer : buffers) {
        buffer = make_buffer(bytes_each);
    }
    const int64_t passes = std::max<int64_t>(1, (int64_t{16} << 20) / bytes_each);
    const double seconds = best_seconds(
        15, [&] { on_threads(pool, threads, [&](int i) { keep(code.read(buffers[i].get(), bytes_each, passes)); }); });
    return static_cast<double>(bytes_each) * static_cast<double>(passes) * threads / seconds * 1e-9;
}

/** Nanoseconds of a load whose address is what the one before loaded, over the lines of a buffer in random order. */
double load_latency(int64_t bytes, int line) {
    const int64_t lines = std::max<int64_t>(16, bytes / line);
    const Buffer buffer = make_buffer(lines * line);
    std::vector<int64_t> order(lines);
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin() + 1, order.end(), std::mt19937_64(1));
    const auto at = [&](int64_t i) { return reinterpret_cast<char **>(buffer.get() + order[i % lines] * line); };
    for (int64_t i = 0; i < lines; i++) {
        *at(i) = reinterpret_cast<char *>(at(i + 1));
    }
    constexpr int64_t loads = 100'000;
    char *place = buffer.get();
    const double seconds = best_seconds(10, [&] {
        for (int64_t i = 0; i < loads; i++) {
            place = *reinterpret_cast<char **>(place);
            __asm__ volatile("" : "+r"(place));
        }
    });
    return seconds / loads * 1e9;
}

/** Parallel loops like those of kernels: numbers of tasks, each of many chains for some steps. */
std::vector<TaskTime> time_tasks(const VectorCode &code, ThreadPool &pool) {
    std::vector<TaskTime> times;
    for (int64_t steps : {40, 160, 640, 2560, 10240}) {
        for (int tasks : {1, 2, 3, 4, 6, 8, 16, 32}) {
            const double us = 1e6 * best_seconds(60, [&] {
                                  on_threads(pool, tasks * pool.threads(), [&](int) { keep(code.many_chains(steps)); });
                              });
            times.push_back(
                {static_cast<double>(tasks) * static_cast<double>(steps) * chains, static_cast<double>(tasks), us});
        }
    }
    return times;
}

}  // namespace

DeviceProfile calibrate_cpu(int of_cores, const Progress &progress) {
    const int cores = of_cores > 0 ? of_cores : static_cast<int>(allowed_cpus().size());
    const VectorCode *code = nullptr;
    for (const VectorCode &candidate : vector_codes()) {
        if (!code && missing_cpu_feature(candidate.feature).empty()) {
            code = &candidate;
        }
    }
    if (!code) {
        throw FileError(
            "this CPU has none of the vectors by which cores are calibrated (AVX-512, AVX2 with FMA, NEON): the "
            "built-in profile " +
            std::string(host_platform().architecture.levels.back().profile) + " stands for it");
    }
    DeviceProfile device;
    device.name = cpu_name();
    device.backend = cpu_backend().name;
    device.features = present_cpu_features();
    device.cores = cores;
    device.vector_lanes = code->lanes;
    device.vector_registers = code->registers;

    progress("cycles and operations", 0);
    device.ghz = measure_ghz();
    constexpr int64_t steps = 20'000;
    const double cycles = device.ghz * 1e9;
    device.fma_per_cycle = steps * chains / (best_seconds(50, [&] { keep(code->many_chains(steps)); }) * cycles);
    device.fma_latency = best_seconds(50, [&] { keep(code->one_chain(steps)); }) * cycles / steps;

    ThreadPool pool(cores);
    const std::vector<CpuCache> found = cpu_caches("/sys/devices/system/cpu", allowed_cpus(), cores);
    const int64_t last = found.back().bytes;
    for (size_t i = 0; i <= found.size(); i++) {
        MemoryLevel level;
        const bool is_memory = i == found.size();
        const CpuCache cache = is_memory ? CpuCache{0, 0, found.back().line, found.back().count} : found[i];
        level.name = is_memory ? "DRAM" : "L" + std::to_string(cache.level);
        progress("bandwidth of " + level.name, 0.1 + 0.6 * static_cast<double>(i) / static_cast<double>(found.size()));
        level.shared = is_memory || cache.level >= 3;
        level.bytes = level.shared ? cache.bytes * cache.count : cache.bytes;
        level.transaction_bytes = cache.line;
        // Bandwidths of one core and of all cores, from buffers that exceed the next nearer level and fit this one with
        // room to spare. A CPU may have many last caches, and the cores any of them.
        constexpr int64_t least = int64_t{256} << 20;
        const int64_t inner = i == 0 ? 0 : found[i - 1].bytes;
        const int64_t own =
            is_memory ? std::max(4 * last, least) : std::max(cache.bytes / 2, std::min(2 * inner, cache.bytes));
        const int64_t all =
            is_memory ? std::max(4 * last * cache.count, least) : std::max(level.bytes / 2, 2 * inner * cores);
        level.gb_per_s = level.shared ? read_bandwidth(*code, pool, cores, all / cores / 4096 * 4096)
                                      : read_bandwidth(*code, pool, 1, own / 4096 * 4096);
        level.latency_ns = load_latency(own, cache.line);
        device.memory.push_back(level);
    }
    device.load_per_cycle = device.memory[0].gb_per_s * 1e9 / (4.0 * code->lanes) / cycles;

    progress("tasks", 0.8);
    const TaskFit fit = fit_task_times(time_tasks(*code, pool));
    device.alpha_us = fit.alpha_us;
    device.gamma_us = fit.gamma_us;
    device.launch_us = fit.launch_us;
    return device;
}

}  // namespace distile
