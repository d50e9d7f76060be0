#include "plans/tensor_core.h"
#include "kernels/tensor_core/arguments.h"
#include "plans/attention_code.h"
#include "plans/json_file.h"
#include "plans/operator_schema.h"
#include "schedules/attention_space.h"
#include <algorithm>
#include <sstream>

namespace distile {

namespace {

const char *element_of(const DataType &type) {
    const char *const element = find_tensor_core_element(type);
    if (!element) {
        throw FileError(std::string("the kernels for tensor cores do not multiply ") + type.name);
    }
    return element;
}

/** A kernel runs one of its variants. As many blocks of each fit a multiprocessor. */
struct Kernel {
    std::string name;
    TensorCoreBlock block; /**< With the most threads and shared memory of all. */
    std::vector<size_t> variants;
    bool splits = false; /**< Whether they share reductions, in clusters. */
};

TensorCoreBlock block_of(const Plan &plan, const PlanVariant &variant) {
    return tensor_core_block(tensor_cores_of(plan), variant.theta, plan.op.is_quantized());
}

/** The type in which results are stored. */
const char *result_type(const Operator &op) {
    const bool to_float = op.is_quantized() && !op.output_dtype().is_quantized();
    return to_float ? "float" : op.is_quantized() ? element_of(op.output_dtype()) : "Element";
}

/** A kernel for each variant, which the runtime names. Names of variants are identifiers. */
std::vector<Kernel> variant_kernels(const Plan &plan) {
    std::vector<Kernel> kernels;
    for (size_t i = 0; i < plan.variants.size(); i++) {
        const PlanVariant &variant = plan.variants[i];
        if (variant.language == Language::TensorCore) {
            kernels.push_back({"distile_" + variant.name, block_of(plan, variant), {i}});
        }
    }
    return kernels;
}

/** Kernels of several variants, of which the GPU chooses one. It launches each. */
std::vector<Kernel> shared_kernels(const Plan &plan) {
    std::vector<Kernel> kernels;
    for (size_t i = 0; i < plan.variants.size(); i++) {
        if (plan.variants[i].language != Language::TensorCore) {
            continue;
        }
        const TensorCores cores = tensor_cores_of(plan);
        const TensorCoreBlock block = block_of(plan, plan.variants[i]);
        const bool splits = value_of(plan.variants[i].theta, "splits") > 1;
        auto found = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel &kernel) {
            // Only the template for 9.0 does with more threads than it needs. Clusters leave some multiprocessors idle.
            return (cores == TensorCores::Sm90 || kernel.block.threads == block.threads) && kernel.splits == splits &&
                   kernel.block.per_multiprocessor == block.per_multiprocessor &&
                   kernel.variants.size() < tensor_core::most_variants;
        });
        if (found == kernels.end()) {
            kernels.push_back({"distile_chosen_" + std::to_string(kernels.size()), block, {}, splits});
            found = kernels.end() - 1;
        }
        found->block.threads = std::max(found->block.threads, block.threads);
        found->block.shared_bytes = std::max(found->block.shared_bytes, block.shared_bytes);
        found->variants.push_back(i);
    }
    return kernels;
}

/** The struct of a variant, behind that of the operator. */
std::string variant_struct(const PlanVariant &variant) {
    return "Of_" + variant.name;
}

void write_variant(std::ostream &cu, const Plan &plan, size_t index) {
    const PlanVariant &variant = plan.variants[index];
    const TensorCores cores = tensor_cores_of(plan);
    const TensorCoreBlock block = block_of(plan, variant);
    const Theta &theta = variant.theta;
    const std::string name = variant_struct(variant);
    cu << "struct " << name << " {\n"
       << "    static constexpr int index = " << index << ";\n"
       << "    struct Op : Operator {\n"
       << "        static constexpr int tile_h = " << variant.tile_h() << ", tile_w = " << variant.tile_w() << ";\n"
       << "    };\n"
       << "    // Pixels and channels of a block, stages, splits, whether the work is balanced.\n"
       << "    using Kernel = " << (cores == TensorCores::Sm90 ? "Sm90" : "Sm80") << "<Op, "
       << value_of(theta, "block_pixels") << ", " << value_of(theta, "block_channels") << ", "
       << value_of(theta, "stages") << ", " << value_of(theta, "splits")
       << (value_of(theta, "balanced") != 0 ? ", true" : ", false") << ">;\n"
       << "};\n"
       << "static_assert(" << name << "::Kernel::threads == " << block.threads << " && " << name
       << "::Kernel::shared_bytes == " << block.shared_bytes << " &&\n              " << name
       << "::Kernel::blocks == " << block.per_multiprocessor << " && " << name
       << "::Kernel::has_boxes == " << (has_boxes(cores, theta, facts_of(plan.op)) ? "true" : "false")
       << ", \"what launches it counts otherwise\");\n\n";
}

