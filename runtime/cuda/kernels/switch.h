/** \file
 * Which of several captured graphs a launch runs, by the times of earlier launches: shared by the host and switch.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_SWITCH_H
#define DISTILE_CUDA_KERNELS_SWITCH_H

#include "runtime/choice/choose_variant.h"
#include <cstdint>

namespace distile {

constexpr int32_t most_ways = 8;
/** Times are kept for shares of active pixels that lie this close: 0, 1/16, ..., 1. */
constexpr int32_t switch_densities = 17;

/** What a way took at a density. */
struct WayTimes {
    float us;          ///< The least of the first few runs, which has no cold start in it; then a running mean.
    uint32_t runs;     ///< 0: `us` means nothing.
    uint32_t skipped;  ///< Launches that ran another way since.
};

enum SwitchMode : int32_t {
    switch_learns = -1,   ///< The fastest way, and now and then another one, so that its time is known.
    switch_settled = -2,  ///< The fastest way by the times that are known; from 0 on, a number: that way.
};

/** Lies on the device. */
struct SwitchState {
    WayTimes times[switch_densities][most_ways];
    unsigned long long runs[most_ways];
    unsigned long long began_ns;
    unsigned long long active;  ///< Counted so far in a launch; 0 between launches.
    uint32_t blocks;            ///< That have counted; 0 between launches.
    int32_t way, density;       ///< In the last launch; -1 before it.
    int32_t mode;               ///< A SwitchMode.
    float budget;               ///< The share of the time that trying the other ways may add.
};

/** Bytes that a launch counts: those that are not 0 are active. */
struct SwitchMask {
    const uint8_t *bytes;
    uint64_t count;
};

constexpr uint32_t most_switch_masks = 32;
struct SwitchMasks {
    SwitchMask masks[most_switch_masks];
    uint32_t count;
    uint64_t pixels;  ///< All masks' together.
};

constexpr uint32_t first_runs = 3;      ///< While a way has run no more often, its least time counts.
constexpr uint32_t least_skipped = 16;  ///< Launches between two tries of a way.

/** The place of a share of active pixels. */
DISTILE_ANYWHERE inline int32_t switch_density(uint64_t active, uint64_t pixels) {
    const uint64_t steps = switch_densities - 1;
    return pixels == 0 ? 0 : static_cast<int32_t>((2 * active * steps + pixels) / (2 * pixels));
}

/** The time of a way at a density, or at the nearest density at which it ran; below 0 if it never ran. */
DISTILE_ANYWHERE inline float estimated_us(const SwitchState &state, int32_t density, int32_t way) {
    for (int32_t distance = 0; distance < switch_densities; distance++) {
        for (int32_t sign = -1; sign <= 1; sign += 2) {
            const int32_t place = density + sign * distance;
            if (place >= 0 && place < switch_densities && state.times[place][way].runs > 0) {
                return state.times[place][way].us;
            }
        }
    }
    return -1;
}

/** After how many launches a way that takes `us` is tried again, so that all tries together stay in the budget. */
DISTILE_ANYWHERE inline float launches_between(float us, float best_us, float budget, int32_t num_ways) {
    const float lost = us > best_us ? us / best_us - 1 : 0;
    const float launches = lost * static_cast<float>(num_ways - 1) / budget;
    return launches > least_skipped ? launches : least_skipped;
}

/** The way of the next launch. Remembers which ways it skips. */
DISTILE_ANYWHERE inline int32_t choose_way(SwitchState &state, int32_t density, int32_t num_ways) {
    if (state.mode >= 0) {
        return state.mode;
    }
    const bool learns = state.mode == switch_learns;
    int32_t best = -1;
    float best_us = 0, us[most_ways];
    for (int32_t way = 0; way < num_ways; way++) {
        us[way] = estimated_us(state, density, way);
        if (us[way] < 0 && learns) {
            return way;
        }
        if (us[way] >= 0 && (best < 0 || us[way] < best_us)) {
            best = way;
            best_us = us[way];
        }
    }
    if (best < 0) {
        return 0;  // Settled before anything ran.
    }
    int32_t chosen = best;
    for (int32_t way = 0; way < num_ways && learns; way++) {
        WayTimes &times = state.times[density][way];
        // What ran at other densities alone is tried here unless it is far behind.
        const bool is_new = times.runs < first_runs && us[way] < 2 * best_us;
        const bool is_due =
            static_cast<float>(times.skipped) >= launches_between(us[way], best_us, state.budget, num_ways);
        if (way != best && chosen == best && (is_new || is_due)) {
            chosen = way;
        }
    }
    for (int32_t way = 0; way < num_ways; way++) {
        uint32_t &skipped = state.times[density][way].skipped;
        skipped = way == chosen ? 0 : skipped + (skipped < UINT32_MAX ? 1 : 0);
    }
    return chosen;
}

/** Takes in what a run of a way took. */
DISTILE_ANYWHERE inline void add_time(WayTimes &times, float us) {
    if (times.runs == 0) {
        times.us = us;
    } else if (times.runs < first_runs) {
        times.us = us < times.us ? us : times.us;
    } else {
        // What else the device did meanwhile shall not count for long.
        const float bounded = us < 2 * times.us ? us : 2 * times.us;
        times.us += (bounded - times.us) / 8;
    }
    times.runs += times.runs < UINT32_MAX ? 1 : 0;
}

}  // namespace distile

#endif
