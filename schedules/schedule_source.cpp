#include "schedules/schedule_source.h"

namespace distile {

namespace {

std::string extents(int height, int width) {
    return std::to_string(height) + " x " + std::to_string(width);
}

}  // namespace

std::string declare_knobs(const Space &space, const Problem &problem, const Theta &theta) {
    const std::string illegal = space.why_illegal(theta, problem);
    if (!illegal.empty()) {
        throw Halide::CompileError("PolyKernel: the schedule is not legal for this operator and target: " + illegal +
                                   ".\n");
    }
    std::string source;
    for (const auto &[knob, value] : theta) {
        source += "const int " + knob + " = " + std::to_string(value) + ";\n";
    }
    return source;
}

std::string declare_knobs(const MaskedOperator &op, const Space &space, const Problem &problem, const Theta &theta) {
    std::string source = declare_knobs(space, problem, theta);
    // The caller lists tiles of the theta's size; a pipeline for another size would compute too few or too many pixels.
    if (theta.at("tile_h") != op.tile_h || theta.at("tile_w") != op.tile_w) {
        throw Halide::CompileError("PolyKernel: the schedule is for tiles of " +
                                   extents(theta.at("tile_h"), theta.at("tile_w")) +
                                   " pixels, but the pipeline was built for tiles of " + extents(op.tile_h, op.tile_w) +
                                   ". Pass the schedule's tile_h and tile_w to the generator.\n");
    }
    return source;
}

}  // namespace distile
