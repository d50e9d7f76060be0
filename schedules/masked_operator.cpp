#include "schedules/masked_operator.h"
#include <map>
#include <optional>
#include <set>

namespace distile {

namespace {

using namespace Halide;
using namespace Halide::Internal;

[[noreturn]] void refuse_operator(const std::string &difference) {
    throw CompileError("PolyKernel schedules masked operators over a virtual pixel domain, as "
                       "schedules/masked_operator.h describes them; this pipeline differs: " +
                       difference + ".\n");
}

using Environment = std::map<std::string, Function>;

/** Finds the Funcs and buffer parameters that an expression reads. A generator wraps each input buffer in a Func that
 * only loads from it; a call of the wrapper counts as a read of the buffer. */
class FindReads : public IRVisitor {
public:
    explicit FindReads(const Environment &environment) : environment(&environment) {
    }

    std::set<std::string> funcs;
    std::map<std::string, Parameter> buffers;
    std::map<std::string, Function> wrappers;        /**< The wrappers of buffers, by buffer name. */
    std::map<std::string, std::vector<Expr>> places; /**< Where Funcs and buffers are read, by name. */

private:
    using IRVisitor::visit;
    const Environment *environment;

    void visit(const Call *op) override {
        IRVisitor::visit(op);
        if (op->call_type == Call::Image && op->param.defined()) {
            buffers.emplace(op->name, op->param);
            places.emplace(op->name, op->args);
        } else if (op->call_type == Call::Halide) {
            const Function &callee = environment->at(op->name);
            const Call *load = callee.has_pure_definition() && callee.updates().empty() && callee.outputs() == 1
                                   ? callee.values()[0].as<Call>()
                                   : nullptr;
            if (load && load->call_type == Call::Image && load->param.defined()) {
                buffers.emplace(load->name, load->param);
                wrappers.emplace(load->name, callee);
                places.emplace(load->name, op->args);
            } else {
                funcs.insert(op->name);
                places.emplace(op->name, op->args);
            }
        }
    }
};

FindReads reads_of(const Definition &definition, const Environment &environment) {
    FindReads reads(environment);
    for (const Expr &value : definition.values()) {
        // Halide puts common subexpressions of a definition into lets; expand them before matching.
        substitute_in_all_lets(value).accept(&reads);
    }
    return reads;
}

std::optional<int64_t> constant(const Expr &value) {
    return value.defined() ? as_const_int(simplify(value)) : std::nullopt;
}

int constant_extent(const Expr &extent, const std::string &what) {
    const std::optional<int64_t> value = constant(extent);
    if (!value) {
        refuse_operator(what + " is not a constant");
    }
    return static_cast<int>(*value);
}

/** Finds the constant modulus of a variable. */
class FindModulus : public IRVisitor {
public:
    explicit FindModulus(const std::string &variable) : variable(variable) {
    }

    int modulus = 1;

private:
    using IRVisitor::visit;
    const std::string &variable;

