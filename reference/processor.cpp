#include "reference/processor.h"
#include <fstream>
#include <sched.h>
#include <stdexcept>

namespace distile {

std::string cpu_name() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string numbers;  // Arm's CPUs have no other name there.
    for (std::string line; std::getline(cpuinfo, line);) {
        const size_t colon = line.find(": ");
        if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
        if ((line.rfind("CPU implementer", 0) == 0 || line.rfind("CPU part", 0) == 0) && colon != std::string::npos) {
            numbers += " " + line.substr(colon + 2);
            if (line.rfind("CPU part", 0) == 0) {
                return "Arm CPU" + numbers;
            }
        }
    }
    return "unknown CPU";
}

std::vector<int> usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int core = 0; core < CPU_SETSIZE; core++) {
            if (CPU_ISSET(core, &set)) {
                cores.push_back(core);
            }
        }
    }
    if (cores.empty()) {
        throw std::runtime_error("the system does not report which cores this process may use");
    }
    return cores;
}

int32_t restrict_to_cores(int32_t threads) {
    const std::vector<int> cores = usable_cores();
    const std::string option = "--threads " + std::to_string(threads), count = std::to_string(cores.size());
    if (threads == 0) {
        return static_cast<int32_t>(cores.size());
    }
    if (threads < 0 || static_cast<size_t>(threads) > cores.size()) {
        throw std::runtime_error(option + ": this process may use " + count + " cores; give 1 to " + count +
                                 ", or 0 for all");
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int32_t i = 0; i < threads; i++) {
        CPU_SET(cores[i], &set);
    }
    if (sched_setaffinity(0, sizeof(set), &set) != 0) {
        throw std::runtime_error(option + ": the system refuses to restrict this process to that many cores; start it "
                                          "with taskset instead");
    }
    return threads;
}

}  // namespace distile
