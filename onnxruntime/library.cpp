/** \file
 * The library's entry points: ONNX Runtime calls RegisterCustomOps, and Python's tools the others.
 */
#include "bindings/linked_polykernels.h"
#include "bindings/weight_pattern.h"
#include "facts/types.h"
#include "onnxruntime/weighted.h"
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>

#define DISTILE_EXPORT extern "C" __attribute__((visibility("default")))

namespace distile::ort {

namespace {

/** An operator for a device and a type of activations, as it is registered. */
struct Registered : OrtCustomOp {
    const OperatorType *operator_type = nullptr;
    distile_device device = DISTILE_CPU;
    ElementType activations = float32, output = float32;
    int32_t threads = 0;
};

const Registered &of(const OrtCustomOp *custom) {
    return *static_cast<const Registered *>(custom);
}

ElementType typed(const Registered &registered, ElementType type) {
    return type == any_type ? registered.activations : type == type_of_output ? registered.output : type;
}

/** A kernel with the table of functions that its calls use. */
struct Made {
    const OrtApi *api;
    std::unique_ptr<Kernel> kernel;
};

/** Runs a function, and turns its exception into a status. */
template<typename Body> OrtStatus *guarded(const OrtApi *api, Body body) {
    try {
        body();
        return nullptr;
    } catch (const std::exception &error) {
        return api->CreateStatus(ORT_FAIL, error.what());
    } catch (...) {
        return api->CreateStatus(ORT_FAIL, "distile: an unexpected exception");
    }
}

OrtStatus *create(const OrtCustomOp *custom, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
    return guarded(api, [&] {
        const Registered &own = of(custom);
        const Setup setup{NodeView(api, info), own.device, dtype_of(own.activations), dtype_of(own.output),
                          Sessions::shared(own.threads)};
        auto made = std::make_unique<Made>(Made{api, own.operator_type->make(setup)});
        setup.node.check_attributes();
        *kernel = made.release();
    });
}

OrtStatus *compute(void *kernel, OrtKernelContext *context) {
    const auto &made = *static_cast<Made *>(kernel);
    return guarded(made.api, [&] { made.kernel->compute(Call(made.api, context)); });
}

void destroy(void *kernel) {
    const std::unique_ptr<Made> owned(static_cast<Made *>(kernel));
}

/** The types of activations and of the output of an operator. */
struct Types {
    ElementType activations, output;
};

std::vector<Types> types_of(const OperatorType &type) {
    if (type.quantized) {
        // ONNX Runtime takes the first whose inputs have the types of a node's. The zero point of a quantized output
        // has its type, so a node without one has an output of float32.
        return {{uint8, float32}, {uint8, uint8}, {uint8, int8}, {int8, float32}, {int8, uint8}, {int8, int8}};
    }
    if (type.inputs[0].type != any_type) {
        return {{float32, float32}};  // Masks have no type of activations.
    }
    return {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, ...)                                                               \
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_##ONNX, ONNX_TENSOR_ELEMENT_DATA_TYPE_##ONNX},
        DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
    };
}

Registered registered(const OperatorType &type, distile_device device, const Types &types, int32_t threads) {
    Registered made{};
    made.version = api_version;
    made.operator_type = &type;
    made.device = device;
    made.activations = types.activations;
    made.output = types.output;
    made.threads = threads;
    made.GetName = [](const OrtCustomOp *custom) { return of(custom).operator_type->name; };
    made.GetExecutionProviderType = [](const OrtCustomOp *custom) {
        return of(custom).device == DISTILE_CPU ? "CPUExecutionProvider" : "CUDAExecutionProvider";
    };
    made.GetInputType = [](const OrtCustomOp *custom, size_t index) {
        return typed(of(custom), of(custom).operator_type->inputs[index].type);
    };
    made.GetInputTypeCount = [](const OrtCustomOp *custom) { return of(custom).operator_type->inputs.size(); };
    made.GetOutputType = [](const OrtCustomOp *custom, size_t index) {
        const std::vector<ElementType> &outputs = of(custom).operator_type->outputs;
        return typed(of(custom), outputs[std::min(index, outputs.size() - 1)]);
    };
    made.GetOutputTypeCount = [](const OrtCustomOp *custom) {
        const OperatorType &own = *of(custom).operator_type;
        return own.outputs.size() + own.more_outputs;
    };
    made.GetInputCharacteristic = [](const OrtCustomOp *custom, size_t index) {
        return of(custom).operator_type->inputs[index].presence;
    };
    made.GetOutputCharacteristic = [](const OrtCustomOp *custom, size_t index) {
        return index < of(custom).operator_type->outputs.size() ? required : optional;
    };
    made.GetInputMemoryType = [](const OrtCustomOp *custom, size_t index) {
        const Registered &own = of(custom);
        return own.device != DISTILE_CPU && own.operator_type->inputs[index].host ? OrtMemTypeCPUInput
                                                                                  : OrtMemTypeDefault;
    };
    made.GetVariadicInputMinArity = [](const OrtCustomOp *) { return 1; };
    made.GetVariadicInputHomogeneity = [](const OrtCustomOp *) { return 1; };
    made.GetVariadicOutputMinArity = [](const OrtCustomOp *) { return 1; };
    made.GetVariadicOutputHomogeneity = [](const OrtCustomOp *) { return 1; };
    made.CreateKernelV2 = create;
    made.KernelComputeV2 = compute;
    made.KernelDestroy = destroy;
    made.GetStartVersion = [](const OrtCustomOp *) { return 1; };
    made.GetEndVersion = [](const OrtCustomOp *) { return INT32_MAX; };
    return made;
}

const std::vector<OperatorType> &operator_types() {
    static const std::vector<OperatorType> types = [] {
        std::vector<OperatorType> all;
        for (const auto &some :
             {convolution_types(), linear_types(), attention_types(), norm_types(), pooling_types(), upsampling_types(),
              combination_types(), packing_types(), mask_types(), stage_types()}) {
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    }();
    return types;
}

/** The entry `distile.threads` of a session's configuration; 0 without one. */
int32_t threads_of(const OrtApi *api, const OrtSessionOptions *options) {
    int present = 0;
    check(api, api->HasSessionConfigEntry(options, "distile.threads", &present));
    if (!present) {
        return 0;
    }
    char text[16] = "";
    size_t size = sizeof(text);
    check(api, api->GetSessionConfigEntry(options, "distile.threads", static_cast<char *>(text), &size));
    const long threads = std::strtol(static_cast<const char *>(text), nullptr, 10);
    if (threads < 1 || threads > 4096) {
        fail("the session's entry distile.threads is '" + std::string(static_cast<const char *>(text)) +
             "', but not a number from 1 to 4096");
    }
    return static_cast<int32_t>(threads);
}

/** The operators that sessions with one number of threads share. */
struct Registration {
    OrtCustomOpDomain *domain = nullptr;
    std::deque<Registered> operators;
};

void add_types(std::deque<Registered> &operators, const OperatorType &type, int32_t threads) {
    for (const Types &types : types_of(type)) {
        operators.push_back(registered(type, DISTILE_CPU, types, threads));
#ifdef DISTILE_ONNXRUNTIME_CUDA
        if (!type.only_on_cpus) {
            operators.push_back(registered(type, DISTILE_CUDA, types, threads));
        }
#endif
    }
}

/** The domain with all operators. Sessions hold its address, so it lives as long as the process. */
OrtCustomOpDomain *domain_of(const OrtApi *api, int32_t threads) {
    static std::mutex mutex;
    static auto &all = *new std::map<int32_t, Registration>;
    const std::lock_guard lock(mutex);
    Registration &registration = all[threads];
    if (!registration.domain) {
        registration.operators.clear();
        for (const OperatorType &type : operator_types()) {
            add_types(registration.operators, type, threads);
        }
        OrtCustomOpDomain *domain = nullptr;
        check(api, api->CreateCustomOpDomain("distile", &domain));
        for (const Registered &made : registration.operators) {
            check(api, api->CustomOpDomain_Add(domain, &made));
        }
        registration.domain = domain;
    }
    return registration.domain;
}

}  // namespace

}  // namespace distile::ort