void write_kernel(std::ostream &cu, const Plan &plan, const Kernel &kernel, const char *body) {
    std::string variants;
    for (const size_t variant : kernel.variants) {
        variants += (variants.empty() ? "" : ", ") + variant_struct(plan.variants[variant]);
    }
    cu << "extern \"C\" __global__ void __launch_bounds__(" << kernel.block.threads << ", "
       << kernel.block.per_multiprocessor << ")\n"
       << kernel.name << "(__grid_constant__ const Launch<" << kernel.variants.size() << "> launch) {\n"
       << "    " << body << "<" << variants << ">(launch);\n"
       << "}\n";
}

/** The array of the variants' codes, by variant. */
void emit_codes(std::ostream &c, const Plan &plan, const std::vector<Kernel> &kernels, const std::string &array,
                const std::string &name) {
    const TensorCores cores = tensor_cores_of(plan);
    const OperatorFacts facts = facts_of(plan.op);
    c << "static const distile_tensor_core_code " << array << "[" << plan.variants.size() << "] = {\n";
    for (const Kernel &kernel : kernels) {
        for (size_t place = 0; place < kernel.variants.size(); place++) {
            const PlanVariant &variant = plan.variants[kernel.variants[place]];
            const Theta &theta = variant.theta;
            const bool boxes = has_boxes(cores, theta, facts);
            c << "    [" << kernel.variants[place] << "] = {.code = " << name << "_code, .end = " << name
              << "_code_end, .kernel = " << quote(kernel.name) << ", .place = " << place
              << ", .block_pixels = " << value_of(theta, "block_pixels")
              << ", .block_channels = " << value_of(theta, "block_channels")
              << ", .channel_blocks = " << channel_blocks(facts, value_of(theta, "block_channels"))
              << ", .splits = " << value_of(theta, "splits") << ", .balanced = " << value_of(theta, "balanced")
              << ", .threads = " << kernel.block.threads
              << ", .blocks_per_multiprocessor = " << kernel.block.per_multiprocessor
              << ", .shared_bytes = " << kernel.block.shared_bytes << ", .tile_h = " << variant.tile_h()
              << ", .tile_w = " << variant.tile_w() << ", .box_step_h = " << (boxes ? facts.stride_h : 0)
              << ", .box_step_w = " << (boxes ? facts.stride_w : 0)
              << ", .early = " << (cores == TensorCores::Sm90 ? 1 : 0) << "},\n";
        }
    }
    c << "};\n";
}

}  // namespace

const char *find_tensor_core_element(const DataType &type) {
    switch (type.dtype) {
    case DISTILE_FLOAT32:
        return "Tf32";
    case DISTILE_FLOAT16:
        return "Float16";
    case DISTILE_BFLOAT16:
        return "Bfloat16";
    case DISTILE_UINT8:
        return "uint8_t";
    case DISTILE_INT8:
        return "int8_t";
    default:
        return nullptr;
    }
}

const char *tensor_core_element(const Operator &op) {
    return element_of(op.dtype());
}

bool runs_on_tensor_cores(const Operator &op, TensorCores cores) {
    if (!find_tensor_core_element(op.dtype())) {
        return false;
    }
    if (reads_keys(op)) {
        return has_attention(facts_of(op), cores);
    }
    // TF32 reads weights of float32; other products read weights of the input's type.
    if (op.dtype().dtype == DISTILE_FLOAT32 && op.weights_dtype().dtype != DISTILE_FLOAT32) {
        return false;
    }
    // Operators whose weights the runtime packs for tensor cores.
    const distile_operator_kind kind = op.schema().kind;
    return (kind == DISTILE_MASKED_CONV2D || kind == DISTILE_MASKED_LINEAR) && runs_on_tensor_cores(facts_of(op));
}

TensorCores tensor_cores_of(const std::string &features) {
    return features == "sm_90a" ? TensorCores::Sm90 : TensorCores::Sm80;
}

TensorCores tensor_cores_of(const Plan &plan) {
    return tensor_cores_of(plan.features());
}

int listless_pixels(const Plan &plan, const PlanVariant &variant) {
    const bool lists = reads_keys(plan.op) || variant.dense || variant.tile_h() != 1 || variant.tile_w() != 1;
    return lists ? 0 : static_cast<int>(tensor_core::listless_pixels);
}

