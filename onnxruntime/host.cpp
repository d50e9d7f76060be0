#include "onnxruntime/host.h"
#include <algorithm>
#include <iterator>
#include <utility>

namespace distile::ort {

namespace {

constexpr struct {
    ElementType type;
    distile_dtype dtype;
    const char *name;
} types[] = {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...) {ONNX_TENSOR_ELEMENT_DATA_TYPE_##ONNX, DISTILE_##NAME, #name},
    DISTILE_FLOAT_TYPES(DISTILE_ROW) DISTILE_QUANTIZED_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
};

/** The attributes of distile's operators, and those of the operators of ONNX that they stand for. */
constexpr const char *attribute_names[] = {"activation",
                                           "activations",
                                           "alpha",
                                           "approximate",
                                           "auto_pad",
                                           "axes",
                                           "axis",
                                           "beta",
                                           "bias",
                                           "ceil_mode",
                                           "channels",
                                           "count_include_pad",
                                           "dilations",
                                           "epsilon",
                                           "factor",
                                           "group",
                                           "head_dim",
                                           "input_channels",
                                           "is_causal",
                                           "kernel_shape",
                                           "kind",
                                           "kv_num_heads",
                                           "layout",
                                           "mode",
                                           "momentum",
                                           "num_groups",
                                           "num_heads",
                                           "numbers",
                                           "other_activation",
                                           "output_padding",
                                           "output_shape",
                                           "p",
                                           "pads",
                                           "q_num_heads",
                                           "radius",
                                           "results",
                                           "scale",
                                           "scales",
                                           "size",
                                           "softcap",
                                           "spatial",
                                           "steps",
                                           "storage_order",
                                           "strides",
                                           "threshold",
                                           "training_mode",
                                           "transA",
                                           "transB",
                                           "unidirectional",
                                           "weight_bits",
                                           "width"};

bool succeeded(const OrtApi *api, OrtStatus *status) {
    if (status) {
        api->ReleaseStatus(status);
    }
    return !status;
}

}  // namespace

void check(const OrtApi *api, OrtStatus *status) {
    if (status) {
        const std::string message = api->GetErrorMessage(status);
        api->ReleaseStatus(status);
        fail(message);
    }
}

int64_t Tensor::elements() const {
    int64_t product = 1;
    for (const int64_t extent : shape) {
        product *= extent;
    }
    return product;
}

distile_dtype Tensor::dtype() const {
    return dtype_of(type);
}

size_t Tensor::bytes() const {
    const size_t size = type == int32 ? sizeof(int32_t) : distile_dtype_size(dtype());
    return static_cast<size_t>(elements()) * size;
}

distile_dtype dtype_of(ElementType type) {
    const auto *const found =
        std::find_if(std::begin(types), std::end(types), [&](const auto &known) { return known.type == type; });
    if (found == std::end(types)) {
        std::string names;
        for (const auto &known : types) {
            names += std::string(names.empty() ? "" : ", ") + known.name;
        }
        fail("a tensor has ONNX's type " + std::to_string(type) + ", which is none of " + names);
    }
    return found->dtype;
}

ElementType element_type(distile_dtype type) {
    const auto *const found =
        std::find_if(std::begin(types), std::end(types), [&](const auto &known) { return known.dtype == type; });
    if (found == std::end(types)) {
        fail("ONNX Runtime has no element type for this type of distile");
    }
    return found->type;
}

Tensor tensor_of(const OrtApi *api, const OrtValue *value) {
    Tensor tensor{};
    // The table has a function for writing only; an input is not written.
    check(api, api->GetTensorMutableData(const_cast<OrtValue *>(value), &tensor.data));
    OrtTensorTypeAndShapeInfo *info = nullptr;
    check(api, api->GetTensorTypeAndShape(value, &info));
    size_t rank = 0;
    OrtStatus *status = api->GetTensorElementType(info, &tensor.type);
    status = status ? status : api->GetDimensionsCount(info, &rank);
    if (!status) {
        tensor.shape.resize(rank);
        status = api->GetDimensions(info, tensor.shape.data(), rank);
    }
    api->ReleaseTensorTypeAndShapeInfo(info);
    check(api, status);
    return tensor;
}

std::string NodeView::name() const {
    size_t size = 0;
    check(api_, api_->KernelInfo_GetNodeName(info_, nullptr, &size));
    std::string name(size, '\0');
    check(api_, api_->KernelInfo_GetNodeName(info_, name.data(), &size));
    name.resize(size > 0 ? size - 1 : 0);
    return name;
}

int64_t NodeView::integer(const char *name, int64_t default_value) const {
    int64_t value = 0;
    const bool found = succeeded(api_, api_->KernelInfoGetAttribute_int64(info_, name, &value));
    note(name, found, "an integer");
    return found ? value : default_value;
}

float NodeView::number(const char *name, float default_value) const {
    float value = 0;
    const bool found = succeeded(api_, api_->KernelInfoGetAttribute_float(info_, name, &value));
    note(name, found, "a float");
    return found ? value : default_value;
}

std::string NodeView::text(const char *name, const char *default_value) const {
    size_t size = 0;
    const bool found = succeeded(api_, api_->KernelInfoGetAttribute_string(info_, name, nullptr, &size)) && size > 0;
    note(name, found, "a string");
    if (!found) {
        return default_value;
    }
    std::string value(size, '\0');
    check(api_, api_->KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    value.resize(size - 1);
    return value;
}

Shape NodeView::all_integers(const char *name) const {
    size_t size = 0;
    const bool found =
        succeeded(api_, api_->KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size)) && size > 0;
    note(name, found, "a list of integers");
    Shape values(found ? size : 0);
    if (found) {
        check(api_, api_->KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
    }
    return values;
}

std::vector<float> NodeView::all_numbers(const char *name) const {
    size_t size = 0;
    const bool found =
        succeeded(api_, api_->KernelInfoGetAttributeArray_float(info_, name, nullptr, &size)) && size > 0;
    note(name, found, "a list of floats");
    std::vector<float> values(found ? size : 0);
    if (found) {
        check(api_, api_->KernelInfoGetAttributeArray_float(info_, name, values.data(), &size));
    }
    return values;
}

Shape NodeView::integers(const char *name, Shape default_value) const {
    Shape values = all_integers(name);
    if (values.empty()) {
        return default_value;
    }
    if (values.size() != default_value.size()) {
        fail("the attribute " + std::string(name) + " of node '" + this->name() + "' has " +
             std::to_string(values.size()) + " numbers instead of " + std::to_string(default_value.size()));
    }
    return values;
}

bool NodeView::has_attribute(const char *name) const {
    int64_t integer = 0;
    float number = 0;
    size_t size = 0;
    return succeeded(api_, api_->KernelInfoGetAttribute_int64(info_, name, &integer)) ||
           succeeded(api_, api_->KernelInfoGetAttribute_float(info_, name, &number)) ||
           (succeeded(api_, api_->KernelInfoGetAttribute_string(info_, name, nullptr, &size)) && size > 0) ||
           (succeeded(api_, api_->KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size)) && size > 0) ||
           (succeeded(api_, api_->KernelInfoGetAttributeArray_float(info_, name, nullptr, &size)) && size > 0);
}

void NodeView::note(const char *name, bool found, const char *type) const {
    read_.insert(name);
    if (!found && has_attribute(name)) {
        fail("the attribute " + std::string(name) + " of node '" + this->name() + "' is not " + type);
    }
}

void NodeView::check_attributes() const {
    for (const char *const other : attribute_names) {
        if (read_.count(other) == 0 && has_attribute(other)) {
            fail("node '" + name() + "' has the attribute " + other +
                 ", which its operator does not have: docs/onnx.md lists those that it has");
        }
    }
}

bool NodeView::has_input(size_t input) const {
    size_t count = 0;
    check(api_, api_->KernelInfo_GetInputCount(info_, &count));
    size_t size = 0;
    if (input < count) {
        check(api_, api_->KernelInfo_GetInputName(info_, input, nullptr, &size));
    }
    return size > 1;
}

std::optional<Tensor> NodeView::constant(size_t input) const {
    int constant = 0;
    const OrtValue *value = nullptr;
    if (!succeeded(api_, api_->KernelInfoGetConstantInput_tensor(info_, input, &constant, &value)) || !constant ||
        !value) {
        return std::nullopt;
    }
    return tensor_of(api_, value);
}

void NodeView::warn(const std::string &message) const {
    const OrtLogger *logger = nullptr;
    // A lost warning is no error.
    if (succeeded(api_, api_->KernelInfo_GetLogger(info_, &logger))) {
        succeeded(api_,
                  api_->Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING, message.c_str(), "distile", 0, "distile"));
    }
}

