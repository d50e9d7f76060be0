// The search for a PolyKernel: the objective, masks, logs, models and Algorithm 1. Nothing is compiled or measured
// here.
#include "autoscheduler/search/correlation.h"
#include "autoscheduler/search/learned_model.h"
#include "autoscheduler/search/objective.h"
#include "autoscheduler/search/report.h"
#include "autoscheduler/search/search.h"
#include "autoscheduler/search/search_log.h"
#include "masks/mask_files.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <distile/distile.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <sys/resource.h>

using namespace distile;

namespace {

Operator small_operator(const std::string &name = "conv", int out_channels = 64) {
    return parse_operator({{"distile_operator", 1},
                           {"name", name},
                           {"generator", "masked_conv2d"},
                           {"params", {{"in_channels", 64}, {"out_channels", out_channels}}},
                           {"typical", {{"height", 24}, {"width", 24}}}},
                          "here");
}

/** A NumPy file. */
std::string npy(const std::string &type, const std::string &fortran_order, const std::string &shape,
                const std::string &data) {
    std::string header = "{'descr': '" + type + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }";
    header.resize((header.size() + 11 + 63) / 64 * 64 - 10, ' ');
    header.back() = '\n';
    std::string file = "\x93NUMPY\x01";
    file += '\0';
    file += static_cast<char>(header.size() & 0xff);
    file += static_cast<char>(header.size() >> 8);
    return file + header + data;
}

Workload small_workload(const Operator &op) {
    return workload_of(op, generic_device_profile("generic_avx2"));
}

MaskSet some_masks() {
    return read_mask_set({"blob:0.05:1", "blob:0.1:2", "blob:0.2:3", "blob:0.4:4", "random:0.3:5", "random:0.05:6"},
                         small_operator());
}

/** The masks of some_masks(), one after the other, as bytes. */
std::vector<ByteMask> bytes_of_some_masks() {
    const auto draw = [](const char *family, double density, uint64_t seed) {
        const Operator op = small_operator();
        return draw_mask(family, 1, op.typical_output().height, op.typical_output().width, density, seed);
    };
    return {draw("blob", .05, 1), draw("blob", .1, 2),   draw("blob", .2, 3),
            draw("blob", .4, 4),  draw("random", .3, 5), draw("random", .05, 6)};
}

Theta a_theta(int tile_h, int tile_w, int pixels = 4) {
    return {{"tile_h", tile_h}, {"tile_w", tile_w},    {"pixels", pixels}, {"channels", 16},
            {"group", 4},       {"channel_splits", 1}, {"order", 0},       {"unroll", 1}};
}

Measurement measured(const Theta &theta, bool dense, const std::vector<std::pair<int64_t, double>> &times) {
    Measurement measurement;
    measurement.theta = theta;
    measurement.dense = dense;
    for (const auto &[tiles, us] : times) {
        measurement.times.push_back({tiles, us, us, us});
    }
    measurement.compile_s = 2;
    measurement.measure_s = 0.5;
    return measurement;
}

LogHeader some_header() {
    LogHeader header;
    header.op = small_operator();
    header.backend = "cpu";
    header.target = "x86-64-linux-avx-avx2-f16c-fma-sse41";
    header.device = generic_device_profile("generic_avx2");
    header.threads = 2;
    header.knobs = knob_names(space_of("cpu"));
    header.seed = 7;
    header.masks = {"blob:0.1:1"};
    return header;
}

std::string contents(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
}

