// What CPU schedules do to Halide's statements.
#include "schedules/cpu_passes.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <string>
#include <vector>

namespace {

using namespace Halide;
using namespace Halide::Internal;

const Expr i = Variable::make(Int(32), "i"), pixel = Variable::make(Int(32), "pixel"),
           width = Variable::make(Int(32), "width");

Parameter input_of(Type type, const char *name) {
    return Parameter(type, true, 1, name);
}

/** A load from an input, or without one from what the pipeline stores. */
Expr load(const char *name, Type type, const Expr &index, bool is_input = true) {
    return Load::make(type, name, index, Buffer<>(), is_input ? input_of(type, name) : Parameter(), const_true(),
                      ModulusRemainder());
}

/** What the tile list says of a pixel. */
Expr column_of(const Expr &tile, bool is_input = true) {
    return min(cast<int>(load("tiles", UInt(32), tile, is_input)), width - 1);
}

Stmt store(const Expr &value) {
    return Store::make("sums", value, i, Parameter(), const_true(), ModulusRemainder());
}

Stmt loop_of(const Stmt &body, const Expr &extent = 8) {
    return For::make("i", 0, extent, ForType::Serial, Partition::Auto, DeviceAPI::None, body);
}

struct Hoisted {
    std::vector<std::pair<std::string, Expr>> lets; /**< Before the loop. */
    Stmt body;
};

Hoisted hoist(const Stmt &loop) {
    Hoisted found;
    Stmt stmt = distile::HoistAddresses().mutate(loop);
    while (const auto *let = stmt.as<LetStmt>()) {
        found.lets.emplace_back(let->name, let->value);
        stmt = let->body;
    }
    const auto *left = stmt.as<For>();
    REQUIRE(left);
    found.body = left->body;
    return found;
}

class Finder : public IRVisitor {
public:
    int minima = 0;

private:
    using IRVisitor::visit;
    void visit(const Min *op) override {
        minima++;
        IRVisitor::visit(op);
    }
};

int minima_in(const Stmt &stmt) {
    Finder finder;
    stmt.accept(&finder);
    return finder.minima;
}

}  // namespace

TEST_CASE("What addresses share is computed before the loop, once", "[schedules]") {
    const Expr row = column_of(pixel) * 64;
    // As unrolling leaves it: two channels of a pixel, and one of the next.
    const Stmt body =
        Block::make({store(load("input", Float(32), row + i)), store(load("input", Float(32), row + i + 1)),
                     store(load("input", Float(32), column_of(pixel + 1) * 64 + i))});
    const Hoisted found = hoist(loop_of(body));
    CHECK(found.lets.size() == 2);
    CHECK(minima_in(found.body) == 0);
    CHECK(stmt_uses_var(found.body, found.lets[0].first));
    CHECK(stmt_uses_var(found.body, found.lets[1].first));
    for (const auto &[name, value] : found.lets) {
        CHECK(!expr_uses_var(value, "i"));
        const auto *hidden = value.as<Call>();
        REQUIRE(hidden);
        REQUIRE(hidden->is_intrinsic(Call::bitwise_xor));
        const Expr address = simplify(hidden->args[0]);
        CHECK((equal(address, simplify(row)) || equal(address, simplify(column_of(pixel + 1) * 64))));
        // What it is combined with is 0 for any number of threads.
        CHECK(is_const_zero(simplify(substitute("threads", 3, hidden->args[1]))));
    }
}

TEST_CASE("Lets of a loop's body are a part of what moves", "[schedules]") {
    const Expr origin = Variable::make(Int(32), "origin") + width;
    const Expr value = load("input", Float(32), origin * 64 + i);
    for (const Stmt &body : {LetStmt::make("origin", column_of(pixel), store(value)),
                             store(Let::make("origin", column_of(pixel), value))}) {
        const Hoisted found = hoist(loop_of(body));
        REQUIRE(found.lets.size() == 1);
        CHECK(!expr_uses_var(found.lets[0].second, "origin"));
        CHECK(expr_uses_var(found.lets[0].second, "pixel"));
    }
}

TEST_CASE("Nothing moves that may not be computed before the loop, or need not be", "[schedules]") {
    const auto stays = [](const Stmt &loop) {
        const Hoisted found = hoist(loop);
        CHECK(found.lets.empty());
        CHECK(equal(found.body, loop.as<For>()->body));
    };
    const Expr address = column_of(pixel) * 64 + i;
    const Stmt guarded = IfThenElse::make(i < width, store(load("input", Float(32), address)));
    stays(loop_of(guarded));                                                            // Illegal without the guard.
    stays(loop_of(store(load("input", Float(32), column_of(pixel, false) * 64 + i))));  // The loop may change it.
    stays(loop_of(store(load("input", Float(32), column_of(i) * 64 + i))));             // It changes.
    stays(loop_of(store(load("input", Float(32), address)), width));                    // The loop may never run.
    stays(loop_of(store(load("input", Float(32), pixel * 64 + i))));                    // LLVM keeps it outside.
}

TEST_CASE("Lanes at constant places of the pipeline's own memory are shuffled", "[schedules]") {
    const auto load_lanes = [](const Expr &index, bool is_input) {
        return Load::make(Float(32, 4), "sums", index, Buffer<>(), is_input ? input_of(Float(32), "sums") : Parameter(),
                          const_true(4), ModulusRemainder());
    };
    const auto shuffled = [&](const Expr &index, bool is_input = false) {
        const Stmt stmt =
            LetStmt::make("first", pixel * 4 - pixel * 4 + 8, Evaluate::make(load_lanes(index, is_input)));
        return distile::ShuffleLoads(4).mutate(stmt).as<LetStmt>()->body.as<Evaluate>()->value;
    };
    const Expr first = Broadcast::make(Variable::make(Int(32), "first"), 4), ramp = Ramp::make(0, 1, 4);
    // 9, 10, 11, 8: a rotation.
    const Expr rotated = shuffled(first + (ramp + 1) % 4);
    const auto *rotation = rotated.as<Shuffle>();
    REQUIRE(rotation);
    CHECK(rotation->indices == std::vector<int>{1, 2, 3, 0});
    REQUIRE(rotation->vectors.size() == 1);
    CHECK(equal(rotation->vectors[0].as<Load>()->index, Ramp::make(8, 1, 4)));
    // 10, 11, 12, 13: of two vectors.
    const Expr across = shuffled(first + ramp + 2);
    REQUIRE(across.as<Shuffle>());
    CHECK(across.as<Shuffle>()->indices == std::vector<int>{2, 3, 4, 5});
    CHECK(across.as<Shuffle>()->vectors.size() == 2);
    // The places are not known, or the memory is the caller's.
    CHECK_FALSE(shuffled(Broadcast::make(pixel, 4) + (ramp + 1) % 4).as<Shuffle>());
    CHECK_FALSE(shuffled(first + (ramp + 1) % 4, true).as<Shuffle>());
}
