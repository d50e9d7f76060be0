#include "plans/emit.h"
#include "facts/kind_names.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "plans/refuse.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"
#include "schedules/cpu_space.h"
#include "schedules/token_space.h"
#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

namespace distile {

namespace {

std::string quoted_name(const Plan &plan) {
    return "'" + plan.name + "'";
}

/** The points of a plan's time table, as descriptors have them: ordered by variant, threads and tiles. */
std::vector<distile_time_point> points_of(const Plan &plan) {
    std::vector<distile_time_point> points;
    for (const PlanTime &time : plan.times) {
        for (size_t i = 0; i < plan.variants.size(); i++) {
            if (plan.variants[i].name == time.variant) {
                points.push_back({static_cast<int32_t>(i), time.threads, time.tiles, time.microseconds});
            }
        }
    }
    std::sort(points.begin(), points.end(), [](const distile_time_point &a, const distile_time_point &b) {
        return std::tie(a.variant, a.threads, a.tiles) < std::tie(b.variant, b.threads, b.tiles);
    });
    return points;
}

/** The struct and the operands of the operator, which all plans of a chain share. */
void emit_operator(std::ostream &c, const Operator &op) {
    const CStruct geometry = op.schema().c_struct(op);
    c << "static const " << geometry.name << " op = {\n";
    for (const auto &[name, value] : geometry.members) {
        c << "    ." << name << " = " << value << ",\n";
    }
    c << "};\n\nstatic const distile_operand operands[] = {\n";
    for (const Operand &operand : op.operands()) {
        c << "    {.role = " << operand.role << ", .dtype = " << operand.type->enumerator
          << ", .channels = " << operand.channels << "},\n";
    }
    c << "};\n\n";
}

/** The groups that generated code has in a dimension of their own (GroupForm::Padded); 1 if it has none. */
int groups_apart(const Plan &plan, const PlanVariant &variant) {
    OperatorFacts facts = facts_of(plan.op);
    facts.channel_block = plan.channel_block(variant);
    return pads_groups(facts, get_backend(plan.backend).group_readers) ? facts.groups : 1;
}

/** The call of a variant's code from Halide. */
void emit_call_of_halide(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &function) {
    c << "int " << function << "_argv(void **arguments);\n"
      << "static int run_" << function << "(const distile_kernel_call *call) {\n";
    if (plan.op.reads_keys() && get_backend(plan.backend).blocks_rows) {
        const int lanes = find_platform(plan.target)->architecture.vectors_of(target_words(plan.target)).lanes;
        c << "    static const distile_row_blocks blocks = {" << plan.op.param("heads") << ", "
          << variant.theta.at("rows") << ", " << row_step(variant.theta, lanes) << ", "
          << (plan.op.is_set("causal") ? 1 : 0) << ", " << more_rows(facts_of(plan.op).product) << ", "
          << value_of(variant.theta, "softmax_keys") << "};\n"
          << "    return distile_call_row_blocks(" << function << "_argv, &blocks, call);\n}\n\n";
    } else if (plan.op.reads_keys()) {
        c << "    static const distile_token_lists lists = {" << variant.theta.at("block_rows") << ", "
          << variant.theta.at("block_keys") << "};\n"
          << "    return distile_call_token_lists(" << function << "_argv, &lists, call);\n}\n\n";
    } else if (const int groups = groups_apart(plan, variant); groups > 1) {
        c << "    return distile_call_halide_groups(" << function << "_argv, " << groups << ", call);\n}\n\n";
    } else {
        c << "    return distile_call_halide(" << function << "_argv, call);\n}\n\n";
    }
}

/** The variants of a plan, and how each is called. */
void emit_variants(std::ostream &c, const Plan &plan, size_t index, const std::string &symbol) {
    std::vector<std::string> runs;
    for (const PlanVariant &variant : plan.variants) {
        const std::string function = function_name(symbol, index, variant.name);
        runs.push_back("run_" + function);
        if (variant.language == Language::Halide) {
            emit_call_of_halide(c, plan, variant, function);
        } else if (variant.language == Language::DotProduct) {
            emit_call_of_dot_products(c, plan, variant, function);
        } else if (variant.language == Language::Nonzeros) {
            emit_call_of_nonzeros(c, plan, variant, function);
        } else if (variant.language == Language::Bitmap) {
            emit_call_of_bitmap(c, plan, variant, function);
        } else if (variant.language == Language::TwoFour) {
            emit_call_of_two_four(c, plan, variant, function);
        }
    }
    if (plan.has(Language::TensorCore)) {
        emit_tensor_core_calls(c, plan, index, plan_name(symbol, index), runs);
    }
    const bool may_copy =
        get_backend(plan.backend).reads_float32 && !facts_of(plan.op).depthwise && !plan.op.reads_keys();
    c << "static const distile_variant variants_" << index << "[] = {\n";
    for (const PlanVariant &variant : plan.variants) {
        c << "    {.name = " << quote(variant.name) << ", .tile_h = " << variant.tile_h()
          << ", .tile_w = " << variant.tile_w() << ", .dense = " << (variant.dense ? 1 : 0)
          << ", .layout = " << quote(plan.layout_of(variant)) << ", .run = run_"
          << function_name(symbol, index, variant.name);
        if (variant.language == Language::TensorCore && listless_pixels(plan, variant) != 0) {
            c << ", .listless_pixels = " << listless_pixels(plan, variant);
        } else if (variant.language == Language::Halide && may_copy) {
            c << ", .input_dtype = DISTILE_FLOAT32";
        }
        if (const int launch = launch_of(plan, variant); launch != 0) {
            c << ", .launch = " << launch;
        }
        if (variant.order != DISTILE_TILES_BY_ROWS) {
            c << ", .order = " << variant.order;
        }
        c << "},\n";
    }
    c << "};\n\n";
}

/** The PolyKernel of one plan in a chain, with what it refers to. */
void emit_plan(std::ostream &c, const std::vector<Plan> &plans, size_t index, const std::string &symbol) {
    const Plan &plan = plans[index];
    emit_variants(c, plan, index, symbol);
    const std::vector<distile_time_point> points = points_of(plan);
    if (!points.empty()) {
        c << "static const distile_time_point times_" << index << "[] = {\n" << std::fixed << std::setprecision(3);
        for (const distile_time_point &point : points) {
            c << "    {" << point.variant << ", " << point.threads << ", " << point.tiles << ", " << point.microseconds
              << "},\n";
        }
        c << "};\n\n";
    }
    if (index == 0) {
        c << "extern const distile_polykernel " << symbol << ";\nconst distile_polykernel " << symbol << " = {\n";
    } else {
        c << "static const distile_polykernel polykernel_" << index << " = {\n";
    }
    c << "    .version = DISTILE_POLYKERNEL_VERSION,\n"
      << "    .name = " << quote(plan.name) << ",\n"
      << "    .kind = " << kind_enumerator(plan.op.schema().kind) << ",\n"
      << "    .op = &op,\n"
      << "    .num_operands = " << plan.op.operands().size() << ",\n"
      << "    .operands = operands,\n"
      << "    .device = " << get_backend(plan.backend).device << ",\n"
      << "    .features = " << quote(plan.features()) << ",\n"
      << (plan.math == Math::TF32 ? "    .math = DISTILE_MATH_TF32,\n" : "") << "    .plan_hash = 0x"
      << plan_hash_text(plan) << ",\n"
      << "    .num_variants = " << plan.variants.size() << ",\n"
      << "    .variants = variants_" << index << ",\n";
    if (gpu_chooses(plan)) {
        c << "    .run_chosen = run_chosen_" << index << ",\n";
    }
    if (!points.empty()) {
        c << "    .num_times = " << points.size() << ",\n    .times = times_" << index << ",\n";
    }
    if (plan.has(Language::Nonzeros) || plan.has(Language::Bitmap)) {
        c << "    .nonzeros = " << typical_nonzeros(plan.op) << ",\n";
    }
    if (index + 1 < plans.size()) {
        c << "    .fallback = &polykernel_" << index + 1 << ",\n";
    }
    c << "};\n\n";
}

}  // namespace

void check_chain(const std::vector<Plan> &plans) {
    for (size_t i = 1; i < plans.size(); i++) {
        const Plan &plan = plans[i];
        const std::string where = "the plan " + quoted_name(plan);
        const Backend &backend = get_backend(plan.backend), &first = get_backend(plans.front().backend);
        if (&backend != &first) {
            refuse(where, std::string("a plan for ") + backend.display_name + " cannot stand behind one for " +
                              first.display_name + ", " + quoted_name(plans.front()));
        }
        if (!(plan.op == plans.front().op)) {
            refuse(where, "it is for another operator than " + quoted_name(plans.front()));
        }
        for (size_t j = 0; j < i; j++) {
            if (plan.name == plans[j].name) {
                refuse(where,
                       "another plan of the PolyKernel has the same name; time tables tell plans apart by their names");
            }
            // A context may not allow TF32.
            const bool may_be_skipped = plans[j].math == Math::TF32 && plan.math != Math::TF32;
            if (!may_be_skipped && backend.includes(plan.features(), plans[j].features())) {
                refuse(where, "no device would take it: all that have its features can run " + quoted_name(plans[j]) +
                                  ", which stands before it. Put the most demanding plan first");
            }
        }
    }
}

std::string plan_name(const std::string &symbol, size_t index) {
    return symbol + "_" + std::to_string(index);
}

std::string function_name(const std::string &symbol, size_t index, const std::string &variant) {
    return plan_name(symbol, index) + "_" + variant;
}

std::string emit_polykernels(const std::vector<Plan> &plans, const std::string &symbol) {
    check_chain(plans);
    std::ostringstream c;
    c << "/* The PolyKernel " << symbol << ": " << plans.front().op.summary() << ". Made from its plans. */\n"
      << "#include \"kernels/bitmap.h\"\n#include \"kernels/dot_products.h\"\n"
      << "#include \"kernels/halide/code.h\"\n#include \"kernels/tensor_core/code.h\"\n#include "
         "\"kernels/two_four.h\"\n\n";
    emit_operator(c, plans.front().op);
    // From the last to the first, because each names the one behind it.
    for (size_t i = plans.size(); i-- > 0;) {
        emit_plan(c, plans, i, symbol);
    }
    return c.str();
}

std::string emit_header(const std::vector<Plan> &plans, const std::string &symbol) {
    return "/* " + plans.front().name + ": " + plans.front().op.summary() + ". */\n#ifndef DISTILE_POLYKERNEL_" +
           symbol + "\n#define DISTILE_POLYKERNEL_" + symbol +
           "\n\n#include <distile/distile.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
           "extern const distile_polykernel " +
           symbol + ";\n\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n";
}

}  // namespace distile
