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
 * Halide 21 gives every thread a copy of such an allocation that is large enough for the whole block and addresses it
 * by thread, so it cannot live in registers. But if every thread touches only its own part, and all accesses agree on
 * where that part starts, the copy needs to hold only this part: we address it as thread 0 does. Throws
 * Halide::CompileError if threads may share an element. */
class PrivateRegisters : public Halide::Internal::IRMutator {
protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
};

/** A pipeline's loops over blocks of pixels, for SkipIdleBlocks. */
struct IdleBlocks {
    std::map<std::string, int> pixels; /**< Virtual pixels per block, by the prefix of the loop's name. */
    int pixels_per_tile;
};

/** Ends a block at once if its first pixel lies beyond the tile list. Only the device knows the list's length, in the
 * buffer `tile_count`. A predicate in the algorithm cannot do this: it applies per pixel, and the producers inside a
 * block run even if no pixel is stored. */
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

/** Hoists loop-invariant look-ups in shared memory, which staging repeats in every iteration, out of the loop into
 * registers.
 *
 * This saves loads, and it is required: Halide 21 lets data staged inside the loop reuse the memory of a Func that is
 * computed before the loop and read early in an iteration, as if there were only one iteration. Throws
 * Halide::CompileError if a look-up depends on the iteration. */
class HoistLookups : public Halide::Internal::IRMutator {
public:
    /** `staging` is the name of the Func that does the look-ups. */
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

/** Lets a block load the next stage while it computes with the current one.
 *
 * A loop that stages Funcs in shared memory and then consumes them,
 *
 *     for i: shared = f(i); barrier; consume shared; barrier
 *
 * becomes
 *
 *     registers = f(0); for i: shared = registers; barrier; registers = f(i + 1); consume shared; barrier
 *
 * so loads from global memory have a whole iteration to arrive. Halide 21 cannot express this, because its asynchronous
 * producers do not exist on a GPU. Throws Halide::CompileError if a thread's share of the staging is not unrolled. */
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

/** Turns a condition around barriers, which SkipIdleBlocks and LimitToLists make, into a loop of no or one iteration.
 * In the conditions `a < b` that they make, b is at most `most`, of which the host knows the value.
 *
 * All threads of a block agree about it, so OpenCL allows it, but PoCL 3.1 computes wrong results after barriers in a
 * condition. It does not see how often the loop runs. */
class LoopAroundBarriers : public Halide::Internal::IRMutator {
public:
    explicit LoopAroundBarriers(Halide::Expr most) : most(std::move(most)) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;

private:
    Halide::Expr most;
};

/** Makes a kernel access buffers as OpenCL can.
 *
 * An argument names a whole buffer, and a tensor may start anywhere in it: every access adds the tensor's first
 * element, for which the generated code asks distile_buffer_offset() before it launches the kernel. An access stays
 * aligned if the array is: else OpenCL loads vectors element by element. */
class AccessOpenClBuffers : public Halide::Internal::IRMutator {
protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

/** Writes maxima and minima of floats as comparisons: max(a, b) is a if b < a, else b, also where that is a NaN.
 *
 * OpenCL C says nothing of max and min of a NaN, and NVIDIA's drop it. */
class CompareFloats : public Halide::Internal::IRMutator {
protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Max *op) override;
    Halide::Expr visit(const Halide::Internal::Min *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace distile

#endif
