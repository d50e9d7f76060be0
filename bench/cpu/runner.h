/** \file
 * Measures rows. It keeps what successive rows share (tensors, weights, peers).
 */
#ifndef DISTILE_BENCH_RUNNER_H
#define DISTILE_BENCH_RUNNER_H

#include "bench/harness/measure.h"
#include "bench/harness/results.h"
#include "bench/harness/rows.h"
#include "bench/peers/peer.h"
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

class OwnObjects;

struct RunnerOptions {
    int32_t threads = 1;
    MeasureOptions measure;
    std::string operators_path, rows_path;
    std::vector<std::string> times;        /**< Files of `distile profile`. */
    std::shared_ptr<const OwnObjects> own; /**< For rows of such operators. */
};

/** Without features, kernels may use all that the CPU has. */
Context make_bench_context(int32_t threads, const char *cpu_features = nullptr);

class Runner {
public:
    explicit Runner(RunnerOptions options);

    /** Measures a row, checks what it computes, and adds the numbers to its result. Throws PeerMissing if something
     * that it needs is missing, and other exceptions if it fails. */
    void run(const Row &row, Json &result);

private:
    /** The tensors and both sides for one operator, batch and limit of CPU features. */
    struct Workbench {
        Workbench(Context own, const BenchOperator &op, int32_t batch, const std::vector<std::string> &times)
            : context(std::move(own)), times(times), problem(op, batch),
              masked(context, problem, times, AlignedFloats(problem.output_size())) {
        }
        /** Our side with a peer as a dense candidate, timed with a mask of density .9. */
        MaskedOperator &linked(const std::string &peer_name, bool bordered, const MeasureOptions &options);

        Context context;
        const std::vector<std::string> &times;
        Problem problem;
        MaskedOperator masked;
        std::map<std::pair<std::string, bool>, std::unique_ptr<MaskedOperator>> with_peer; /**< By peer and layout. */
        Peers peers;
    };
    struct OwnBench;

    /** A workbench and its key. Rows come sorted, so one of each kind is enough. */
    struct Slot {
        std::string key;
        std::unique_ptr<Workbench> bench;
    };

    /** Adds the fields of the row itself. */
    void describe(const ConvolutionRow &row, Json &result) const;
    /** Adds the times of both sides, and the numbers that follow from them. */
    static void add_pair(Json &result, const Spread &ours, const Spread &peer, double density);
    /** Adds what our side took. */
    static void add_ours(Json &result, const Spread &ours, const Spread &peer, double density);
    /** Our dense candidate for the mask "dense", and null for others. Throws PeerMissing if there is none. */
    static const char *forced_variant(const MaskSpec &mask, const MaskedOperator &masked);
    /** Adds which variant runs. */
    static void add_choice(Json &result, MaskedOperator &masked, const ByteMask &mask, const char *forced);
    void measure_first(const std::string &name, const ConvolutionRow &row, Json &result) const;

    Workbench &workbench(Slot &slot, const OperatorSpec &op, int32_t batch, const std::optional<CpuFeatures> &limit);
    void measure(const ConvolutionRow &row, Json &result);
    void measure(const TypeRow &row, Json &result);
    void measure(const MaskRow &row, Json &result) const;
    void measure(const SelectRow &row, Json &result);
    template<typename Other> static void measure(const Other &, Json &) {
        throw std::runtime_error("it is a row of a GPU");
    }
    void measure(const PoolRow &row, Json &result);
    void measure(const DispatchRow &row, Json &result);
    void measure(const AlgebraRow &row, Json &result) const;
    void measure(const DifferenceRow &row, Json &result) const;
    void measure(const LayoutRow &row, Json &result) const;
    void measure(const TokenRow &row, Json &result) const;
    void measure(const PlannerRow &row, Json &result);
    OwnBench &own_bench(const OwnRow &row);
    void measure(const OwnRow &row, Json &result);

    RunnerOptions options_;
    Context context_;
    CacheFlusher flusher_;
    Slot bench_, in_type_;                /**< In float32, and in a narrower type. */
    std::shared_ptr<OwnBench> own_bench_; /**< Shared, because only runner_own.cpp knows its type. */
};

}  // namespace distile::bench

#endif
