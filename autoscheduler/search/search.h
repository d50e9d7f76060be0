/** \file
 * The search for a PolyKernel: Algorithm 1 of DynaSpa (SenSys 2024).
 *
 * Until the budget is spent: a mini-batch of masks is drawn; k times, the points of the space are explored for those
 * with the best marginal gain over the dense candidate and what the rounds before chose, by the cost model; what they
 * found is measured, and the model is fitted. A greedy choice from all that was measured, solve() in objective.h, ends
 * it. The dense candidate is searched for in the same way and the same batches: its only mask is the whole image.
 */
#ifndef DISTILE_SEARCH_H
#define DISTILE_SEARCH_H

#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/search/cost_model.h"
#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/measurer.h"
#include "autoscheduler/search/objective.h"
#include <functional>
#include <random>
#include <set>
#include <vector>

namespace distile {

/** Points that a search may propose, sorted. */
class Pool {
public:
    /** `space` must outlive it. Throws FileError where there are no points. */
    Pool(const Space &space, std::vector<PackedTheta> points);
    Pool(const Space &space, const std::vector<Theta> &thetas);

    size_t size() const {
        return points_.size();
    }
    const PackedTheta &operator[](size_t index) const {
        return points_[index];
    }
    Theta theta(const PackedTheta &point) const {
        return unpack(space_, point);
    }
    bool contains(const PackedTheta &point) const;
    /** The packed form of those thetas that are in the pool. */
    std::vector<PackedTheta> find(const std::vector<Theta> &thetas) const;
    /** A point of the pool that differs from another in one or two knobs, or a random one if none was found. */
    PackedTheta neighbour(PackedTheta point, std::mt19937_64 &random) const;
    /** A point of the pool that takes each knob from one of two, or a neighbour of one if none was found. */
    PackedTheta cross(const PackedTheta &first, const PackedTheta &second, std::mt19937_64 &random) const;
    PackedTheta any(std::mt19937_64 &random) const;

private:
    const Space &space_;
    std::vector<PackedTheta> points_;
};

struct SearchOptions {
    int k = 6;
    int trials = 200; /**< Measurements in all, those of the log included. */
    uint64_t seed = 0;
    int per_round = 4;        /**< Points to measure for each of the k rounds. */
    int mini_batch = 32;      /**< Masks that are drawn for each batch. */
    double random_part = 0.1; /**< The part of the points to measure that is picked at random. */
    int evaluations = 20000;  /**< Predictions for a batch; a pool that is not larger is predicted whole. */
    int counts = 6;           /**< Numbers of tiles to measure a point at. */
    double dense_part = 0.1;  /**< The part of the trials that measures dense candidates. */
    std::vector<std::pair<Theta, bool>> include;  /**< Measured first, whatever a model says; true: dense. */
    std::vector<Theta> sparse_order, dense_order; /**< Measured in this order, in place of what a model proposes. */
};

class Search {
public:
    /** All references must outlive it. The models are of sparse and of dense schedules. */
    Search(const Pool &sparse, const Pool &dense, const MaskSet &masks, CostModel &sparse_model, CostModel &dense_model,
           Measurer &measurer, SearchOptions options);

    /** Goes on from what was measured, and adds to it. `record` gets every new measurement at once, and `stop` is asked
     * before each batch. Returns true if the budget of trials is spent or nothing is left to measure, false if it was
     * stopped before. */
    bool run(std::vector<Measurement> &measured, const std::function<void(const Measurement &)> &record,
             const std::function<bool()> &stop);

    /** The trials of one batch after what was measured: sparse ones, in turns with dense ones until enough of these are
     * known. For tests, and for judging a model by its first batch. */
    std::vector<Trial> propose(const std::vector<Measurement> &measured);

private:
    class Explorer;

    /** What differs between the search for sparse schedules and the one for a dense candidate. */
    struct Side {
        const Pool &pool;
        const CostModel &model;
        bool dense;
        const MaskSet &masks;
        std::function<Costs(const Measurement &)> costs;
        Costs base;  ///< The costs of what every set holds.
    };

    std::vector<Trial> propose(const Side &side, const std::vector<const Measurement *> &measured, int rounds,
                               int per_round, int most);
    /** New trials of the search for a dense candidate. */
    std::vector<Trial> propose_dense(const std::vector<Measurement> &measured, int most);
    /** New trials of the search for sparse schedules. `dense_us`: the time that their gains are relative to. */
    std::vector<Trial> propose_sparse(const std::vector<Measurement> &measured, double dense_us, int most);
    /** The new ones of the trials that the options include. */
    std::vector<Trial> included(bool dense);
    /** What the fastest of some dense trials should take. */
    double predicted_us(const std::vector<Trial> &dense) const;
    /** The next new trials of an order that the options give. */
    std::vector<Trial> next_of(const std::vector<Theta> &order, bool dense, int most);
    /** A new point at random; false if none was found. */
    bool pick_random(const Pool &pool, bool dense, Theta &theta);
    Trial trial(const Theta &theta, bool dense, const MaskSet &masks) const;
    bool is_new(const Theta &theta, bool dense) const {
        return known_.count({theta, dense}) == 0;
    }

    const Pool &sparse_, &dense_;
    const MaskSet &masks_;
    CostModel &sparse_model_, &dense_model_;
    Measurer &measurer_;
    SearchOptions options_;
    std::mt19937_64 random_;
    std::set<std::pair<Theta, bool>> known_;  ///< Measured, or about to be.
};

}  // namespace distile

#endif
