#include "apply.h"

namespace distile {

namespace {

std::string extents(int height, int width) {
    return std::to_string(height) + " x " + std::to_string(width);
}

}  // namespace

std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta) {
    const std::string illegal = space.why_illegal(theta, problem);
    if (!illegal.empty()) {
        throw Halide::CompileError("PolyKernel: the theta is not legal for this operator and target: " + illegal +
                                   ".\n");
    }
    // The caller lists tiles of the theta's extents, of which such a pipeline would compute a part, or too much.
    if (theta.at("tile_h") != op.tile_h || theta.at("tile_w") != op.tile_w) {
        throw Halide::CompileError("PolyKernel: the theta is for tiles of " +
                                   extents(theta.at("tile_h"), theta.at("tile_w")) +
                                   " pixels, and the pipeline was built for tiles of " + extents(op.tile_h, op.tile_w) +
                                   ". Give the generator the tile_h and tile_w of the theta.\n");
    }
    std::string source;
    for (const auto &[knob, value] : theta) {
        source += "const int " + knob + " = " + std::to_string(value) + ";\n";
    }
    return source;
}

}  // namespace distile
