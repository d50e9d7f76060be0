/** \file
 * ONNX Runtime as operators use it: a node's attributes and constants, and the tensors of a call. Errors are
 * exceptions.
 */
#ifndef DISTILE_ONNXRUNTIME_HOST_H
#define DISTILE_ONNXRUNTIME_HOST_H

#include "bindings/errors.h"
#include "facts/type_functions.h"
#include <distile/distile.h>
#include <onnxruntime_c_api.h>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace distile::ort {

/** The oldest version of ONNX Runtime's interface that has all that is used here. */
constexpr uint32_t api_version = 17;

using ElementType = ONNXTensorElementDataType;
constexpr ElementType any_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
constexpr ElementType float32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr ElementType uint8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr ElementType int8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr ElementType int32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr ElementType int64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
constexpr ElementType boolean = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;

using bindings::check;
using bindings::fail;
using Shape = std::vector<int64_t>;

/** Throws with ONNX Runtime's message unless the status is null. */
void check(const OrtApi *api, OrtStatus *status);

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

/** The tensor of a value. */
Tensor tensor_of(const OrtApi *api, const OrtValue *value);

/** A node of the graph: what its kernel is made from. */
class NodeView {
public:
    NodeView(const OrtApi *api, const OrtKernelInfo *info) : api_(api), info_(info) {
    }
    const OrtApi *api() const {
        return api_;
    }
    const OrtKernelInfo *info() const {
        return info_;
    }
    std::string name() const;
    // Attributes, or the given value without one. They fail for one of another type.
    int64_t integer(const char *name, int64_t default_value) const;
    float number(const char *name, float default_value) const;
    std::string text(const char *name, const char *default_value) const;
    /** A list of as many integers as `default_value` has. */
    Shape integers(const char *name, Shape default_value) const;
    /** A list of any length; empty without one. */
    Shape all_integers(const char *name) const;
    /** A list of numbers of any length; empty without one. */
    std::vector<float> all_numbers(const char *name) const;
    bool has_attribute(const char *name) const;
    /** Fails if the node has an attribute that no function above was asked for, as far as ONNX Runtime can tell: it has
     * no list of them, so these are the names that operators of distile and ONNX give to others. */
    void check_attributes() const;
    bool has_input(size_t input) const;
    /** An input that is an initializer. Valid as long as the session. */
    std::optional<Tensor> constant(size_t input) const;
    /** Writes a warning to ONNX Runtime's log. */
    void warn(const std::string &message) const;

private:
    /** Takes note of an attribute. Fails if it has another type than one that was not found. */
    void note(const char *name, bool found, const char *type) const;

    const OrtApi *api_;
    const OrtKernelInfo *info_;
    mutable std::set<std::string> read_;
};

/** A call of a kernel. */
class Call {
public:
    Call(const OrtApi *api, OrtKernelContext *context) : api_(api), context_(context) {
    }
    const OrtApi *api() const {
        return api_;
    }
    OrtKernelContext *context() const {
        return context_;
    }
    /** Nothing if an optional input is absent. */
    std::optional<Tensor> optional(size_t input) const;
    Tensor input(size_t input) const;
    /** A new tensor for an output. */
    Tensor output(const Shape &shape, ElementType type, size_t index = 0) const;
    /** Calls body(i) for each i below a count, in ONNX Runtime's threads. */
    template<typename Body> void parallel_for(int64_t count, const Body &body) const {
        const auto run = [](void *user, size_t i) { (*static_cast<const Body *>(user))(static_cast<int64_t>(i)); };
        check(api_, api_->KernelContext_ParallelFor(context_, run, static_cast<size_t>(count), 0,
                                                    const_cast<void *>(static_cast<const void *>(&body))));
    }
    /** The CUstream of the call. Null on a CPU. */
    void *stream() const;
    /** The number of the GPU that holds an input. */
    int32_t device_number(size_t input) const;

private:
    const OrtValue *value(size_t input) const;

    const OrtApi *api_;
    OrtKernelContext *context_;
};

}  // namespace distile::ort

#endif
