#include "bench/cpu/runner.h"
#include "bench/cpu/first_call.h"
#include "reference/processor.h"
#include <fmt/core.h>
#include <stdexcept>
#include <utility>

namespace distile::bench {

Context make_bench_context(int32_t threads, const char *cpu_features) {
    distile_context_options options{};
    options.threads = threads;
    options.cpu_features = cpu_features;
    return make_context(options);
}

MaskedOperator &Runner::Workbench::linked(const std::string &peer_name, bool bordered, const MeasureOptions &options) {
    std::unique_ptr<MaskedOperator> &known = with_peer[{peer_name, bordered}];
    if (!known) {
        const distile_dense_candidate candidate = peers.get(peer_name, problem, masked).candidate();
        auto made = std::make_unique<MaskedOperator>(context, problem, times, AlignedFloats(problem.output_size()));
        made->link(candidate);
        const BenchOperator &op = problem.op();
        const ByteMask mask = draw_mask("blob", problem.batch(), op.output_height(), op.output_width(), 0.9, 1);
        const auto run = [&] { made->run(mask, bordered, false, candidate.name); };
        made->set_time(candidate.name, measure_pair(run, run, options, nullptr).ours.median);
        known = std::move(made);
    }
    return *known;
}

Runner::Runner(RunnerOptions options) : options_(std::move(options)), context_(make_bench_context(options_.threads)) {
}

Runner::Workbench &Runner::workbench(Slot &slot, const OperatorSpec &op, int32_t batch,
                                     const std::optional<CpuFeatures> &limit) {
    const char *const features = limit ? limit->features.c_str() : nullptr;
    const std::string key = fmt::format("{}/{}/n{}/{}", op.name, op.polykernel, batch, limit ? limit->name : "");
    if (key != slot.key || !slot.bench) {
        // Free the old one first, because both together need twice the memory.
        slot.bench.reset();
        slot.bench = std::make_unique<Workbench>(make_bench_context(options_.threads, features),
                                                 find_operator(options_.operators_path, op), batch, options_.times);
        slot.key = key;
    }
    // On a lesser CPU, or for an operator without such code, other code would run under the same name.
    const distile_polykernel &found = slot.bench->masked.polykernel();
    if (features && std::string(found.features) != features) {
        throw PeerMissing(fmt::format("with the CPU features '{}', '{}' is what runs, which is for '{}'", features,
                                      found.name, found.features));
    }
    return *slot.bench;
}

void Runner::run(const Row &row, Json &result) {
    result["backend"] = "cpu";
    result["device"] = cpu_name();
    const auto *convolution = std::get_if<ConvolutionRow>(&row.what);
    if (convolution && convolution->state == State::First) {
        measure_first(row.name, *convolution, result);
    } else {
        std::visit([&](const auto &what) { measure(what, result); }, row.what);
    }
}

void Runner::add_pair(Json &result, const Spread &ours, const Spread &peer, double density) {
    add_ours(result, ours, peer, density);
    result["t_peer_us"] = rounded(peer.median);
    result["peer_us"] = to_json(peer);
}

void Runner::add_ours(Json &result, const Spread &ours, const Spread &peer, double density) {
    result["t_masked_us"] = rounded(ours.median);
    // The work of a convolution's mask is the density of its active output pixels.
    result["eta"] = rounded(peer.median * density / ours.median);
    result["speedup"] = rounded(peer.median / ours.median);
    result["masked_us"] = to_json(ours);
}

const char *Runner::forced_variant(const MaskSpec &mask, const MaskedOperator &masked) {
    const char *const dense = mask.name == "dense" ? masked.dense_variant() : nullptr;
    if (mask.name == "dense" && !dense) {
        throw PeerMissing(fmt::format("'{}' has no dense candidate", masked.polykernel().name));
    }
    return dense;
}

void Runner::add_choice(Json &result, MaskedOperator &masked, const ByteMask &mask, const char *forced) {
    const distile_choice choice = masked.choose(mask);
    result["kernel"] = masked.polykernel().name;
    result["variant"] = forced ? forced : choice.variant;
    result["predicted_us"] = forced ? 0 : rounded(choice.predicted_us);
}

void Runner::measure_first(const std::string &name, const ConvolutionRow &row, Json &result) const {
    constexpr int32_t rounds = 5;
    describe(row, result);
    const BenchOperator op = find_operator(options_.operators_path, row.op);
    const double density = make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width()).density();
    result["category"] = op.category;
    result["shape"] = op.shape();
    result["density"] = rounded(density);
    std::vector<Json> ours, peer;
    ours.reserve(rounds);
    peer.reserve(rounds);
    for (int32_t i = 0; i < rounds; i++) {
        ours.push_back(measure_first_call_apart(name, Side::Ours, options_));
        peer.push_back(measure_first_call_apart(name, Side::Peer, options_));
    }
    const auto spread = [](const std::vector<Json> &calls, const char *field) {
        std::vector<double> values;
        values.reserve(calls.size());
        for (const Json &call : calls) {
            values.push_back(call.at(field));
        }
        return spread_of(std::move(values));
    };
    add_pair(result, spread(ours, "first_us"), spread(peer, "first_us"), density);
    result["peer"] = peer.front().at("description");
    result["peer_implementation"] = peer.front().at("variant");
    result["kernel"] = ours.front().at("description");
    result["variant"] = ours.front().at("variant");
    result["rounds"] = rounds;
    for (const char *field : {"setup_us", "second_us", "setup_bytes", "calls_bytes", "later_bytes", "peak_bytes",
                              "scratch_bytes", "scratch_allocations", "later_scratch_allocations"}) {
        result["ours"][field] = spread(ours, field).median;
        // Only we have an application's allocator to count.
        if (std::string(field).find("scratch") == std::string::npos) {
            result["theirs"][field] = spread(peer, field).median;
        }
    }
}