int launch_of(const Plan &plan, const PlanVariant &variant) {
    if (reads_keys(plan.op) || !gpu_chooses(plan)) {
        return 0;
    }
    const std::vector<Kernel> kernels = shared_kernels(plan);
    const auto number = static_cast<size_t>(&variant - plan.variants.data());
    for (size_t i = 0; i < kernels.size(); i++) {
        const std::vector<size_t> &variants = kernels[i].variants;
        if (std::find(variants.begin(), variants.end(), number) != variants.end()) {
            return static_cast<int>(i + 1);
        }
    }
    return 0;
}

void emit_tensor_core_calls(std::ostream &c, const Plan &plan, size_t index, const std::string &name,
                            const std::vector<std::string> &functions) {
    if (reads_keys(plan.op)) {
        emit_attention_calls(c, plan, index, name, functions);
        return;
    }
    const std::string own = "codes_" + std::to_string(index), shared = "choices_" + std::to_string(index);
    c << "extern const char " << name << "_code[], " << name << "_code_end[];\n";
    emit_codes(c, plan, variant_kernels(plan), own, name);
    for (size_t i = 0; i < plan.variants.size(); i++) {
        if (plan.variants[i].language == Language::TensorCore) {
            c << "static int " << functions[i] << "(const distile_kernel_call *call) {\n"
              << "    return distile_call_tensor_core(&" << own << "[" << i << "], call);\n}\n";
        }
    }
    if (gpu_chooses(plan)) {
        emit_codes(c, plan, shared_kernels(plan), shared, name);
        c << "static int run_chosen_" << index << "(const distile_kernel_call *calls, const int32_t *variants, "
          << "int32_t num_calls, const struct distile_gpu_choice *choice) {\n"
          << "    return distile_choose_tensor_core(" << shared << ", calls, variants, num_calls, choice);\n}\n";
    }
    c << "\n";
}

bool gpu_chooses(const Plan &plan) {
    // For operators that read keys, a kernel of the runtime chooses.
    return plan.variants.size() > 1 && !reads_keys(plan.op) &&
           std::all_of(plan.variants.begin(), plan.variants.end(),
                       [](const PlanVariant &variant) { return variant.language == Language::TensorCore; });
}

std::string tensor_core_source(const Plan &plan) {
    if (reads_keys(plan.op)) {
        return attention_source(plan);
    }
    const distile_conv2d conv = plan.op.schema().convolution(plan.op).conv;
    const GroupPanels panels = group_panels(facts_of(plan.op));
    std::ostringstream cu;
    cu << "// The variants of " << plan.name << " for tensor cores: " << plan.op.summary() << ".\n"
       << "#include \"kernels/tensor_core/" << (tensor_cores_of(plan) == TensorCores::Sm90 ? "sm90" : "sm80")
       << ".cuh\"\n#include \"kernels/tensor_core/launch.cuh\"\n\n"
       << "using namespace distile::tensor_core;\n\n"
       << "struct Operator {\n"
       << "    using Element = " << tensor_core_element(plan.op) << ";\n"
       << "    using Result = " << result_type(plan.op) << ";\n"
       << "    static constexpr int out_channels = " << conv.out_channels << ";\n"
       << "    // Output channels of a panel of groups, and the input channels that it reads.\n"
       << "    static constexpr int panel_channels = " << panels.outputs << ", read_channels = " << panels.inputs
       << ";\n"
       << "    static constexpr int kernel_h = " << conv.kernel_h << ", kernel_w = " << conv.kernel_w
       << ", stride_h = " << conv.stride_h << ", stride_w = " << conv.stride_w << ";\n"
       << "    static constexpr int pad_top = " << conv.pad_top << ", pad_left = " << conv.pad_left
       << ", dilation_h = " << conv.dilation_h << ", dilation_w = " << conv.dilation_w << ";\n"
       << "    static constexpr Activation activation = Activation::" << plan.op.params.at("epilogue") << ";\n"
       << "    static constexpr bool residual = " << (conv.residual != 0 ? "true" : "false") << ";\n"
       << "};\n";
    for (const Kernel &kernel : variant_kernels(plan)) {
        cu << "\n";
        write_variant(cu, plan, kernel.variants.front());
        write_kernel(cu, plan, kernel, "run_named");
    }
    for (const Kernel &kernel : gpu_chooses(plan) ? shared_kernels(plan) : std::vector<Kernel>{}) {
        cu << "\n";
        write_kernel(cu, plan, kernel, "run_chosen");
    }
    return cu.str();
}

}  // namespace distile
