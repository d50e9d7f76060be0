/** \file
 * Lowering passes that CPU schedules need.
 */
#ifndef DISTILE_SCHEDULES_CPU_PASSES_H
#define DISTILE_SCHEDULES_CPU_PASSES_H

#include "Halide.h"
#include <string>
#include <utility>
#include <vector>

namespace distile {

/** Computes before a loop what the addresses of its loads share in all iterations. The pipeline has an input
 * `threads`, as those of masked operators.
 *
 * Halide 21 leaves look-ups in the tile list in the loop over the input channels. LLVM hoists them with the arithmetic
 * that makes addresses, but then its strength reduction puts a minimum among this back into the loop, once for every
 * load: where register tiles begin inside of tiles, that took more than half of the time. */
class HoistAddresses : public Halide::Internal::IRMutator {
protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Expr visit(const Halide::Internal::Let *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;

private:
    struct Loop {
        std::string variable;
        std::vector<std::pair<std::string, Halide::Expr>> lets;    /**< Of its body, around what is visited. */
        std::vector<std::pair<std::string, Halide::Expr>> hoisted; /**< New lets, for before the loop. */
    };

    template<typename Result, typename LetOrLetStmt> Result visit_let(const LetOrLetStmt *op);
    Halide::Expr without_lets(Halide::Expr index) const;
    /** Null outside of loops from which something may be hoisted. */
    Loop *loop = nullptr;
};

}  // namespace distile

#endif
