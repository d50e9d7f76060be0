#include "schedules/gpu_passes.h"
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace distile {

namespace {

using namespace Halide;
using namespace Halide::Internal;

[[noreturn]] void refuse(const std::string &what) {
    throw CompileError("PolyKernel: " + what + ".\n");
}

/** The alignment that we claim for register accesses: none. Registers have no address, and Halide would turn an aligned
 * access into a 128-bit access of another type. */
const ModulusRemainder register_alignment;

/** Collects every load and store of a name, with lets expanded in the index. */
class PrivateAccesses : public IRVisitor {
public:
    explicit PrivateAccesses(const std::string &name) : name(name) {
    }

    std::map<std::string, int> threads; /**< The extents of the loops over threads. */
    std::vector<Expr> starts;           /**< The first element of each access, in terms of the threads. */
    std::vector<int> lanes;
    std::vector<Expr> conditions; /**< The condition of each access. */

    /** An index in terms of loop variables only. */
    Expr without_lets(Expr index) const {
        // A let's value may name earlier lets.
        for (auto let = lets.rbegin(); let != lets.rend(); ++let) {
            index = substitute(let->first, let->second, index);
        }
        return substitute_in_all_lets(index);
    }

private:
    using IRVisitor::visit;
    const std::string &name;
    std::vector<std::pair<std::string, Expr>> lets;
    Expr condition = const_true();

    void visit(const IfThenElse *op) override {
        op->condition.accept(this);
        const Expr outer = condition, inner = without_lets(op->condition);
        condition = outer && inner;
        op->then_case.accept(this);
        condition = outer && !inner;
        if (op->else_case.defined()) {
            op->else_case.accept(this);
        }
        condition = outer;
    }

    void visit(const For *op) override {
        if (op->for_type == ForType::GPUThread) {
            const std::optional<int64_t> extent = as_const_int(op->extent);
            if (!extent) {
                refuse("the number of threads per block is not constant");
            }
            threads[op->name] = static_cast<int>(*extent);
        }
        IRVisitor::visit(op);
    }

    template<typename LetOrLetStmt> void visit_let(const LetOrLetStmt *op) {
        op->value.accept(this);
        lets.emplace_back(op->name, op->value);
        op->body.accept(this);
        lets.pop_back();
    }

    void visit(const Let *op) override {
        visit_let(op);
    }

    void visit(const LetStmt *op) override {
        visit_let(op);
    }

    void access(const Expr &index) {
        const Ramp *ramp = index.as<Ramp>();
        if (ramp ? !is_const_one(ramp->stride) : !index.type().is_scalar()) {
            refuse("a vector access to the registers of '" + name + "' is not contiguous");
        }
        starts.push_back(simplify(without_lets(ramp ? ramp->base : index)));
        lanes.push_back(index.type().lanes());
        conditions.push_back(condition);
    }

    void visit(const Load *op) override {
        if (op->name == name) {
            access(op->index);
        }
        IRVisitor::visit(op);
    }

    void visit(const Store *op) override {
        if (op->name == name) {
            access(op->index);
        }
        IRVisitor::visit(op);
    }
};

/** Replaces the indices of accesses to a name, in the order in which PrivateAccesses visits them. */
class Readdress : public IRMutator {
public:
    Readdress(const std::string &name, const std::vector<int> &starts) : name(name), starts(starts) {
    }

private:
    using IRMutator::visit;
    const std::string &name;
    const std::vector<int> &starts;
    size_t next = 0;

    Expr index(int lanes) {
        const Expr start = starts[next++];
        return lanes == 1 ? start : Ramp::make(start, 1, lanes);
    }

    Expr visit(const Load *op) override {
        if (op->name != name) {
            return IRMutator::visit(op);
        }
        const Expr at = index(op->type.lanes());
        return Load::make(op->type, name, at, op->image, op->param, mutate(op->predicate), register_alignment);
    }

    Stmt visit(const Store *op) override {
        if (op->name != name) {
            return IRMutator::visit(op);
        }
        const Expr at = index(op->value.type().lanes());
        const Expr predicate = mutate(op->predicate);
        return Store::make(name, mutate(op->value), at, op->param, predicate, register_alignment);
    }
};

/** The value of a thread-dependent offset for every thread. */
std::vector<int64_t> offsets_of_threads(const Expr &offset, const std::map<std::string, int> &threads) {
    std::vector<Expr> exprs = {offset};
    for (const auto &[name, extent] : threads) {
        std::vector<Expr> next;
        for (const Expr &expr : exprs) {
            for (int i = 0; i < extent; i++) {
                next.push_back(simplify(substitute(name, i, expr)));
            }
        }
        exprs.swap(next);
    }
    std::vector<int64_t> values;
    values.reserve(exprs.size());
    for (const Expr &expr : exprs) {
        values.push_back(as_const_int(expr).value_or(-1));
    }
    return values;
}

/** Whether two offsets are equal in every thread that meets the condition. They may look different: if a condition
 * leaves only thread 0, Halide's simplifier has replaced the thread with 0. */
bool agree(const Expr &a, const Expr &b, const Expr &condition, const std::map<std::string, int> &threads) {
    if (equal(a, b) || can_prove(a == b)) {
        return true;
    }
    const std::vector<int64_t> differences = offsets_of_threads(select(condition, a - b, 0), threads);
    return std::all_of(differences.begin(), differences.end(), [](int64_t difference) { return difference == 0; });
}

}  // namespace

Stmt PrivateRegisters::visit(const Allocate *op) {
    if (op->memory_type != MemoryType::Register) {
        return IRMutator::visit(op);
    }
    PrivateAccesses accesses(op->name);
    op->body.accept(&accesses);
    if (accesses.threads.empty()) {
        // Inside the thread loops it is already private.
        return IRMutator::visit(op);
    }
    // Every index is its value for thread 0 plus a thread offset that all accesses share.
    std::map<std::string, Expr> thread_0;
    for (const auto &thread : accesses.threads) {
        thread_0[thread.first] = 0;
    }
    Expr offset;
    std::vector<int> starts;
    std::set<int64_t> own;
    for (size_t i = 0; i < accesses.starts.size(); i++) {
        const Expr &start = accesses.starts[i];
        const std::optional<int64_t> constant = as_const_int(simplify(substitute(thread_0, start)));
        if (!constant) {
            refuse("the registers of '" + op->name +
                   "' are not addressed by constants; unroll the loops inside a thread");
        }
        const Expr this_offset = simplify(start - Expr(static_cast<int>(*constant)));
        if (!offset.defined()) {
            offset = this_offset;
        } else if (!agree(offset, this_offset, accesses.conditions[i], accesses.threads)) {
            refuse("the stages of '" + op->name + "' give its elements to different threads");
        }
        starts.push_back(static_cast<int>(*constant));
        for (int lane = 0; lane < accesses.lanes[i]; lane++) {
            own.insert(*constant + lane);
        }
    }
    std::set<int64_t> taken;
    for (int64_t thread_offset : offsets_of_threads(offset, accesses.threads)) {
        for (int64_t element : own) {
            if (!taken.insert(thread_offset + element).second) {
                refuse("threads share elements of '" + op->name + "', which is in registers");
            }
        }
    }
    // Close the gaps left by other threads' elements. Vectors stay contiguous: all their elements belong to this
    // thread.
    for (int &start : starts) {
        start = static_cast<int>(std::distance(own.begin(), own.find(start)));
    }
    const Stmt body = mutate(Readdress(op->name, starts).mutate(op->body));
    return Allocate::make(op->name, op->type, op->memory_type, {static_cast<int>(own.size())}, op->condition, body,
                          op->new_expr, op->free_function, op->padding);
}

namespace {

class FindLoad : public IRVisitor {
public:
    explicit FindLoad(const std::string &name) : name(name) {
    }
    Expr load;

private:
    using IRVisitor::visit;
    const std::string name;

    void visit(const Load *op) override {
        if (op->name == name) {
            load = op;
        }
        IRVisitor::visit(op);
    }
};

}  // namespace

Stmt SkipIdleBlocks::visit(const For *op) {
    if (op->for_type != ForType::GPUBlock || op->name.find(".p_block.") == std::string::npos) {
        return IRMutator::visit(op);
    }
    for (const auto &[prefix, pixels] : blocks.pixels) {
        if (op->name.rfind(prefix, 0) == 0) {
            FindLoad count("tile_count");
            op->body.accept(&count);
            if (!count.load.defined()) {
                refuse("the loop '" + op->name + "' does not read the length of the tile list");
            }
            const Expr listed = cast<int>(Load::make(UInt(32), "tile_count", 0, count.load.as<Load>()->image,
                                                     count.load.as<Load>()->param, const_true(), ModulusRemainder()));
            const Expr first = Variable::make(Int(32), op->name) * pixels;
            return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api,
                             IfThenElse::make(first < listed * blocks.pixels_per_tile, op->body));
        }
    }
    return IRMutator::visit(op);
}

