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
        std::vector<std::pair<std::string, Halide::Expr>> lets;    /**< The lets of its body, around what is visited. */
        std::vector<std::pair<std::string, Halide::Expr>> hoisted; /**< New lets, for before the loop. */
    };

    template<typename Result, typename LetOrLetStmt> Result visit_let(const LetOrLetStmt *op);
    Halide::Expr without_lets(Halide::Expr index) const;
    /** Null outside of loops from which something may be hoisted. */
    Loop *loop = nullptr;
};

/** Loads whole vectors where the lanes of a load stand at constant places of the pipeline's own memory, and shuffles
 * them.
 *
 * Halide 21 does not see that all such places are constants, and loads lane by lane from memory; sums that are loaded
 * and stored as whole vectors alone stay in registers. */
class ShuffleLoads : public Halide::Internal::IRMutator {
public:
    /** The pipeline's memory holds vectors of `lanes` lanes. */
    explicit ShuffleLoads(int lanes) : lanes_(lanes) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Expr visit(const Halide::Internal::Let *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;

private:
    int lanes_;
    std::vector<std::pair<std::string, Halide::Expr>> lets_; /**< Around what is visited. */

    template<typename Result, typename LetOrLetStmt> Result visit_let(const LetOrLetStmt *op);
    std::vector<int> constant_lanes(const Halide::Expr &index) const;
};

}  // namespace distile

#endif
