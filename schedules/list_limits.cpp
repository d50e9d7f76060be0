#include "schedules/list_limits.h"
#include <vector>

namespace distile {

using namespace Halide;
using namespace Halide::Internal;

namespace {

/** Finds a load of each name. */
class FindLists : public IRVisitor {
public:
    std::map<std::string, Expr> loads;

private:
    using IRVisitor::visit;

    void visit(const Load *op) override {
        if (op->type.is_scalar()) {
            loads[op->name] = op;
        }
        IRVisitor::visit(op);
    }
};

bool is_loop(const std::string &name, const char *variable) {
    return name.find(std::string(".") + variable + ".") != std::string::npos;
}

Expr ceil_divide(const Expr &value, int divisor) {
    return (value + (divisor - 1)) / divisor;
}

}  // namespace

Expr LimitToLists::word(const std::string &list, const Expr &index) const {
    const auto found = lists_.find(list);
    if (found == lists_.end()) {
        throw CompileError("PolyKernel: a kernel does not read the list '" + list + "'.\n");
    }
    const Load *load = found->second.as<Load>();
    return cast<int>(Load::make(UInt(32), list, index, load->image, load->param, const_true(), ModulusRemainder()));
}

/** The body of a kernel, of which each block leaves what is beyond the lists. */
Stmt LimitToLists::limited(const For &blocks) {
    FindLists find;
    blocks.body.accept(&find);
    lists_ = find.loads;
    const Expr image = Variable::make(Int(32), image_), block = Variable::make(Int(32), blocks.name);
    const Expr num_key_blocks = Variable::make(Int(32), "num_keys");
    const bool has_keys = is_loop(blocks.name, "block");
    const Expr first_row = (has_keys ? block / num_key_blocks : block) * block_rows_;
    const Expr begin = word("row_starts", image), end = min(word("row_starts", image + 1), word("tile_count", 0));
    const Expr rows = Variable::make(Int(32), "listed_rows"), keys = Variable::make(Int(32), "listed_keys");
    keys_ = keys;
    if (causal_) {
        // Keys ascend: the key with this index in the list is at this place or behind it.
        const Expr last = word("rows", begin + min(first_row + block_rows_, rows) - 1);
        keys_ = max(min(keys, last + Variable::make(Int(32), "last_of_first") + 1), 0);
    }
    Stmt body = mutate(blocks.body);
    if (has_keys) {
        body = IfThenElse::make(block % num_key_blocks * block_keys_ < keys, body);
    }
    body = IfThenElse::make(first_row < rows, body);
    const Expr every_key = Variable::make(Int(32), "every_key");
    body = LetStmt::make("listed_keys",
                         select(every_key == 0, word("key_starts", image + 1) - word("key_starts", image), every_key),
                         body);
    return LetStmt::make("listed_rows", end - begin, body);
}

Stmt LimitToLists::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) {
        if (is_loop(op->name, "image")) {
            image_ = op->name;
        }
        if (is_loop(op->name, "row_block") || is_loop(op->name, "block")) {
            return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api,
                             limited(*op));
        }
    } else if (op->for_type == ForType::Serial && op->name.find(".key_tile") != std::string::npos) {
        return For::make(op->name, op->min, ceil_divide(keys_, block_keys_), op->for_type, op->partition_policy,
                         op->device_api, mutate(op->body));
    }
    return IRMutator::visit(op);
}

}  // namespace distile