    void visit(const Mod *op) override {
        IRVisitor::visit(op);
        const Variable *dividend = op->a.as<Variable>();
        const std::optional<int64_t> divisor = as_const_int(op->b);
        if (dividend && dividend->name == variable && divisor) {
            modulus = static_cast<int>(*divisor);
        }
    }
};

/** The constant modulus, a divisor of `whole`, of a variable in the column that a stage stores to; 1 if there is
 * none. */
int modulus_in_column(const Definition &update, const std::string &variable, int whole) {
    FindModulus column(variable);
    if (update.args().size() > 1) {
        update.args()[1].accept(&column);
    }
    return whole % column.modulus == 0 ? column.modulus : 1;
}

/** Finds the phases, the pixels per tile and the tile width in a stage's domain and in the column that it stores to. */
void recognise_granularity(MaskedOperator &op, const std::vector<ReductionVariable> &domain, const Definition &update) {
    if (domain.size() > 1) {
        const int phases = constant_extent(domain[1].extent, "the number of phases");
        op.scale_w = modulus_in_column(update, domain[1].var, phases);
        op.scale_h = phases / op.scale_w;
    }
    const Expr extent = simplify(domain[0].extent);
    const Mul *product = extent.as<Mul>();
    const int pixels_per_tile = product ? static_cast<int>(as_const_int(product->b).value_or(1)) : 1;
    const int columns = modulus_in_column(update, domain[0].var, pixels_per_tile);
    op.tile_w = columns * op.scale_w;
    op.tile_h = pixels_per_tile / columns * op.scale_h;
}

/** An index without its clamps and promised bounds. */
Expr unclamped(const Expr &index) {
    if (const Call *promise = Call::as_intrinsic(index, {Call::unsafe_promise_clamped})) {
        return unclamped(promise->args[0]);
    }
    const Max *lower = index.as<Max>();
    const Min *upper = lower ? lower->a.as<Min>() : nullptr;
    return upper ? unclamped(upper->a) : index;
}

/** The constant factor of the term of a sum that satisfies `wanted`, if any. */
template<typename Wanted> std::optional<int> factor_in(const Expr &sum, const Wanted &wanted) {
    const auto in_either = [&](const Expr &a, const Expr &b) {
        const std::optional<int> factor = factor_in(a, wanted);
        return factor ? factor : factor_in(b, wanted);
    };
    if (const Add *add = sum.as<Add>()) {
        return in_either(add->a, add->b);
    }
    if (const Sub *sub = sum.as<Sub>()) {
        return in_either(sub->a, sub->b);
    }
    const Mul *mul = sum.as<Mul>();
    const std::optional<int64_t> constant = mul ? as_const_int(mul->b) : std::nullopt;
    if (constant) {
        const std::optional<int> factor = factor_in(mul->a, wanted);
        return factor ? std::optional<int>(*factor * static_cast<int>(*constant)) : std::nullopt;
    }
    return wanted(sum) ? std::optional<int>(1) : std::nullopt;
}

/** Finds strides and dilations from how the input's address depends on the pixel's position, which is read from memory,
 * and on the kernel position. */
void recognise_steps(OperatorFacts &op, const std::vector<Expr> &load, const std::vector<Expr> &position,
                     const std::string &column, const std::string &row, const Environment &environment) {
    const auto is_read = [&](const Expr &term) {
        FindReads reads(environment);
        term.accept(&reads);
        return !reads.funcs.empty() || !reads.buffers.empty();
    };
    const auto is_variable = [](const std::string &name) {
        return [name](const Expr &term) {
            const Variable *variable = term.as<Variable>();
            return variable && variable->name == name;
        };
    };
    op.stride_w = factor_in(unclamped(load[1]), is_read).value_or(1);
    op.stride_h = factor_in(unclamped(load[2]), is_read).value_or(1);
    op.dilation_w = factor_in(unclamped(position[1]), is_variable(column)).value_or(1);
    op.dilation_h = factor_in(unclamped(position[2]), is_variable(row)).value_or(1);
}

/** Finds the Func, among those that an accumulator reads, that reads only the weights. */
void take_weights(FindReads &reads, MaskedStage &stage, const Environment &environment) {
    for (const std::string &name : std::set<std::string>(reads.funcs)) {
        const Function &function = environment.at(name);
        const FindReads inner = reads_of(function.definition(), environment);
        if (inner.funcs.empty() && inner.buffers.size() == 1 && inner.buffers.begin()->second.dimensions() == 5) {
            stage.weights = Func(function);
            reads.funcs.erase(name);
            reads.buffers.insert(inner.buffers.begin(), inner.buffers.end());
        }
    }
}

void refuse_scheduled(const Function &function) {
    bool scheduled = !function.schedule().bounds().empty() || !function.definition().schedule().splits().empty();
    for (const Definition &update : function.updates()) {
        scheduled = scheduled || !update.schedule().splits().empty();
    }
    if (scheduled) {
        refuse_operator("the Func '" + function.name() + "' already has a schedule");
    }
}

/** The output of a pipeline that may be a masked operator. */
Function only_output(const Pipeline &pipeline) {
    const std::vector<Func> outputs = pipeline.outputs();
    if (outputs.size() != 1) {
        refuse_operator("it has " + std::to_string(outputs.size()) + " outputs, not one");
    }
    const Function &output = outputs[0].function();
    if (output.outputs() != 1) {
        refuse_operator("the output is a Tuple");
    }
    if (output.updates().empty()) {
        refuse_operator("the output '" + output.name() + "' has no update stage that scatters over the virtual pixels");
    }
    return output;
}

/** Recognises a stage: an update of the output and the Funcs that it reads. Adds what it learns to the operator. */
class StageRecognition {
public:
    StageRecognition(MaskedOperator &op, const Environment &environment, bool groups_apart)
        : op_(op), environment_(environment), groups_apart_(groups_apart), inner_(environment), positions_(environment),
          loads_(environment) {
    }

