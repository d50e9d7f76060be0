#include "plans/attention_code.h"
#include "plans/operator_schema.h"
#include "plans/tensor_core.h"
#include "schedules/attention_space.h"
#include <sstream>

namespace distile {

namespace {

std::string kernel_of(const PlanVariant &variant) {
    return "distile_" + variant.name;
}

AttentionBlock attention_block_of(const Plan &plan, const PlanVariant &variant) {
    return attention_block(tensor_cores_of(plan), variant.theta, facts_of(plan.op));
}

/** The template of a plan's kernels, and its header. */
struct Template {
    const char *name, *header;
};
Template template_of(const Plan &plan) {
    switch (facts_of(plan.op).product) {
    case TokenProduct::Scores:
        return {"ScoresSm80", "products_sm80"};
    case TokenProduct::Values:
        return {"ValuesSm80", "products_sm80"};
    default:
        return tensor_cores_of(plan) == TensorCores::Sm90 ? Template{"AttentionSm90", "attention_sm90"}
                                                          : Template{"AttentionSm80", "attention_sm80"};
    }
}

/** What an operator of a plan in C says it computes. */
const char *product_of(const Plan &plan) {
    switch (facts_of(plan.op).product) {
    case TokenProduct::Scores:
        return "DISTILE_SCORES";
    case TokenProduct::Values:
        return "DISTILE_VALUES";
    default:
        return "0";
    }
}

const char *flag_of(const Operator &op, const char *name) {
    return op.is_set(name) ? "true" : "false";
}

/** The arguments of the template behind the operator's. */
std::string arguments_of(TensorCores cores, const Theta &theta) {
    const auto flag = [&](const char *knob) { return value_of(theta, knob) != 0 ? "true, " : "false, "; };
    const int rows = value_of(theta, "block_rows");
    std::string arguments = std::to_string(cores == TensorCores::Sm90 ? rows / 64 : rows) + ", " +
                            std::to_string(value_of(theta, "block_keys")) + ", " +
                            std::to_string(value_of(theta, "stages")) + ", ";
    if (cores == TensorCores::Sm90) {
        arguments.append(flag("overlapped")).append(flag("ordered")).append(flag("balanced"));
    } else {
        arguments.append(std::to_string(value_of(theta, "warp_rows"))).append(", ");
    }
    return arguments + std::to_string(value_of(theta, "blocks"));
}

void write_kernel(std::ostream &cu, const Plan &plan, const PlanVariant &variant) {
    const TensorCores cores = tensor_cores_of(plan);
    const bool sm90 = cores == TensorCores::Sm90;
    const AttentionBlock block = attention_block_of(plan, variant);
    const std::string name = "Of_" + variant.name;
    cu << "\n// " << (sm90 ? "Groups of 64 rows" : "Rows of a block") << ", keys of a step, stages, "
       << (sm90 ? "whether it is overlapped, ordered and balanced, " : "rows of a warp, ")
       << "blocks of a multiprocessor.\n"
       << "using " << name << " = " << template_of(plan).name << "<Operator, " << arguments_of(cores, variant.theta)
       << ">;\n"
       << "static_assert(" << name << "::threads == " << block.threads << " && " << name
       << "::shared_bytes == " << block.shared_bytes << " &&\n              " << name
       << "::part_bytes == " << block.part_bytes << ", \"what launches it counts otherwise\");\n"
       << "extern \"C\" __global__ void __launch_bounds__(" << block.threads << ", "
       << value_of(variant.theta, "blocks") << ")\n"
       << kernel_of(variant) << "(__grid_constant__ const AttentionArguments arguments) {\n"
       << "    " << name << "::run(arguments);\n"
       << "}\n";
}

}  // namespace

bool reads_keys(const Operator &op) {
    return facts_of(op).product != TokenProduct::None;
}

void emit_attention_calls(std::ostream &c, const Plan &plan, size_t index, const std::string &name,
                          const std::vector<std::string> &functions) {
    const std::string array = "codes_" + std::to_string(index);
    c << "extern const char " << name << "_code[], " << name << "_code_end[];\n"
      << "static const distile_attention_code " << array << "[" << plan.variants.size() << "] = {\n";
    for (size_t i = 0; i < plan.variants.size(); i++) {
        const PlanVariant &variant = plan.variants[i];
        if (variant.language != Language::TensorCore) {
            continue;
        }
        const AttentionBlock block = attention_block_of(plan, variant);
        c << "    [" << i << "] = {.code = " << name << "_code, .end = " << name
          << "_code_end, .kernel = " << quote(kernel_of(variant)) << ", .heads = " << plan.op.param("heads")
          << ", .block_rows = " << value_of(variant.theta, "block_rows") << ", .threads = " << block.threads
          << ", .blocks_per_multiprocessor = " << value_of(variant.theta, "blocks")
          << ", .shared_bytes = " << block.shared_bytes << ", .part_bytes = " << block.part_bytes
          << ", .early = " << (tensor_cores_of(plan) == TensorCores::Sm90 ? 1 : 0)
          << ", .product = " << product_of(plan) << "},\n";
    }
    c << "};\n";
    for (size_t i = 0; i < plan.variants.size(); i++) {
        if (plan.variants[i].language == Language::TensorCore) {
            c << "static int " << functions[i] << "(const distile_kernel_call *call) {\n"
              << "    return distile_call_attention(&" << array << "[" << i << "], call);\n}\n";
        }
    }
    c << "\n";
}

std::string attention_source(const Plan &plan) {
    std::ostringstream cu;
    cu << "// The variants of " << plan.name << " for tensor cores: " << plan.op.summary() << ".\n"
       << "#include \"kernels/tensor_core/" << template_of(plan).header << ".cuh\"\n\n"
       << "using namespace distile::tensor_core;\n\n"
       << "struct Operator {\n"
       << "    using Element = " << tensor_core_element(plan.op) << ";\n"
       << "    static constexpr int heads = " << plan.op.param("heads") << ", head_dim = " << plan.op.param("head_dim")
       << ";\n"
       << "    static constexpr bool causal = " << flag_of(plan.op, "causal")
       << ", softmax = " << flag_of(plan.op, "softmax") << ", packed_columns = " << flag_of(plan.op, "packed_columns")
       << ";\n"
       << "};\n";
    for (const PlanVariant &variant : plan.variants) {
        if (variant.language == Language::TensorCore) {
            write_kernel(cu, plan, variant);
        }
    }
    return cu.str();
}

}  // namespace distile
