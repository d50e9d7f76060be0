// The search for a PolyKernel: the objective, models and Algorithm 1. Nothing is compiled or measured here.
#include "autoscheduler/search/gaussian_model.h"
#include "autoscheduler/search/learned_model.h"
#include "autoscheduler/search/objective.h"
#include "autoscheduler/search/report.h"
#include "autoscheduler/search/search.h"
#include "autoscheduler/search/strategy.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/search_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

using namespace distile;

namespace {

Workload small_workload(const Operator &op) {
    return workload_of(op, generic_device_profile("generic_avx2"));
}

/** All legal points, in an order that the seed gives. */
std::vector<PackedTheta> shuffled_points(const Space &space, const Workload &workload, unsigned seed) {
    std::vector<PackedTheta> points = legal_points(space, workload.problem);
    std::mt19937 random(seed);
    std::shuffle(points.begin(), points.end(), random);
    return points;
}

/** Times by a rule that the bound does not know: for thousands of points of the real space. */
double made_up_us(const Theta &theta, int64_t tiles) {
    const double pixels = static_cast<double>(tiles) * theta.at("tile_h") * theta.at("tile_w");
    const double rate = 1 + 0.2 * std::abs(theta.at("pixels") - 6) + 0.3 * theta.at("order") +
                        0.1 * std::abs(std::log2(theta.at("group") / 8.0)) + 0.5 / theta.at("tile_h") +
                        0.3 / theta.at("unroll");
    return 5 + 0.05 * pixels * rate;
}

class MadeUpMeasurer : public Measurer {
public:
    void measure(const std::vector<Trial> &batch, const std::function<void(const Measurement &)> &done) override {
        for (const Trial &trial : batch) {
            Measurement measurement;
            measurement.theta = trial.theta;
            measurement.dense = trial.dense;
            if (trial.theta.at("order") == 1 && trial.theta.at("unroll") == 4) {
                measurement.outcome = Outcome::Crashed;
            } else {
                for (int64_t tiles : trial.tiles) {
                    const double us = made_up_us(trial.theta, tiles) * (trial.dense ? 0.7 : 1);
                    measurement.times.push_back({tiles, us, us, us});
                }
            }
            done(measurement);
        }
    }
};

}  // namespace

TEST_CASE("The cost of a set is the mean over masks of its fastest member", "[search]") {
    const Costs dense = {4, 2, 1};
    const std::vector<Costs> schedules = {{1, 3, 3}, {2, 1, 3}, {1, 1, 5}};
    CHECK(set_cost(dense, schedules, {}) == Approx(7.0 / 3));
    CHECK(set_cost(dense, schedules, {0}) == Approx(4.0 / 3));
    CHECK(set_cost(dense, schedules, {0, 1}) == Approx(1));
    // The third alone does what the first two do together.
    const ChosenSet chosen = choose_greedily(dense, schedules, 3);
    CHECK(chosen.members == std::vector<int>{2});
    CHECK(chosen.costs == std::vector<double>{7.0 / 3, 1});
    CHECK(choose_exhaustively(dense, schedules, 3).costs.back() == Approx(1));
    CHECK(choose_greedily(dense, schedules, 0).costs == std::vector<double>{7.0 / 3});
}

TEST_CASE("The greedy choice is not always the best one, and never far from it", "[search]") {
    // The first looks best alone; the other two are best together.
    const Costs dense = {4, 4, 4, 4};
    const std::vector<Costs> schedules = {{2, 2, 2, 2}, {0, 0, 4, 4}, {4, 4, 0, 0.5}};
    CHECK(choose_greedily(dense, schedules, 2).members == std::vector<int>{0, 1});
    CHECK(choose_greedily(dense, schedules, 2).costs.back() == Approx(1));
    CHECK(choose_exhaustively(dense, schedules, 2).costs.back() == Approx(0.125));

    std::mt19937 random(3);
    std::uniform_real_distribution<double> cost(0.5, 6);
    for (int example = 0; example < 200; example++) {
        Costs base(8);
        std::generate(base.begin(), base.end(), [&] { return 2 + cost(random); });
        std::vector<Costs> all(7, Costs(8));
        for (Costs &costs : all) {
            std::generate(costs.begin(), costs.end(), [&] { return cost(random); });
        }
        for (int k = 1; k <= 3; k++) {
            const double nothing = set_cost(base, all, {});
            const double greedy = choose_greedily(base, all, k).costs.back();
            const double best = choose_exhaustively(base, all, k).costs.back();
            CHECK(best <= greedy + 1e-12);
            CHECK(nothing - greedy >= (1 - std::exp(-1)) * (nothing - best) - 1e-12);
        }
    }
}

