/** \file
 * Measures rows on a GPU. It keeps what successive rows share (tensors, weights, peers).
 */
#ifndef DISTILE_BENCH_CUDA_RUNNER_H
#define DISTILE_BENCH_CUDA_RUNNER_H

#include "autoscheduler/measure/gpu_measure.h"
#include "bench/gpu/workbench.h"
#include "bench/harness/own_objects.h"
#include "bench/harness/peer_missing.h"
#include "bench/harness/results.h"
#include "bench/harness/rows.h"
#include "bench/peers/gpu_peer.h"
#include <chrono>
#include <distile/distile.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace distile::bench {

struct CudaRunnerOptions {
    int32_t multiprocessors = 0;           /**< 0: all. */
    int32_t rounds = 11;                   /**< At most, of rows that take long. */
    double peer_seconds = 60;              /**< At most, to search for the fastest plan of a peer. */
    std::string data;                      /**< The folder of operators.csv and the masks. */
    std::vector<std::string> times;        /**< Files of `distile profile`. */
    std::shared_ptr<const OwnObjects> own; /**< PolyKernels of --objects; null: there are none. */
};

class CudaRunner {
public:
    /** Throws std::runtime_error where there is no GPU. */
    explicit CudaRunner(CudaRunnerOptions options);

    const GpuSlice &slice() const {
        return slice_;
    }
    /** A library's name and version, or why there is none. */
    std::string cudnn_description() const;
    std::string cublas_description() const;

    /** Measures a row, checks what it computes, and adds the numbers to its result. Throws PeerMissing if something
     * that it needs is missing, and other exceptions if it fails. */
    void run(const Row &row, Json &result);

    /** Runs a variant of a row between the marks of a profiler, and nothing else. Throws std::runtime_error if the row
     * is of another kind, or has no such variant. */
    void profile(const Row &row, const std::string &variant);

private:
    /** A workbench and its key. Rows come sorted, so one of each kind is enough. */
    struct Slot {
        std::string key;
        std::unique_ptr<GpuWorkbench> bench;
    };

    /** A PolyKernel that this program loaded or links. Throws PeerMissing if there is none. */
    const distile_polykernel &find(const std::string &name) const;
    /** A kernel of a PolyKernel, with the time tables that are of its code. Throws PeerMissing if there is none, or if
     * this GPU cannot run it. */
    Kernel load_kernel(const Context &context, const std::string &name) const;
    /** Throws PeerMissing if the operator has no code in these numerics. */
    GpuWorkbench &workbench(Slot &slot, const OperatorSpec &spec, const Numerics &numerics, int32_t batch);
    ByteMask draw(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width) const;
    /** The workbench of a row of a masked operator, and its mask. */
    struct Prepared {
        GpuWorkbench &bench;
        ByteMask bytes;
    };
    template<typename MaskedRow> Prepared prepare(const MaskedRow &row);
    /** The mask of a row that compares our own code. Also adds to the result what the row is of. */
    template<typename OwnCodeRow>
    ByteMask draw_for(const OwnCodeRow &row, const GpuWorkbench &bench, Json &result) const;
    /** Prepares a row and adds to the result what the row is of. */
    template<typename MaskedRow> Prepared begin(const MaskedRow &row, Json &result);
    void measure(const ConvolutionRow &row, Json &result);
    void measure(const TypeRow &row, Json &result);
    void measure(const OpenClRow &row, Json &result);
    void measure(const ChoiceRow &row, Json &result);
    void measure_device_choice(const ChoiceRow &row, GpuWorkbench &bench, const ByteMask &bytes, Json &result);
    void measure_linked_choice(const ChoiceRow &row, GpuWorkbench &bench, const ByteMask &bytes, Json &result);
    void measure(const BandwidthRow &row, Json &result);
    void measure(const MaskRow &row, Json &result);
    void measure(const AlgebraRow &row, Json &result);
    void measure(const DifferenceRow &row, Json &result);
    void measure(const PlannerRow &row, Json &result);
    template<typename Other> static void measure(const Other &, Json &) {
        throw PeerMissing("it is a row of a CPU");
    }
    /** The times of sides that have a time(), measured in turns. */
    template<typename Side = GpuGraph> std::vector<Spread> in_turns(const std::vector<const Side *> &sides) const;

    CudaRunnerOptions options_;
    GpuSlice slice_;
    distile_choice traced_{};
    Context context_;      /**< float32 is strict. */
    Context tf32_context_; /**< float32 factors may be rounded to TF32. */
    std::unique_ptr<Cudnn> cudnn_;
    std::unique_ptr<Cublas> cublas_;
    std::string no_cudnn_, no_cublas_; /**< Why there is none. */
    std::map<std::string, Kernel> kernels_;
    Slot bench_, in_type_; /**< The workbench of most rows, and the one in the narrower type of a row that compares it
                              with float32. */
};

template<typename MaskedRow> CudaRunner::Prepared CudaRunner::prepare(const MaskedRow &row) {
    GpuWorkbench &bench = workbench(bench_, row.op, *row.numerics, row.batch);
    const BenchOperator &op = bench.problem.op();
    return {bench, draw(row.mask, row.batch, op.output_height(), op.output_width())};
}

template<typename MaskedRow> CudaRunner::Prepared CudaRunner::begin(const MaskedRow &row, Json &result) {
    result["op"] = row.op.name;
    result["multiprocessors"] = slice_.multiprocessors();
    result["batch"] = row.batch;
    result["dtype"] = row.numerics->name;
    result["mask"] = row.mask.name;
    Prepared prepared = prepare(row);
    const BenchOperator &op = prepared.bench.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    result["kernel"] = taken_polykernel(*op.polykernel, prepared.bench.kernel).name;
    result["density"] = rounded(prepared.bytes.density());
    return prepared;
}

template<typename OwnCodeRow>
ByteMask CudaRunner::draw_for(const OwnCodeRow &row, const GpuWorkbench &bench, Json &result) const {
    const BenchOperator &op = bench.problem.op();
    result["op"] = row.op.name;
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    result["category"] = op.category;
    result["shape"] = op.shape();
    ByteMask bytes = draw(row.mask, row.batch, op.output_height(), op.output_width());
    result["density"] = rounded(bytes.density());
    return bytes;
}

template<typename Side> std::vector<Spread> CudaRunner::in_turns(const std::vector<const Side *> &sides) const {
    // Long rounds vary less, so fewer are enough.
    constexpr int32_t least_rounds = 5;
    constexpr double enough_seconds = 1;
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto has_enough = [&](int32_t round) {
        return round >= least_rounds && std::chrono::duration<double>(Clock::now() - start).count() > enough_seconds;
    };
    std::vector<std::vector<double>> times(sides.size());
    // The first round warms up and does not count.
    for (int32_t round = -1; round < options_.rounds && !has_enough(round); round++) {
        for (size_t i = 0; i < sides.size(); i++) {
            const double time = sides[i]->time();
            if (round >= 0) {
                times[i].push_back(time);
            }
        }
    }
    std::vector<Spread> spreads;
    spreads.reserve(times.size());
    for (std::vector<double> &series : times) {
        spreads.push_back(spread_of(std::move(series)));
    }
    return spreads;
}

}  // namespace distile::bench

#endif
