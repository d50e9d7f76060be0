#include "autoscheduler/search/search.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace distile {

namespace {

constexpr int generations = 4;
constexpr int moves_tried = 24;
constexpr size_t seeds_used = 32;

/** From 0 to below `count`, the same with every library. */
size_t pick(size_t count, std::mt19937_64 &random) {
    return random() % count;
}

/** The packed form of thetas, without those that have a value which the space does not list. */
std::vector<PackedTheta> pack(const Space &space, const std::vector<Theta> &thetas) {
    std::vector<PackedTheta> points;
    for (const Theta &theta : thetas) {
        PackedTheta point;
        bool found = theta.size() == space.knobs.size();
        for (size_t knob = 0; found && knob < space.knobs.size(); knob++) {
            const std::vector<int> &values = space.knobs[knob].values;
            const auto value = theta.find(space.knobs[knob].name);
            const auto position =
                value == theta.end() ? values.end() : std::find(values.begin(), values.end(), value->second);
            found = position != values.end();
            point.choices.at(knob) = found ? static_cast<uint8_t>(position - values.begin()) : 0;
        }
        if (found) {
            points.push_back(point);
        }
    }
    return points;
}

/** The cost of a set with one more schedule, summed over the masks. A schedule that gains nothing is better the nearer
 * it comes to that: its own costs break ties. */
double energy(const Costs &base, const Costs &costs) {
    double sum = 0, own = 0;
    for (size_t mask = 0; mask < base.size(); mask++) {
        sum += std::min(base[mask], costs[mask]);
        own += costs[mask];
    }
    return sum + 1e-6 * own;
}

/** Trials of both in turns, at most `most`. */
std::vector<Trial> in_turns(const std::vector<Trial> &first, const std::vector<Trial> &second, int most) {
    std::vector<Trial> batch;
    for (size_t i = 0; i < std::max(first.size(), second.size()); i++) {
        for (const std::vector<Trial> *trials : {&first, &second}) {
            if (i < trials->size() && static_cast<int>(batch.size()) < most) {
                batch.push_back((*trials)[i]);
            }
        }
    }
    return batch;
}

}  // namespace

Pool::Pool(const Space &space, std::vector<PackedTheta> points) : space_(space), points_(std::move(points)) {
    std::sort(points_.begin(), points_.end());
    points_.erase(std::unique(points_.begin(), points_.end()), points_.end());
    if (points_.empty()) {
        throw FileError("the search has no point to choose from");
    }
}

Pool::Pool(const Space &space, const std::vector<Theta> &thetas) : Pool(space, pack(space, thetas)) {
}

bool Pool::contains(const PackedTheta &point) const {
    return std::binary_search(points_.begin(), points_.end(), point);
}

std::vector<PackedTheta> Pool::find(const std::vector<Theta> &thetas) const {
    std::vector<PackedTheta> points = pack(space_, thetas);
    points.erase(
        std::remove_if(points.begin(), points.end(), [&](const PackedTheta &point) { return !contains(point); }),
        points.end());
    return points;
}

PackedTheta Pool::any(std::mt19937_64 &random) const {
    return points_[pick(points_.size(), random)];
}

PackedTheta Pool::neighbour(PackedTheta point, std::mt19937_64 &random) const {
    for (int attempt = 0; attempt < moves_tried; attempt++) {
        PackedTheta moved = point;
        const size_t changes = 1 + pick(2, random);
        for (size_t change = 0; change < changes; change++) {
            const size_t knob = pick(space_.knobs.size(), random);
            const size_t values = space_.knobs[knob].values.size();
            const size_t choice = moved.choices.at(knob);
            // One step along the knob's values, or a jump.
            const size_t next = pick(2, random) == 0 ? pick(values, random)
                                                     : (choice + (pick(2, random) == 0 ? 1 : values - 1)) % values;
            moved.choices.at(knob) = static_cast<uint8_t>(next);
        }
        if (!(moved == point) && contains(moved)) {
            return moved;
        }
    }
    return any(random);
}

