#include "autoscheduler/search/gaussian_model.h"
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace distile {

namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

/** A fit takes time in proportion to the third power of the rows. */
constexpr size_t most_rows = 500;
constexpr size_t least_fitted = 8;
/** Predictions are made of as many points at once, so that their memory is bounded. */
constexpr size_t points_at_once = 1024;
/** What the likelihood chooses from: lengths, in standard deviations of a feature times the root of their number, and
 * the share of noise in the variance. */
constexpr double lengths[] = {.25, .5, 1, 2, 4}, noises[] = {1e-3, 1e-2, 1e-1};

/** The squared distances of all pairs of rows. */
MatrixXd distances(const MatrixXd &a, const MatrixXd &b) {
    MatrixXd squares = -2 * a * b.transpose();
    squares.colwise() += a.rowwise().squaredNorm();
    squares.rowwise() += b.rowwise().squaredNorm().transpose();
    return squares.cwiseMax(0);
}

MatrixXd covariance(const MatrixXd &squares, double length) {
    return (squares * (-.5 / (length * length))).array().exp().matrix();
}

}  // namespace

struct GaussianModel::Process {
    MatrixXd rows;  ///< Scaled.
    VectorXd means, scales, solved;
    double length = 1, variance = 1;
    std::optional<Eigen::LLT<MatrixXd>> factor;

    /** Features of which some may be missing, scaled. */
    MatrixXd scaled(const std::vector<std::vector<float>> &features) const {
        MatrixXd result(static_cast<Eigen::Index>(features.size()), means.size());
        for (Eigen::Index row = 0; row < result.rows(); row++) {
            for (Eigen::Index column = 0; column < result.cols(); column++) {
                const double value = features[static_cast<size_t>(row)][static_cast<size_t>(column)];
                result(row, column) = std::isnan(value) ? 0 : (value - means[column]) * scales[column];
            }
        }
        return result;
    }

    void find_scales(const std::vector<std::vector<float>> &features) {
        const auto columns = static_cast<Eigen::Index>(features.front().size());
        means = VectorXd::Zero(columns);
        scales = VectorXd::Zero(columns);
        for (Eigen::Index column = 0; column < columns; column++) {
            double sum = 0, squares = 0;
            int count = 0;
            for (const std::vector<float> &row : features) {
                const double value = row[static_cast<size_t>(column)];
                if (!std::isnan(value)) {
                    sum += value;
                    squares += value * value;
                    count++;
                }
            }
            if (count == 0) {
                continue;
            }
            means[column] = sum / count;
            const double spread = std::sqrt(std::max(0., squares / count - means[column] * means[column]));
            // What never changes says nothing.
            scales[column] = spread > 1e-6 ? 1 / (spread * std::sqrt(static_cast<double>(columns))) : 0;
        }
    }

    /** Takes the length and the noise that make the values most likely. */
    void fit(const VectorXd &values) {
        variance = std::max(values.squaredNorm() / static_cast<double>(values.size()), 1e-6);
        const MatrixXd squares = distances(rows, rows);
        double best = -std::numeric_limits<double>::infinity();
        for (const double tried : lengths) {
            for (const double noise : noises) {
                MatrixXd matrix = covariance(squares, tried);
                matrix.diagonal().array() += noise;
                Eigen::LLT<MatrixXd> found(matrix);
                if (found.info() != Eigen::Success) {
                    continue;
                }
                const VectorXd weights = found.solve(values);
                const double log_determinant = found.matrixLLT().diagonal().array().log().sum();
                const double likelihood = -.5 * values.dot(weights) / variance - log_determinant;
                if (likelihood > best) {
                    best = likelihood;
                    length = tried;
                    solved = weights;
                    factor = std::move(found);
                }
            }
        }
    }

