/** \file
 * The operators of the domain `distile`, as a table says what they are, and their kernels.
 */
#ifndef DISTILE_ONNXRUNTIME_OPERATOR_H
#define DISTILE_ONNXRUNTIME_OPERATOR_H

#include "sessions.h"

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
    distile_dtype type; /**< Of its activations. */
    std::shared_ptr<Sessions> sessions;
};

/** An input of an operator. */
struct Input {
    ElementType type = any_type; /**< any_type: that of the activations. */
    Presence presence = required;
    bool host = false; /**< Stays on the host for operators of GPUs. */
};

struct OperatorType {
    const char *name;
    std::vector<Input> inputs;
    ElementType output; /**< any_type: that of the activations. */
    /** Whether NVIDIA GPUs have it: those that make masks run on the CPU. */
    bool on_gpus;
    std::unique_ptr<Kernel> (*make)(const Setup &setup);
};

std::vector<OperatorType> convolution_types();
std::vector<OperatorType> linear_types();
std::vector<OperatorType> attention_types();
std::vector<OperatorType> norm_types();
std::vector<OperatorType> pooling_types();
std::vector<OperatorType> mask_types();

}  // namespace distile::ort

#endif
