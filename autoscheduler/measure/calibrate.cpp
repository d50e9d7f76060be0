#include "autoscheduler/measure/calibrate.h"
#include "plans/operator.h"
#include <Eigen/Dense>
#include <algorithm>
#include <fstream>
#include <set>

namespace distile {

TaskFit fit_task_times(const std::vector<TaskTime> &times) {
    const auto rows = static_cast<Eigen::Index>(times.size());
    // Each equation is divided by its time. Then the right side is 1 and the residual a relative error.
    Eigen::MatrixXd equations(rows, 3);
    for (Eigen::Index i = 0; i < rows; i++) {
        const TaskTime &time = times[i];
        equations.row(i) << time.operations / time.us, time.tasks / time.us, 1 / time.us;
    }
    // What comes out negative, as noise can make it, is taken for 0, and the others are fitted again. So is what makes
    // no part of any time beyond rounding, whose sign depends on the machine.
    constexpr double rounding = 1e-9;
    Eigen::Vector3d solution = Eigen::Vector3d::Zero();
    std::vector<Eigen::Index> unknowns = {0, 1, 2};
    for (bool refit = true; refit && !unknowns.empty();) {
        Eigen::MatrixXd columns(rows, unknowns.size());
        for (size_t i = 0; i < unknowns.size(); i++) {
            columns.col(static_cast<Eigen::Index>(i)) = equations.col(unknowns[i]);
        }
        const Eigen::VectorXd fitted = columns.colPivHouseholderQr().solve(Eigen::VectorXd::Ones(rows));
        // The largest part of a time that each makes.
        const Eigen::VectorXd parts = fitted.cwiseProduct(columns.colwise().maxCoeff().transpose());
        Eigen::Index lowest = 0;
        refit = parts.minCoeff(&lowest) < rounding;
        solution.setZero();
        for (size_t i = 0; i < unknowns.size(); i++) {
            solution(unknowns[i]) = fitted(static_cast<Eigen::Index>(i));
        }
        if (refit) {
            solution(unknowns[lowest]) = 0;
            unknowns.erase(unknowns.begin() + lowest);
        }
    }
    if (!(solution(0) > 0)) {
        throw FileError("the times of the calibration do not grow with the work: measure on an idle machine");
    }
    return {solution(0), solution(1), solution(2)};
}

std::vector<CpuCache> cpu_caches(const std::string &folder, const std::vector<int> &cpus, int cores) {
    std::vector<CpuCache> result;
    for (int index = 0; index < 8; index++) {
        const auto word = [&](int cpu, const char *file) {
            std::string text;
            std::ifstream(folder + "/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/" +
                          file) >>
                text;
            return text;
        };
        const int first = cpus.front();
        const std::string type = word(first, "type"), size = word(first, "size");
        if (size.empty() || type == "Instruction") {
            continue;
        }
        std::set<std::string> sharers;
        for (int cpu : cpus) {
            sharers.insert(word(cpu, "shared_cpu_list"));
        }
        const int64_t unit = size.back() == 'M' ? 1 << 20 : size.back() == 'K' ? 1 << 10 : 1;
        result.push_back({std::stoi(word(first, "level")), std::stoll(size) * unit,
                          std::stoi(word(first, "coherency_line_size")),
                          std::min(cores, static_cast<int>(sharers.size()))});
    }
    std::sort(result.begin(), result.end(), [](const CpuCache &a, const CpuCache &b) { return a.level < b.level; });
    if (result.empty()) {
        throw FileError("the system does not tell its caches in " + folder);
    }
    return result;
}

}  // namespace distile