const OrtValue *Call::value(size_t input) const {
    size_t count = 0;
    check(api_, api_->KernelContext_GetInputCount(context_, &count));
    const OrtValue *value = nullptr;
    if (input < count) {
        check(api_, api_->KernelContext_GetInput(context_, input, &value));
    }
    return value;
}

std::optional<Tensor> Call::optional(size_t input) const {
    const OrtValue *found = value(input);
    return found ? std::optional(tensor_of(api_, found)) : std::nullopt;
}

Tensor Call::input(size_t input) const {
    const OrtValue *found = value(input);
    if (!found) {
        fail("input " + std::to_string(input) + " is missing");
    }
    return tensor_of(api_, found);
}

Tensor Call::output(const Shape &shape, ElementType type, size_t index) const {
    OrtValue *made = nullptr;
    check(api_, api_->KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &made));
    Tensor tensor{nullptr, type, shape};
    check(api_, api_->GetTensorMutableData(made, &tensor.data));
    return tensor;
}

void *Call::stream() const {
    void *stream = nullptr;
    check(api_, api_->KernelContext_GetGPUComputeStream(context_, &stream));
    return stream;
}

int32_t Call::device_number(size_t input) const {
    const OrtMemoryInfo *memory = nullptr;
    check(api_, api_->GetTensorMemoryInfo(value(input), &memory));
    int number = 0;
    check(api_, api_->MemoryInfoGetId(memory, &number));
    return number;
}

}  // namespace distile::ort
