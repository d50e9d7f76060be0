/** \file
 * The lowering pass that ends the loops of operators that read a key or a value where their lists do.
 */
#ifndef DISTILE_SCHEDULES_LIST_LIMITS_H
#define DISTILE_SCHEDULES_LIST_LIMITS_H

#include "Halide.h"
#include <map>
#include <string>

namespace distile {

/** Ends a block at once if its rows, or its keys where it has no others, lie beyond the lists of its image, and its
 * loop `key_tile` behind the last listed key, or the last that the block's rows can see. Only the device knows the
 * lengths of the lists, and the host may not ask. */
class LimitToLists : public Halide::Internal::IRMutator {
public:
    LimitToLists(int block_rows, int block_keys, bool causal)
        : block_rows_(block_rows), block_keys_(block_keys), causal_(causal) {
    }

protected:
    using Halide::Internal::IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    int block_rows_, block_keys_;
    bool causal_;
    std::string image_; /**< The names of loops around the present place. */
    Halide::Expr first_row_, keys_;
    std::map<std::string, Halide::Expr> lists_; /**< A load from each list of the kernel. */

    Halide::Expr word(const std::string &list, const Halide::Expr &index) const;
    Halide::Expr first_row_of(const Halide::Internal::For &blocks) const;
    Halide::Internal::Stmt limited(const Halide::Internal::For &blocks);
};

}  // namespace distile

#endif
