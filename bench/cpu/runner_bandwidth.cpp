// The rows of the runner that move much memory, compared with copying or reading it.
#include "bench/cpu/runner.h"
#include <algorithm>
#include <cstring>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <numeric>
#include <random>

namespace distile::bench {

namespace {

AlignedFloats random_floats(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    AlignedFloats floats(count);
    std::generate_n(floats.data(), count, [&] { return static_cast<float>(random() % 2001) * 0.001f - 1; });
    return floats;
}

/** Reads every byte once, with the widest vectors that the CPU has. */
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t read_all(const AlignedFloats &from) {
    constexpr size_t chains = 8;
    uint64_t sums[chains] = {};
    const float *const values = from.data();
    for (size_t i = 0; i + 2 * chains <= from.size(); i += 2 * chains) {
        uint64_t words[chains];
        std::memcpy(words, values + i, sizeof(words));
        for (size_t j = 0; j < chains; j++) {
            sums[j] ^= words[j];
        }
    }
    return std::accumulate(sums, sums + chains, uint64_t{0});
}

}  // namespace

void Runner::measure(const DifferenceRow &row, Json &result) const {
    result["kind"] = "difference";
    result["threads"] = 1;
    const Context context = make_bench_context(1);
    const Mask mask = make_mask(context);
    const size_t count = static_cast<size_t>(row.height) * row.width * row.channels;
    const AlignedFloats first = random_floats(count, 1), second = random_floats(count, 1);
    // A few pixels differ, as after an edit.
    constexpr size_t step = 1009;
    for (size_t i = 0; i < count; i += step) {
        second.data()[i] += 1;
    }
    const distile_tensor a = distile_tensor_make(first.data(), 1, row.height, row.width, row.channels);
    const distile_tensor b = distile_tensor_make(second.data(), 1, row.height, row.width, row.channels);
    volatile uint64_t kept = 0;
    const std::vector<Spread> spreads =
        measure_turns({[&] { check(context, distile_mask_set_difference(mask.get(), &a, &b, 0.5f)); },
                       [&] { kept = read_all(first) ^ read_all(second); }},
                      options_.measure);
    add_times(result, spreads[0]);
    add_comparison(result, "reading both", spreads[0], spreads[1]);
    add_ratio_goal(result, row.goal_ratio);
}

void Runner::measure(const LayoutRow &row, Json &result) const {
    result["kind"] = "layout";
    result["threads"] = 1;
    const Context context = make_bench_context(1);
    const size_t count = static_cast<size_t>(row.batch) * row.channels * row.height * row.width;
    const AlignedFloats ours = random_floats(count, 1), others = random_floats(count, 2);
    const distile_nchw planes = distile_nchw_make(others.data(), row.channels, row.height, row.width);
    const distile_tensor tensor = distile_tensor_make(ours.data(), row.batch, row.height, row.width, row.channels);
    const float *const from = row.from_nchw ? others.data() : ours.data();
    float *const to = row.from_nchw ? ours.data() : others.data();
    const std::vector<Spread> spreads =
        measure_turns({[&] {
                           check(context, row.from_nchw ? distile_from_nchw(context.get(), &planes, &tensor)
                                                        : distile_to_nchw(context.get(), &tensor, &planes));
                       },
                       [&] { std::memcpy(to, from, count * sizeof(float)); }},
                      options_.measure);
    add_times(result, spreads[0]);
    add_comparison(result, "memcpy", spreads[0], spreads[1]);
}

}  // namespace distile::bench
