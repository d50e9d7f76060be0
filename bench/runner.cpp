#include "runner.h"
#include "machine.h"
#include <fmt/core.h>
#include <stdexcept>

namespace distile::bench {

namespace {

Context make_bench_context(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    return make_context(options);
}

}  // namespace

Peer &Runner::Workbench::peer(const std::string &name) {
    if (missing.count(name) != 0) {
        throw PeerMissing(missing.at(name));
    }
    std::unique_ptr<Peer> &known = peers[name];
    if (!known) {
        try {
            known = make_peer(name, problem, masked);
        } catch (const PeerMissing &error) {
            missing[name] = error.what();
            throw;
        }
    }
    return *known;
}

MaskedOperator &Runner::Workbench::linked(const std::string &peer_name, bool bordered, const MeasureOptions &options) {
    std::unique_ptr<MaskedOperator> &known = with_peer[{peer_name, bordered}];
    if (!known) {
        const distile_dense_candidate candidate = peer(peer_name).candidate();
        auto made = std::make_unique<MaskedOperator>(context, problem, times);
        made->link(candidate);
        const Operator &op = problem.op();
        const ByteMask mask = draw_mask("blob", problem.batch(), op.output_height(), op.output_width(), 0.9, 1);
        const auto run = [&] { made->run(mask, bordered, false, candidate.name); };
        made->set_time(candidate.name, measure_pair(run, run, options, nullptr).ours.median);
        known = std::move(made);
    }
    return *known;
}

Runner::Runner(RunnerOptions options) : options_(std::move(options)), context_(make_bench_context(options_.threads)) {
}

Runner::Workbench &Runner::workbench(const OperatorSpec &op, int32_t batch) {
    const std::string key = fmt::format("{}/n{}", op.name, batch);
    if (key != bench_key_ || !bench_) {
        // The old one goes first: both at once need twice the memory.
        bench_.reset();
        bench_ = std::make_unique<Workbench>(
            context_, find_operator(options_.operators_path, op, cpu_polykernel(op.polykernel)), batch, options_.times);
        bench_key_ = key;
    }
    return *bench_;
}

void Runner::run(const Row &row, Json &result) {
    result["backend"] = "cpu";
    result["device"] = cpu_name();
    std::visit([&](const auto &what) { measure(what, result); }, row.what);
}

void Runner::measure(const ConvolutionRow &row, Json &result) {
    const bool forced_dense = row.mask.name == "dense";
    result["kind"] = "convolution";
    result["op"] = row.op.name;
    result["threads"] = options_.threads;
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    result["mode"] = row.zero ? "zero" : "keep";
    result["layout"] = row.bordered ? "bordered" : "plain";
    result["state"] = row.cold ? "cold" : "hot";
    result["peer_name"] = row.peer;

    Workbench &bench = workbench(row.op, row.batch);
    const Operator &op = bench.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    const ByteMask mask = make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width());
    const double density = mask.density();
    result["density"] = rounded(density);
    Peer &peer = bench.peer(row.peer);
    result["peer"] = peer.description();
    result["peer_implementation"] = peer.implementation(row.bordered);
    MaskedOperator &masked = row.linked ? bench.linked(row.peer, row.bordered, options_.measure) : bench.masked;
    result["linked"] = row.linked;
    const char *variant = forced_dense ? masked.dense_variant() : nullptr;
    if (forced_dense && !variant) {
        throw PeerMissing(fmt::format("'{}' has no dense candidate", masked.polykernel().name));
    }
    const distile_choice choice = masked.choose(mask);

    masked.spoil_output();
    const PairTiming timing =
        measure_pair([&] { masked.run(mask, row.bordered, row.zero, variant); }, [&] { peer.run(row.bordered); },
                     options_.measure, row.cold ? &flusher_ : nullptr);

    const double t_masked = timing.ours.median, t_peer = timing.peer.median;
    result["t_masked_us"] = rounded(t_masked);
    result["t_peer_us"] = rounded(t_peer);
    // The work that a convolution's mask asks for is the density of its active output pixels.
    result["eta"] = rounded(t_peer * density / t_masked);
    result["speedup"] = rounded(t_peer / t_masked);
    result["kernel"] = masked.polykernel().name;
    result["variant"] = variant ? variant : choice.variant;
    result["predicted_us"] = variant ? 0 : rounded(choice.predicted_us);
    result["rounds"] = timing.rounds;
    result["masked_us"] = to_json(timing.ours);
    result["peer_us"] = to_json(timing.peer);

    // Both sides are held to the plain loops, the peer once for each layout.
    const double error = masked.check_output(mask, row.zero);
    result["max_rel_err"] = rounded(error);
    double &peer_error = bench.peer_errors.try_emplace({row.peer, row.bordered}, -1).first->second;
    if (peer_error < 0) {
        peer_error = relative_error(peer.result(), bench.problem.reference());
    }
    result["peer_max_rel_err"] = rounded(peer_error);
    constexpr double tolerance = 1e-4;
    if (!(error <= tolerance)) {
        throw std::runtime_error(fmt::format("our active pixels differ from plain loops by {} of the largest value; "
                                             "{} is allowed",
                                             error, tolerance));
    }
    if (!(peer_error <= peer.tolerance())) {
        throw std::runtime_error(fmt::format("the peer's output differs from plain loops by {} of the largest value; "
                                             "{} is allowed",
                                             peer_error, peer.tolerance()));
    }
}

}  // namespace distile::bench