std::string message_of(const std::function<void()> &call) {
    try {
        call();
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "";
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

TEST_CASE("Masks are counted as the runtime counts them, and measured where they lie", "[search]") {
    const MaskSet masks = some_masks();
    CHECK(masks.size() == 6);
    const Context context = make_context();
    const Mask mask = make_mask(context);
    const std::vector<ByteMask> bytes = bytes_of_some_masks();
    for (const auto &granularity : {std::pair{1, 1}, {2, 3}, {5, 7}, {8, 16}}) {
        for (size_t i = 0; i < masks.size(); i++) {
            CAPTURE(granularity.first, granularity.second, i);
            const ByteMask &of = bytes[i];
            check(context, distile_mask_set_bytes(mask.get(), of.bytes.data(), of.batch, of.height, of.width,
                                                  int64_t{of.height} * of.width, of.width));
            int64_t count = 0;
            check(context, distile_mask_count_tiles(mask.get(), granularity.first, granularity.second, &count));
            CHECK(masks.tiles(granularity)[i] == count);
            CHECK(count <= masks.all_tiles(granularity));
        }
        const MaskSet two = masks.subset({3, 1});
        CHECK(two.tiles(granularity) == std::vector<int64_t>{masks.tiles(granularity)[3], masks.tiles(granularity)[1]});
    }
    CHECK(masks.all_tiles({5, 16}) == 5 * 2);
    CHECK(masks.tiles({24, 24}) == std::vector<int64_t>(6, 1));
    const std::vector<int64_t> counts = tile_counts(masks, {1, 1}, 5);
    CHECK(counts.front() == 29);
    CHECK(counts.back() == *std::max_element(masks.tiles({1, 1}).begin(), masks.tiles({1, 1}).end()));
    CHECK(counts.size() == 5);
    CHECK(std::is_sorted(counts.begin(), counts.end()));
    CHECK(tile_counts(masks, {24, 24}, 5) == std::vector<int64_t>{1});
}

TEST_CASE("Masks are written so that they are read again", "[search]") {
    const TemporaryFolder folder;
    const ByteMask first = draw_named_mask("blob:0.3:7", 1, 5, 70), second = draw_named_mask("checkerboard", 2, 5, 70);
    CHECK(first.bytes == blob_mask(1, 5, 70, 0.3, 7).bytes);
    const std::string file = npy_of_masks({first});
    // The elements begin where NumPy puts them, at a multiple of 64 bytes.
    CHECK((file.size() - first.bytes.size()) % 64 == 0);
    CHECK(file.find("{'descr': '|b1', 'fortran_order': False, 'shape': (5, 70), }") == 10);
    const std::vector<MaskImage> one = read_npy_masks(folder.write("one.npy", file));
    REQUIRE(one.size() == 1);
    CHECK(one[0].bytes == first.bytes);
    const std::vector<MaskImage> three = read_npy_masks(folder.write("three.npy", npy_of_masks({first, second})));
    REQUIRE(three.size() == 3);
    CHECK(three[0].bytes == first.bytes);
    CHECK(three[1].bytes == std::vector<uint8_t>(second.bytes.begin(), second.bytes.begin() + 350));
    CHECK(three[2].height == 5);
    const MaskImage picture = read_png_mask(folder.write("one.png", png_of_mask(first)));
    CHECK(picture.height == 5);
    CHECK(picture.width == 70);
    for (size_t i = 0; i < first.bytes.size(); i++) {
        REQUIRE(picture.bytes[i] == 255 * first.bytes[i]);
    }
}

TEST_CASE("Masks are read from NumPy's files", "[search]") {
    const TemporaryFolder folder;
    const std::vector<MaskImage> one =
        read_npy_masks(folder.write("one.npy", npy("|b1", "False", "(2, 3)", std::string("\1\0\0\0\0\1", 6))));
    REQUIRE(one.size() == 1);
    CHECK(one[0].height == 2);
    CHECK(one[0].width == 3);
    CHECK(one[0].bytes == std::vector<uint8_t>{1, 0, 0, 0, 0, 1});
    const std::vector<MaskImage> two =
        read_npy_masks(folder.write("two.npy", npy("|u1", "False", "(2, 1, 2)", std::string("\0\7\0\0", 4))));
    REQUIRE(two.size() == 2);
    CHECK(two[0].bytes == std::vector<uint8_t>{0, 7});
    CHECK(two[1].name.find("two.npy[1]") != std::string::npos);
    const std::vector<MaskImage> columns_first =
        read_npy_masks(folder.write("fortran.npy", npy("|u1", "True", "(2, 3)", "\1\2\3\4\5\6")));
    REQUIRE(columns_first.size() == 1);
    CHECK(columns_first[0].bytes == std::vector<uint8_t>{1, 3, 5, 2, 4, 6});

    const std::pair<std::string, const char *> wrong[] = {
        {"", "not a NumPy array"},
        {"nonsense that is long enough", "not a NumPy array"},
        {npy("<f4", "False", "(1, 1)", "1234"),
         "of the type <f4, not bool or uint8: save which pixels are active, as numpy"},
        {npy("\x1b[2J", "False", "(1, 1)", "1234"), "of the type another, not bool"},
        {npy("|b1", "False", "(2,)", "12"), "shape (2)"},
        {npy("|b1", "False", "(0, 2)", ""), "shape (0, 2)"},
        {npy("|b1", "False", "(70000, 2)", std::string(140000, '1')), "shape (70000, 2)"},
        {npy("|b1", "False", "(2, 2)", "123"), "not a NumPy array"},
        // 2^64 and some elements, which are few where products wrap.
        {npy("|b1", "False", "(170804740106741571, 9, 12)", std::string(216, '\1')), "shorter than its shape"},
        {npy("|b1", "False", "(18446744073709551617, 1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(-1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(1, 1", "1"), "no shape"},
        {std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "inside its header"}};
    for (const auto &[file, word] : wrong) {
        const std::string path = folder.write("wrong.npy", file);
        const std::string message = message_of([&] { read_npy_masks(path); });
        CAPTURE(word, message);
        CHECK(message.find(path) != std::string::npos);
        CHECK(message.find(word) != std::string::npos);
    }
}

TEST_CASE("Masks that cannot be used are refused with a reason", "[search]") {
    const TemporaryFolder folder;
    const Operator op = small_operator();
    const auto refusal = [&](const std::vector<std::string> &sources) {
        return message_of([&] { read_mask_set(sources, op); });
    };
    CHECK(refusal({}).find("there are no masks") != std::string::npos);
    CHECK(refusal({"blob:0:1"}).find("no mask has an active pixel") != std::string::npos);
    CHECK(refusal({"cloud:0.1:1"}).find("no mask family 'cloud'") != std::string::npos);
    for (const char *source : {"blob", "blob:0.1", "blob:x:1", "blob:0.1:y", "blob:2:1", "checkerboard:0.1:1", ""}) {
        INFO(source);
        CHECK(refusal({source}).find("neither a .npy nor a .png file") != std::string::npos);
    }
    CHECK(refusal({folder.path() + "/none.npy"}).find("cannot be opened") != std::string::npos);
    CHECK(refusal({folder.write("text.png", "text")}).find("PNG file (Image not of any known type, or corrupt)") !=
          std::string::npos);
    // A chunk of an unknown type, whose bytes steer a terminal or end the text.
    for (const std::string &type : {std::string("\0\0\0\0", 4), std::string("\x1b[2J")}) {
        const std::string header("\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\0\0\0\0????", 25), none(4, '\0');
        const std::string file = "\x89PNG\r\n\x1a\n" + header + none + type + none;
        const std::string message = refusal({folder.write("chunk.png", file)});
        CAPTURE(message);
        CHECK(message.find("unknown PNG chunk type") != std::string::npos);
        CHECK(message.find(type) == std::string::npos);
    }
    const std::string path = folder.write("small.npy", npy("|b1", "False", "(2, 3, 4)", std::string(24, '\1')));
    CHECK(refusal({path}).find("have 3 x 4 pixels, but the output of 'conv' for its typical input has 24 x 24") !=
          std::string::npos);
    Operator fitting = op;
    fitting.typical_height = 3;
    fitting.typical_width = 4;
    int empty = -1;
    CHECK(read_mask_set({path, "blob:0:1"}, fitting, &empty).size() == 2);
    CHECK(empty == 1);
    fitting.typical_batch = 2;
    CHECK(read_mask_set({path}, fitting).size() == 1);
    fitting.typical_batch = 3;
    CHECK(message_of([&] { read_mask_set({path}, fitting); }).find("no whole batches of 3") != std::string::npos);
}

TEST_CASE("A log gives back what was put in", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    Measurement failed;
    failed.theta = a_theta(2, 2);
    failed.outcome = Outcome::TimedOut;
    failed.message = "slow \"\n";
    {
        SearchLog log(path, some_header());
        log.append(measured(a_theta(1, 2), true, {{4, 1.5}, {8, 2.25}}));
        log.append(failed);
        // Another reader may look at it meanwhile.
        CHECK(read_search_log(path).measured.size() == 2);
    }
    SearchLog again(path, some_header());
    REQUIRE(again.measured().size() == 2);
    CHECK(again.warning().empty());
    CHECK(again.measured()[0].theta == a_theta(1, 2));
    CHECK(again.measured()[0].dense);
    CHECK(again.measured()[0].at(6) == Approx(1.875));
    CHECK(again.measured()[0].compile_s == 2);
    CHECK(again.measured()[1].outcome == Outcome::TimedOut);
    CHECK(again.measured()[1].message == failed.message);
    CHECK(to_json(read_search_log(path).header) == to_json(some_header()));
}

TEST_CASE("A log belongs to one search at a time, and to one operator, device and space", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    const auto refusal = [&](const LogHeader &header) { return message_of([&] { SearchLog(path, header); }); };
    {
        const SearchLog log(path, some_header());
        CHECK(refusal(some_header()).find("is in use by another search") != std::string::npos);
    }
    const std::string before = contents(path);
    LogHeader other = some_header();
    other.op = small_operator("another");
    CHECK(refusal(other).find("is of the operator 'conv'") != std::string::npos);
    other = some_header();
    other.op.typical_height = 25;
    CHECK(refusal(other).find("is of the operator") != std::string::npos);
    other = some_header();
    other.device.cores = 77;
    CHECK(refusal(other).find("77 cores") != std::string::npos);
    other = some_header();
    other.threads = 1;
    CHECK(refusal(other).find("is of 2 threads") != std::string::npos);
    other = some_header();
    other.knobs = "tile_h tile_w";
    CHECK(refusal(other).find("knobs tile_h tile_w") != std::string::npos);
    other = some_header();
    other.target += "-avx512";
    CHECK(refusal(other).find("target") != std::string::npos);
    other = some_header();
    other.math = Math::TF32;
    CHECK(refusal(other).find("in TF32") != std::string::npos);
    CHECK(contents(path) == before);
    // What does not change what a measurement means may differ.
    other = some_header();
    other.seed = 8;
    other.masks = {"checkerboard"};
    CHECK(refusal(other).empty());
    CHECK(message_of([&] { SearchLog(folder.path() + "/none/a.log", some_header()); }).find("cannot be opened") !=
          std::string::npos);
    CHECK(message_of([&] { read_search_log(folder.path() + "/none.log"); }).find("cannot be opened") !=
          std::string::npos);
    CHECK(message_of([&] {
              read_search_log(folder.write("plan.json", "{\"distile_plan\": 1}\n"));
          }).find("not the log of a search") != std::string::npos);
}

TEST_CASE("A line that a kill left broken is skipped and cut off", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    {
        SearchLog log(path, some_header());
        log.append(measured(a_theta(1, 1), false, {{1, 1}}));
        log.append(measured(a_theta(2, 1), false, {{1, 1}}));
    }
    const std::string whole = contents(path);
    // Killed at any byte of the last line, its end included.
    const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
    for (size_t size : {last + 1, last + 20, whole.size() - 1}) {
        folder.write("a.log", whole.substr(0, size));
        CHECK(read_search_log(path).warning.find("line 3 is broken") != std::string::npos);
        CHECK(contents(path).size() == size);
        SearchLog log(path, some_header());
        CHECK(log.measured().size() == 1);
        CHECK(log.warning().find("line 3 is broken") != std::string::npos);
        log.append(measured(a_theta(2, 1), false, {{1, 1}}));
        CHECK(contents(path) == whole);
    }
    for (size_t size : {size_t{0}, size_t{30}, whole.find('\n')}) {
        folder.write("a.log", whole.substr(0, size));
        CHECK(SearchLog(path, some_header()).measured().empty());
        CHECK(read_search_log(path).measured.empty());
    }
    // In the midst of the log nobody's kill does that.
    std::string broken = whole;
    broken[last - 4] = '"';
    folder.write("a.log", broken);
    CHECK(message_of([&] { SearchLog(path, some_header()); }).find("line 2 is not JSON") != std::string::npos);
    CHECK(contents(path) == broken);
}

TEST_CASE("A file that is no log is refused and left as it is", "[search]") {
    const TemporaryFolder folder;
    for (const char *text : {"a note", "a note\n", "a note\nanother\n", "{\"a\":", "[1, 2]", "\n"}) {
        INFO(text);
        const std::string path = folder.write("notes.txt", text);
        CHECK(message_of([&] { SearchLog(path, some_header()); }).find("it is not the log of a search") !=
              std::string::npos);
        CHECK(message_of([&] { read_search_log(path); }).find("it is not the log of a search") != std::string::npos);
        CHECK(contents(path) == text);
    }
}

TEST_CASE("Schedules and headers that no search writes are refused", "[search]") {
    const TemporaryFolder folder;
    const auto refusal = [&](const LogHeader &header, const Theta &theta) {
        const std::string path = folder.write("a.log", to_json(header).dump() + "\n" +
                                                           to_json(measured(theta, false, {{1, 1}})).dump() + "\n{}\n");
        return message_of([&] { read_search_log(path); });
    };
    LogHeader gpu = some_header();
    gpu.backend = "cuda";
    gpu.device = generic_device_profile("generic_cuda");
    const Theta gpu_theta =
        unpack(space_of("cuda"), legal_points(space_of("cuda"), workload_of(gpu.op, gpu.device).problem).at(0));
    // In TF32 the same log has another space.
    LogHeader tensor_cores = gpu;
    tensor_cores.target = "x86-64-linux-cuda-cuda_capability_90a";
    tensor_cores.op.params["in_channels"] = tensor_cores.op.params["out_channels"] = "64";
    tensor_cores.math = Math::TF32;
    const Space &tensor_core_points = tensor_core_space(TensorCores::Sm90);
    const Theta tensor_core_theta =
        unpack(tensor_core_points, legal_points(tensor_core_points, workload_of(tensor_cores).problem).at(0));
    CHECK(refusal(tensor_cores, tensor_core_theta).find("line 3: this is not a measurement") != std::string::npos);
    CHECK(refusal(tensor_cores, gpu_theta).find("line 2: its schedule is not legal") != std::string::npos);
    CHECK(refusal(gpu, tensor_core_theta).find("line 2: its schedule is not legal") != std::string::npos);
    // The next line shows that a legal one is taken.
    CHECK(refusal(some_header(), a_theta(1, 1)).find("line 3: this is not a measurement") != std::string::npos);
    CHECK(refusal(gpu, gpu_theta).find("line 3: this is not a measurement") != std::string::npos);
    for (const char *knob : {"pixels", "channels", "group", "channel_splits", "unroll"}) {
        Theta theta = a_theta(1, 1);
        theta[knob] = 0;
        CHECK(refusal(some_header(), theta).find(std::string("the knob '") + knob + "' is 0") != std::string::npos);
        theta.erase(knob);
        CHECK(refusal(some_header(), theta).find("line 2: its schedule is not legal") != std::string::npos);
    }
    for (const char *knob : {"thread_channels", "thread_pixels", "block_pixels", "chunk", "splits"}) {
        Theta theta = gpu_theta;
        theta[knob] = 0;
        CHECK(refusal(gpu, theta).find(std::string("the knob '") + knob + "' is 0") != std::string::npos);
    }
    LogHeader mixed = some_header();
    mixed.backend = "cuda";
    CHECK(refusal(mixed, gpu_theta).find("its \"backend\" is not that of its \"device\"") != std::string::npos);

    // Illegal thetas are not appended either, as the results of another machine might be.
    const std::string path = folder.path() + "/b.log";
    SearchLog log(path, some_header());
    const std::string before = contents(path);
    CHECK(message_of([&] {
              log.append(measured(a_theta(1, 1, 99), false, {{1, 1}}));
          }).find("not legal") != std::string::npos);
    CHECK(contents(path) == before);
    CHECK(log.measured().empty());

    nlohmann::json header = to_json(some_header());
    header["thread"] = 2;
    CHECK(message_of([&] {
              read_search_log(folder.write("c.log", header.dump() + "\n"));
          }).find("c.log': there is no member \"thread\"; the nearest known one is \"threads\"") != std::string::npos);

    nlohmann::json device = to_json(gpu.device);
    device["memory"][1]["transaction_bytes"] = 3;
    CHECK(message_of([&] { parse_device_profile(device, "it"); }).find("not an integer from 4") != std::string::npos);
}

TEST_CASE("A full disk leaves the log as it was", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    SearchLog log(path, some_header());
    log.append(measured(a_theta(1, 1), false, {{1, 1}}));
    const std::string before = contents(path);
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const rlimit limit{before.size() + 10, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const std::string message = message_of([&] { log.append(measured(a_theta(2, 1), false, {{1, 1}})); });
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, SIG_DFL);
    CHECK(message.find("cannot be written") != std::string::npos);
    CHECK(message.find("The 1 measurements before are kept") != std::string::npos);
    CHECK(contents(path) == before);
    log.append(measured(a_theta(2, 1), false, {{1, 1}}));
    CHECK(read_search_log(path).measured.size() == 2);
}

TEST_CASE("What is no measurement is refused", "[search]") {
    const nlohmann::json good = to_json(measured(a_theta(1, 1), false, {{1, 1}, {2, 3}}));
    CHECK(parse_measurement(good, "it").times.size() == 2);
    const auto refused = [&](const char *member, const nlohmann::json &value) {
        nlohmann::json bad = good;
        bad[member] = value;
        return !message_of([&] { parse_measurement(bad, "it"); }).empty();
    };
    CHECK(refused("outcome", "good"));
    CHECK(refused("reference", 3));
    CHECK(refused("theta", 3));
    CHECK(refused("theta", {{"tile_h", 1}}));
    CHECK(refused("theta", {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 1e300}}));
    CHECK(refused("theta", {{"tile_h", 1}, {"tile_w", 1}, {"pixels", int64_t{1} << 40}}));
    CHECK(refused("times", {{1.5, 1, 1, 1}}));
    CHECK(refused("times", {{1e300, 1, 1, 1}}));
    CHECK(refused("times", nlohmann::json::array()));
    CHECK(refused("times", {{1, 0, 1, 1}}));
    CHECK(refused("times", {{2, 1, 1, 1}, {1, 1, 1, 1}}));
    CHECK(refused("times", {{1, 1}}));
}

TEST_CASE("A learned model corrects the bound, the same way every time", "[search]") {
    const Space &space = space_of("cpu");
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = legal_points(space, workload.problem);
    std::mt19937 random(11);
    std::shuffle(points.begin(), points.end(), random);
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
    std::vector<PackedTheta> points = legal_points(space, workload.problem);
    std::mt19937 random(4);
    std::shuffle(points.begin(), points.end(), random);
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

TEST_CASE("Batches hold masked and dense trials in turns, from the first on", "[search]") {
    const Space &space = space_of("cpu");
    const MaskSet masks = read_mask_set({"blob:0.25:1"}, small_operator());
    const Workload workload = small_workload(small_operator());
    std::vector<PackedTheta> points = legal_points(space, workload.problem);
    std::mt19937 random(6);
    std::shuffle(points.begin(), points.end(), random);
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

TEST_CASE("Trials that failed for want of a tool do not count", "[search]") {
    const std::string generators = "distile: error: '/opt/distile/distile_generators' failed; it printed:\n";
    const char *const tools[] = {
        "/opt/distile/distile_generators: error while loading shared libraries: libHalide.so.19: cannot open shared "
        "object file: No such file or directory\nName the folder of Halide's library in LD_LIBRARY_PATH.",
        "Error: Failed to load: libautoschedule_polykernel.so: cannot open shared object file",
        "LLVM ERROR: IO failure on output stream: No space left on device"};
    for (const char *text : tools) {
        CHECK(blames_tools(generators + text));
    }
    for (const char *text : {"distile: error: the program 'cc' cannot be started: No such file or directory.",
                             "distile: error: '/a/b.so' is missing; it is needed to compile plans. Run the `distile` "
                             "of a complete installation or build.",
                             "distile: error: 'cc' failed; it printed:\n/usr/bin/ld: cannot find -lstdc++\n.",
                             "/bin/sh: 1: exec: env: not found: No such file or directory"}) {
        CHECK(blames_tools(text));
    }
    for (const std::string &text : {std::string(), std::string("compiling it took more than 60 seconds"),
                                    generators + "Internal Error at Schedule.cpp:12: the loop cannot be unrolled",
                                    generators + "terminate called after throwing an instance of 'std::bad_alloc'"}) {
        CHECK_FALSE(blames_tools(text));
    }

    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    Measurement poisoned;
    poisoned.theta = a_theta(2, 2);
    poisoned.outcome = Outcome::NotCompiled;
    poisoned.message = generators + tools[0];
    Measurement refused = poisoned;
    refused.theta = a_theta(1, 2);
    refused.message = generators + "Internal Error";
    {
        SearchLog log(path, some_header());
        for (const Measurement &measurement : {poisoned, refused, poisoned}) {
            log.append(measurement);
        }
    }
    const std::string before = contents(path);
    {
        SearchLog log(path, some_header());
        REQUIRE(log.measured().size() == 1);
        CHECK(log.measured()[0].message == refused.message);
        CHECK(log.warning().find("has 2 trials that did not compile because a program or a library was missing") !=
              std::string::npos);
        // Nothing is cut off, and what is tried again stands behind it.
        CHECK(contents(path) == before);
        log.append(measured(poisoned.theta, false, {{1, 1}}));
    }
    CHECK(read_search_log(path).measured.size() == 2);
    // Beside a line that a kill left broken.
    folder.write("a.log", contents(path) + "{\"theta\"");
    const LogContents both = read_search_log(path);
    CHECK(both.measured.size() == 2);
    CHECK(both.warning.find("line 6 is broken") != std::string::npos);
    CHECK(both.warning.find("; the log '" + path + "' has 2 trials") != std::string::npos);
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