DISTILE_EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    using namespace distile::ort;
    const OrtApi *api = base->GetApi(api_version);
    if (!api) {
        // Every version has the functions that report this.
        return base->GetApi(1)->CreateStatus(ORT_FAIL, "distile's operators need ONNX Runtime 1.17 or later");
    }
    return guarded(api, [&] { check(api, api->AddCustomOpDomain(options, domain_of(api, threads_of(api, options)))); });
}

/** Whether the library has the part for NVIDIA GPUs. */
DISTILE_EXPORT int32_t distile_onnxruntime_has_cuda() {
#ifdef DISTILE_ONNXRUNTIME_CUDA
    return 1;
#else
    return 0;
#endif
}

/** The folder of built PolyKernels. Valid until the thread's next call. */
DISTILE_EXPORT const char *distile_onnxruntime_cache_folder() {
    thread_local std::string folder;
    folder = distile::bindings::cache_folder();
    return folder.c_str();
}

/** Whether a PolyKernel for a device computes an operator: a kind, the types of activations and of the output, and the
 * numbers of the kind's struct in polykernel.h. With `skips_zeros`, whether one does that skips weights that are 0;
 * with `two_of_four`, one for weights of the pattern 2:4. */
DISTILE_EXPORT int32_t distile_onnxruntime_has_polykernel(int32_t device_kind, int32_t kind, int32_t type,
                                                          int32_t output_type, const int32_t *numbers,
                                                          int32_t skips_zeros, int32_t two_of_four) {
    const auto device = static_cast<distile_device>(device_kind);
    const distile::bindings::OperatorTypes types(static_cast<distile_dtype>(type),
                                                 static_cast<distile_dtype>(output_type));
    const distile::ort::Zeros zeros{skips_zeros != 0 ? 1.0F : 0.0F, two_of_four != 0};
    try {
        const auto key = distile::bindings::OperatorKey::of(device, types, kind, numbers);
        for (const std::optional<int64_t> tokens : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
            const auto *found = key ? distile::ort::find_or_load(*key, zeros, tokens) : nullptr;
            if (found && distile::ort::skips(*found, zeros)) {
                return 1;
            }
        }
        return 0;
    } catch (const std::exception &) {
        return 0;  // A PolyKernel that cannot be loaded is none.
    }
}

