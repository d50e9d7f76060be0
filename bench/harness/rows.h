/** \file
 * The rows that the benchmark measures, from a committed file.
 */
#ifndef DISTILE_BENCH_ROWS_H
#define DISTILE_BENCH_ROWS_H

#include "bench/harness/numerics.h"
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace distile::bench {

/** A mask by name: a drawn family, "blocks8x8" (blobs of aligned blocks), a real mask, or "dense" (every pixel active,
 * our dense candidate forced). */
struct MaskSpec {
    std::string name;
    double density = 0; /**< The density of a mask that is drawn; that of a real mask follows from its pixels. */
    uint64_t seed = 0;
    int32_t zoom_out = 1; /**< A real mask lies in the middle of an image `zoom_out` times as wide and high. */
};

/** An operator of data/operators.csv and the PolyKernel that implements it. */
struct OperatorSpec {
    std::string name; /**< For instance "op3". */
    int32_t id = 0;
    std::string polykernel;
};

/** CPU features by a name, for instance "avx2". */
struct CpuFeatures {
    std::string name;
    std::string features; /**< The CPU features, as in distile_context_options. */
};

/** The state in which a timed call starts. */
enum class State {
    Hot,  /**< Everything as the calls before left it. */
    Cold, /**< The caches flushed. */
    First /**< A new process, in which neither the operator nor its library ran before. */
};

/** A masked operator, a convolution or a linear layer, against a dense peer. */
struct ConvolutionRow {
    OperatorSpec op; /**< In the row's type. */
    int32_t batch;
    MaskSpec mask;
    bool zero;     /**< Mode "zero", not "keep". */
    bool bordered; /**< The input has a zero border as wide as the padding. */
    State state;
    bool linked; /**< The peer is also one of the dense candidates that our dispatcher chooses from. */
    std::string peer;
    std::optional<CpuFeatures> limit; /**< All features that kernels may use, on both sides; none: the CPU's. */
    const Numerics *numerics;         /**< The numerics of both sides. */
};

/** An operator in a narrower type against the same in float32: the same mask, and the same variant unless the type has
 * plans of its own. */
struct TypeRow {
    OperatorSpec op; /**< In float32. */
    std::string type;
    int32_t batch;
    MaskSpec mask;
    double goal_ratio;
    std::optional<CpuFeatures> limit;

    /** The operator in its type: the name of its PolyKernel ends with the type. */
    OperatorSpec op_in_type() const {
        return {op.name, op.id, op.polykernel + "_" + type};
    }
};

/** An operator by OpenCL against the same by CUDA, in float32. Each runs the variant that its own time table chooses.
 */
struct OpenClRow {
    OperatorSpec op; /**< By CUDA. */
    int32_t batch;
    MaskSpec mask;
    double goal_ratio;

    /** The operator by OpenCL: the name of its PolyKernel ends with "opencl" in place of "cuda". */
    std::string polykernel() const {
        return op.polykernel.substr(0, op.polykernel.rfind('_') + 1) + "opencl";
    }
};

/** Who chooses the variant of a masked call. */
enum class Chooser {
    Device, /**< The GPU, in a graph that was captured without naming one. */
    Linked  /**< The host, with the dense peer among the candidates. */
};

/** What a choice costs: the device's against the best variant named, or the host's against the dense peer alone. */
struct ChoiceRow {
    OperatorSpec op; /**< In the row's type. */
    int32_t batch;
    MaskSpec mask;
    const Numerics *numerics;
    Chooser chooser;
    double goal; /**< The most microseconds above the best variant, or the largest part of the peer's time. */
};

/** The bytes that an operator moves for its active pixels, each counted once, against a copy of as many bytes. */
struct BandwidthRow {
    OperatorSpec op;
    int32_t batch;
    MaskSpec mask;
    double goal_share; /**< The least part of the copy's bandwidth; 0: no goal. */
};

/** From bytes to the tile list, on one core. */
struct MaskRow {
    int32_t height, width;
    MaskSpec mask;
    double goal_us;
};

/** The choice of a variant for a mask with known counts. */
struct SelectRow {
    OperatorSpec op;
    double goal_us;
};

/** A parallel loop of tasks that only wait. */
struct PoolRow {
    int32_t tasks;
    double task_us;
};

/** From bytes to the call of a kernel that computes nothing. */
struct DispatchRow {
    OperatorSpec op;
};

/** Making a mask from masks, on one core. */
struct AlgebraRow {
    std::string function;
    int32_t height, width;
    MaskSpec mask;
    double goal_us;
};

/** The mask of the pixels at which two images differ, against reading both images, on one core. */
struct DifferenceRow {
    int32_t height, width, channels;
    double goal_ratio;
};

/** A conversion between NCHW and our tensors, against copying as many bytes, on one core. */
struct LayoutRow {
    bool from_nchw;
    int32_t batch, channels, height, width;
};

/** What transformers do to tokens beside their operators ("layer_norm", "rms_norm", "pack" or "unpack"), in float32,
 * against the same with every token active. */
struct TokenRow {
    std::string function;
    int32_t batch, tokens, channels;
    MaskSpec mask;
};

/** Steps of a chain of equal operators with a new mask for each step, for every way to keep inactive pixels zero. */
struct PlannerRow {
    OperatorSpec op;
    int32_t layers;
    MaskSpec mask;
    int32_t batch;
};

/** An operator that --objects brought, with every way to a plan of it in turns, against a peer's dense one. */
struct OwnRow {
    std::string op;
    MaskSpec mask;
    bool bordered;
    std::string peer;
    bool in_means; /**< It counts in the means over operators. */
};

struct Row {
    std::string name;
    std::variant<ConvolutionRow, TypeRow, OpenClRow, ChoiceRow, BandwidthRow, MaskRow, SelectRow, PoolRow, DispatchRow,
                 AlgebraRow, DifferenceRow, LayoutRow, TokenRow, PlannerRow, OwnRow>
        what;
    /** The version of code that this program was not built with. Rows of another version are measured again. */
    std::string version;
};

/** What rows need to know of an operator that --objects brought. */
struct OwnOperator {
    std::string name;
    std::vector<std::string> ways; /**< Each has a shared object NAME.WAY.so. */
    bool padded;                   /**< Its input may have a border. */
    std::string version;
};

/** The rows of a file whose names match a regular expression, in the order of the file, but grouped by operator and
 * batch. The rows "own_rows" are those of `own`. Throws std::runtime_error that says what is wrong and where, also if
 * no row matches. */
std::vector<Row> read_rows(const std::string &path, const std::string &filter,
                           const std::vector<OwnOperator> &own = {});

}  // namespace distile::bench

#endif
