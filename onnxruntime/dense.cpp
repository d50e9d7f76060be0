#include "onnxruntime/dense.h"
#include <exception>
#include <memory>

namespace distile::ort {

namespace {

/** Objects of ONNX Runtime that end with the scope. */
template<typename Object, auto release> class Owned {
public:
    explicit Owned(const OrtApi *api) : api_(api) {
    }
    ~Owned() {
        for (Object *object : objects_) {
            (api_->*release)(object);
        }
    }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;
    /** Where a new object goes. */
    Object **add() {
        return &objects_.emplace_back(nullptr);
    }
    const std::vector<Object *> &objects() const {
        return objects_;
    }

private:
    const OrtApi *api_;
    std::vector<Object *> objects_;
};

}  // namespace

DenseNode::DenseNode(const NodeView &node, const char *name, int version, const Types &types, int num_inputs,
                     const Attributes &attributes)
    : api_(node.api()) {
    Owned<OrtOpAttr, &OrtApi::ReleaseOpAttr> made(api_);
    const auto add = [&](const char *key, const void *data, size_t count, OrtOpAttrType kind) {
        check(api_, api_->CreateOpAttr(key, data, static_cast<int>(count), kind, made.add()));
    };
    for (const auto &[key, value] : attributes.integers) {
        add(key, &value, 1, ORT_OP_ATTR_INT);
    }
    for (const auto &[key, value] : attributes.numbers) {
        add(key, &value, 1, ORT_OP_ATTR_FLOAT);
    }
    for (const auto &[key, values] : attributes.lists) {
        add(key, values.data(), values.size(), ORT_OP_ATTR_INTS);
    }
    std::vector<const char *> type_names;
    std::vector<ElementType> elements;
    for (const auto &[type_name, element] : types) {
        type_names.push_back(type_name);
        elements.push_back(element);
    }
    try {
        check(api_, api_->CreateOp(node.info(), name, "", version, type_names.data(), elements.data(),
                                   static_cast<int>(types.size()), made.objects().data(),
                                   static_cast<int>(made.objects().size()), num_inputs, 1, &node_));
    } catch (const std::exception &error) {
        fail("no PolyKernel computes node '" + node.name() + "', and ONNX Runtime has no dense " + name +
             " of its type: compile its PolyKernel with 'python -m distile.onnx convert --build', or leave the node as "
             "it was (" +
             error.what() + ")");
    }
}

DenseNode::~DenseNode() {
    api_->ReleaseOp(node_);
}

void DenseNode::run(const Call &call, const std::vector<Tensor> &inputs, const Tensor &output) const {
    Owned<OrtMemoryInfo, &OrtApi::ReleaseMemoryInfo> memory(api_);
    check(api_, api_->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, memory.add()));
    Owned<OrtValue, &OrtApi::ReleaseValue> values(api_);
    const auto add = [&](const Tensor &tensor) {
        check(api_, api_->CreateTensorWithDataAsOrtValue(memory.objects()[0], tensor.data, tensor.bytes(),
                                                         tensor.shape.data(), tensor.shape.size(), tensor.type,
                                                         values.add()));
    };
    for (const Tensor &input : inputs) {
        add(input);
    }
    add(output);
    check(api_, api_->InvokeOp(call.context(), node_, values.objects().data(), static_cast<int>(inputs.size()),
                               &values.objects().back(), 1));
}

}  // namespace distile::ort
