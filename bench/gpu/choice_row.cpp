// The rows of the runner that measure what a choice costs: the device's in a captured graph, and the host's with the
// dense peer among the candidates.
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"
#include <algorithm>
#include <distile/cuda.h>
#include <stdexcept>

namespace distile::bench {

namespace {

/** A graph of every variant of a kernel, from the byte mask on. */
std::vector<std::unique_ptr<GpuGraph>> graphs_of_variants(const MaskedCall &call, const GpuWorkbench &bench,
                                                          const GpuSlice &slice) {
    std::vector<std::unique_ptr<GpuGraph>> graphs;
    for (int32_t i = 0; i < distile_kernel_num_variants(bench.kernel.get()); i++) {
        graphs.push_back(std::make_unique<GpuGraph>(
            slice, [&] { call.set_and_run(distile_kernel_variant_name(bench.kernel.get(), i)); }));
    }
    return graphs;
}

/** The peer as a candidate of our dispatcher. */
int run_peer(void *peer, void *, const distile_run_args *args) {
    try {
        static_cast<const GpuPeer *>(peer)->run_into(args->output->data);
        return 0;
    } catch (const std::exception &) {
        return 1;
    }
}

constexpr const char *linked = "cudnn";

/** A context whose calls choose on the device. */
Context make_choosing_context(const GpuSlice &slice, distile_math math) {
    distile_cuda_options cuda{};
    cuda.context = slice.context();
    cuda.stream = slice.stream();
    cuda.choose_on_device = 1;
    distile_context_options options{};
    options.threads = 1;
    options.math = math;
    return make_cuda_context(cuda, options);
}

void add_peer(Json &result, const GpuWorkbench::Peer &peer, const Spread &time) {
    result["peer"] = peer.dense->description();
    result["peer_implementation"] = peer.dense->implementation();
    result["t_peer_us"] = rounded(time.median);
}

}  // namespace

void CudaRunner::measure(const ChoiceRow &row, Json &result) {
    const bool by_device = row.chooser == Chooser::Device;
    result["kind"] = "choice";
    result["chooser"] = by_device ? "device" : "linked";
    result["mode"] = "keep";
    const auto [bench, bytes] = begin(row, result);
    if (by_device) {
        measure_device_choice(row, bench, bytes, result);
    } else {
        measure_linked_choice(row, bench, bytes, result);
    }
}

void CudaRunner::measure_device_choice(const ChoiceRow &row, GpuWorkbench &bench, const ByteMask &bytes, Json &result) {
    const GpuWorkbench::Peer &peer = bench.peer("cudnn");
    const MaskedCall call(bench, bytes);
    // The variant that the host chooses, for comparison.
    call.checked(nullptr);
    const std::string host_variant = traced_.variant;
    const Context choosing = make_choosing_context(slice_, row.numerics->math);
    const Kernel kernel = load_kernel(choosing, row.op.polykernel);
    const Mask mask = make_mask(choosing);
    const MaskedCall call_unnamed(bench, bytes, {false, false, kernel.get(), &choosing, DISTILE_STORE_EXACT});
    const GpuGraph unnamed(slice_, [&] {
        call_unnamed.set(mask);
        call_unnamed.run(mask, nullptr);
    });
    result["max_rel_err"] = rounded(call.checked([&] {
        unnamed.replay();
        slice_.synchronise();
    }));
    // It does not choose where only one variant is possible.
    distile_choice chosen{};
    const bool has_chosen = distile_cuda_last_choice(kernel.get(), &chosen) == DISTILE_OK;
    result["variant"] = has_chosen ? std::string(chosen.variant) : host_variant;
    result["host_variant"] = host_variant;
    const std::vector<std::unique_ptr<GpuGraph>> variants = graphs_of_variants(call, bench, slice_);
    std::vector<const GpuGraph *> sides = {&unnamed, peer.graph.get()};
    for (const std::unique_ptr<GpuGraph> &variant : variants) {
        sides.push_back(variant.get());
    }
    const std::vector<Spread> spreads = in_turns(sides);
    const auto best = std::min_element(spreads.begin() + 2, spreads.end(),
                                       [](const Spread &a, const Spread &b) { return a.median < b.median; });
    const char *const best_name =
        distile_kernel_variant_name(bench.kernel.get(), static_cast<int32_t>(best - spreads.begin() - 2));
    const Mask known = make_mask(bench.context);
    call.set(known);
    const GpuGraph kernels(slice_, [&] { call.run(known, best_name); });
    const double loss = spreads[0].median - best->median;
    result["rounds"] = spreads[0].rounds;
    result["t_masked_us"] = rounded(spreads[0].median);
    result["masked_us"] = to_json(spreads[0]);
    result["t_kernels_us"] = rounded(in_turns({&kernels}).front().median);
    result["best_variant"] = best_name;
    result["t_best_us"] = rounded(best->median);
    add_peer(result, peer, spreads[1]);
    result["loss_us"] = rounded(loss);
    result["goal_loss_us"] = row.goal;
    result["met"] = loss <= row.goal;
}

void CudaRunner::measure_linked_choice(const ChoiceRow &row, GpuWorkbench &bench, const ByteMask &bytes, Json &result) {
    const GpuWorkbench::Peer &peer = bench.peer("cudnn");
    const BenchOperator &op = bench.problem.op();
    const Kernel kernel = load_kernel(bench.context, row.op.polykernel);
    const distile_dense_candidate candidate{linked, run_peer, peer.dense.get()};
    check(bench.context, distile_kernel_add_dense(kernel.get(), &candidate));

    // With some pixels inactive, the runtime copies the active ones: the candidate's time holds such a copy.
    constexpr double usual = 0.5;
    const ByteMask half = draw({"blob", usual, row.mask.seed}, row.batch, op.output_height(), op.output_width());
    const CallModes modes{false, false, kernel.get(), nullptr, DISTILE_STORE_EXACT};
    const MaskedCall copying(bench, half, modes);
    const GpuGraph with_copy(slice_, [&] { copying.set_and_run(linked); });
    const auto pixels = static_cast<int64_t>(bytes.bytes.size());
    check(bench.context, distile_kernel_add_time(kernel.get(), linked, pixels, in_turns({&with_copy}).front().median));

    const Mask known = make_mask(bench.context);
    const MaskedCall exact(bench, bytes, modes);
    exact.set(known);
    distile_choice choice{};
    check(bench.context, distile_kernel_choose(kernel.get(), known.get(), &choice));
    const bool is_peer = std::string(choice.variant) == linked;
    // The host knows that every pixel is active, so the candidate writes to the output itself; a graph is told.
    const bool direct = is_peer && choice.active_pixels == pixels;
    const MaskedCall all(bench, bytes, {false, false, kernel.get(), nullptr, DISTILE_STORE_TILES});
    const MaskedCall &call = direct ? all : exact;
    result["max_rel_err"] = rounded(call.checked([&] { call.run(known, choice.variant); }, !is_peer));

    const GpuGraph kernels(slice_, [&] { call.run(known, choice.variant); });
    const GpuGraph masked(slice_, [&] { call.set_and_run(choice.variant); });
    const std::vector<Spread> spreads = in_turns({&masked, &kernels, peer.graph.get()});
    const double loss = spreads[1].median / spreads[2].median - 1;
    result["rounds"] = spreads[0].rounds;
    result["variant"] = choice.variant;
    result["predicted_us"] = rounded(choice.predicted_us);
    result["t_masked_us"] = rounded(spreads[0].median);
    result["masked_us"] = to_json(spreads[0]);
    result["t_kernels_us"] = rounded(spreads[1].median);
    result["kernels_us"] = to_json(spreads[1]);
    add_peer(result, peer, spreads[2]);
    result["loss"] = rounded(loss);
    result["loss_masked"] = rounded(spreads[0].median / spreads[2].median - 1);
    result["goal_loss"] = row.goal;
    result["met"] = loss <= row.goal;
}

}  // namespace distile::bench
