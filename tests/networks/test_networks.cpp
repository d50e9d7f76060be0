// Whole networks, small: each against plain loops, dense and then masked. The tag is [networks].
#include "apps/networks/inputs.h"
#include "apps/networks/runner.h"
#include "network_test_polykernels.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

using namespace distile::networks;

namespace {

Options small_options(double density, int32_t batch) {
    Options options;
    options.small = true;
    options.density = density;
    options.batch = batch;
    return options;
}

void no_progress(const std::string & /*what*/, int64_t /*done*/, int64_t /*total*/) {
}

/** Most layers of small networks then run PolyKernels, and not the loops that check them. */
void add_polykernels() {
    for (const distile_polykernel *polykernel : network_test_polykernels) {
        distile::bindings::add_polykernel(*polykernel);
    }
}

}  // namespace

TEST_CASE("Networks compute what dense ones leave behind a mask", "[networks]") {
    add_polykernels();
    for (const auto &[type, stages] : [] {
             std::vector<std::pair<NetworkType, bool>> all;
             for (const NetworkType &each : network_types()) {
                 all.emplace_back(each, false);
                 all.emplace_back(each, true);
             }
             return all;
         }()) {
        CAPTURE(type.name, stages);
        Engine engine(2, stages);
        const auto network = type.make(engine, small_options(.4, 2));
        const auto missing = missing_polykernels(engine, *network);
        CHECK(missing.size() < engine.operators().size());
        const Check checked = check(engine, *network, no_progress);
        CHECK(checked.error <= error_bound);
        CHECK(checked.difference > 100 * error_bound);  // The masks matter, so the check can fail.
        CHECK(*std::min_element(checked.densities.begin(), checked.densities.end()) < .7);
        // A step leaves nothing behind that changes the next one.
        engine.mode = Mode::masked;
        std::vector<std::vector<float>> first;
        const std::vector<Tensor> results = network->step();
        engine.finish();
        for (const Tensor &result : results) {
            first.push_back(result.values());
        }
        const std::vector<Tensor> second = network->step();
        engine.finish();
        REQUIRE(second.size() == first.size());
        for (size_t i = 0; i < first.size(); i++) {
            CHECK(second[i].values() == first[i]);
        }
    }
}

TEST_CASE("A layer that reads what was not computed is seen", "[networks]") {
    add_polykernels();
    Engine engine(2);
    const Tensor image = engine.make(1, 16, 16, 16);
    draw(1, 1, image.at(0, 0, 0), size_t{16} * 16 * 16);
    const Layer reduce(conv2d(16, 16, 1).then(DISTILE_ACTIVATION_RELU), 2);
    const Layer middle(conv2d(16, 16, 3).then(DISTILE_ACTIVATION_RELU), 3);
    REQUIRE((reduce.op.polykernel() && middle.op.polykernel()));
    const distile::Mask output = engine.make_mask(), needed = engine.make_mask();
    std::vector<uint8_t> active(size_t{16} * 16);
    std::fill(active.begin() + 100, active.begin() + 150, 1);
    for (const bool is_enough : {true, false}) {
        const auto step = [&](Mode mode) {
            engine.mode = mode;
            const Tensor reduced = engine.make_like(image), result = engine.make_like(image);
            std::fill_n(result.at(0, 0, 0), size_t{16} * 16 * 16, 0.0F);
            distile_mask *mask = engine.from_bytes(output, image, active);
            distile_mask *read = engine.needed_input(needed, mask, middle.op, image);
            engine.run(reduce, image, reduced, is_enough ? read : mask);
            engine.run(middle, reduced, result, mask);
            return std::vector<Tensor>{result};
        };
        const auto result = step(Mode::masked);
        CHECK((error_of(result, step(Mode::reference)) <= error_bound) == is_enough);
    }
}

TEST_CASE("Blocks have the densities that are asked for", "[networks]") {
    for (const double mean : {.1, .3, .383, 1.0}) {
        for (const size_t blocks : {size_t{5}, size_t{33}, size_t{57}}) {
            const std::vector<double> found = block_densities(blocks, mean);
            CHECK(found.size() == blocks);
            CHECK(std::accumulate(found.begin(), found.end(), 0.0) / static_cast<double>(blocks) == Approx(mean));
        }
    }
    const std::vector<float> scores = {3, 1, 2, 4};
    for (const size_t kept : {0, 1, 2, 4}) {
        const float threshold = threshold_of(scores, static_cast<double>(kept) / 4);
        CHECK(std::count_if(scores.begin(), scores.end(), [&](float score) { return score > threshold; }) ==
              static_cast<std::ptrdiff_t>(kept));
    }
}

TEST_CASE("The error of a result sees what is wrong", "[networks]") {
    Engine engine(1);
    const auto tensors = [&](const std::vector<float> &values) {
        const Tensor tensor = engine.make(1, 1, 1, static_cast<int32_t>(values.size()));
        std::copy(values.begin(), values.end(), tensor.at(0, 0, 0));
        return std::vector<Tensor>{tensor};
    };
    CHECK(error_of(tensors({1, 2}), tensors({1, 2.5F})) == Approx(.2));
    CHECK(error_of(tensors({1, NAN}), tensors({1, 2.5F})) == HUGE_VAL);
    CHECK(error_of(tensors({NAN, 2}), tensors({1, 2})) == HUGE_VAL);
    CHECK(error_of(tensors({1, 2}), tensors({1, NAN})) == HUGE_VAL);
    CHECK(error_of(tensors({1}), tensors({1, 2})) == HUGE_VAL);
    CHECK(error_of({}, tensors({1})) == HUGE_VAL);
}
