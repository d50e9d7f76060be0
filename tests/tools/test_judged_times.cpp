// How measured times are judged: drift, a busy machine, and how far the bound agrees with them.
#include "autoscheduler/search/correlation.h"
#include "autoscheduler/search/disturbance.h"
#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/measurer.h"
#include "autoscheduler/search/report.h"
#include "autoscheduler/search/search.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/search_cases.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

using namespace distile;

TEST_CASE("The drift of the device is taken out of the times", "[search]") {
    std::vector<Measurement> measured(4);
    const double references[] = {100, 110, 0, 90};
    for (size_t i = 0; i < measured.size(); i++) {
        measured[i].theta = {{"tile_h", 1}, {"tile_w", 1}};
        measured[i].times = {{8, 44, 33, 55}};
        measured[i].reference_us = references[i];
    }
    const std::vector<Measurement> steady = without_drift(measured);
    REQUIRE(steady.size() == 4);
    // While the reference took a tenth more than in its median, so did the schedule.
    CHECK(steady[0].times[0].us == Approx(44));
    CHECK(steady[1].times[0].us == Approx(40));
    CHECK(steady[1].times[0].low_us == Approx(30));
    CHECK(steady[1].times[0].high_us == Approx(50));
    CHECK(steady[1].times[0].tiles == 8);
    CHECK(steady[2].times[0].us == 44);
    CHECK(steady[3].times[0].us == Approx(44 / .9));
    // There is none left.
    CHECK(without_drift(steady)[3].times[0].us == Approx(44 / .9));
    CHECK(without_drift({}).empty());
}

TEST_CASE("Measurements while the device drifts do not stand", "[search]") {
    WorkerResult result;
    CHECK(is_steady(result, 0));
    result.measurement.reference_us = 100;
    CHECK(is_steady(result, 0));
    CHECK(is_steady(result, 104));
    CHECK_FALSE(is_steady(result, 110));
    CHECK_FALSE(is_steady(result, 90));
    result.drift = 0.06;
    CHECK_FALSE(is_steady(result, 100));
    // A drift that is taken out of the times again leaves no doubt.
    CHECK(doubt_of(result, 100).empty());
    result.drift = 0.6;
    CHECK(doubt_of(result, 100) == "the machine was busy: the time of one schedule changed by 60 % meanwhile");
    result.drift = 0;
    result.disturbance = {1.5, "others ran"};
    CHECK_FALSE(is_steady(result, 100));
    CHECK(doubt_of(result, 100) == "the machine was busy: others ran");
}

TEST_CASE("A busy machine is noticed by waiting, by repeats that differ, and by times that do not grow", "[search]") {
    const std::vector<RepeatedTime> steady = {{"fine", 48, {10, 11, 10, 12, 11}},
                                              {"fine", 480, {100, 101, 99, 108, 102}},
                                              {"dense", 49, {80, 81, 82, 80, 79}},
                                              {"dense", 392, {300, 301, 299, 308, 302}}};
    CHECK(disturbance_with_order(steady, .01).is_bearable());
    CHECK(doubt_of(disturbance_with_order(steady, .01)).empty());
    CHECK(doubt_of(disturbance_with_order(steady, .48)) ==
          "the machine was busy: other programs had its processors for 48 % of the time that it could have run");

    // One repeat of many that was interrupted changes no median.
    std::vector<RepeatedTime> once = steady;
    once[1].us[2] = 4000;
    CHECK(disturbance_with_order(once, 0).is_bearable());
    // Half of them do.
    std::vector<RepeatedTime> often = steady;
    often[1].us = {100, 1500, 99, 1490, 102, 1511};
    CHECK(doubt_of(disturbance_with_order(often, 0)) ==
          "the machine was busy: 480 tiles of 'fine' took now 100, now 1500 us");

    // A twentieth of the pixels that takes longer than a third.
    std::vector<RepeatedTime> slower = steady;
    slower[0].us = {310, 312, 311, 313, 312};
    CHECK(doubt_of(disturbance_with_order(slower, 0)) ==
          "the machine was busy: 48 tiles of 'fine' took 312 us, and 480 took 101 us");
    std::swap(slower[0], slower[1]);
    CHECK_FALSE(disturbance_with_order(slower, 0).is_bearable());
    // Another variant, or a GPU that is filled better by more tiles, may well take less time.
    slower[1].variant = "coarse";
    CHECK(disturbance_with_order(slower, 0).is_bearable());
    slower[1].variant = "fine";
    CHECK(disturbance_of(slower, 0).is_bearable());
    // Noise is borne.
    slower[1].us = {120, 121, 119, 122, 118};
    CHECK(disturbance_with_order(slower, 0).is_bearable());
}

