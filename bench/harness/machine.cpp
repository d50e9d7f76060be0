#include "bench/harness/machine.h"
#include "reference/processor.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fmt/core.h>
#include <fstream>
#include <malloc.h>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace distile::bench {

std::string system_name() {
    utsname name{};
    return uname(&name) == 0 ? fmt::format("{} {} {}", name.sysname, name.release, name.machine) : "unknown system";
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    char text[32] = "";
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

double seconds_of_others() {
    const std::vector<int> cores = usable_cores();
    double seconds = 0;
    std::ifstream stat("/proc/stat");
    for (std::string line; std::getline(stat, line);) {
        int core = 0;
        if (std::sscanf(line.c_str(), "cpu%d", &core) != 1 ||
            std::find(cores.begin(), cores.end(), core) == cores.end()) {
            continue;
        }
        std::istringstream fields(line.substr(line.find(' ')));
        long long user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft_interrupts = 0,
                  stolen = 0;
        fields >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> stolen;
        seconds += static_cast<double>(user + nice + system + interrupts + soft_interrupts + stolen) /
                   static_cast<double>(sysconf(_SC_CLK_TCK));
    }
    if (seconds == 0) {
        return 0;
    }
    for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
        rusage own{};
        getrusage(who, &own);
        for (const timeval &time : {own.ru_utime, own.ru_stime}) {
            seconds -= static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
        }
    }
    return seconds;
}

size_t last_level_cache_bytes() {
    // The kernel's own figures, because sysconf() multiplies the cache of virtual machines. A machine that reports
    // nothing counts as one with a large cache.
    size_t largest = size_t{32} << 20;
    for (int index = 0;; index++) {
        std::ifstream size(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
        size_t kibibytes = 0;
        if (!(size >> kibibytes)) {
            return largest;
        }
        largest = std::max(largest, kibibytes << 10);
    }
}

MemoryUse memory_use() {
    MemoryUse use{};
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        long long kibibytes = 0;
        if (std::sscanf(line.c_str(), "VmHWM: %lld", &kibibytes) == 1) {
            use.peak_resident = kibibytes << 10;
        } else if (std::sscanf(line.c_str(), "VmRSS: %lld", &kibibytes) == 1) {
            use.resident = kibibytes << 10;
        }
    }
    const struct mallinfo2 heap = mallinfo2();
    use.heap = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
    return use;
}

void restart_peak() {
    malloc_trim(0);
    std::ofstream clear("/proc/self/clear_refs");
    clear << "5\n";
    clear.close();
    if (!clear) {
        throw std::runtime_error("the system does not let a process restart its peak of memory "
                                 "(/proc/self/clear_refs)");
    }
}

void pin_this_thread(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    // If the system refuses, the thread runs anywhere, which is good enough for the threads that we pin.
    (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace distile::bench