namespace {

/** Replaces loads from shared memory with variables in the statement that stages a Func. */
class TakeLookups : public IRMutator {
public:
    TakeLookups(const std::string &staging, const std::set<std::string> &shared, const std::string &loop)
        : staging(staging), shared(shared), inner({loop}) {
    }

    std::vector<std::pair<std::string, Expr>> lookups;

private:
    using IRMutator::visit;
    const std::string &staging;
    const std::set<std::string> &shared;
    std::set<std::string> inner;                    /**< Variables of the loop and of those in it. */
    std::vector<std::pair<std::string, Expr>> lets; /**< In the loop, around the present place. */
    bool within = false;

    Stmt visit(const ProducerConsumer *op) override {
        const bool was_within = within;
        within = within || (op->is_producer && op->name == staging);
        Stmt s = IRMutator::visit(op);
        within = was_within;
        return s;
    }

    Stmt visit(const For *op) override {
        inner.insert(op->name);
        return IRMutator::visit(op);
    }

    template<typename LetOrLetStmt> auto visit_let(const LetOrLetStmt *op) {
        lets.emplace_back(op->name, mutate(op->value));
        auto body = mutate(op->body);
        const Expr value = lets.back().second;
        lets.pop_back();
        return LetOrLetStmt::make(op->name, value, body);
    }

