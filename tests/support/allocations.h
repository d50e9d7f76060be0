/** \file
 * The allocation functions of a program that has these instead of its own: what it allocates can be counted, and fail.
 */
#ifndef DISTILE_TESTS_ALLOCATIONS_H
#define DISTILE_TESTS_ALLOCATIONS_H

#include <atomic>
#include <cstddef>
#include <cstdint>

/** Every allocation of the process comes by here. */
struct Allocations {
    std::atomic<bool> watched{false};
    std::atomic<int64_t> count{0}, failures{0};
    std::atomic<size_t> largest{0};          /**< The most bytes that operator new was asked for while watched. */
    std::atomic<int64_t> first{0}, last{-1}; /**< The range of watched allocations that fail. */

    /** Counts one, and says whether it fails. */
    bool fails();
};
extern Allocations allocations;

/** Watches while it lives. */
class Watch {
public:
    Watch() {
        allocations.watched = true;
    }
    ~Watch() {
        allocations.watched = false;
    }
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;
};

#endif
