// The row of the runner that measures a masked convolution against a dense one.
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"
#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace distile::bench {

namespace {

/** By the host's clock: the time until everything is launched, and until everything is done. */
struct HostTimes {
    double launched_us, done_us;
};

HostTimes time_host(const MaskedCall &call, const GpuSlice &slice, int32_t rounds) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> launched, done;
    // The first round warms up and does not count.
    for (int32_t i = 0; i <= rounds; i++) {
        slice.synchronise();
        const Clock::time_point start = Clock::now();
        const auto elapsed = [&] { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); };
        call.set_and_run(nullptr);
        const double until_launched = elapsed();
        slice.synchronise();
        if (i > 0) {
            launched.push_back(until_launched);
            done.push_back(elapsed());
        }
    }
    return {spread_of(launched).median, spread_of(done).median};
}

/** The sides of a row, in the order in which they are timed. */
struct Times {
    Spread kernels, lists;
    std::vector<Spread> variants;
    std::vector<Spread> peers; /**< The peer, and then it with TF32 or over the active tokens where it has that. */
};

using Peers = std::vector<const GpuWorkbench::Peer *>;

/** The dense peers of a row, by their name in the file of rows. */
Peers peers_of(GpuWorkbench &bench, const std::string &name, const Numerics &numerics) {
    static const std::map<std::string, std::vector<const char *>> known = {
        {"cudnn", {"cudnn", "cudnn-tf32"}}, {"cublas", {"cublas"}}, {"dense", {"dense"}}};
    const auto found = known.find(name);
    if (found == known.end()) {
        throw std::runtime_error("on a GPU the peer is 'cudnn', 'cublas' or 'dense', not '" + name + "'");
    }
    Peers peers;
    for (const char *peer : found->second) {
        // Only strict float32 is compared with other numerics too.
        if (peers.empty() || numerics.is_strict()) {
            peers.push_back(&bench.peer(peer));
        }
    }
    return peers;
}

/** `in_turns` times graphs. */
template<typename InTurns> Times time_sides(const MaskedCall &call, const GpuWorkbench &bench, const Peers &peers,
                                            const GpuSlice &slice, const distile_choice &choice,
                                            const InTurns &in_turns) {
    // The other graphs set their mask repeatedly, and not all of them count it, so this one has its own mask.
    const Mask known = make_mask(bench.context);
    call.set(known);
    const GpuGraph kernels(slice, [&] { call.run(known, choice.variant); });
    const GpuGraph lists(slice, [&] {
        distile_tile_list list{};
        call.set(bench.mask);
        check(bench.context, distile_mask_tiles(bench.mask.get(), choice.tile_h, choice.tile_w, &list));
    });
    std::vector<const GpuGraph *> sides = {&kernels, &lists};
    std::vector<std::unique_ptr<GpuGraph>> variants;
    for (int32_t i = 0; i < distile_kernel_num_variants(bench.kernel.get()); i++) {
        variants.push_back(std::make_unique<GpuGraph>(
            slice, [&] { call.set_and_run(distile_kernel_variant_name(bench.kernel.get(), i)); }));
        sides.push_back(variants.back().get());
    }
    for (const GpuWorkbench::Peer *peer : peers) {
        sides.push_back(peer->graph.get());
    }
    const std::vector<Spread> spreads = in_turns(sides);
    const auto first_peer = spreads.begin() + 2 + static_cast<ptrdiff_t>(variants.size());
    return {spreads[0], spreads[1], {spreads.begin() + 2, first_peer}, {first_peer, spreads.end()}};
}

void add_ours(Json &result, const Times &times, const distile_choice &choice, distile_kernel *kernel) {
    const auto name = [&](size_t variant) {
        return distile_kernel_variant_name(kernel, static_cast<int32_t>(variant));
    };
    Json by_variant = Json::object();
    for (size_t i = 0; i < times.variants.size(); i++) {
        by_variant[name(i)] = rounded(times.variants[i].median);
    }
    const auto best = std::min_element(times.variants.begin(), times.variants.end(),
                                       [](const Spread &a, const Spread &b) { return a.median < b.median; });
    const Spread &ours = times.variants[choice.variant_index];
    result["t_masked_us"] = rounded(ours.median);
    result["t_kernels_us"] = rounded(times.kernels.median);
    result["t_lists_us"] = rounded(times.lists.median);
    result["t_host_path_us"] = rounded(times.lists.median + times.kernels.median);
    result["variant"] = choice.variant;
    result["predicted_us"] = rounded(choice.predicted_us);
    result["best_variant"] = name(static_cast<size_t>(best - times.variants.begin()));
    result["t_best_us"] = rounded(best->median);
    result["choice_loss"] = rounded(ours.median / best->median - 1);
    result["masked_us"] = to_json(ours);
    result["kernels_us"] = to_json(times.kernels);
    result["variants_us"] = by_variant;
}