TEST_CASE("The cost of sets is supermodular: what a schedule gains, it gains less in a larger set", "[search]") {
    std::mt19937 random(5);
    std::uniform_real_distribution<double> cost(0.1, 9);
    for (int example = 0; example < 500; example++) {
        constexpr int schedules = 9;
        Costs dense(6);
        std::generate(dense.begin(), dense.end(), [&] { return cost(random); });
        std::vector<Costs> all(schedules, Costs(6));
        for (Costs &costs : all) {
            std::generate(costs.begin(), costs.end(), [&] { return cost(random); });
        }
        std::vector<int> smaller, larger;
        const int added = static_cast<int>(random() % schedules);
        for (int i = 0; i < schedules; i++) {
            const unsigned where = random() % 3;
            if (i != added && where > 0) {
                larger.push_back(i);
                if (where > 1) {
                    smaller.push_back(i);
                }
            }
        }
        const auto gain = [&](std::vector<int> set) {
            const double before = set_cost(dense, all, set);
            set.push_back(added);
            return before - set_cost(dense, all, set);
        };
        CHECK(gain(smaller) >= gain(larger) - 1e-12);
        CHECK(gain(larger) >= -1e-12);
    }
}

TEST_CASE("Costs of measured times: interpolated by tiles, over the time that is proportional to the work",
          "[search]") {
    const MaskSet masks = read_mask_set({"blob:0.25:1"}, small_operator());
    REQUIRE(masks.work(0) == Approx(0.25));
    const int64_t tiles = masks.tiles({1, 1})[0];
    CHECK(tiles == 144);
    const std::vector<Measurement> all = {measured(a_theta(1, 1), true, {{576, 100}}),
                                          measured(a_theta(2, 1), true, {{288, 80}}),
                                          measured(a_theta(1, 1), false, {{100, 20}, {188, 40}})};
    CHECK(best_dense(all) == &all[1]);
    const Solution solution = solve(all, masks, 1);
    REQUIRE(solution.members.size() == 1);
    // 30 us where 80 x 0.25 are proportional.
    CHECK(solution.costs == std::vector<double>{4, 1.5});
    CHECK(solution.oracle == Approx(1.5));
    CHECK(costs_on(solution, masks) == solution.costs);
    CHECK(message_of([&] { solve({all[2]}, masks, 1); }).find("no dense schedule") != std::string::npos);
}

