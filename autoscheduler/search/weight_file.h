/** \file
 * The weights of an operator from an untrusted file.
 */
#ifndef DISTILE_WEIGHT_FILE_H
#define DISTILE_WEIGHT_FILE_H

#include "plans/operator.h"
#include <string>
#include <vector>

namespace distile {

/** The help of the option --weights. */
constexpr const char *weights_option_help =
    "NumPy file with the weights that times are measured with, [output channels, input channels, kernel rows, kernel "
    "columns] or [output channels, all others]: where they are 0 counts, for code that skips zeros (default: random "
    "places)";

/** The weights of a NumPy file of type float32 or float64, [output channel][input channel][kernel row][kernel column]
 * or [output channel][all others in this order], as [output channel][kernel row][kernel column][input channel]. Throws
 * FileError for weights of another shape or that are no finite numbers, and for an operator that has no code which
 * skips zeros. */
std::vector<float> read_weights(const std::string &path, const Operator &op);

/** The share of these that are 0, or of the quads of a quantized operator, as an operator file has it. Throws FileError
 * if all are; messages call them `path`. */
double share_of_zeros(const Operator &op, const std::vector<float> &weights, const std::string &path);

}  // namespace distile

#endif
