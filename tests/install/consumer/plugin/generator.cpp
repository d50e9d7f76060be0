// A product with a 3 x 4 matrix at the pixels in a list, as a masked operator over a virtual pixel domain.
#include <Halide.h>

namespace {

using namespace Halide;

class Pointwise : public Generator<Pointwise> {
public:
    // [ci, x, y, n], and its like for the output.
    Input<Buffer<float, 4>> input{"input"};
    // [co % 16, ci, kernel column, kernel row, co / 16]
    Input<Buffer<float, 5>> weights{"weights"};
    // [pixel, 2]: column and row.
    Input<Buffer<int32_t, 2>> pixels{"pixels"};
    Input<int32_t> threads{"threads"};
    Output<Buffer<float, 4>> output{"output"};

    void generate() {
        Var co{"co"}, x{"x"}, y{"y"}, n{"n"}, p{"p"};
        // A schedule rounds the list up to whole register tiles, which then repeat the last pixel.
        const auto place = [&](const Expr &pixel, int axis) {
            const Expr last = pixels.dim(0).extent() - 1;
            return unsafe_promise_clamped(pixels(clamp(pixel, 0, last), axis), 0, output.dim(1 + axis).extent() - 1);
        };
        RDom taps(0, in_channels, 0, 1, 0, 1);
        Func sum{"sum"};
        sum(co, p) = 0.0f;
        sum(co, p) += weights(co % block, taps.x, taps.y, taps.z, co / block) *
                      input(taps.x, place(p, 0) + taps.y, place(p, 1) + taps.z, 0);
        RDom listed(0, pixels.dim(0).extent());
        output(co, x, y, n) = undef<float>();
        output(co, place(listed.x, 0), place(listed.x, 1), 0) = sum(co, listed.x);

        const int weight_extents[] = {block, in_channels, 1, 1, 1};
        for (int i = 0; i < 5; i++) {
            weights.dim(i).set_bounds(0, weight_extents[i]);
        }
        input.dim(0).set_bounds(0, in_channels);
        output.dim(0).set_bounds(0, out_channels);
        for (int i = 1; i < 4; i++) {
            output.dim(i).set_min(0);
        }
    }

    void schedule() {
        const int size = 32;
        input.set_estimates({{0, in_channels}, {0, size}, {0, size}, {0, 1}});
        weights.set_estimates({{0, block}, {0, in_channels}, {0, 1}, {0, 1}, {0, 1}});
        pixels.set_estimates({{0, size * size / 2}, {0, 2}});
        threads.set_estimate(1);
        output.set_estimates({{0, out_channels}, {0, size}, {0, size}, {0, 1}});
    }

private:
    static constexpr int in_channels = 3, out_channels = 4, block = 16;
};

}  // namespace

HALIDE_REGISTER_GENERATOR(Pointwise, pointwise)
