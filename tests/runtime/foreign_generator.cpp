// A pipeline of somebody else's: parallel loops, memory on the heap and bounds that can be wrong, by a Halide runtime
// of its own.
#include "Halide.h"

namespace {

using namespace Halide;

class Foreign : public Generator<Foreign> {
public:
    Input<Buffer<float, 2>> input{"input"};
    Output<Buffer<float, 2>> output{"output"};

    void generate() {
        Var x("x"), y("y");
        Func doubled("doubled");
        doubled(x, y) = 2 * input(x, y);
        output(x, y) = doubled(x, y) + doubled(x, y + 1);
        doubled.compute_root().store_in(MemoryType::Heap).parallel(y);
        output.parallel(y);
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(Foreign, foreign)
