/** \file
 * A mask of a stage that is tested.
 */
#ifndef DISTILE_TESTS_STAGE_MASK_H
#define DISTILE_TESTS_STAGE_MASK_H

#include "tests/support/catch.h"
#include <distile/distile.hpp>
#include <memory>
#include <random>
#include <vector>

namespace distile {

/** A mask on the host, and one in a device's memory, which is empty until draw() or a step makes it. `Machine` is as in
 * stage_tests.h. */
template<class Machine> struct StageMask {
    StageMask(const Machine &machine, int32_t given_batch, int32_t given_height, int32_t given_width)
        : bits(static_cast<size_t>(given_batch) * given_height * given_width), batch(given_batch), height(given_height),
          width(given_width), mask(machine.make_mask()) {
    }
    bool at(int32_t n, int32_t y, int32_t x) const {
        return y >= 0 && y < height && x >= 0 && x < width &&
               bits[(static_cast<size_t>(n) * height + y) * width + x] != 0;
    }
    /** Makes pixels active at random, both here and there. */
    void draw(const Machine &machine, double density, std::mt19937 &random) {
        for (uint8_t &bit : bits) {
            bit = std::uniform_real_distribution<>(0, 1)(random) < density ? 1 : 0;
        }
        upload = std::make_unique<typename Machine::template Array<uint8_t>>(bits);
        machine.check(
            distile_mask_set_bytes(mask.get(), upload->data(), batch, height, width, int64_t{height} * width, width));
    }

    std::vector<uint8_t> bits;
    int32_t batch, height, width;
    Mask mask;
    std::unique_ptr<typename Machine::template Array<uint8_t>> upload;
};

}  // namespace distile

#endif
