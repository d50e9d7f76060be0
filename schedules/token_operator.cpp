#include "schedules/token_operator.h"
#include <optional>

namespace distile {

using namespace Halide;

namespace {

std::map<std::string, Internal::Function> environment_of(const Pipeline &pipeline) {
    return Internal::find_transitive_calls(Pipeline(pipeline).outputs().at(0).function());
}

/** A Func's name without what Halide appends to names that are used twice. */
std::string given_name(const std::string &name) {
    return name.substr(0, name.find('$'));
}

/** The constant extent of the channels of the first buffer that a Func reads, which is a head's; 0 if there is none. */
int channels_read_by(const Internal::Function &function) {
    struct FindChannels : Internal::IRVisitor {
        using IRVisitor::visit;
        int channels = 0;

        void visit(const Internal::Call *op) override {
            IRVisitor::visit(op);
            if (op->call_type == Internal::Call::Image && op->param.defined() &&
                (op->param.dimensions() == 2 || op->param.dimensions() == 4)) {
                const Expr extent = op->param.extent_constraint(0);
                const std::optional<int64_t> constant =
                    extent.defined() ? Internal::as_const_int(extent) : std::nullopt;
                channels = constant ? static_cast<int>(*constant) : channels;
            }
        }
    } find;
    function.accept(&find);
    for (const Internal::Definition &update : function.updates()) {
        update.accept(&find);
    }
    return find.channels;
}

}  // namespace

namespace {

/** The extent of a Func's reduction variable in its only update. */
int extent_of(const Func &func, size_t place) {
    const std::optional<int64_t> extent =
        Internal::as_const_int(func.function().update(0).schedule().rvars().at(place).extent);
    if (!extent) {
        throw CompileError("PolyKernel: the extent of a loop of '" + func.name() + "' is not constant.\n");
    }
    return static_cast<int>(*extent);
}

bool reads_variable(const Func &func, const std::string &variable) {
    struct FindVariable : Internal::IRVisitor {
        explicit FindVariable(const std::string &name) : name(name) {
        }
        using IRVisitor::visit;
        const std::string &name;
        bool found = false;

        void visit(const Internal::Variable *op) override {
            found = found || op->name == name;
        }
    } find(variable);
    func.function().accept(&find);
    return find.found;
}

/** The facts of the form for GPUs. */
void recognise_blocks(TokenOperator &op) {
    const Func &output = op.output;
    if (op.product == TokenProduct::Scores) {
        op.block_keys = extent_of(output, 0);
        op.block_rows = extent_of(output, 1);
    } else {
        const Func &sums = op.funcs.at("sums");
        op.block_keys = extent_of(sums, 0) * extent_of(sums, 1);
        op.block_rows = extent_of(output, 0);
    }
    // A lane and a vector of the channels of a head.
    op.head_dim = 1;
    for (const Internal::Bound &bound :
         op.funcs.at(op.product == TokenProduct::Values ? "value_rows" : "key_rows").function().schedule().bounds()) {
        op.head_dim *= static_cast<int>(Internal::as_const_int(bound.extent).value_or(1));
    }
    op.heads = op.in_channels / op.head_dim;
    op.in_channels = op.out_channels = op.head_dim;
    op.causal = reads_variable(op.funcs.at("weights"), "last_of_first");
}

}  // namespace

bool is_token_operator(const Pipeline &pipeline) {
    for (const auto &[name, function] : environment_of(pipeline)) {
        if (given_name(name) == "dots" || given_name(name) == "values_sums" || given_name(name) == "last_values_sums" ||
            given_name(name) == "value_rows") {
            return true;
        }
    }
    return false;
}

TokenOperator recognise_token_operator(const Pipeline &pipeline) {
    TokenOperator op;
    op.output = Pipeline(pipeline).outputs().at(0);
    int channels = 0;
    for (const auto &[name, function] : environment_of(pipeline)) {
        op.funcs.emplace(given_name(name), Func(function));
        channels = std::max(channels, channels_read_by(function));
    }
    const bool scores = op.has("dots"), values = op.has("values_sums") || op.has("last_values_sums") || op.has("sums");
    op.product = scores && values ? TokenProduct::Attention : scores ? TokenProduct::Scores : TokenProduct::Values;
    op.heads = 1;
    op.head_dim = op.in_channels = op.out_channels = channels;
    if (channels == 0) {
        throw CompileError("PolyKernel: the operator's tokens have no constant number of channels.\n");
    }
    const Type type = op.output.types()[0];
    op.bytes_per_element = op.bytes_per_input = type.bytes();
    if (op.output.dimensions() == 4) {
        recognise_blocks(op);
    } else if (op.product == TokenProduct::Attention) {
        op.softmax_keys = op.has("parts") ? extent_of(op.funcs.at("sum"), 0) : 0;
    } else if (op.product == TokenProduct::Scores) {
        op.packed_columns = op.output.function().update(0).args()[0].as<Internal::Variable>() != nullptr;
    }
    return op;
}

}  // namespace distile
