#include "plans/dot_product.h"
#include "kernels/dot_products.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "runtime/kinds/dot_product_layout.h"
#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace distile {

namespace {

/** Each instruction set, the best first of each type. */
constexpr struct {
    DotProducts instructions;
    distile_dtype dtype;    /**< The operator's; DISTILE_INT8 stands for both quantized types. */
    const char *feature;    /**< What code needs: a feature of CPUs, "" for none, or a compute capability of GPUs. */
    bool unknown_to_halide; /**< Halide's targets do not have the feature: only these plans name it. */
    bool vectors;           /**< Computes in vector registers, not in tiles. */
    const char *function, *object;
} known[] = {
    {DotProducts::AmxBf16, DISTILE_BFLOAT16, "amx_bf16", true, false, "distile_call_amx_bf16", "distile_amx_bf16.o"},
    {DotProducts::Avx512Bf16, DISTILE_BFLOAT16, "avx512_bf16", true, true, "distile_call_avx512_bf16",
     "distile_avx512_bf16.o"},
    {DotProducts::AmxFp16, DISTILE_FLOAT16, "amx_fp16", true, false, "distile_call_amx_fp16", "distile_amx_fp16.o"},
    {DotProducts::AmxSplitFp16, DISTILE_FLOAT16, "amx_bf16", true, false, "distile_call_amx_split_fp16",
     "distile_amx_split_fp16.o"},
    {DotProducts::AmxInt8, DISTILE_INT8, "amx_int8", true, false, "distile_call_amx_int8", "distile_amx_int8.o"},
    {DotProducts::Avx512Vnni, DISTILE_INT8, "avx512_vnni", true, true, "distile_call_avx512_vnni",
     "distile_avx512_vnni.o"},
    {DotProducts::AvxVnni, DISTILE_INT8, "avx_vnni", true, true, "distile_call_avx_vnni", "distile_avx_vnni.o"},
    {DotProducts::Avx2Int8, DISTILE_INT8, "avx2", false, true, "distile_call_avx2_int8", "distile_avx2_int8.o"},
    {DotProducts::Dp4a, DISTILE_INT8, "sm_75", false, true, "distile_call_dp4a", "distile_dp4a.o"},
    {DotProducts::PortableInt8, DISTILE_INT8, "", false, true, "distile_call_portable_int8",
     "distile_portable_int8.o"}};

/** How targets of code for GPUs end. nvcc compiles for no older ones. */
constexpr const char *gpu_target = "cuda-cuda_capability_75";

/** Whether a row is for operators of a type. */
template<typename Row> bool is_for(const Row &row, const DataType &type) {
    return row.dtype == (type.is_quantized() ? DISTILE_INT8 : type.dtype);
}

bool has_word(const std::string &text, const std::string &wanted) {
    std::istringstream stream(text);
    for (std::string word; stream >> word;) {
        if (word == wanted) {
            return true;
        }
    }
    return false;
}

std::optional<DotProducts> best_of(const DataType &type, const std::string &features, bool in_vectors) {
    for (const auto &row : known) {
        if (is_for(row, type) && (*row.feature == '\0' || has_word(features, row.feature)) &&
            (row.vectors || !in_vectors)) {
            return row.instructions;
        }
    }
    return std::nullopt;
}

const auto &row_of(const Plan &plan) {
    const std::optional<DotProducts> instructions = dot_products_of(plan.op, plan.features());
    const auto *found = std::find_if(std::begin(known), std::end(known),
                                     [&](const auto &row) { return row.instructions == instructions; });
    if (found == std::end(known)) {
        throw std::logic_error("plans of dot products name their instructions");
    }
    return *found;
}

void emit_taps(std::ostream &c, const char *name, const std::vector<distile_taps> &taps) {
    c << "    static const distile_taps " << name << "[] = {";
    for (const distile_taps &phase : taps) {
        c << (&phase == taps.data() ? "{" : ", {") << phase.first << ", " << phase.step << ", " << phase.taps << "}";
    }
    c << "};\n";
}

}  // namespace

std::string why_no_dot_products(const Operator &op) {
    if (op.is_quantized()) {
        return op.schema().kind != DISTILE_MASKED_UPSAMPLE_CONV2D
                   ? ""
                   : "there is no quantized code for this operator: after upsampling, sums of weights would not fit 8 "
                     "bits";
    }
    const OperatorFacts facts = facts_of(op);
    const bool has_code = std::any_of(std::begin(known), std::end(known), [&](const auto &row) {
        return is_for(row, op.dtype()) && (row.vectors || !needs_vectors(facts));
    });
    return has_code && runs_on_dot_products(facts)
               ? ""
               : "there is no code for dot products for this operator: it computes linear layers and convolutions in "
                 "bfloat16 and float16, but no depthwise ones, and none with groups of fewer than 8 input channels, "
                 "unless neighbouring groups of bfloat16 fill a vector";
}