void add_peers(Json &result, const Times &times, const Peers &peers, const distile_choice &choice, double density) {
    const double ours = times.variants[choice.variant_index].median;
    const auto eta = [&](const Spread &dense, double time) { return rounded(dense.median * density / time); };
    const Spread &peer = times.peers.front();
    result["peer"] = peers.front()->dense->description();
    result["peer_implementation"] = peers.front()->dense->implementation();
    result["t_peer_us"] = rounded(peer.median);
    result["peer_us"] = to_json(peer);
    result["peer_max_rel_err"] = rounded(peers.front()->error);
    result["speedup"] = rounded(peer.median / ours);
    result["speedup_kernels"] = rounded(peer.median / times.kernels.median);
    result["eta"] = eta(peer, ours);
    result["eta_kernel"] = eta(peer, times.kernels.median);
    result["eta_host_path"] = eta(peer, times.lists.median + times.kernels.median);
    if (peers.size() > 1 && result.at("peer_name") == "cublas") {
        const Spread &gathered = times.peers.back();
        result["gather_implementation"] = peers.back()->dense->implementation();
        result["t_gather_us"] = rounded(gathered.median);
        result["gather_us"] = to_json(gathered);
        result["gather_max_rel_err"] = rounded(peers.back()->error);
        result["speedup_over_gather"] = rounded(gathered.median / ours);
        result["speedup_over_gather_kernels"] = rounded(gathered.median / times.kernels.median);
    } else if (peers.size() > 1) {
        const Spread &tf32 = times.peers.back();
        result["peer_tf32_implementation"] = peers.back()->dense->implementation();
        result["t_peer_tf32_us"] = rounded(tf32.median);
        result["peer_tf32_us"] = to_json(tf32);
        result["peer_tf32_max_rel_err"] = rounded(peers.back()->error);
        result["eta_tf32"] = eta(tf32, ours);
    }
}

}  // namespace

void CudaRunner::measure(const ConvolutionRow &row, Json &result) {
    result["kind"] = row.peer == "cublas" ? "linear" : "convolution";
    result["mode"] = row.zero ? "zero" : "keep";
    result["layout"] = row.bordered ? "bordered" : "plain";
    result["state"] = "hot";
    result["linked"] = false;
    result["peer_name"] = row.peer;
    if (row.state != State::Hot || row.linked) {
        throw std::runtime_error("a GPU is measured hot, and peers are linked in rows 'choice/linked/'");
    }

    const auto [bench, bytes] = begin(row, result);
    Peers peers = peers_of(bench, row.peer, *row.numerics);
    std::optional<GpuWorkbench::Peer> gathered;
    if (row.peer == "cublas") {
        gathered = bench.gathered_peer(bytes);
        peers.push_back(&*gathered);
    }
    const MaskedCall call(bench, bytes, {row.bordered, row.zero});

    // First the host waits for the counts and chooses; with a named variant, nothing waits.
    const double chosen_error = call.checked(nullptr);
    const distile_choice choice = traced_;
    const HostTimes host = time_host(call, slice_, options_.rounds);
    const double error = std::max(chosen_error, call.checked(choice.variant));
    result["max_rel_err"] = rounded(error);
    result["t_host_until_launched_us"] = rounded(host.launched_us);
    result["t_host_until_done_us"] = rounded(host.done_us);

    const Times times =
        time_sides(call, bench, peers, slice_, choice, [&](const auto &graphs) { return in_turns(graphs); });
    result["rounds"] = times.kernels.rounds;
    add_ours(result, times, choice, bench.kernel.get());
    add_peers(result, times, peers, choice, bytes.density());
}

}  // namespace distile::bench
