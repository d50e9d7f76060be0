#include "bench/cpu/runner.h"
#include "bench/harness/own_objects.h"
#include <distile/general.h>
#include <functional>
#include <utility>

namespace distile::bench {

/** The tensors of an operator, our side for each way to a plan and, where there is one, without a plan, and the peer.
 */
struct Runner::OwnBench {
    struct Way {
        std::string name;
        std::map<std::string, double> seconds;
        std::unique_ptr<MaskedOperator> ours;
    };
    static constexpr const char *general_way = "general";

    OwnBench(std::string name, Context own, const BenchOperator &op, int32_t batch,
             const std::vector<OwnKernel> &kernels)
        : name(std::move(name)), context(std::move(own)), problem(op, batch),
          general(make_general(kernels.front().object.polykernel()), distile_general_polykernel_destroy) {
        for (const OwnKernel &kernel : kernels) {
            const std::vector<std::string> times(kernel.times.empty() ? 0 : 1, kernel.times);
            ways.push_back({kernel.way, kernel.seconds, make(kernel.object.polykernel(), times)});
        }
        if (general) {
            ways.push_back({general_way, {}, make(*general, {})});
        }
    }

    std::unique_ptr<MaskedOperator> make(const distile_polykernel &polykernel, const std::vector<std::string> &times) {
        return std::make_unique<MaskedOperator>(context, problem, polykernel, times,
                                                AlignedFloats(problem.output_size()));
    }
    /** The library's own code for the operator of a PolyKernel; null if it has none. */
    const distile_polykernel *make_general(const distile_polykernel &polykernel) const {
        const distile_polykernel *made = nullptr;
        const distile_status status = distile_general_polykernel_create(
            context.get(), polykernel.kind, polykernel.op, polykernel.operands[0].dtype, DISTILE_FLOAT32, &made);
        return status == DISTILE_OK ? made : nullptr;
    }

    std::string name;
    Context context;
    Problem problem;
    std::unique_ptr<const distile_polykernel, decltype(&distile_general_polykernel_destroy)> general;
    std::vector<Way> ways; /**< In the order of the kernels. */
    Peers peers;
};

Runner::OwnBench &Runner::own_bench(const OwnRow &row) {
    if (!own_bench_ || own_bench_->name != row.op) {
        own_bench_.reset();
        const std::vector<OwnKernel> &kernels = options_.own->kernels(row.op);
        const Operator &op = kernels.front().plan.op;
        BenchOperator bench = make_operator({row.op, 0, row.op}, "own", op.typical_height, op.typical_width,
                                            kernels.front().object.polykernel());
        bench.weight_zeros = op.typical_zeros;
        own_bench_ =
            std::make_shared<OwnBench>(row.op, make_bench_context(options_.threads), bench, op.typical_batch, kernels);
    }
    return *own_bench_;
}

void Runner::measure(const OwnRow &row, Json &result) {
    OwnBench &bench = own_bench(row);
    const BenchOperator &op = bench.problem.op();
    const ByteMask mask = make_byte_mask(row.mask, bench.problem.batch(), op.output_height(), op.output_width());
    Peer &peer = bench.peers.get(row.peer, bench.problem, *bench.ways.front().ours);
    result["kind"] = "own";
    result["op"] = row.op;
    result["shape"] = op.shape();
    result["in_means"] = row.in_means;
    result["threads"] = options_.threads;
    if (op.weight_zeros > 0) {
        result["weight_zeros"] = op.weight_zeros;
    }
    result["batch"] = bench.problem.batch();
    result["mask"] = row.mask.name;
    result["density"] = rounded(mask.density());
    result["layout"] = row.bordered ? "bordered" : "plain";
    result["peer_name"] = row.peer;
    result["peer"] = peer.description();
    result["peer_implementation"] = peer.implementation(row.bordered);

    std::vector<std::function<void()>> sides;
    std::vector<const OwnBench::Way *> ways;
    for (const OwnBench::Way &way : bench.ways) {
        if (way.name == OwnBench::general_way && row.mask.name == "dense") {
            continue;  // It has no dense variant.
        }
        const char *const variant = forced_variant(row.mask, *way.ours);
        way.ours->spoil_output();
        sides.emplace_back([&, variant, side = way.ours.get()] { side->run(mask, row.bordered, false, variant); });
        ways.push_back(&way);
    }
    sides.emplace_back([&] { peer.run(row.bordered); });
    const std::vector<Spread> spreads = measure_sides(sides, options_.measure);

    result["t_peer_us"] = rounded(spreads.back().median);
    result["peer_us"] = to_json(spreads.back());
    result["rounds"] = spreads.back().rounds;
    result["peer_max_rel_err"] = rounded(bench.peers.check(row.peer, row.bordered, bench.problem));
    for (size_t i = 0; i < ways.size(); i++) {
        MaskedOperator &masked = *ways[i]->ours;
        Json way = {{"way", ways[i]->name}};
        add_ours(way, spreads[i], spreads.back(), mask.density() * (1 - op.weight_zeros));
        add_choice(way, masked, mask, forced_variant(row.mask, masked));
        way["max_rel_err"] = rounded(masked.check_output(mask, false));
        way["seconds"] = ways[i]->seconds;
        result["ways"].push_back(std::move(way));
    }
}

}  // namespace distile::bench
