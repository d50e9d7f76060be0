/** \file
 * What the tests of masked convolutions vary, on a CPU and on a GPU: masks and layouts.
 */
#ifndef DISTILE_TESTS_CONV2D_CASES_H
#define DISTILE_TESTS_CONV2D_CASES_H

#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace distile {

constexpr const char *mask_names[] = {"empty",      "full",   "corners", "last pixel", "checkerboard", "one row",
                                      "one column", "random", "blob",    "real",       "one image"};

/** A mask of a family, another one for every image. */
std::vector<uint8_t> make_mask(const std::string &name, int32_t batch, int32_t height, int32_t width,
                               std::mt19937 &random);

struct NamedLayout {
    const char *name;
    TensorLayout layout;
};

/** Elements between pixels, rows and images come to whole vectors of `lanes` where the channels do. */
std::vector<NamedLayout> input_layouts(const distile_conv2d &conv, int32_t lanes = 1);
std::vector<NamedLayout> output_layouts(const distile_conv2d &conv, int32_t lanes = 1);
/** Layouts of a residual that is not the output itself. */
std::vector<NamedLayout> residual_layouts(const distile_conv2d &conv, int32_t lanes = 1);

/** Takes the values of computed but inactive pixels as they are: where a residual is the output, what is zeroed may or
 * may not be added again before its tile is stored. */
void forget_inactive(ReferenceOutput &expected, const std::vector<uint8_t> &mask, const TestTensor &output);

}  // namespace distile

#endif