PackedTheta Pool::cross(const PackedTheta &first, const PackedTheta &second, std::mt19937_64 &random) const {
    for (int attempt = 0; attempt < moves_tried; attempt++) {
        PackedTheta child = first;
        for (size_t knob = 0; knob < space_.knobs.size(); knob++) {
            if (pick(2, random) == 0) {
                child.choices.at(knob) = second.choices.at(knob);
            }
        }
        if (contains(child)) {
            return child;
        }
    }
    return neighbour(first, random);
}

/** Finds the points of a pool with the least energy. Predictions are kept, since the rounds of a batch differ in their
 * base only. */
class Search::Explorer {
public:
    /** Costs of some points by mask. */
    using Predict = std::function<std::vector<Costs>(const std::vector<PackedTheta> &)>;

    Explorer(const Pool &pool, size_t evaluations, std::mt19937_64 &random, Predict predict)
        : pool_(pool), evaluations_(evaluations), random_(random), predict_(std::move(predict)) {
    }

    /** All points seen so far, best first. `seeds` are points of the pool to begin with, and `rounds` the number of
     * times that this will be called. */
    std::vector<PackedTheta> explore(const Costs &base, const std::vector<PackedTheta> &seeds, int rounds) {
        std::vector<PackedTheta> next = seeds;
        if (pool_.size() <= evaluations_) {
            next.reserve(next.size() + pool_.size());
            for (size_t i = 0; i < pool_.size(); i++) {
                next.push_back(pool_[i]);
            }
            evaluate(next);
            return sorted(base);
        }
        const size_t population = std::max<size_t>(8, evaluations_ / rounds / generations);
        while (next.size() < population) {
            next.push_back(pool_.any(random_));
        }
        evaluate(next);
        for (int generation = 1; generation < generations; generation++) {
            const std::vector<PackedTheta> best = sorted(base);
            const size_t parents = std::max<size_t>(1, std::min(best.size(), population / 8));
            next.clear();
            while (next.size() < population) {
                const PackedTheta &parent = best[pick(parents, random_)];
                next.push_back(pick(3, random_) == 0 ? pool_.cross(parent, best[pick(parents, random_)], random_)
                                                     : pool_.neighbour(parent, random_));
            }
            evaluate(next);
        }
        return sorted(base);
    }

    const Costs &costs(const PackedTheta &point) const {
        return costs_.at(point);
    }

private:
    void evaluate(std::vector<PackedTheta> points) {
        std::sort(points.begin(), points.end());
        points.erase(std::unique(points.begin(), points.end()), points.end());
        points.erase(std::remove_if(points.begin(), points.end(),
                                    [&](const PackedTheta &point) { return costs_.count(point) != 0; }),
                     points.end());
        std::vector<Costs> costs = predict_(points);
        for (size_t i = 0; i < points.size(); i++) {
            costs_.emplace(points[i], std::move(costs[i]));
        }
    }

    std::vector<PackedTheta> sorted(const Costs &base) const {
        std::vector<std::pair<double, PackedTheta>> scored;
        for (const auto &[point, costs] : costs_) {
            scored.emplace_back(energy(base, costs), point);
        }
        std::sort(scored.begin(), scored.end());
        std::vector<PackedTheta> points;
        points.reserve(scored.size());
        for (const auto &[value, point] : scored) {
            points.push_back(point);
        }
        return points;
    }

    const Pool &pool_;
    size_t evaluations_;
    std::mt19937_64 &random_;
    Predict predict_;
    std::map<PackedTheta, Costs> costs_;
};

Search::Search(const Pool &sparse, const Pool &dense, const MaskSet &masks, CostModel &sparse_model,
               CostModel &dense_model, Measurer &measurer, SearchOptions options)
    : sparse_(sparse), dense_(dense), masks_(masks), sparse_model_(sparse_model), dense_model_(dense_model),
      measurer_(measurer), options_(std::move(options)) {
}

Trial Search::trial(const Theta &theta, bool dense, const MaskSet &masks) const {
    const std::pair<int, int> granularity = {theta.at("tile_h"), theta.at("tile_w")};
    return {theta, dense,
            dense ? std::vector<int64_t>{masks.all_tiles(granularity)}
                  : tile_counts(masks, granularity, options_.counts)};
}

bool Search::pick_random(const Pool &pool, bool dense, Theta &theta) {
    for (int attempt = 0; attempt < moves_tried; attempt++) {
        theta = pool.theta(pool.any(random_));
        if (is_new(theta, dense)) {
            return true;
        }
    }
    return false;
}

