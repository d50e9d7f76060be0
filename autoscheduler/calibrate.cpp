#include "calibrate.h"
#include "operator.h"
#include <Eigen/Dense>

namespace distile {

TaskFit fit_task_times(const std::vector<TaskTime> &times) {
    const auto rows = static_cast<Eigen::Index>(times.size());
    // Of each equation divided by its time, the right side is 1 and the residual a relative error.
    Eigen::MatrixXd equations(rows, 3);
    for (Eigen::Index i = 0; i < rows; i++) {
        const TaskTime &time = times[i];
        equations.row(i) << time.operations / time.us, time.tasks / time.us, 1 / time.us;
    }
    // What comes out negative, as noise can make it, is taken for 0, and the others are fitted again.
    Eigen::Vector3d solution = Eigen::Vector3d::Zero();
    std::vector<Eigen::Index> unknowns = {0, 1, 2};
    for (bool negative = true; negative && !unknowns.empty();) {
        Eigen::MatrixXd columns(rows, unknowns.size());
        for (size_t i = 0; i < unknowns.size(); i++) {
            columns.col(static_cast<Eigen::Index>(i)) = equations.col(unknowns[i]);
        }
        const Eigen::VectorXd fitted = columns.colPivHouseholderQr().solve(Eigen::VectorXd::Ones(rows));
        Eigen::Index lowest = 0;
        negative = fitted.minCoeff(&lowest) < 0;
        solution.setZero();
        for (size_t i = 0; i < unknowns.size(); i++) {
            solution(unknowns[i]) = fitted(static_cast<Eigen::Index>(i));
        }
        if (negative) {
            solution(unknowns[lowest]) = 0;
            unknowns.erase(unknowns.begin() + lowest);
        }
    }
    if (!(solution(0) > 0)) {
        throw FileError("the times of the calibration do not grow with the work: measure on an idle machine");
    }
    return {solution(0), solution(1), solution(2)};
}

}  // namespace distile