    Stmt visit(const LetStmt *op) override {
        return visit_let(op);
    }

    Expr visit(const Let *op) override {
        return visit_let(op);
    }

    Expr visit(const Load *op) override {
        if (!within || shared.count(op->name) == 0) {
            return IRMutator::visit(op);
        }
        // In terms of what has a value before the loop.
        Expr index = op->index;
        for (auto let = lets.rbegin(); let != lets.rend(); ++let) {
            index = substitute(let->first, let->second, index);
        }
        for (const std::string &name : inner) {
            if (expr_uses_var(index, name)) {
                refuse("what '" + staging + "' looks up depends on '" + name + "'");
            }
        }
        const Expr lookup = Load::make(op->type, op->name, index, op->image, op->param, op->predicate, op->alignment);
        for (const auto &[name, load] : lookups) {
            if (equal(load, lookup)) {
                return Variable::make(op->type, name);
            }
        }
        lookups.emplace_back(unique_name(staging + "_lookup"), lookup);
        return Variable::make(op->type, lookups.back().first);
    }
};

}  // namespace

Stmt HoistLookups::visit(const Allocate *op) {
    if (op->memory_type == MemoryType::GPUShared) {
        shared.insert(op->name);
    }
    return IRMutator::visit(op);
}

Stmt HoistLookups::visit(const For *op) {
    if (op->for_type != ForType::Serial) {
        return IRMutator::visit(op);
    }
    TakeLookups take(staging, shared, op->name);
    const Stmt body = take.mutate(op->body);
    if (take.lookups.empty()) {
        return IRMutator::visit(op);
    }
    Stmt loop = For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
    // Every thread must finish its look-ups before any thread stages into the same memory. 2: fence shared memory.
    const Expr barrier = Call::make(Int(32), Call::gpu_thread_barrier, {2}, Call::Intrinsic);
    loop = Block::make(Evaluate::make(barrier), loop);
    for (auto lookup = take.lookups.rbegin(); lookup != take.lookups.rend(); ++lookup) {
        loop = LetStmt::make(lookup->first, lookup->second, loop);
    }
    return loop;
}

namespace {

/** Splits a staging statement: with `fetch` it stores its values to registers, otherwise it stores the values from
 * registers. */
class ThroughRegisters : public IRMutator {
public:
    ThroughRegisters(const std::string &registers, bool fetch) : registers(registers), fetch(fetch) {
    }

    int elements = 0; /**< Elements that the statement stores. */
    Type type;

private:
    using IRMutator::visit;
    const std::string &registers;
    const bool fetch;

