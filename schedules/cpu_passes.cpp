#include "schedules/cpu_passes.h"
#include <algorithm>
#include <optional>

namespace distile {

namespace {

using namespace Halide;
using namespace Halide::Internal;

/** Adds the terms of a sum. */
void find_terms(const Expr &sum, bool negative, std::vector<Expr> &terms) {
    if (const auto *add = sum.as<Add>()) {
        find_terms(add->a, negative, terms);
        find_terms(add->b, negative, terms);
    } else if (const auto *sub = sum.as<Sub>()) {
        find_terms(sub->a, negative, terms);
        find_terms(sub->b, !negative, terms);
    } else {
        terms.push_back(negative ? 0 - sum : sum);
    }
}

/** Whether an expression may be computed elsewhere, because it loads only from inputs, which nothing stores to; and
 * whether LLVM may put it back. */
class AddressTerms : public IRVisitor {
public:
    bool legal = true, has_limit = false;

private:
    using IRVisitor::visit;

    void visit(const Load *op) override {
        legal = legal && op->param.defined() && is_const_one(op->predicate);
        IRVisitor::visit(op);
    }
    void visit(const Min *op) override {
        has_limit = true;
        IRVisitor::visit(op);
    }
    void visit(const Max *op) override {
        has_limit = true;
        IRVisitor::visit(op);
    }
    void visit(const Call *op) override {
        legal = legal && op->is_pure();
        IRVisitor::visit(op);
    }
};

/** An address that LLVM computes where we do: it does not see that this adds nothing. */
Expr opaque(const Expr &address) {
    const Expr threads = Variable::make(Int(32), "threads");  // A positive number of the operator.
    return address ^ (threads >> 31);
}

Expr without(const std::vector<std::pair<std::string, Expr>> &lets, Expr expr) {
    // A let's value may name earlier lets.
    for (auto let = lets.rbegin(); let != lets.rend(); ++let) {
        expr = substitute(let->first, let->second, expr);
    }
    return expr;
}

Expr sum_of(const std::vector<Expr> &terms) {
    Expr sum = make_zero(Int(32));
    for (const Expr &term : terms) {
        sum = sum + term;
    }
    return sum;
}

}  // namespace

Stmt HoistAddresses::visit(const For *op) {
    const std::optional<int64_t> extent = as_const_int(op->extent);
    Loop *const outer = loop;
    Loop own{op->name, {}, {}};
    loop = op->for_type == ForType::Serial && extent && *extent > 0 ? &own : nullptr;
    Stmt body = mutate(op->body);
    loop = outer;
    Stmt result = op;
    if (!body.same_as(op->body)) {
        result = For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
    }
    for (auto let = own.hoisted.rbegin(); let != own.hoisted.rend(); ++let) {
        result = LetStmt::make(let->first, let->second, result);
    }
    return result;
}

template<typename Result, typename LetOrLetStmt> Result HoistAddresses::visit_let(const LetOrLetStmt *op) {
    if (!loop) {
        return IRMutator::visit(op);
    }
    loop->lets.emplace_back(op->name, op->value);
    Result result = IRMutator::visit(op);
    loop->lets.pop_back();
    return result;
}

Expr HoistAddresses::visit(const Let *op) {
    return visit_let<Expr>(op);
}

Stmt HoistAddresses::visit(const LetStmt *op) {
    return visit_let<Stmt>(op);
}

/** What a condition guards may not be legal without it. */
Stmt HoistAddresses::visit(const IfThenElse *op) {
    Loop *const outer = loop;
    loop = nullptr;
    Stmt result = IRMutator::visit(op);
    loop = outer;
    return result;
}

/** An index in terms of what is known before the loop, and of the loop's variable. */
Expr HoistAddresses::without_lets(Expr index) const {
    return without(loop->lets, std::move(index));
}

Expr HoistAddresses::visit(const Load *op) {
    if (!loop || !op->index.type().is_scalar() || !is_const_one(op->predicate)) {
        return IRMutator::visit(op);
    }
    std::vector<Expr> terms, same, others;
    find_terms(without_lets(op->index), false, terms);
    AddressTerms found;
    for (const Expr &term : terms) {
        const bool changes = expr_uses_var(term, loop->variable);
        if (!changes) {
            term.accept(&found);
        }
        // Constants tell apart the loads of an unrolled loop.
        (changes || is_const(term) ? others : same).push_back(term);
    }
    if (!found.has_limit || !found.legal) {
        return IRMutator::visit(op);
    }
    const Expr shared = opaque(sum_of(same));
    auto known = std::find_if(loop->hoisted.begin(), loop->hoisted.end(),
                              [&](const auto &let) { return equal(let.second, shared); });
    if (known == loop->hoisted.end()) {
        known = loop->hoisted.insert(known, {unique_name("address"), shared});
    }
    const Expr index = Variable::make(Int(32), known->first) + sum_of(others);
    return Load::make(op->type, op->name, index, op->image, op->param, op->predicate, op->alignment);
}

template<typename Result, typename LetOrLetStmt> Result ShuffleLoads::visit_let(const LetOrLetStmt *op) {
    lets_.emplace_back(op->name, op->value);
    Result result = IRMutator::visit(op);
    lets_.pop_back();
    return result;
}

Expr ShuffleLoads::visit(const Let *op) {
    return visit_let<Expr>(op);
}

Stmt ShuffleLoads::visit(const LetStmt *op) {
    return visit_let<Stmt>(op);
}

/** The places of an index's lanes; nothing unless all are constants. */
std::vector<int> ShuffleLoads::constant_lanes(const Expr &index) const {
    const Expr whole = without(lets_, index);
    std::vector<int> lanes;
    for (int lane = 0; lane < index.type().lanes(); lane++) {
        const std::optional<int64_t> place = as_const_int(simplify(extract_lane(whole, lane)));
        if (!place) {
            return {};
        }
        lanes.push_back(static_cast<int>(*place));
    }
    return lanes;
}

Expr ShuffleLoads::visit(const Load *op) {
    const bool own_memory = !op->param.defined() && !op->image.defined();
    if (!own_memory || op->index.type().is_scalar()) {
        return IRMutator::visit(op);
    }
    std::vector<int> places = constant_lanes(op->index);
    if (places.empty()) {
        return IRMutator::visit(op);
    }
    const auto [least, most] = std::minmax_element(places.begin(), places.end());
    const int first = *least / lanes_ * lanes_, vectors = (*most - first) / lanes_ + 1;
    std::vector<Expr> loads;
    for (int i = 0; i < vectors; i++) {
        loads.push_back(Load::make(op->type.with_lanes(lanes_), op->name, Ramp::make(first + i * lanes_, 1, lanes_),
                                   op->image, op->param, const_true(lanes_), ModulusRemainder()));
    }
    for (int &place : places) {
        place -= first;
    }
    return Shuffle::make(loads, places);
}

}  // namespace distile
