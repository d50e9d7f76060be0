/** \file
 * Lowering passes that GPU schedules of masked operators need.
 */
#ifndef DISTILE_SCHEDULES_GPU_PASSES_H
#define DISTILE_SCHEDULES_GPU_PASSES_H

#include "Halide.h"
#include <map>
#include <set>
#include <string>

namespace distile {

/** Makes the Register allocations of a block private to its threads.
 *
 * Halide 21 gives every thread a copy of such an allocation that is large enough for the whole block, and
 * addresses it by the thread, so that it cannot live in registers. But where every thread touches only a part
 * of its own, and all accesses agree on where that part begins, its copy needs to hold just this part: we
 * address it as thread 0 does. Throws Halide::CompileError where threads may share an element. */
class PrivateRegisters : public Halide::Internal::IRMutator {
protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
};

/** The loops over blocks of pixels of a pipeline, for SkipIdleBlocks. */
struct IdleBlocks {
    std::map<std::string, int> pixels; /**< Virtual pixels of a block, by the prefix of the loop's name. */
    int pixels_per_tile;
};

/** Ends a block at once if its first pixel lies beyond the tile list, whose length, in the buffer `tile_count`, only
 * the device knows. A predicate of the algorithm cannot do it: it holds for each pixel by itself, and the
 * producers within a block run whether or not any pixel is stored. */
class SkipIdleBlocks : public Halide::Internal::IRMutator {
public:
    explicit SkipIdleBlocks(IdleBlocks blocks) : blocks(std::move(blocks)) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    IdleBlocks blocks;
};

/** Takes what a loop looks up in shared memory for each thing that it stages, and which is the same in every iteration,
 * out of the loop: into registers.
 *
 * It saves the loads, and it must be done: Halide 21 gives what is staged within the loop the memory of a Func
 * that is computed before the loop and read early in an iteration, as if there were no further iterations.
 * Throws Halide::CompileError where a look-up depends on the iteration. */
class HoistLookups : public Halide::Internal::IRMutator {
public:
    /** `staging` is the name of the Func that looks things up. */
    explicit HoistLookups(std::string staging) : staging(std::move(staging)) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    std::string staging;
    std::set<std::string> shared; /**< The allocations in shared memory. */
};

/** Lets a block load what it stages next while it computes with what is staged now.
 *
 * A loop that stages Funcs in shared memory and then consumes them,
 *
 *     for i: shared = f(i); barrier; consume shared; barrier
 *
 * becomes
 *
 *     registers = f(0); for i: shared = registers; barrier; registers = f(i + 1); consume shared; barrier
 *
 * so that the loads from global memory have the time of a whole iteration to arrive. Halide 21 cannot express
 * it: its asynchronous producers do not exist on a GPU. Throws Halide::CompileError where a thread's share of
 * what is staged is not unrolled. */
class PrefetchStaged : public Halide::Internal::IRMutator {
public:
    explicit PrefetchStaged(std::set<std::string> staged) : staged(std::move(staged)) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    std::set<std::string> staged;
};

}  // namespace distile

#endif
