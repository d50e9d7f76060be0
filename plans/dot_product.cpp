#include "dot_product.h"
#include "dot_product_layout.h"
#include "operator_schema.h"
#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace distile {

namespace {

/** Each instruction set, the best first. */
constexpr struct {
    DotProducts instructions;
    const char *feature, *function, *object;
} known[] = {{DotProducts::AmxBf16, "amx_bf16", "distile_call_amx_bf16", "distile_amx_bf16.o"},
             {DotProducts::Avx512Bf16, "avx512_bf16", "distile_call_avx512_bf16", "distile_avx512_bf16.o"}};

const auto &row_of(const Plan &plan) {
    const std::optional<DotProducts> instructions = dot_products_of(plan.features());
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
    return op.dtype().dtype == DISTILE_BFLOAT16 && runs_on_dot_products(facts_of(op))
               ? ""
               : "there is no code for dot products for this operator: it computes convolutions without groups and "
                 "linear layers in bfloat16";
}

std::optional<DotProducts> dot_products_of(const std::string &features) {
    std::istringstream stream(features);
    const std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
    for (const auto &row : known) {
        if (std::find(words.begin(), words.end(), row.feature) != words.end()) {
            return row.instructions;
        }
    }
    return std::nullopt;
}

const char *dot_product_object(const Plan &plan) {
    return row_of(plan).object;
}

void emit_call_of_dot_products(std::ostream &c, const Plan &plan, const PlanVariant &variant,
                               const std::string &function) {
    const Convolution of = plan.op.schema().convolution(plan.op);
    const DotProductTaps taps = dot_product_taps(of.kind, of.conv);
    c << "static int run_" << function << "(const distile_kernel_call *call) {\n";
    emit_taps(c, "rows", taps.rows);
    emit_taps(c, "columns", taps.columns);
    c << "    static const distile_dot_product_code code = {\n        .epilogue = " << plan.op.epilogue()
      << ", .tile_h = " << variant.tile_h() << ", .tile_w = " << variant.tile_w()
      << ", .block_pixels = " << variant.theta.at("pixels") << ", .block_channels = " << variant.theta.at("channels")
      << ",\n        .staged_blocks = " << variant.theta.at("staged")
      << ", .channel_splits = " << variant.theta.at("channel_splits") << ", .scale_h = " << taps.scale_h
      << ", .scale_w = " << taps.scale_w << ", .stride_h = " << taps.stride_h << ", .stride_w = " << taps.stride_w
      << ",\n        .rows = rows, .columns = columns};\n    return " << row_of(plan).function
      << "(&code, call);\n}\n\n";
}

std::string call_of_dot_products(const Plan &plan) {
    std::ostringstream c;
    emit_call_of_dot_products(c, plan, plan.variants.front(), plan.variants.front().name);
    return c.str();
}

}  // namespace distile