std::vector<Trial> Search::propose(const Side &side, const std::vector<const Measurement *> &measured, int rounds,
                                   int per_round, int most) {
    const std::vector<Theta> &order_given = side.dense ? options_.dense_order : options_.sparse_order;
    if (!order_given.empty()) {
        return next_of(order_given, side.dense, std::min(most, rounds * per_round));
    }
    const auto predict = [&](const std::vector<PackedTheta> &points) {
        std::vector<std::pair<Theta, int64_t>> queries;
        std::vector<Measurement> predicted(points.size());
        for (size_t i = 0; i < points.size(); i++) {
            predicted[i].theta = side.pool.theta(points[i]);
            for (int64_t tiles : trial(predicted[i].theta, side.dense, side.masks).tiles) {
                predicted[i].times.push_back({tiles, 0, 0, 0});
                queries.emplace_back(predicted[i].theta, tiles);
            }
        }
        const std::vector<double> times = side.model.predict_us(queries);
        std::vector<Costs> costs;
        size_t next = 0;
        for (Measurement &measurement : predicted) {
            for (MeasuredTime &time : measurement.times) {
                time.us = times[next++];
            }
            costs.push_back(side.costs(measurement));
        }
        return costs;
    };
    Explorer explorer(side.pool, options_.evaluations, random_, predict);
    std::vector<Costs> measured_costs;
    measured_costs.reserve(measured.size());
    for (const Measurement *measurement : measured) {
        measured_costs.push_back(side.costs(*measurement));
    }
    Costs base = side.base;
    std::vector<Trial> batch;
    for (int round = 0; round < rounds && static_cast<int>(batch.size()) < most; round++) {
        // What was measured, best first, is where to look.
        std::vector<std::pair<double, size_t>> order;
        for (size_t i = 0; i < measured.size(); i++) {
            order.emplace_back(energy(base, measured_costs[i]), i);
        }
        std::sort(order.begin(), order.end());
        std::vector<Theta> seeds;
        for (size_t i = 0; i < std::min(order.size(), seeds_used); i++) {
            seeds.push_back(measured[order[i].second]->theta);
        }
        const Costs *chosen = order.empty() ? nullptr : &measured_costs[order[0].second];
        double least = order.empty() ? std::numeric_limits<double>::infinity() : order[0].first;
        int wanted = std::min(per_round, most - static_cast<int>(batch.size()));
        const std::vector<PackedTheta> found = explorer.explore(base, side.pool.find(seeds), rounds);
        for (auto point = found.begin(); wanted > 0; wanted--) {
            Theta theta;
            const bool random = static_cast<double>(pick(1000, random_)) < 1000 * options_.random_part;
            if (!random || !pick_random(side.pool, side.dense, theta)) {
                while (point != found.end() && !is_new(theta = side.pool.theta(*point), side.dense)) {
                    ++point;
                }
                if (point == found.end()) {
                    break;
                }
                // The best new point competes with what was measured for this place in the set.
                const Costs &costs = explorer.costs(*point);
                if (energy(base, costs) < least) {
                    least = energy(base, costs);
                    chosen = &costs;
                }
            }
            known_.insert({theta, side.dense});
            batch.push_back(trial(theta, side.dense, masks_));
        }
        for (size_t mask = 0; chosen && mask < base.size(); mask++) {
            base[mask] = std::min(base[mask], (*chosen)[mask]);
        }
    }
    return batch;
}

std::vector<Trial> Search::propose_dense(const std::vector<Measurement> &measured, int most) {
    std::vector<const Measurement *> known;
    for (const Measurement &measurement : measured) {
        if (measurement.dense && measurement.ok()) {
            known.push_back(&measurement);
        }
    }
    const Side side{dense_,
                    dense_model_,
                    true,
                    masks_,
                    [](const Measurement &measurement) { return Costs{measurement.times.back().us}; },
                    {std::numeric_limits<double>::max()}};
    return propose(side, known, 1, options_.per_round, most);
}

