/** \file
 * ONNX Runtime as operators use it: a node's attributes and constants, and the tensors of a call. Errors are
 * exceptions.
 */
#ifndef DISTILE_ONNXRUNTIME_HOST_H
#define DISTILE_ONNXRUNTIME_HOST_H

#include "abi.h"
#include "bindings/errors.h"
#include <distile/distile.h>
#include <optional>
#include <string>
#include <vector>

namespace distile::ort {

using bindings::check;
using bindings::fail;
using Shape = std::vector<int64_t>;

/** Throws with ONNX Runtime's message unless the status is null. */
void check(const Api *api, Status *status);

/** A tensor of ONNX Runtime, contiguous. */
struct Tensor {
    void *data;
    ElementType type;
    Shape shape;

    int64_t elements() const;
    distile_dtype dtype() const;
    size_t bytes() const;
    /** Its elements, if they have this type. */
    template<typename Element> const Element *as() const {
        return static_cast<const Element *>(data);
    }
};

/** The type of distile that holds the elements of a tensor; fails for others. And the reverse. */
distile_dtype dtype_of(ElementType type);
ElementType element_type(distile_dtype type);
bool is_quantized(distile_dtype type);

/** The tensor of a value. */
Tensor tensor_of(const Api *api, const Value *value);

/** A node of the graph: what its kernel is made from. */
class NodeView {
public:
    NodeView(const Api *api, const KernelInfo *info) : api_(api), info_(info) {
    }
    const Api *api() const {
        return api_;
    }
    const KernelInfo *info() const {
        return info_;
    }
    std::string name() const;
    // Attributes, or the given value without one.
    int64_t integer(const char *name, int64_t otherwise) const;
    float number(const char *name, float otherwise) const;
    std::string text(const char *name, const char *otherwise) const;
    /** So many integers. */
    Shape integers(const char *name, Shape otherwise) const;
    bool has_input(size_t input) const;
    /** An input that is an initializer. Valid as long as the session. */
    std::optional<Tensor> constant(size_t input) const;
    /** Writes a warning to ONNX Runtime's log. */
    void warn(const std::string &message) const;

private:
    const Api *api_;
    const KernelInfo *info_;
};

/** A call of a kernel. */
class Call {
public:
    Call(const Api *api, KernelContext *context) : api_(api), context_(context) {
    }
    const Api *api() const {
        return api_;
    }
    KernelContext *context() const {
        return context_;
    }
    /** Nothing if an optional input is absent. */
    std::optional<Tensor> optional(size_t input) const;
    Tensor input(size_t input) const;
    /** A new tensor for an output. */
    Tensor output(const Shape &shape, ElementType type, size_t index = 0) const;
    /** The CUstream of the call. Null on a CPU. */
    void *stream() const;
    /** The number of the GPU that holds an input. */
    int32_t device_number(size_t input) const;

private:
    const Value *value(size_t input) const;

    const Api *api_;
    KernelContext *context_;
};

}  // namespace distile::ort

#endif