bool multiplies(DotProducts instructions, const Operator &op) {
    return why_no_dot_products(op).empty() && std::any_of(std::begin(known), std::end(known), [&](const auto &row) {
               return row.instructions == instructions && is_for(row, op.dtype()) &&
                      (row.vectors || !needs_vectors(facts_of(op)));
           });
}

std::optional<DotProducts> dot_products_of(const Operator &op, const std::string &features) {
    return best_of(op.dtype(), features, needs_vectors(facts_of(op)));
}

std::optional<DotProducts> dot_products_of(const DataType &type, const std::string &features) {
    return best_of(type, features, false);
}

bool has_words_of_dot_products(const std::string &features) {
    return std::any_of(std::begin(known), std::end(known),
                       [&](const auto &row) { return row.unknown_to_halide && has_word(features, row.feature); });
}

std::string with_dot_products(const Operator &op, const std::string &target, const std::string &features) {
    if (skips_zeros(op) && !op.is_quantized()) {
        return target;
    }
    if (op.is_quantized() && &backend_of_target(target) == &cuda_backend()) {
        return find_platform(target)->target(gpu_target);
    }
    for (const auto &row : known) {
        if (row.unknown_to_halide && multiplies(row.instructions, op) && has_word(features, row.feature)) {
            return target + "-" + row.feature;
        }
    }
    return target;
}

std::vector<std::string> targets_of_dot_products(const Operator &op, const Platform &platform,
                                                 const std::string &level) {
    const Architecture &architecture = platform.architecture;
    std::vector<std::string> targets;
    if (skips_zeros(op) && !op.is_quantized()) {
        return targets;
    }
    for (const auto &row : known) {
        const auto found = std::find_if(architecture.halide_features.begin(), architecture.halide_features.end(),
                                        [&](const auto &feature) { return feature.first == std::string(row.feature); });
        const bool everywhere = *row.feature == '\0';
        if (multiplies(row.instructions, op) && (everywhere || found != architecture.halide_features.end()) &&
            cpu_backend().target_of(everywhere ? architecture.everywhere : found->second, platform) == level) {
            targets.push_back(row.unknown_to_halide ? level + "-" + row.feature : level);
        }
    }
    return targets;
}

std::string word_of_dot_products(const std::string &target) {
    std::string found;
    for (const std::string &word : target_words(target)) {
        const bool own = std::any_of(std::begin(known), std::end(known),
                                     [&](const auto &row) { return row.unknown_to_halide && word == row.feature; });
        found = own ? word : found;
    }
    return found;
}

const char *dot_product_object(const Plan &plan) {
    return row_of(plan).object;
}

void emit_dot_product_code(std::ostream &c, const Plan &plan, const PlanVariant &variant, const BlockExtents &block,
                           const char *code_function, const std::string &function) {
    const Convolution of = plan.op.schema().convolution(plan.op);
    const bool skips = variant.language == Language::Nonzeros || variant.language == Language::Bitmap ||
                       variant.language == Language::TwoFour;
    const DotProductTaps taps =
        dot_product_taps(of.kind, of.conv, skips ? 1 : channel_sections(facts_of(plan.op)).pack);
    c << "static int run_" << function << "(const distile_kernel_call *call) {\n";
    emit_taps(c, "rows", taps.rows);
    emit_taps(c, "columns", taps.columns);
    c << "    static const distile_dot_product_code code = {\n        .epilogue = " << plan.op.epilogue()
      << ", .tile_h = " << variant.tile_h() << ", .tile_w = " << variant.tile_w()
      << ", .block_pixels = " << block.pixels << ", .block_channels = " << block.channels
      << ",\n        .staged_blocks = " << block.staged
      << ", .channel_splits = " << std::max(1, value_of(variant.theta, "channel_splits"))
      << ", .scale_h = " << taps.scale_h << ", .scale_w = " << taps.scale_w << ", .stride_h = " << taps.stride_h
      << ", .stride_w = " << taps.stride_w << ",\n        .read_channels = " << taps.read_channels
      << ", .section_channels = " << taps.section_channels << ", .apart_groups = " << taps.apart_groups
      << ", .rows = rows, .columns = columns"
      << (value_of(variant.theta, "splits") > 1 ? ", .reduction_splits = " + std::to_string(variant.theta.at("splits"))
                                                : "")
      << "};\n    return " << code_function << "(&code, call);\n}\n\n";
}

void emit_call_of_dot_products(std::ostream &c, const Plan &plan, const PlanVariant &variant,
                               const std::string &function) {
    emit_dot_product_code(c, plan, variant,
                          {variant.theta.at("pixels"), variant.theta.at("channels"), variant.theta.at("staged")},
                          row_of(plan).function, function);
}

std::string call_of_dot_products(const Plan &plan) {
    std::ostringstream c;
    emit_call_of_dot_products(c, plan, plan.variants.front(), plan.variants.front().name);
    return c.str();
}

}  // namespace distile