/** Whether a contiguous filter has the pattern 2:4: its type, its order (distile_weights_order), its extents, and the
 * type of the operator's input. -1 if it cannot have any. */
DISTILE_EXPORT int32_t distile_onnxruntime_keeps_two_of_four(const void *filter, int32_t type, int32_t order,
                                                             int32_t outputs, int32_t inputs, int32_t rows,
                                                             int32_t columns, int32_t input) {
    try {
        const distile::bindings::Filter given{filter,
                                              static_cast<distile_dtype>(type),
                                              static_cast<distile_weights_order>(order),
                                              {outputs, inputs, rows, columns}};
        return distile::bindings::keeps_two_of_four(given, static_cast<distile_dtype>(input)) ? 1 : 0;
    } catch (const std::exception &) {
        return -1;
    }
}

/** The version of the PolyKernels that the library runs. */
DISTILE_EXPORT int32_t distile_onnxruntime_polykernel_version() {
    return DISTILE_POLYKERNEL_VERSION;
}

/** Who is asked for the PolyKernels that sessions lack; null: nobody. */
DISTILE_EXPORT void distile_onnxruntime_set_ask(distile::ort::Ask ask) {
    distile::ort::set_ask(ask);
}

/** The names of the PolyKernels that ship for a device, each with a line's end. */
DISTILE_EXPORT const char *distile_onnxruntime_linked_polykernels(int32_t device) {
    thread_local std::string names;
    names.clear();
    for (const distile_polykernel *polykernel : distile::bindings::linked_polykernels) {
        if (polykernel->device == device) {
            names.append(polykernel->name).append("\n");
        }
    }
    return names.c_str();
}
