// The row of the runner that measures planners.
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/workbench.h"
#include <array>
#include <fmt/core.h>

namespace distile::bench {

void CudaRunner::measure(const PlannerRow &row, Json &result) {
    result["kind"] = "planner";
    result["op"] = row.op.name;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    result["batch"] = row.batch;
    const GpuWorkbench &bench = workbench(bench_, row.op, find_numerics("float32"), row.batch);
    const BenchOperator &op = bench.problem.op();
    const ByteMask bytes = draw(row.mask, row.batch, op.output_height(), op.output_width());
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    bench.set_mask(bench.mask, bytes, device_bytes);
    const distile_tensor input = bench.input(false), own = bench.output_tensor();
    distile_run_args args{};
    args.input = &input;
    args.weights = bench.weights.get();
    args.mask = bench.mask.get();
    const auto run = [&](const distile_tensor &output, distile_inactive inactive) {
        args.output = &output;
        args.inactive = inactive;
        check(context_, distile_run(bench.kernel.get(), &args));
    };
    const auto graph = [&](
                           const std::function<void(int32_t)> &layer, const std::function<void()> &end = [] {}) {
        return std::make_unique<GpuGraph>(slice_, [layer, end, &row] {
            for (int32_t i = 0; i < row.layers; i++) {
                layer(i);
            }
            end();
        });
    };
    // A bare operator, one that zeroes inactive pixels, and for every planner its tensors alone and with the operator.
    // Without a planner, as many tensors alternate as a planner has by default, because a single one would stay in the
    // cache.
    constexpr int32_t tensors_in_turn = 3;
    const DeviceArray<float> second(bench.problem.output_size()), third(bench.problem.output_size());
    std::array<distile_tensor, tensors_in_turn> in_turn{own, own, own};
    in_turn[1].data = second.data();
    in_turn[2].data = third.data();
    std::vector<std::string> names = {"keep", "zero"};
    std::vector<std::unique_ptr<GpuGraph>> graphs;
    for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
        graphs.push_back(graph([&, inactive](int32_t i) { run(in_turn[i % tensors_in_turn], inactive); }));
    }
    const distile_output_spec spec{row.batch, own.height, own.width, own.channels, 0, 0, 0, 0, DISTILE_FLOAT32};
    std::vector<Planner> planners;
    for (const auto &[clearing, name] : {std::pair(DISTILE_CLEAR_WRITTEN, "written"),
                                         {DISTILE_CLEAR_ALL, "all"},
                                         {DISTILE_CLEAR_BACKGROUND, "background"}}) {
        planners.push_back(make_planner(context_, {0, clearing, {}}));
        distile_planner *const planner = planners.back().get();
        for (const bool with_operator : {false, true}) {
            const auto layer = [&, planner, with_operator](int32_t) {
                distile_tensor output{};
                check(context_, distile_planner_next(planner, &spec, bench.mask.get(), DISTILE_STORE_EXACT, &output));
                if (with_operator) {
                    run(output, DISTILE_KEEP);
                }
            };
            const auto end = [&, planner] { check(context_, distile_cuda_planner_join(planner)); };
            names.push_back(with_operator ? name : fmt::format("{}_alone", name));
            graphs.push_back(graph(layer, end));
        }
    }
    std::vector<const GpuGraph *> sides;
    sides.reserve(graphs.size());
    for (const std::unique_ptr<GpuGraph> &one : graphs) {
        sides.push_back(one.get());
    }
    const std::vector<Spread> spreads = in_turns(sides);
    result["rounds"] = spreads.front().rounds;
    for (size_t i = 0; i < names.size(); i++) {
        result["t_" + names[i] + "_us"] = rounded(spreads[i].median / row.layers);
    }
}

}  // namespace distile::bench