    MaskedStage recognise(int index) {
        const Function &output = op_.output.function();
        const Definition &update = output.update(index);
        const std::string where = "update " + std::to_string(index) + " of the output '" + output.name() + "'";
        stage_.update = index;
        find_pixels(update, where);
        const Function accumulator = find_accumulator(update, where);
        find_taps(accumulator);
        inner_ = reads_of(accumulator.update(0), environment_);
        inner_.funcs.erase(accumulator.name());
        take_weights(inner_, stage_, environment_);
        if (inner_.funcs.size() > 1) {
            refuse_operator(name_ + " reads more than one staging Func");
        }
        positions_ = loads_ = inner_;
        if (!inner_.funcs.empty()) {
            find_staging(environment_.at(*inner_.funcs.begin()));
        }
        find_input();
        find_weights();
        op_.groups_in_blocks = groups_apart_ ? GroupForm::Padded : diagonals_ ? GroupForm::Diagonals : GroupForm::Whole;
        return stage_;
    }

private:
    void find_pixels(const Definition &update, const std::string &where) {
        const std::vector<ReductionVariable> &domain = update.schedule().rvars();
        if (domain.empty() || domain.size() > 2) {
            refuse_operator(where + " runs over " + std::to_string(domain.size()) +
                            " RVars, not over one virtual pixel, or one and a phase");
        }
        recognise_granularity(op_, domain, update);
        phase_dimensions_ = static_cast<int>(domain.size()) - 1;
        stage_.pixels = domain[0];
        if (phase_dimensions_ > 0) {
            stage_.phase = RVar(domain[1].var);
        }
    }

    Function find_accumulator(const Definition &update, const std::string &where) {
        const FindReads reads = reads_of(update, environment_);
        if (reads.funcs.size() != 1) {
            refuse_operator(where + " reads " + std::to_string(reads.funcs.size()) + " Funcs, not one accumulator");
        }
        Function accumulator = environment_.at(*reads.funcs.begin());
        name_ = "the accumulator '" + accumulator.name() + "'";
        if (accumulator.updates().size() != 1) {
            refuse_operator(name_ + " has " + std::to_string(accumulator.updates().size()) +
                            " updates, but needs one update");
        }
        refuse_scheduled(accumulator);
        stage_.accumulator = Func(accumulator);
        return accumulator;
    }

    void find_taps(const Function &accumulator) {
        const std::vector<ReductionVariable> &taps = accumulator.update(0).schedule().rvars();
        if (taps.size() != 2 && taps.size() != 3) {
            refuse_operator(
                name_ + " does not reduce over (input channel, kernel column, kernel row), nor without the channel");
        }
        diagonals_ = taps.size() == 2 && accumulator.dimensions() == 3;
        if (accumulator.dimensions() != 2 + phase_dimensions_ + (groups_apart_ || diagonals_ ? 1 : 0)) {
            refuse_operator(name_ +
                            " is not of the form f(channel, pixel), with a phase, a group or a diagonal at the end "
                            "where there are any");
        }
        op_.depthwise = taps.size() == 2 && !diagonals_;
        const ReductionVariable &columns = taps[taps.size() - 2], &rows = taps[taps.size() - 1];
        stage_.kernel_x = RVar(columns.var);
        stage_.kernel_y = RVar(rows.var);
        op_.in_channels = 1;
        if (taps.size() == 3) {
            stage_.in_channel = RVar(taps[0].var);
            op_.in_channels = constant_extent(taps[0].extent, "the number of input channels");
        }
        op_.kernel_w = constant_extent(columns.extent, "the kernel's width");
        op_.kernel_h = constant_extent(rows.extent, "the kernel's height");
        column_ = columns.var;
        row_ = rows.var;
    }

