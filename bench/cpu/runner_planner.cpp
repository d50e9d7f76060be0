// The rows of the runner that compare ways to keep the inactive pixels of a chain of operators zero.
#include "bench/cpu/runner.h"
#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

/** Where the outputs of a chain are stored, and what zeroes them. */
enum class Zeros {
    None,              /**< The caller's tensors in mode keep: what earlier masks wrote stays. */
    Stored,            /**< The caller's tensors in mode zero. */
    Filled,            /**< The caller's tensors in mode keep, filled with zeros before each call. */
    Planned,           /**< A planner with its default. */
    PlannedAll,        /**< One that clears everything. */
    PlannedBackground, /**< One that clears in the background. */
};

struct Way {
    const char *name;
    Zeros zeros;
};
constexpr Way ways[] = {{"nothing", Zeros::None},
                        {"mode zero", Zeros::Stored},
                        {"fill", Zeros::Filled},
                        {"planner", Zeros::Planned},
                        {"planner, all", Zeros::PlannedAll},
                        {"planner, background", Zeros::PlannedBackground}};

/** The state that all ways share. */
struct Layers {
    Layers(const Context &context, const BenchOperator &op)
        : op(op), problem(op, 1), kernel(make_kernel(context, *op.polykernel)),
          weights(pack_weights(context, kernel, problem.weights())) {
        if (op.conv.in_channels != op.conv.out_channels || op.output_height() != op.height ||
            op.output_width() != op.width) {
            throw std::runtime_error(fmt::format("no chain can be made of {}: its output has another shape than its "
                                                 "input",
                                                 op.shape()));
        }
    }

    BenchOperator op;
    Problem problem;
    Kernel kernel;
    Weights weights;
};

/** A chain of operators, each of which reads the output of the one before. */
class Chain {
public:
    Chain(const Context &context, const Layers &layers, int32_t length, Zeros zeros)
        : context_(context), layers_(layers), length_(length), zeros_(zeros), mask_(make_mask(context)) {
        const BenchOperator &op = layers.op;
        if (zeros == Zeros::Planned || zeros == Zeros::PlannedAll || zeros == Zeros::PlannedBackground) {
            distile_planner_options options{};
            options.clearing = zeros == Zeros::PlannedAll          ? DISTILE_CLEAR_ALL
                               : zeros == Zeros::PlannedBackground ? DISTILE_CLEAR_BACKGROUND
                                                                   : DISTILE_CLEAR_WRITTEN;
            planner_ = make_planner(context, options);
            return;
        }
        for (int32_t i = 0; i < length; i++) {
            tensors_.push_back(
                std::make_unique<BorderedTensor>(1, op.height, op.width, op.conv.out_channels, padding_of(op.conv)));
        }
    }

    /** Runs all operators for a mask, starting with its bytes. */
    void step(const ByteMask &bytes) {
        set_mask(context_, mask_, bytes);
        distile_tensor input = layers_.problem.input(true);
        for (int32_t i = 0; i < length_; i++) {
            output_ = next_output(i);
            distile_run_args args{};
            args.input = &input;
            args.output = &output_;
            args.weights = layers_.weights.get();
            args.mask = mask_.get();
            args.inactive = zeros_ == Zeros::Stored ? DISTILE_ZERO : DISTILE_KEEP;
            check(context_, distile_run(layers_.kernel.get(), &args));
            input = output_;
        }
    }

    /** The pixels of the last operator's output. */
    std::vector<float> result() const {
        std::vector<float> values;
        for (int32_t y = 0; y < output_.height; y++) {
            const float *row = static_cast<const float *>(output_.data) + y * output_.stride_h;
            values.insert(values.end(), row, row + int64_t{output_.width} * output_.channels);
        }
        return values;
    }