TEST_CASE("A learned model corrects the bound, the same way every time", "[search]") {
    const Space &space = space_of("cpu");
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = shuffled_points(space, workload, 11);
    const auto measure = [&](size_t first, size_t last, double factor) {
        std::vector<Measurement> result;
        for (size_t i = first; i < last; i++) {
            const Theta theta = unpack(space, points[i]);
            result.push_back(
                measured(theta, false, {{4, factor * made_up_us(theta, 4)}, {16, factor * made_up_us(theta, 16)}}));
        }
        return result;
    };
    const auto correlation = [&](const CostModel &model) {
        std::vector<std::pair<Theta, int64_t>> queries;
        std::vector<double> truth;
        for (size_t i = 1000; i < 1200; i++) {
            queries.emplace_back(unpack(space, points[i]), 9);
            truth.push_back(made_up_us(queries.back().first, 9));
        }
        return rank_correlation(model.predict_us(queries), truth);
    };
    LearnedModel model(space, workload, {});
    const double untaught = correlation(model);
    BoundModel bound_model(workload);
    bound_model.fit({});
    CHECK(untaught == Approx(correlation(bound_model)));
    model.fit(measure(0, 200, 1));
    CHECK(correlation(model) > std::max(0.8, untaught));
    LearnedModel same(space, workload, {});
    same.fit(measure(0, 200, 1));
    const std::vector<std::pair<Theta, int64_t>> query = {{unpack(space, points[500]), 7}};
    CHECK(same.predict_us(query) == model.predict_us(query));
    CHECK(model.predict_us(query)[0] == Approx(made_up_us(query[0].first, 7)).epsilon(0.5));

    // Another operator, three times as slow, has taught it how schedules compare.
    LearnedModel warm(space, workload, {});
    warm.warm(small_workload(small_operator("other", 32)), measure(200, 500, 3));
    warm.fit({});
    CHECK(correlation(warm) > 0.8);

    LearnedModelOptions blind_options;
    blind_options.with_bound = false;
    LearnedModel blind(space, workload, blind_options);
    blind.fit(measure(0, 200, 1));
    CHECK(correlation(blind) > 0.8);

    const TemporaryFolder folder;
    model.save(folder.path() + "/model.json");
    CHECK(contents(folder.path() + "/model.json").find("learner") != std::string::npos);
    CHECK_FALSE(message_of([&] { model.save(folder.path() + "/none/model.json"); }).empty());
}

TEST_CASE("Moves stay in the pool", "[search]") {
    const Space &space = space_of("cpu");
    std::vector<PackedTheta> points = legal_points(space, small_workload(small_operator()).problem);
    std::mt19937_64 random(2);
    std::shuffle(points.begin(), points.end(), random);
    points.resize(500);
    const Pool pool(space, points);
    CHECK(pool.size() == 500);
    size_t moved = 0;
    for (int i = 0; i < 300; i++) {
        const PackedTheta point = pool.any(random), next = pool.neighbour(point, random);
        CHECK(pool.contains(next));
        CHECK(pool.contains(pool.cross(point, next, random)));
        moved += point == next ? 0 : 1;
    }
    CHECK(moved > 250);
    CHECK(pool.find({unpack(space, points[3]), a_theta(99, 1)}) == std::vector<PackedTheta>{points[3]});
    CHECK_THROWS_AS(Pool(space, std::vector<PackedTheta>{}), FileError);
}

