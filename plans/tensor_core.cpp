#include "tensor_core.h"
#include "arguments.h"
#include "operator_schema.h"
#include <sstream>

namespace distile {

namespace {

/** The type of CuTe in which an operator's values are multiplied. */
const char *element_of(const Operator &op) {
    switch (op.dtype().dtype) {
    case DISTILE_FLOAT16:
        return "cute::half_t";
    case DISTILE_BFLOAT16:
        return "cute::bfloat16_t";
    default:
        return "cute::tfloat32_t";
    }
}

const char *activation_of(const Operator &op) {
    switch (op.epilogue_value()) {
    case DISTILE_EPILOGUE_RELU:
        return "Relu";
    case DISTILE_EPILOGUE_RELU6:
        return "Relu6";
    case DISTILE_EPILOGUE_SILU:
        return "Silu";
    case DISTILE_EPILOGUE_GELU:
        return "Gelu";
    default:
        return "None";
    }
}

}  // namespace

const char *const tensor_core_kernel = "distile_masked";

bool runs_on_tensor_cores(const Operator &op) {
    // Those whose weights the runtime packs for them.
    const distile_operator_kind kind = op.schema().kind;
    return (kind == DISTILE_MASKED_CONV2D || kind == DISTILE_MASKED_LINEAR) && runs_on_tensor_cores(facts_of(op));
}

TensorCores tensor_cores_of(const Plan &plan) {
    return plan.features() == "sm_90a" ? TensorCores::Sm90 : TensorCores::Sm80;
}

int listless_pixels(const PlanVariant &variant) {
    const bool lists = variant.dense || variant.tile_h() != 1 || variant.tile_w() != 1;
    return lists ? 0 : static_cast<int>(tensor_core::listless_pixels);
}

void emit_tensor_core_call(std::ostream &c, const Plan &plan, const PlanVariant &variant, const std::string &run,
                           const std::string &name) {
    const TensorCores cores = tensor_cores_of(plan);
    const TensorCoreBlock block = tensor_core_block(cores, variant.theta);
    const Theta &theta = variant.theta;
    const OperatorFacts facts = facts_of(plan.op);
    const bool boxes = has_boxes(cores, theta, facts);
    c << "extern const char " << name << "_code[], " << name << "_code_end[];\n"
      << "static int " << run << "(const distile_kernel_call *call) {\n"
      << "    const distile_tensor_core_code code = {\n"
      << "        .code = " << name << "_code,\n"
      << "        .bytes = (size_t)(" << name << "_code_end - " << name << "_code),\n"
      << "        .kernel = \"" << tensor_core_kernel << "\",\n"
      << "        .block_pixels = " << value_of(theta, "block_pixels") << ",\n"
      << "        .block_channels = " << value_of(theta, "block_channels") << ",\n"
      << "        .splits = " << value_of(theta, "splits") << ",\n"
      << "        .balanced = " << value_of(theta, "balanced") << ",\n"
      << "        .threads = " << block.threads << ",\n"
      << "        .blocks_per_multiprocessor = " << block.per_multiprocessor << ",\n"
      << "        .shared_bytes = " << block.shared_bytes << ",\n"
      << "        .tile_h = " << variant.tile_h() << ",\n"
      << "        .tile_w = " << variant.tile_w() << ",\n"
      << "        .box_step_h = " << (boxes ? facts.stride_h : 0) << ",\n"
      << "        .box_step_w = " << (boxes ? facts.stride_w : 0) << ",\n"
      << "        .early = " << (cores == TensorCores::Sm90 ? 1 : 0) << ",\n"
      << "    };\n    return distile_call_tensor_core(&code, call);\n}\n\n";
}

std::string tensor_core_source(const Plan &plan, const PlanVariant &variant) {
    const TensorCores cores = tensor_cores_of(plan);
    const bool sm90 = cores == TensorCores::Sm90;
    const TensorCoreBlock block = tensor_core_block(cores, variant.theta);
    const distile_conv2d conv = plan.op.schema().convolution(plan.op).conv;
    const Theta &theta = variant.theta;
    std::ostringstream cu;
    cu << "// The variant " << variant.name << " of " << plan.name << ": " << plan.op.summary() << ".\n"
       << "#include \"" << (sm90 ? "sm90" : "sm80") << ".cuh\"\n\n"
       << "using namespace distile::tensor_core;\n\n"
       << "struct Op {\n"
       << "    using Element = " << element_of(plan.op) << ";\n"
       << "    static constexpr int in_channels = " << conv.in_channels << ", out_channels = " << conv.out_channels
       << ";\n"
       << "    static constexpr int kernel_h = " << conv.kernel_h << ", kernel_w = " << conv.kernel_w
       << ", stride_h = " << conv.stride_h << ", stride_w = " << conv.stride_w << ";\n"
       << "    static constexpr int pad_top = " << conv.pad_top << ", pad_left = " << conv.pad_left
       << ", dilation_h = " << conv.dilation_h << ", dilation_w = " << conv.dilation_w << ";\n"
       << "    static constexpr int tile_h = " << variant.tile_h() << ", tile_w = " << variant.tile_w() << ";\n"
       << "    static constexpr Activation activation = Activation::" << activation_of(plan.op) << ";\n"
       << "    static constexpr bool residual = " << (conv.residual != 0 ? "true" : "false") << ";\n"
       << "};\n\n"
       << "// Pixels and channels of a block, stages, splits, whether the work is balanced.\n"
       << "using Kernel = " << (sm90 ? "Sm90" : "Sm80") << "<Op, " << value_of(theta, "block_pixels") << ", "
       << value_of(theta, "block_channels") << ", " << value_of(theta, "stages") << ", " << value_of(theta, "splits")
       << (value_of(theta, "balanced") != 0 ? ", true" : ", false") << ">;\n"
       << "static_assert(Kernel::threads == " << block.threads << " && Kernel::shared_bytes == " << block.shared_bytes
       << " && Kernel::blocks == " << block.per_multiprocessor
       << " &&\n              Kernel::has_boxes == " << (has_boxes(cores, theta, facts_of(plan.op)) ? "true" : "false")
       << ", \"what launches it counts otherwise\");\n\n"
       << "extern \"C\" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)\n"
       << tensor_core_kernel << "(__grid_constant__ const Arguments arguments) {\n"
       << "    Kernel::run(arguments);\n"
       << "}\n";
    return cu.str();
}

}  // namespace distile