    void find_staging(const Function &staging) {
        if (staging.dimensions() != 4 + phase_dimensions_ || !staging.updates().empty()) {
            refuse_operator(
                "the staging Func '" + staging.name() +
                "' is not of the form f(input channel, kernel column, kernel row, pixel), with a phase at the "
                "end where there are phases");
        }
        refuse_scheduled(staging);
        stage_.staging = Func(staging);
        column_ = staging.args()[1];
        row_ = staging.args()[2];
        positions_ = loads_ = reads_of(staging.definition(), environment_);
        if (positions_.funcs.size() > 1) {
            refuse_operator("the staging Func '" + staging.name() + "' reads more than one Func");
        }
        if (!positions_.funcs.empty()) {
            find_window(environment_.at(*positions_.funcs.begin()));
        }
    }

    void find_window(const Function &window) {
        loads_ = reads_of(window.definition(), environment_);
        if (window.dimensions() != 4 || !window.updates().empty() || loads_.funcs.size() != 1) {
            refuse_operator("the Func '" + window.name() +
                            "' is not of the form f(input channel, column, row, tile) that looks up its tile");
        }
        refuse_scheduled(window);
        stage_.window = Func(window);
        stage_.lookup = Func(environment_.at(*loads_.funcs.begin()));
    }

    /** The groups, the strides and the dilations. */
    void find_input() {
        for (const auto &[buffer_name, buffer] : inner_.buffers) {
            if (diagonals_ && buffer.dimensions() == 5) {
                op_.in_channels = constant_extent(buffer.extent_constraint(1), "the number of diagonals");
            }
        }
        for (const auto &[buffer_name, buffer] : loads_.buffers) {
            if (buffer.dimensions() == 4) {
                const std::optional<int64_t> channels = constant(buffer.extent_constraint(0));
                op_.groups = channels        ? static_cast<int>(*channels) / op_.in_channels
                             : op_.depthwise ? op_.out_channels
                                             : 1;
                const std::vector<Expr> &load = loads_.places.at(buffer_name);
                recognise_steps(op_, load, stage_.window.defined() ? positions_.places.at(stage_.window.name()) : load,
                                column_, row_, environment_);
            }
        }
    }

    void find_weights() {
        bool has_weights = false;
        for (const auto &[buffer_name, buffer] : inner_.buffers) {
            if (buffer.dimensions() == 5) {
                has_weights = true;
                const auto wrapper = inner_.wrappers.find(buffer_name);
                if (!stage_.weights.defined() && wrapper != inner_.wrappers.end()) {
                    stage_.weights = Func(wrapper->second);
                }
                op_.bytes_per_weight = buffer.type().bytes();
                op_.channel_block = constant_extent(buffer.extent_constraint(0),
                                                    "the channel block of the weights '" + buffer_name + "'");
            }
        }
        if (!has_weights) {
            refuse_operator(name_ +
                            " reads no weights [channel in block, input channel, kernel column, kernel row, block]");
        }
    }

    MaskedOperator &op_;
    const Environment &environment_;
    bool groups_apart_, diagonals_ = false;
    int phase_dimensions_ = 0;  ///< Dimensions of the accumulator and the staging Func behind the pixel.
    MaskedStage stage_;
    std::string name_;             ///< The accumulator's, for messages.
    std::string column_, row_;     ///< The names of the kernel position where it is added to an input position.
    FindReads inner_;              ///< What the accumulator reads.
    FindReads positions_, loads_;  ///< Where the position of the input is computed, and where the input is loaded.
};

}  // namespace

MaskedOperator recognise_masked_operator(const Pipeline &pipeline) {
    const Function output = only_output(pipeline);
    MaskedOperator op;
    op.output = pipeline.outputs()[0];
    op.bytes_per_element = op.bytes_per_input = output.output_types()[0].bytes();
    const Parameter &buffer = output.output_buffers()[0];
    op.out_channels =
        constant_extent(buffer.extent_constraint(0), "the channel extent of the output '" + output.name() + "'");
    const bool groups_apart = output.dimensions() == 5;
    if (groups_apart) {
        op.out_channels *=
            constant_extent(buffer.extent_constraint(4), "the number of groups of the output '" + output.name() + "'");
    }
    const Environment environment = find_transitive_calls(output);
    for (size_t i = 0; i < output.updates().size(); i++) {
        op.stages.push_back(StageRecognition(op, environment, groups_apart).recognise(static_cast<int>(i)));
    }
    refuse_scheduled(output);
    return op;
}

}  // namespace distile