void Runner::describe(const ConvolutionRow &row, Json &result) const {
    constexpr const char *states[] = {"hot", "cold", "first"};
    if (!row.numerics->is_strict()) {
        throw std::runtime_error("on a CPU, operators are compared with dense ones in float32 only");
    }
    result["kind"] = "convolution";
    result["op"] = row.op.name;
    result["threads"] = options_.threads;
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    result["mode"] = row.zero ? "zero" : "keep";
    result["layout"] = row.bordered ? "bordered" : "plain";
    result["state"] = states[static_cast<int>(row.state)];
    result["peer_name"] = row.peer;
    result["linked"] = row.linked;
    if (row.limit) {
        result["cpu_features"] = row.limit->features;
    }
}

void Runner::measure(const ConvolutionRow &row, Json &result) {
    describe(row, result);

    Workbench &bench = workbench(bench_, row.op, row.batch, row.limit);
    const BenchOperator &op = bench.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    const ByteMask mask = make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width());
    const double density = mask.density();
    result["density"] = rounded(density);
    Peer &peer = bench.peers.get(row.peer, bench.problem, bench.masked);
    result["peer"] = peer.description();
    result["peer_implementation"] = peer.implementation(row.bordered);
    MaskedOperator &masked = row.linked ? bench.linked(row.peer, row.bordered, options_.measure) : bench.masked;
    const char *const variant = forced_variant(row.mask, masked);

    masked.spoil_output();
    const PairTiming timing =
        measure_pair([&] { masked.run(mask, row.bordered, row.zero, variant); }, [&] { peer.run(row.bordered); },
                     options_.measure, row.state == State::Cold ? &flusher_ : nullptr);

    add_pair(result, timing.ours, timing.peer, density);
    add_choice(result, masked, mask, variant);
    result["rounds"] = timing.ours.rounds;

    // Both sides are checked against the plain loops.
    result["max_rel_err"] = rounded(masked.check_output(mask, row.zero));
    result["peer_max_rel_err"] = rounded(bench.peers.check(row.peer, row.bordered, bench.problem));
}

void Runner::measure(const TypeRow &row, Json &result) {
    result["kind"] = "type";
    result["op"] = row.op.name;
    result["type"] = row.type;
    result["threads"] = options_.threads;
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    if (row.limit) {
        result["cpu_features"] = row.limit->features;
    }
    Workbench &plain = workbench(bench_, row.op, row.batch, row.limit);
    Workbench &typed = workbench(in_type_, row.op_in_type(), row.batch, row.limit);
    const BenchOperator &op = plain.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    const ByteMask mask = make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width());
    result["density"] = rounded(mask.density());

    // Both run the variant that the dispatcher chooses in float32. Where the type has plans of its own, as for dot
    // products, it takes the one that it chooses itself.
    const char *const variant = plain.masked.choose(mask).variant;
    const bool is_shared = has_variant(typed.masked.polykernel(), variant);
    const char *const typed_variant = is_shared ? variant : typed.masked.choose(mask).variant;
    plain.masked.spoil_output();
    typed.masked.spoil_output();
    const PairTiming timing =
        measure_pair([&] { typed.masked.run(mask, true, false, typed_variant); },
                     [&] { plain.masked.run(mask, true, false, variant); }, options_.measure, nullptr);
    add_times(result, timing.ours);
    result["kernel"] = typed.masked.polykernel().name;
    result["variant"] = typed_variant;
    if (!is_shared) {
        result["float32_variant"] = variant;
    }
    add_comparison(result, "float32", timing.ours, timing.peer);
    add_ratio_goal(result, row.goal_ratio);
    result["max_rel_err"] = rounded(typed.masked.check_output(mask, false));
    result["float32_max_rel_err"] = rounded(plain.masked.check_output(mask, false));
}

}  // namespace distile::bench