std::vector<Trial> Search::propose_sparse(const std::vector<Measurement> &measured, double dense_us, int most) {
    std::vector<size_t> drawn(masks_.size());
    std::iota(drawn.begin(), drawn.end(), size_t{0});
    const size_t size = std::min<size_t>(drawn.size(), options_.mini_batch);
    for (size_t i = 0; i < size; i++) {
        std::swap(drawn[i], drawn[i + pick(drawn.size() - i, random_)]);
    }
    drawn.resize(size);
    const MaskSet mini_batch = masks_.subset(drawn);
    const Objective objective(mini_batch, dense_us);
    const Side side{sparse_,
                    sparse_model_,
                    false,
                    mini_batch,
                    [&](const Measurement &measurement) { return objective.costs(measurement); },
                    objective.dense()};
    return propose(side, sparse_measurements(measured), options_.k, options_.per_round, most);
}

std::vector<Trial> Search::next_of(const std::vector<Theta> &order, bool dense, int most) {
    std::vector<Trial> trials;
    for (const Theta &theta : order) {
        if (static_cast<int>(trials.size()) >= most) {
            break;
        }
        if (known_.insert({theta, dense}).second) {
            trials.push_back(trial(theta, dense, masks_));
        }
    }
    return trials;
}

std::vector<Trial> Search::included(bool dense) {
    std::vector<Trial> trials;
    for (const auto &[theta, is_dense] : options_.include) {
        if (is_dense == dense && known_.insert({theta, dense}).second) {
            trials.push_back(trial(theta, dense, masks_));
        }
    }
    return trials;
}

double Search::predicted_us(const std::vector<Trial> &dense) const {
    std::vector<std::pair<Theta, int64_t>> points;
    for (const Trial &trial : dense) {
        points.emplace_back(trial.theta, trial.tiles.back());
    }
    const std::vector<double> times = dense_model_.predict_us(points);
    return *std::min_element(times.begin(), times.end());
}

std::vector<Trial> Search::propose(const std::vector<Measurement> &measured) {
    known_.clear();
    int dense_trials = 0;
    for (const Measurement &measurement : measured) {
        known_.insert({measurement.theta, measurement.dense});
        dense_trials += measurement.dense ? 1 : 0;
    }
    // Equal measurements give an equal batch, also in another run.
    random_.seed(options_.seed * 1000003 + measured.size());
    const int left = options_.trials - static_cast<int>(measured.size());
    const Measurement *best = best_dense(measured);
    const bool has_sparse = !sparse_measurements(measured).empty();
    std::vector<Trial> dense = included(true), sparse = included(false);
    const bool including = !dense.empty() || !sparse.empty();
    if (dense.empty() && (!best || !including)) {
        // At least a round of them, but no more than half of all trials, unless none works.
        const int wanted = options_.dense_part > 0
                               ? std::max(static_cast<int>(std::lround(options_.trials * options_.dense_part)),
                                          std::min(options_.per_round, options_.trials / 2))
                               : 0;
        const int missing = std::max(0, wanted - dense_trials);
        dense = propose_dense(measured, std::min(left, missing > 0 || best ? missing : options_.per_round));
        if (dense.empty() && !best) {
            throw FileError(
                "no dense schedule could be compiled and measured, so there is nothing to compare with; the "
                "log says what went wrong");
        }
    }
    if (sparse.empty() && (!including || !has_sparse)) {
        sparse = propose_sparse(measured, best ? best->times.back().us : predicted_us(dense), left);
    }
    // In turns, so that the first few trials have both, wherever the search is ended.
    return best && !has_sparse ? in_turns(sparse, dense, left) : in_turns(dense, sparse, left);
}

bool Search::run(std::vector<Measurement> &measured, const std::function<void(const Measurement &)> &record,
                 const std::function<bool()> &stop) {
    while (static_cast<int>(measured.size()) < options_.trials) {
        if (stop()) {
            return false;
        }
        const std::vector<Measurement> steady = without_drift(measured);
        sparse_model_.fit(steady);
        dense_model_.fit(steady);
        const std::vector<Trial> batch = propose(steady);
        if (batch.empty()) {
            break;
        }
        const size_t before = measured.size();
        measurer_.measure(batch, [&](const Measurement &measurement) {
            measured.push_back(measurement);
            record(measurement);
        });
        if (measured.size() < before + batch.size()) {
            return false;
        }
    }
    return true;
}

}  // namespace distile