TEST_CASE("What was disturbed is measured again, three times at most", "[search]") {
    struct Attempt {
        int number = 0;
        Disturbance disturbance;
    };
    const auto kept = [](const std::vector<double> &degrees, size_t attempts) {
        size_t number = 0;
        const Attempt best = steadiest([&] {
            const double degree = degrees.at(number);
            return Attempt{static_cast<int>(number++), {degree, ""}};
        });
        CHECK(number == attempts);
        return best.number;
    };
    CHECK(kept({.5}, 1) == 0);
    CHECK(kept({7, 1}, 2) == 1);
    CHECK(kept({7, 3, 5}, 3) == 1);
    CHECK(kept({7, 8, 9}, 3) == 0);
}

TEST_CASE("Doubtful measurements are kept until they are measured again", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    Measurement doubtful = measured(a_theta(1, 1), false, {{1, 15}});
    doubtful.doubt = "the machine was busy";
    {
        SearchLog log(path, some_header());
        log.append(doubtful);
        log.append(measured(a_theta(2, 1), false, {{1, 1}}));
    }
    REQUIRE(read_search_log(path).measured.size() == 2);
    CHECK(read_search_log(path).measured[0].doubt == "the machine was busy");
    CHECK(SearchLog(path, some_header()).measured().size() == 2);
    SearchLog log(path, some_header(), true);
    REQUIRE(log.measured().size() == 1);
    CHECK(log.measured()[0].theta == a_theta(2, 1));
    log.append(measured(a_theta(1, 1), false, {{1, 1}}));
    const std::vector<Measurement> both = read_search_log(path).measured;
    REQUIRE(both.size() == 2);
    CHECK(both[0].theta == a_theta(1, 1));
    CHECK(both[0].times[0].us == 1);
    CHECK(both[0].doubt.empty());
}

TEST_CASE("A report shows what a log holds", "[search]") {
    CHECK(rank_correlation({1, 2, 3, 4}, {10, 20, 30, 25}) == Approx(0.8));
    CHECK(rank_correlation({1, 2, 3}, {3, 2, 1}) == Approx(-1));
    CHECK(rank_correlation({1, 1, 2, 2}, {1, 1, 5, 5}) == Approx(1));
    CHECK(rank_correlation({1, 1}, {1, 2}) == 0);

    LogContents log;
    log.header = some_header();
    log.measured = {measured(a_theta(1, 1), true, {{576, 60}}), measured(a_theta(1, 1), false, {{29, 4}, {230, 30}}),
                    measured(a_theta(4, 4), false, {{3, 5}, {36, 40}})};
    const MaskSet masks = some_masks();
    const nlohmann::json report = make_report(log, masks, &masks, 6);
    CHECK(report.at("sets").size() >= 2);
    CHECK(report.at("sets")[0].at("cost") == report.at("sets")[0].at("held_out"));
    CHECK(report.at("oracle") == report.at("held_out_oracle"));
    CHECK(report.at("convergence").back().at(2) == report.at("sets").back().at("cost"));
    CHECK(report.at("outcomes").at("ok") == 3);
    CHECK(describe_report(report).find("Dense candidate: 60.0 us") != std::string::npos);
    const TemporaryFolder folder;
    for (const std::string &path : write_figures(report, folder.path() + "/a-")) {
        const std::string svg = contents(path);
        CHECK(svg.rfind("<svg", 0) == 0);
        CHECK(svg.find("</svg>") != std::string::npos);
        CHECK(svg.find("nan") == std::string::npos);
    }
}