    /** The mean less the standard deviation. */
    VectorXd optimistic(const MatrixXd &points) const {
        const MatrixXd between = covariance(distances(rows, points), length);
        const VectorXd mean = between.transpose() * solved;
        const MatrixXd half = factor->matrixL().solve(between);
        const VectorXd left = (1 - half.colwise().squaredNorm().transpose().array()).max(0);
        return mean - (left * variance).cwiseSqrt();
    }
};

GaussianModel::GaussianModel(const Space &space, Workload workload, bool dense, bool with_bound)
    : workload_(std::move(workload)), dense_(dense), with_bound_(with_bound), features_(space, with_bound) {
}

GaussianModel::~GaussianModel() = default;

Bound GaussianModel::bound_of(const Theta &theta, int64_t tiles) const {
    Bound found = with_bound_ ? bound(workload_, theta, tiles) : Bound{};
    found.us = with_bound_ ? std::max(found.us, 1e-3) : 1;
    return found;
}

std::vector<float> GaussianModel::features_of(const Theta &theta, int64_t tiles, bool dense,
                                              const Bound &bounded) const {
    std::vector<float> row;
    features_.append(row, workload_, theta, tiles, dense, bounded);
    return row;
}

void GaussianModel::fit(const std::vector<Measurement> &measured) {
    std::vector<std::vector<float>> features;
    std::vector<double> logarithms;
    for (const Measurement &measurement : measured) {
        for (const MeasuredTime &time : measurement.times) {
            const Bound bounded = bound_of(measurement.theta, time.tiles);
            features.push_back(features_of(measurement.theta, time.tiles, measurement.dense, bounded));
            logarithms.push_back(std::log(time.us / bounded.us));
        }
    }
    // The newest rows are most of what the search cares about now; an even part of them all keeps the rest of the
    // space.
    if (features.size() > most_rows) {
        const size_t newest = most_rows / 2, older = features.size() - newest;
        size_t kept = 0;
        for (size_t i = 0; i < most_rows - newest; i++, kept++) {
            const size_t from = i * older / (most_rows - newest);
            std::swap(features[kept], features[from]);
            std::swap(logarithms[kept], logarithms[from]);
        }
        features.erase(features.begin() + static_cast<std::ptrdiff_t>(kept),
                       features.end() - static_cast<std::ptrdiff_t>(newest));
        logarithms.erase(logarithms.begin() + static_cast<std::ptrdiff_t>(kept),
                         logarithms.end() - static_cast<std::ptrdiff_t>(newest));
    }
    process_.reset();
    offset_ = 0;
    if (logarithms.empty()) {
        return;
    }
    VectorXd values = Eigen::Map<const VectorXd>(logarithms.data(), static_cast<Eigen::Index>(logarithms.size()));
    offset_ = values.mean();
    if (logarithms.size() < least_fitted) {
        return;
    }
    values.array() -= offset_;
    auto process = std::make_unique<Process>();
    process->find_scales(features);
    process->rows = process->scaled(features);
    process->fit(values);
    if (process->factor) {
        process_ = std::move(process);
    }
}

std::vector<double> GaussianModel::predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const {
    std::vector<double> times;
    times.reserve(points.size());
    for (size_t begin = 0; begin < points.size(); begin += points_at_once) {
        const size_t end = std::min(points.size(), begin + points_at_once);
        std::vector<std::vector<float>> features;
        std::vector<double> bounds;
        for (size_t i = begin; i < end; i++) {
            const Bound bounded = bound_of(points[i].first, points[i].second);
            bounds.push_back(bounded.us);
            if (process_) {
                features.push_back(features_of(points[i].first, points[i].second, dense_, bounded));
            }
        }
        const VectorXd found = process_ ? process_->optimistic(process_->scaled(features))
                                        : VectorXd::Zero(static_cast<Eigen::Index>(bounds.size()));
        for (size_t i = 0; i < bounds.size(); i++) {
            times.push_back(bounds[i] * std::exp(offset_ + found[static_cast<Eigen::Index>(i)]));
        }
    }
    return times;
}

}  // namespace distile
