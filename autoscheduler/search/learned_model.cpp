#include "autoscheduler/search/learned_model.h"
#include "plans/operator.h"
#include <cmath>
#include <dlfcn.h>
#include <limits>
#include <numeric>
#include <xgboost/c_api.h>

namespace distile {

namespace {

constexpr int boosting_rounds = 150;
/** With fewer rows than this, trees would only learn the noise. */
constexpr size_t least_rows = 16;
/** The weight of a row of the operator itself, relative to one of another operator. */
constexpr float operator_weight = 4;

/** Calls a function of XGBoost by its name in c_api.h. */
#define XGB(name, ...) call_xgboost<decltype(&::name)>(#name, __VA_ARGS__)

void *xgboost() {
    static void *const library = [] {
        void *found = dlopen("libxgboost.so.0", RTLD_NOW | RTLD_LOCAL);
        return found ? found : dlopen("libxgboost.so", RTLD_NOW | RTLD_LOCAL);
    }();
    if (!library) {
        throw FileError("the library libxgboost.so cannot be loaded (Debian's package libxgboost0 has it); install it, "
                        "or search by the bound alone with --no-model");
    }
    return library;
}

template<typename Function, typename... Args> void call_xgboost(const char *name, Args... args) {
    const auto function = reinterpret_cast<Function>(dlsym(xgboost(), name));
    if (!function || function(args...) != 0) {
        const auto last_error = reinterpret_cast<decltype(&::XGBGetLastError)>(dlsym(xgboost(), "XGBGetLastError"));
        throw FileError(std::string(name) + " failed" + (function && last_error ? ": " : "") +
                        (function && last_error ? last_error() : ""));
    }
}

/** Rows of features. */
class Matrix {
public:
    Matrix(const std::vector<float> &values, size_t columns) {
        XGB(XGDMatrixCreateFromMat, values.data(), values.size() / columns, columns,
            std::numeric_limits<float>::quiet_NaN(), &handle_);
    }
    ~Matrix() {
        const auto release = reinterpret_cast<decltype(&::XGDMatrixFree)>(dlsym(xgboost(), "XGDMatrixFree"));
        release(handle_);
    }
    Matrix(const Matrix &) = delete;
    Matrix &operator=(const Matrix &) = delete;

    void set(const char *field, const std::vector<float> &values) {
        XGB(XGDMatrixSetFloatInfo, handle_, field, values.data(), values.size());
    }
    DMatrixHandle handle() const {
        return handle_;
    }

private:
    DMatrixHandle handle_ = nullptr;
};

}  // namespace

struct LearnedModel::Trees {
    explicit Trees(const Matrix &matrix) {
        const DMatrixHandle handles[] = {matrix.handle()};
        XGB(XGBoosterCreate, &handles[0], 1, &booster);
    }
    ~Trees() {
        const auto release = reinterpret_cast<decltype(&::XGBoosterFree)>(dlsym(xgboost(), "XGBoosterFree"));
        release(booster);
    }
    Trees(const Trees &) = delete;
    Trees &operator=(const Trees &) = delete;

    BoosterHandle booster = nullptr;
};

LearnedModel::LearnedModel(const Space &space, Workload workload, LearnedModelOptions options)
    : workload_(std::move(workload)), options_(options), features_(space, options.with_bound) {
    xgboost();
}

LearnedModel::~LearnedModel() = default;

float LearnedModel::margin(const Bound &bound) const {
    return options_.with_bound ? static_cast<float>(std::log(std::max(bound.us, 1e-3))) : 0;
}

void LearnedModel::append(Rows &rows, const Workload &workload, const std::vector<Measurement> &measured,
                          float weight) {
    for (const Measurement &measurement : measured) {
        for (const MeasuredTime &time : measurement.times) {
            const Bound bounded = options_.with_bound ? bound(workload, measurement.theta, time.tiles) : Bound{};
            features_.append(rows.features, workload, measurement.theta, time.tiles, measurement.dense, bounded);
            rows.labels.push_back(static_cast<float>(std::log(time.us)));
            rows.margins.push_back(margin(bounded));
            rows.weights.push_back(weight);
        }
    }
}

void LearnedModel::warm(const Workload &workload, const std::vector<Measurement> &measured) {
    append(warm_, workload, measured, 1);
}

void LearnedModel::fit(const std::vector<Measurement> &measured) {
    Rows rows = warm_;
    append(rows, workload_, measured, operator_weight);
    trees_.reset();
    offset_ = 0;
    if (rows.labels.empty()) {
        return;
    }
    float sum = 0;
    for (size_t i = 0; i < rows.labels.size(); i++) {
        sum += (rows.labels[i] - rows.margins[i]) * rows.weights[i];
    }
    offset_ = sum / std::accumulate(rows.weights.begin(), rows.weights.end(), 0.0f);
    if (rows.labels.size() < least_rows) {
        return;
    }
    for (float &value : rows.margins) {
        value += offset_;
    }
    Matrix matrix(rows.features, features_.size());
    matrix.set("label", rows.labels);
    matrix.set("weight", rows.weights);
    matrix.set("base_margin", rows.margins);
    trees_ = std::make_unique<Trees>(matrix);
    const std::pair<const char *, std::string> params[] = {
        {"objective", "reg:squarederror"},
        {"tree_method", "hist"},
        {"max_depth", "6"},
        {"eta", "0.1"},
        {"subsample", "0.8"},
        {"colsample_bytree", "0.8"},
        {"min_child_weight", "2"},
        {"verbosity", "0"},
        {"seed", std::to_string(options_.seed % (1u << 30))},
        {"nthread", std::to_string(options_.threads)},
    };
    for (const auto &[name, value] : params) {
        XGB(XGBoosterSetParam, trees_->booster, name, value.c_str());
    }
    for (int round = 0; round < boosting_rounds; round++) {
        XGB(XGBoosterUpdateOneIter, trees_->booster, round, matrix.handle());
    }
}

std::vector<double> LearnedModel::predict_us(const std::vector<std::pair<Theta, int64_t>> &points) const {
    std::vector<float> rows, margins;
    for (const auto &[theta, tiles] : points) {
        const Bound bounded = options_.with_bound ? bound(workload_, theta, tiles) : Bound{};
        if (trees_) {
            features_.append(rows, workload_, theta, tiles, options_.dense, bounded);
        }
        margins.push_back(margin(bounded) + offset_);
    }
    std::vector<double> times;
    times.reserve(points.size());
    if (!trees_ || points.empty()) {
        for (float value : margins) {
            times.push_back(std::exp(value));
        }
        return times;
    }
    Matrix matrix(rows, features_.size());
    matrix.set("base_margin", margins);
    const bst_ulong *shape = nullptr;
    bst_ulong dimensions = 0;
    const float *result = nullptr;
    XGB(XGBoosterPredictFromDMatrix, trees_->booster, matrix.handle(),
        R"({"type": 0, "training": false, "iteration_begin": 0, "iteration_end": 0, "strict_shape": false})", &shape,
        &dimensions, &result);
    for (size_t i = 0; i < points.size(); i++) {
        times.push_back(std::exp(result[i]));
    }
    return times;
}

void LearnedModel::save(const std::string &path) const {
    if (trees_) {
        XGB(XGBoosterSaveModel, trees_->booster, path.c_str());
    }
}

}  // namespace distile