    Stmt visit(const For *op) override {
        refuse("the loop '" + op->name + "', over a thread's staged elements, is not unrolled");
    }

    Stmt visit(const Store *op) override {
        type = op->value.type();
        const Expr at = type.is_vector() ? Ramp::make(elements, 1, type.lanes()) : Expr(elements);
        elements += type.lanes();
        return fetch ? Store::make(registers, op->value, at, Parameter(), const_true(type.lanes()), register_alignment)
                     : Store::make(op->name,
                                   Load::make(type, registers, at, Buffer<>(), Parameter(), const_true(type.lanes()),
                                              register_alignment),
                                   op->index, op->param, op->predicate, op->alignment);
    }
};

/** The statements of a block as a flat list. The lets that surround staging statements are listed separately. */
class Flatten {
public:
    explicit Flatten(const std::set<std::string> &staged) : staged(staged) {
    }

    std::vector<Stmt> statements;
    std::vector<const LetStmt *> lets;
    size_t last = 0; /**< One more than the index of the last staging statement. */

    bool is_staging(const Stmt &s) const {
        const ProducerConsumer *produce = s.as<ProducerConsumer>();
        return produce && produce->is_producer && staged.count(produce->name) == 1;
    }

    /** Returns whether `s` contains a staging statement. */
    bool add(const Stmt &s) {
        if (const Block *block = s.as<Block>()) {
            const bool first = add(block->first);
            return add(block->rest) || first;
        }
        if (const LetStmt *let = s.as<LetStmt>()) {
            const size_t num_statements = statements.size(), num_lets = lets.size();
            lets.push_back(let);
            if (add(let->body)) {
                return true;
            }
            statements.resize(num_statements);
            lets.resize(num_lets);
        }
        statements.push_back(s);
        if (is_staging(s)) {
            last = statements.size();
            return true;
        }
        return false;
    }

private:
    const std::set<std::string> &staged;
};

bool is_barrier(const Stmt &s) {
    const Evaluate *evaluate = s.as<Evaluate>();
    return evaluate && Call::as_intrinsic(evaluate->value, {Call::gpu_thread_barrier});
}

}  // namespace

Stmt PrefetchStaged::visit(const For *op) {
    Flatten flat(staged);
    if (op->for_type != ForType::Serial || !flat.add(op->body)) {
        return IRMutator::visit(op);
    }
    const auto with_lets = [&](Stmt s) {
        for (auto let = flat.lets.rbegin(); let != flat.lets.rend(); ++let) {
            s = LetStmt::make((*let)->name, (*let)->value, s);
        }
        return s;
    };

    std::vector<Stmt> fetch, body;
    std::vector<std::tuple<std::string, Type, int>> allocations;
    for (size_t i = 0; i < flat.statements.size(); i++) {
        const Stmt &s = flat.statements[i];
        if (flat.is_staging(s)) {
            const std::string registers = unique_name(s.as<ProducerConsumer>()->name + "_next");
            ThroughRegisters to(registers, true), from(registers, false);
            fetch.push_back(to.mutate(s));
            body.push_back(from.mutate(s));
            allocations.emplace_back(registers, to.type.element_of(), to.elements);
        } else if (i >= flat.last || !is_barrier(s)) {
            body.push_back(s);
        }
        if (i == flat.last) {
            // After the barrier. The last iteration reloads its own data, which is cheaper than a branch.
            const Expr next = min(Variable::make(Int(32), op->name) + 1, op->min + op->extent - 1);
            body.push_back(substitute(op->name, next, with_lets(Block::make(fetch))));
        }
    }
    Stmt loop = For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api,
                          with_lets(Block::make(body)));
    loop = Block::make(substitute(op->name, op->min, with_lets(Block::make(fetch))), loop);
    for (const auto &[name, type, elements] : allocations) {
        loop = Allocate::make(name, type, MemoryType::Register, {elements}, const_true(),
                              Block::make(loop, Free::make(name)));
    }
    return loop;
}

namespace {

class FindBarrier : public IRVisitor {
public:
    bool found = false;

private:
    using IRVisitor::visit;
    void visit(const Call *op) override {
        found = found || op->is_intrinsic(Call::gpu_thread_barrier);
        IRVisitor::visit(op);
    }
};

}  // namespace