TEST_CASE("The bound is judged inside what it keeps", "[search]") {
    LogContents log;
    log.header = some_header();
    Workload workload = workload_of(log.header.op, log.header.device);
    workload.threads = log.header.threads;
    const Bucket bucket = density_bucket(workload, .3);
    CorrelationOptions options;
    options.densities = {.3};
    const Ranking ranking = rank(workload, {bucket});
    REQUIRE(ranking.kept.size() > 60);
    const auto tiles_of = [&](const Theta &theta) { return bucket.tiles(theta.at("tile_h"), theta.at("tile_w")); };
    const auto add = [&](const Theta &theta, double us) {
        const int64_t tiles = tiles_of(theta);
        log.measured.push_back(measured(theta, false, {{tiles, us}, {tiles + 10, us + 1}}));
    };
    const auto judged = [&] { return make_correlation(log, options).at("densities").at(0); };

    // Nothing was measured, then too little.
    CHECK(judged().at("rank_correlation").is_null());
    CHECK(judged().at("best_of_first").is_null());
    // Every third one of the ranking takes twice its bound: the order is the bound's own.
    for (size_t i = 0; i < 60; i += 3) {
        add(ranking.kept[i].theta, 2 * ranking.kept[i].us[0]);
    }
    nlohmann::json row = judged();
    CHECK(row.at("kept") == ranking.kept.size());
    CHECK(row.at("measured") == 20);
    CHECK(row.at("measured_kept") == 20);
    CHECK(row.at("first_measured") == 7);
    CHECK(row.at("rank_correlation").get<double>() == Approx(1));
    CHECK(row.at("best_of_first").get<double>() == Approx(1));
    for (const nlohmann::json &point : row.at("points")) {
        CHECK(point.at("us").get<double>() == Approx(2 * point.at("bound_us").get<double>()));
    }

    // The first of the ranking, each once though two densities have it.
    options.densities = {.3, .3, 1};
    options.first = 5;
    const std::vector<Theta> first = first_of_ranking(workload, options, false);
    REQUIRE(first.size() == 5);
    for (size_t i = 0; i < first.size(); i++) {
        CHECK(first[i] == ranking.kept[i].theta);
    }
    CHECK(first_of_ranking(workload, options, true).size() == 5);
    options = {};
    options.densities = {.3};

    // A faster one that the ranking keeps far below, and a still faster one that it does not keep.
    const double best = 2 * ranking.kept[0].us[0];
    add(ranking.kept[59].theta, best / 2);
    CHECK(judged().at("best_of_first").get<double>() == Approx(2));
    CHECK(judged().at("rank_correlation").get<double>() < 0.9);
    std::set<Theta> kept;
    for (const Candidate &candidate : ranking.kept) {
        kept.insert(candidate.theta);
    }
    const Pool all(space_of("cpu"), legal_points(space_of("cpu"), workload.problem));
    size_t other = 0;
    while (kept.count(all.theta(all[other])) != 0) {
        other++;
    }
    add(all.theta(all[other]), best / 4);
    row = judged();
    CHECK(row.at("best_of_first").get<double>() == Approx(4));
    CHECK(row.at("measured") == 22);
    CHECK(row.at("measured_kept") == 21);
    // Times far from the density's tiles, dense ones and failed ones say nothing.
    const Theta next = ranking.kept[1].theta;
    log.measured.push_back(measured(next, false, {{2 * tiles_of(next) + 1, 1e-3}, {2 * tiles_of(next) + 9, 1e-2}}));
    log.measured.push_back(measured(next, true, {{576, 1e-3}}));
    log.measured.push_back(measured(ranking.kept[2].theta, false, {}));
    log.measured.back().outcome = Outcome::Crashed;
    CHECK(judged() == row);

    // Dense schedules are judged at 1. Their bounds are equal here; their places are not.
    options.densities = {1, .3};
    LogContents dense_log = log;
    dense_log.measured.clear();
    const Ranking dense = rank(workload, {density_bucket(workload, 1)});
    for (size_t i = 0; i < 4; i++) {
        const Theta &theta = dense.kept[i].theta;
        const int64_t tiles = density_bucket(workload, 1).tiles(theta.at("tile_h"), theta.at("tile_w"));
        dense_log.measured.push_back(measured(theta, true, {{tiles, 100.0 - static_cast<double>(i)}}));
    }
    REQUIRE(dense.kept[0].us[0] == dense.kept[3].us[0]);
    const nlohmann::json both = make_correlation(dense_log, options), last = both.at("densities").at(1);
    CHECK(both.at("densities").at(0).at("measured") == 0);
    CHECK(last.at("dense") == true);
    CHECK(last.at("measured_kept") == 4);
    CHECK(last.at("rank_correlation") == 0);
    CHECK(last.at("place_correlation").get<double>() == Approx(-1));
    CHECK(last.at("best_of_first").get<double>() == Approx(1));
    const std::string text = describe_correlations(nlohmann::json::array({both, both}));
    CHECK(text.find("dense") != std::string::npos);
    CHECK(text.find("all ") != std::string::npos);
}