    /** The memory of the outputs. */
    int64_t bytes() const {
        int64_t bytes = distile_planner_bytes(planner_.get());
        for (const std::unique_ptr<BorderedTensor> &tensor : tensors_) {
            bytes += static_cast<int64_t>(tensor->memory().size() * sizeof(float));
        }
        return bytes;
    }

private:
    distile_tensor next_output(int32_t layer) const {
        if (!planner_) {
            const BorderedTensor &tensor = *tensors_[layer];
            if (zeros_ == Zeros::Filled) {
                std::fill_n(tensor.memory().data(), tensor.memory().size(), 0.0f);
            }
            return tensor.view();
        }
        const BenchOperator &op = layers_.op;
        const Border border = padding_of(op.conv);
        const distile_output_spec spec{
            1,           op.height,    op.width,       op.conv.out_channels, border.top, border.bottom,
            border.left, border.right, DISTILE_FLOAT32};
        distile_tensor output{};
        check(context_, distile_planner_next(planner_.get(), &spec, mask_.get(), DISTILE_STORE_EXACT, &output));
        return output;
    }

    const Context &context_;
    const Layers &layers_;
    int32_t length_;
    Zeros zeros_;
    Mask mask_;
    Planner planner_;
    std::vector<std::unique_ptr<BorderedTensor>> tensors_;
    distile_tensor output_{};
};

}  // namespace

void Runner::measure(const PlannerRow &row, Json &result) {
    result["kind"] = "planner";
    result["op"] = row.op.name;
    result["layers"] = row.layers;
    result["threads"] = options_.threads;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    const BenchOperator op = find_operator(options_.operators_path, row.op);
    result["shape"] = op.shape();
    // The tensors of earlier rows are no longer needed.
    bench_.bench.reset();
    in_type_.bench.reset();
    const Layers layers(context_, op);
    const std::vector<ByteMask> masks = make_byte_masks(row.mask, 1, op.height, op.width);

    struct Turn {
        std::unique_ptr<Chain> chain;
        size_t steps;
    };
    std::vector<Turn> turns;
    std::vector<std::function<void()>> sides;
    turns.reserve(std::size(ways));
    sides.reserve(std::size(ways));
    for (const Way &way : ways) {
        turns.push_back({std::make_unique<Chain>(context_, layers, row.layers, way.zeros), 0});
    }
    for (Turn &turn : turns) {
        sides.emplace_back([&masks, &turn] { turn.chain->step(masks[turn.steps++ % masks.size()]); });
    }
    // Steps of several operators take long, so fewer than for single operators are enough.
    constexpr int32_t most_rounds = 12;
    MeasureOptions measure = options_.measure;
    measure.rounds = std::min(measure.rounds, most_rounds);
    const std::vector<Spread> spreads = measure_turns(sides, measure);

    // All ways ran the same steps, and all but the first must have the same result.
    const std::vector<float> due = turns[static_cast<size_t>(Zeros::Filled)].chain->result();
    size_t fastest = static_cast<size_t>(Zeros::Stored);
    for (size_t i = 0; i < turns.size(); i++) {
        const Chain &chain = *turns[i].chain;
        result["ways"].push_back({{"way", ways[i].name},
                                  {"t_us", rounded(spreads[i].median)},
                                  {"us", to_json(spreads[i])},
                                  {"bytes", chain.bytes()}});
        if (ways[i].zeros == Zeros::None) {
            continue;
        }
        if (spreads[i].median < spreads[fastest].median) {
            fastest = i;
        }
        if (chain.result() != due) {
            throw std::runtime_error(fmt::format("the chain of way '{}' computes something else than that of way '{}'",
                                                 ways[i].name, ways[static_cast<size_t>(Zeros::Filled)].name));
        }
    }
    const size_t used = static_cast<size_t>(Zeros::Planned);
    add_times(result, spreads[used]);
    result["fastest"] = ways[fastest].name;
    result["default_loss"] = rounded(spreads[used].median / spreads[fastest].median - 1);
}

}  // namespace distile::bench