Stmt LoopAroundBarriers::visit(const For *op) {
    // What a thread does has no barrier around it.
    return op->for_type == ForType::GPUThread ? Stmt(op) : IRMutator::visit(op);
}

Stmt LoopAroundBarriers::visit(const IfThenElse *op) {
    FindBarrier barrier;
    op->then_case.accept(&barrier);
    const LT *less = op->condition.as<LT>();
    if (!barrier.found || !less || op->else_case.defined()) {
        return IRMutator::visit(op);
    }
    // 1 if there are pixels beyond the first, and else at most 0: a call has no more pixels than `most`.
    const Expr times = (less->b - less->a + most - 1) / most;
    return For::make(unique_name("if_any"), 0, times, ForType::Serial, Partition::Never, DeviceAPI::None,
                     mutate(op->then_case));
}

namespace {

/** What is known of an access by its index, if its array begins at a whole vector of the buffer. Our own memory does.
 */
ModulusRemainder aligned_in_buffer(const Type &type, const Parameter &array, const ModulusRemainder &index) {
    return array.defined() && array.host_alignment() % (type.bytes() * type.lanes()) != 0 ? ModulusRemainder() : index;
}

/** Rewrites the accesses of a kernel to buffers that are not its own. */
class BufferAccesses : public IRMutator {
public:
    std::set<std::string> buffers;

private:
    using IRMutator::visit;
    std::set<std::string> own;

    Expr moved(const std::string &name, const Expr &index) {
        buffers.insert(name);
        const Expr offset = Variable::make(Int(32), name + ".first_element");
        if (const Ramp *ramp = index.as<Ramp>()) {
            return Ramp::make(ramp->base + offset, ramp->stride, ramp->lanes);
        }
        return index.type().is_scalar() ? index + offset : index + Broadcast::make(offset, index.type().lanes());
    }

    Stmt visit(const Allocate *op) override {
        own.insert(op->name);
        return IRMutator::visit(op);
    }

    Expr visit(const Load *op) override {
        if (own.count(op->name) != 0) {
            return IRMutator::visit(op);
        }
        return Load::make(op->type, op->name, moved(op->name, mutate(op->index)), op->image, op->param,
                          mutate(op->predicate), aligned_in_buffer(op->type, op->param, op->alignment));
    }

    Stmt visit(const Store *op) override {
        if (own.count(op->name) != 0) {
            return IRMutator::visit(op);
        }
        return Store::make(op->name, mutate(op->value), moved(op->name, mutate(op->index)), op->param,
                           mutate(op->predicate), aligned_in_buffer(op->value.type(), op->param, op->alignment));
    }
};

}  // namespace

Stmt AccessOpenClBuffers::visit(const For *op) {
    if (op->for_type != ForType::GPUBlock) {
        return IRMutator::visit(op);
    }
    BufferAccesses accesses;
    Stmt kernel = accesses.mutate(Stmt(op));
    for (const std::string &name : accesses.buffers) {
        const Expr offset = Call::make(Int(32), "distile_buffer_offset",
                                       {Variable::make(Handle(), "__user_context"),
                                        Variable::make(type_of<halide_buffer_t *>(), name + ".buffer")},
                                       Call::Extern);
        kernel = LetStmt::make(name + ".first_element", offset, kernel);
    }
    return kernel;
}

namespace {

Expr larger(const Expr &a, const Expr &b) {
    return Select::make(LT::make(b, a), a, b);
}

Expr smaller(const Expr &a, const Expr &b) {
    return Select::make(LT::make(a, b), a, b);
}

}  // namespace

Expr CompareFloats::visit(const Max *op) {
    return op->type.is_float() ? larger(mutate(op->a), mutate(op->b)) : IRMutator::visit(op);
}

Expr CompareFloats::visit(const Min *op) {
    return op->type.is_float() ? smaller(mutate(op->a), mutate(op->b)) : IRMutator::visit(op);
}

Expr CompareFloats::visit(const Call *op) {
    if (op->is_intrinsic(Call::strict_max)) {
        return larger(mutate(op->args[0]), mutate(op->args[1]));
    }
    if (op->is_intrinsic(Call::strict_min)) {
        return smaller(mutate(op->args[0]), mutate(op->args[1]));
    }
    return IRMutator::visit(op);
}

}  // namespace distile