TEST_CASE("Algorithm 1 finds good sets, measures nothing twice and goes on where it was", "[search]") {
    const Space &space = space_of("cpu");
    const MaskSet masks = some_masks();
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = shuffled_points(space, workload, 4);
    points.resize(3000);
    const Pool pool(space, points);
    MadeUpMeasurer measurer;
    SearchOptions options;
    options.k = 3;
    options.trials = 90;
    options.seed = 5;
    // Once small enough to be predicted whole, and once explored.
    options.evaluations = GENERATE(20000, 600);
    options.include = {{unpack(space, points[7]), false}, {a_theta(1, 1, 9), true}};
    const auto search = [&](std::vector<Measurement> known, int stop_after) {
        LearnedModel sparse(space, workload, {}), dense(space, workload, LearnedModelOptions{true, true, 0, 1});
        int asked = 0;
        const bool finished = Search(pool, pool, masks, sparse, dense, measurer, options)
                                  .run(
                                      known, [](const Measurement &) {}, [&] { return ++asked == stop_after; });
        CHECK(finished == (stop_after == 0));
        return known;
    };
    const std::vector<Measurement> found = search({}, 0);
    CHECK(found.size() == 90);
    CHECK(found[0].theta == a_theta(1, 1, 9));
    CHECK(found[0].dense);
    std::set<std::pair<Theta, bool>> distinct;
    int dense = 0;
    for (const Measurement &measurement : found) {
        distinct.insert({measurement.theta, measurement.dense});
        dense += measurement.dense ? 1 : 0;
    }
    CHECK(distinct.size() == found.size());
    CHECK(distinct.count({unpack(space, points[7]), false}) == 1);
    CHECK(dense == 9);

    // Stopped after any batch, it goes on as if it had not been.
    const std::vector<Measurement> resumed = search(search({}, 6), 0);
    REQUIRE(resumed.size() == found.size());
    for (size_t i = 0; i < found.size(); i++) {
        CHECK(resumed[i].theta == found[i].theta);
    }

    // Where a pool is explored, chance decides over one search: the middle one of three counts.
    std::vector<std::pair<double, std::vector<Measurement>>> searches;
    for (const uint64_t seed : {5, 6, 7}) {
        options.seed = seed;
        const std::vector<Measurement> one = seed == 5 ? found : search({}, 0);
        searches.emplace_back(solve(one, masks, 3).costs.back() * best_dense(one)->times.back().us, one);
    }
    std::sort(searches.begin(), searches.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
    const std::vector<Measurement> &middle = searches[1].second;

    // Against everything there is, and against as many points at random.
    std::vector<Measurement> all = {*best_dense(middle)}, drawn = all;
    std::vector<Trial> everything;
    for (const PackedTheta &point : points) {
        const Theta theta = unpack(space, point);
        everything.push_back({theta, false, tile_counts(masks, {theta.at("tile_h"), theta.at("tile_w")}, 6)});
    }
    measurer.measure(everything, [&](const Measurement &measurement) { all.push_back(measurement); });
    drawn.insert(drawn.end(), all.begin() + 1, all.begin() + 81);
    const double best = solve(all, masks, 3).costs.back();
    CHECK(solve(middle, masks, 3).costs.back() < 1.05 * best);
    CHECK(solve(middle, masks, 3).costs.back() < solve(drawn, masks, 3).costs.back());
}

TEST_CASE("A Gaussian process predicts what it has seen, and ranks the rest", "[search]") {
    const Space &space = space_of("cpu");
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = shuffled_points(space, workload, 11);
    std::vector<Measurement> known;
    // More rows than a fit takes.
    for (size_t i = 0; i < 400; i++) {
        const Theta theta = unpack(space, points[i]);
        known.push_back(measured(theta, false, {{4, made_up_us(theta, 4)}, {16, made_up_us(theta, 16)}}));
    }
    for (const bool with_bound : {true, false}) {
        GaussianModel model(space, workload, false, with_bound);
        // Untaught, it is the bound, or knows nothing.
        model.fit({});
        const std::vector<std::pair<Theta, int64_t>> one = {{unpack(space, points[500]), 7}};
        CHECK(model.predict_us(one)[0] == Approx(with_bound ? bound(workload, one[0].first, 7).us : 1));
        model.fit(known);
        std::vector<std::pair<Theta, int64_t>> queries;
        std::vector<double> truth;
        for (size_t i = 1000; i < 1200; i++) {
            queries.emplace_back(unpack(space, points[i]), 9);
            truth.push_back(made_up_us(queries.back().first, 9));
        }
        CHECK(rank_correlation(model.predict_us(queries), truth) > 0.8);
        CHECK(model.predict_us(queries) == model.predict_us(queries));
        const Theta last = known.back().theta;
        CHECK(model.predict_us({{last, 16}})[0] == Approx(made_up_us(last, 16)).epsilon(0.25));
    }
}

TEST_CASE("Every strategy spends its trials on new points, and finds better sets than its first points", "[search]") {
    const Space &space = space_of("cpu");
    const MaskSet masks = some_masks();
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = shuffled_points(space, workload, 4);
    points.resize(2000);
    const Pool pool(space, points);
    MadeUpMeasurer measurer;
    std::map<std::string, double> costs;
    for (const std::string &name : strategy_names()) {
        INFO(name);
        const Strategy strategy = find_strategy(name);
        SearchOptions options;
        options.k = 3;
        options.trials = 80;
        options.seed = 5;
        set_strategy(strategy, pool, pool, options);
        std::unique_ptr<CostModel> models[2];
        for (const bool dense : {false, true}) {
            if (strategy == Strategy::Bayes) {
                models[dense] = std::make_unique<GaussianModel>(space, workload, dense, true);
            } else if (strategy == Strategy::Greedy) {
                models[dense] = std::make_unique<LearnedModel>(space, workload, LearnedModelOptions{dense, true, 0, 1});
            } else {
                models[dense] = std::make_unique<BoundModel>(workload);
            }
        }
        std::vector<Measurement> found;
        Search search(pool, pool, masks, *models[0], *models[1], measurer, options);
        CHECK(search.run(
            found, [](const Measurement &) {}, [] { return false; }));
        CHECK(found.size() == 80);
        std::set<std::pair<Theta, bool>> distinct;
        for (const Measurement &measurement : found) {
            distinct.insert({measurement.theta, measurement.dense});
        }
        CHECK(distinct.size() == found.size());
        costs[name] = solve(found, masks, 3).costs.back() * best_dense(found)->times.back().us;
        const std::vector<Measurement> first(found.begin(), found.begin() + 20);
        CHECK(costs[name] <= solve(first, masks, 3).costs.back() * best_dense(first)->times.back().us);
    }
    // Strategies that learn do better than the others.
    CHECK(std::max(costs["greedy"], costs["bayes"]) < std::min(costs["grid"], costs["random"]));
    CHECK(message_of([] { find_strategy("best"); }).find("greedy, bayes, grid, random") != std::string::npos);
}

TEST_CASE("Points at even distances leave out none and repeat none", "[search]") {
    const Space &space = space_of("cpu");
    std::vector<PackedTheta> points = legal_points(space, small_workload(small_operator()).problem);
    points.resize(100);
    const Pool pool(space, points);
    for (const size_t count : {0, 1, 10, 100, 1000}) {
        const std::vector<Theta> even = even_points(pool, count);
        CHECK(even.size() == std::min<size_t>(count, 100));
        CHECK(std::set<Theta>(even.begin(), even.end()).size() == even.size());
    }
    // A tenth of them has a point in every fifth.
    std::set<size_t> fifths;
    for (const Theta &theta : even_points(pool, 10)) {
        for (size_t i = 0; i < pool.size(); i++) {
            if (pool.theta(pool[i]) == theta) {
                fifths.insert(i / 20);
            }
        }
    }
    CHECK(fifths.size() == 5);
}

TEST_CASE("Batches hold masked and dense trials in turns, from the first on", "[search]") {
    const Space &space = space_of("cpu");
    const MaskSet masks = read_mask_set({"blob:0.25:1"}, small_operator());
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = shuffled_points(space, workload, 6);
    points.resize(400);
    const Pool pool(space, points);
    BoundModel sparse_model(workload), dense_model(workload);
    MadeUpMeasurer measurer;
    SearchOptions options;
    options.k = 2;
    options.random_part = 0;
    const auto propose = [&](const std::vector<Measurement> &known) {
        return Search(pool, pool, masks, sparse_model, dense_model, measurer, options).propose(known);
    };
    const auto fastest = [&](const std::function<int64_t(std::pair<int, int>)> &tiles) {
        Theta best;
        double least = std::numeric_limits<double>::infinity();
        for (size_t i = 0; i < pool.size(); i++) {
            const Theta theta = pool.theta(pool[i]);
            const double us = bound(workload, theta, tiles({theta.at("tile_h"), theta.at("tile_w")})).us;
            if (us < least) {
                least = us;
                best = theta;
            }
        }
        return bound(workload, best, tiles({best.at("tile_h"), best.at("tile_w")})).us;
    };
    const auto dense_of = [](const std::vector<Trial> &batch) {
        std::vector<bool> dense;
        std::transform(batch.begin(), batch.end(), std::back_inserter(dense),
                       [](const Trial &trial) { return trial.dense; });
        return dense;
    };

    // The best of each by the bound come first, though no dense time is known that masked ones could be held against.
    const std::vector<Trial> first = propose({});
    CHECK(dense_of(first) ==
          std::vector<bool>{true, false, true, false, true, false, true, false, false, false, false, false});
    CHECK(bound(workload, first[0].theta, first[0].tiles.back()).us ==
          Approx(fastest([&](std::pair<int, int> granularity) { return masks.all_tiles(granularity); })));
    CHECK(bound(workload, first[1].theta, first[1].tiles.back()).us ==
          Approx(fastest([&](std::pair<int, int> granularity) { return masks.tiles(granularity)[0]; })));
    CHECK(first.size() == propose({}).size());

    // A budget of few trials has both, too, and spends at most half of them on dense ones.
    options.trials = 2;
    CHECK(dense_of(propose({})) == std::vector<bool>{true, false});
    options.trials = 5;
    CHECK(dense_of(propose({})) == std::vector<bool>{true, false, true, false, false});
    const Measurement dense = measured(first[0].theta, true, {{576, 60}});
    CHECK(dense_of(propose({dense})) == std::vector<bool>{false, true, false, false});

    // As long as no dense one works, they are tried; after that no more than a tenth of them, or a round.
    Measurement failed = dense;
    failed.times.clear();
    failed.outcome = Outcome::Crashed;
    options.trials = 30;
    std::vector<Measurement> known(4, failed);
    for (size_t i = 0; i < known.size(); i++) {
        known[i].theta = first[2 * i].theta;
    }
    known.push_back(measured(first[1].theta, false, {{144, 30}}));
    CHECK(propose(known).at(0).dense);
    known.push_back(measured(first[3].theta, true, {{576, 60}}));
    const std::vector<Trial> later = propose(known);
    CHECK(later.size() == 8);
    CHECK(std::none_of(later.begin(), later.end(), [](const Trial &trial) { return trial.dense; }));

    // What is included comes first, in turns, and with it what would be missing.
    options.include = {{first[5].theta, false}, {first[7].theta, false}};
    const std::vector<Trial> included = propose({});
    CHECK(included.at(0).dense);
    CHECK(included.at(1).theta == first[5].theta);
    CHECK(included.at(3).theta == first[7].theta);
}

TEST_CASE("A set has a masked schedule even if none gains anything", "[search]") {
    const MaskSet masks = read_mask_set({"blob:0.25:1"}, small_operator());
    const std::vector<Measurement> all = {measured(a_theta(1, 1), true, {{576, 10}}),
                                          measured(a_theta(1, 1), false, {{144, 30}}),
                                          measured(a_theta(1, 2), false, {{100, 20}})};
    const Solution solution = solve(all, masks, 3);
    REQUIRE(solution.members.size() == 1);
    CHECK(solution.members[0] == &all[2]);
    CHECK(solution.costs == std::vector<double>{4, 4});
    CHECK(solve(all, masks, 0).members.empty());
    CHECK(solve({all[0]}, masks, 3).members.empty());
}

TEST_CASE("A search ends when nothing is left, and needs a dense candidate", "[search]") {
    const Space &space = space_of("cpu");
    const MaskSet masks = some_masks();
    const Workload workload = small_workload(small_operator());
    std::vector<Measurement> pool_measured;
    std::vector<Theta> thetas;
    for (int tile : {1, 2, 4}) {
        thetas.push_back(a_theta(tile, tile));
        pool_measured.push_back(measured(a_theta(tile, tile), false, {{1, 5}, {500, 50.0 + tile}}));
    }
    pool_measured.push_back(measured(thetas[0], true, {{576, 60}}));
    const Pool pool(space, thetas);
    BoundModel model(workload);
    ReplayMeasurer replay(pool_measured);
    SearchOptions options;
    options.k = 2;
    std::vector<Measurement> found;
    CHECK(Search(pool, pool, masks, model, model, replay, options)
              .run(
                  found, [](const Measurement &) {}, [] { return false; }));
    // Three sparse and three dense ones, two of which the replay does not know.
    CHECK(found.size() == 6);
    CHECK(std::count_if(found.begin(), found.end(), [](const Measurement &m) { return m.ok(); }) == 4);
    CHECK(found.back().elapsed_s == Approx(4 * 2.5));

    ReplayMeasurer nothing({});
    std::vector<Measurement> failed;
    CHECK(message_of([&] {
              Search(pool, pool, masks, model, model, nothing, options)
                  .run(
                      failed, [](const Measurement &) {}, [] { return false; });
          }).find("no dense schedule could be compiled") != std::string::npos);
}
