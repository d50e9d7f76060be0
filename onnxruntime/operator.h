/** \file
 * The operators of the domain `distile`, as a table says what they are, and their kernels.
 */
#ifndef DISTILE_ONNXRUNTIME_OPERATOR_H
#define DISTILE_ONNXRUNTIME_OPERATOR_H

#include "onnxruntime/sessions.h"

namespace distile::ort {

/** What runs a node. */
class Kernel {
public:
    Kernel() = default;
    virtual ~Kernel() = default;
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;
    /** Several threads may call it at once. */
    virtual void compute(const Call &call) = 0;
};

/** What a kernel is made from. */
struct Setup {
    NodeView node;
    distile_device device;
    distile_dtype type;        /**< The type of its activations. */
    distile_dtype output_type; /**< The type of its output, which differs from `type` only if it is quantized. */
    std::shared_ptr<Sessions> sessions;
};

/** A kernel that leases a session for each call. */
class LeasingKernel : public Kernel {
public:
    explicit LeasingKernel(const Setup &setup) : sessions_(setup.sessions), on_cpu_(setup.device == DISTILE_CPU) {
    }

protected:
    /** On the GPU that holds the first input, or on the CPU. */
    Lease lease_for(const Call &call) const {
        return Lease(*sessions_, call, on_cpu_ ? -1 : call.device_number(0));
    }

private:
    std::shared_ptr<Sessions> sessions_;
    bool on_cpu_;
};

/** Stands for the output's type in the list of an operator's inputs and outputs, as any_type stands for the
 * activations' type. They differ in quantized operators only. No operator has tensors of ONNX's type "string", which
 * marks it. */
constexpr ElementType type_of_output = ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;

using Presence = OrtCustomOpInputOutputCharacteristic;
constexpr Presence required = INPUT_OUTPUT_REQUIRED;
constexpr Presence optional = INPUT_OUTPUT_OPTIONAL;

/** An input of an operator. */
struct Input {
    ElementType type = any_type; /**< any_type: that of the activations. */
    Presence presence = required;
    bool host = false; /**< Stays on the host for operators of GPUs. */
};

struct OperatorType {
    const char *name;
    std::vector<Input> inputs;
    std::vector<ElementType> outputs; /**< any_type: that of the activations. */
    std::unique_ptr<Kernel> (*make)(const Setup &setup);
    bool only_on_cpus = false;
    bool quantized = false;  /**< Activations are uint8 or int8, and the output is one of these or float32. */
    size_t more_outputs = 0; /**< Optional ones of the last output's type. */
};

/** The kernel of a class, for `OperatorType::make`. */
template<typename Made> std::unique_ptr<Kernel> make_kernel(const Setup &setup) {
    return std::make_unique<Made>(setup);
}

std::vector<OperatorType> convolution_types();
std::vector<OperatorType> linear_types();
std::vector<OperatorType> attention_types();
std::vector<OperatorType> norm_types();
std::vector<OperatorType> pooling_types();
std::vector<OperatorType> upsampling_types();
std::vector<OperatorType> combination_types();
std::vector<OperatorType> packing_types();
std::vector<OperatorType> mask_types();
std::vector<OperatorType> stage_types();

}  // namespace distile::ort

#endif
