/** \file
 * ONNX Runtime's binary interface for custom operators, as far as this library uses it.
 *
 * ONNX Runtime gives a library a table of functions. Their positions and signatures never change, and later versions
 * only add functions at the end, so this is all that the library needs to know of ONNX Runtime. Everything here exists
 * since version 1.17.
 */
#ifndef DISTILE_ONNXRUNTIME_ABI_H
#define DISTILE_ONNXRUNTIME_ABI_H

#include <cstddef>
#include <cstdint>

namespace distile::ort {

constexpr uint32_t abi_version = 17;

// Objects of ONNX Runtime. Only their addresses are known.
struct Status;
struct Value;
struct ValueInfo;
struct MemoryInfo;
struct Logger;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct Domain;
struct Node;          /**< An operator of ONNX Runtime that this library calls. */
struct NodeAttribute; /**< An attribute of one. */

enum ErrorCode : int { error_fail = 1 };
enum ElementType : int {
    any_type = 0,
    float32 = 1,
    uint8 = 2,
    int8 = 3,
    int32 = 6,
    int64 = 7,
    boolean = 9,
    float16 = 10,
    bfloat16 = 16
};
enum AttributeType : int { attribute_int = 1, attribute_ints = 2, attribute_float = 3 };
enum Presence : int { required = 0, optional = 1 };
enum MemoryType : int { cpu_input = -2, default_memory = 0 };
enum LoggingLevel : int { warning = 2 };
enum AllocatorType : int { arena_allocator = 1 };

/** The table of functions. */
struct Api {
    void *functions[278];
};

/** Where a library gets the table. */
struct ApiBase {
    const Api *(*get_api)(uint32_t version); /**< Null if this ONNX Runtime is older. */
    const char *(*get_version)();
};

/** A function at a position of the table. */
template<size_t position, typename Signature> struct Function;
template<size_t position, typename Result, typename... Args> struct Function<position, Result(Args...)> {
    static Result call(const Api *api, Args... args) {
        return reinterpret_cast<Result (*)(Args...)>(api->functions[position])(args...);
    }
};

using CreateStatus = Function<0, Status *(ErrorCode, const char *)>;
using GetErrorMessage = Function<2, const char *(const Status *)>;
using CreateDomain = Function<26, Status *(const char *name, Domain **)>;
using AddOperator = Function<27, Status *(Domain *, const struct CustomOperator *)>;
using AddDomain = Function<28, Status *(SessionOptions *, Domain *)>;
using CreateValueWithData = Function<49, Status *(const MemoryInfo *, void *data, size_t bytes, const int64_t *shape,
                                                  size_t rank, ElementType, Value **)>;
using GetData = Function<51, Status *(Value *, void **)>;
using GetElementType = Function<60, Status *(const ValueInfo *, ElementType *)>;
using GetRank = Function<61, Status *(const ValueInfo *, size_t *)>;
using GetDimensions = Function<62, Status *(const ValueInfo *, int64_t *, size_t rank)>;
using GetValueInfo = Function<65, Status *(const Value *, ValueInfo **)>;
using CreateCpuMemoryInfo = Function<69, Status *(AllocatorType, MemoryType, MemoryInfo **)>;
using GetDeviceNumber = Function<72, Status *(const MemoryInfo *, int *)>;
using GetFloatAttribute = Function<85, Status *(const KernelInfo *, const char *, float *)>;
using GetIntAttribute = Function<86, Status *(const KernelInfo *, const char *, int64_t *)>;
using GetStringAttribute = Function<87, Status *(const KernelInfo *, const char *, char *, size_t *)>;
using GetInputCount = Function<88, Status *(const KernelContext *, size_t *)>;
using GetInput = Function<90, Status *(const KernelContext *, size_t, const Value **)>;
using GetOutput = Function<91, Status *(KernelContext *, size_t, const int64_t *shape, size_t rank, Value **)>;
using ReleaseStatus = Function<93, void(Status *)>;
using ReleaseMemoryInfo = Function<94, void(MemoryInfo *)>;
using ReleaseValue = Function<96, void(Value *)>;
using ReleaseValueInfo = Function<99, void(ValueInfo *)>;
using GetIntsAttribute = Function<163, Status *(const KernelInfo *, const char *, int64_t *, size_t *)>;
using GetStream = Function<193, Status *(const KernelContext *, void **)>;
using GetMemoryInfo = Function<194, Status *(const Value *, const MemoryInfo **)>;
using CreateNodeAttribute =
    Function<211, Status *(const char *, const void *, int count, AttributeType, NodeAttribute **)>;
using ReleaseNodeAttribute = Function<212, void(NodeAttribute *)>;
using CreateNode = Function<213, Status *(const KernelInfo *, const char *name, const char *domain, int version,
                                          const char **type_names, const ElementType *types, int num_types,
                                          const NodeAttribute *const *attributes, int num_attributes, int inputs,
                                          int outputs, Node **)>;
using RunNode = Function<214, Status *(const KernelContext *, const Node *, const Value *const *inputs, int num_inputs,
                                       Value *const *outputs, int num_outputs)>;
using ReleaseNode = Function<215, void(Node *)>;
using GetNodeInputCount = Function<230, Status *(const KernelInfo *, size_t *)>;
using GetNodeInputName = Function<232, Status *(const KernelInfo *, size_t, char *, size_t *)>;
using HasSessionEntry = Function<237, Status *(const SessionOptions *, const char *key, int *)>;
using GetSessionEntry = Function<238, Status *(const SessionOptions *, const char *key, char *, size_t *)>;
using GetNodeName = Function<244, Status *(const KernelInfo *, char *, size_t *)>;
using GetLogger = Function<245, Status *(const KernelInfo *, const Logger **)>;
using LogMessage = Function<247, Status *(const Logger *, LoggingLevel, const char *, const char *file, int line,
                                          const char *function)>;
using GetConstantInput = Function<249, Status *(const KernelInfo *, size_t, int *is_constant, const Value **)>;
using ParallelFor =
    Function<274, Status *(const KernelContext *, void (*)(void *, size_t), size_t count, size_t batches, void *user)>;

/** An operator as ONNX Runtime sees it: its version of the interface, and what ONNX Runtime calls. */
struct CustomOperator {
    uint32_t version = abi_version;
    void *(*create)(const CustomOperator *, const Api *, const KernelInfo *) = nullptr;
    const char *(*name)(const CustomOperator *) = nullptr;
    const char *(*provider)(const CustomOperator *) = nullptr;
    ElementType (*input_type)(const CustomOperator *, size_t) = nullptr;
    size_t (*num_inputs)(const CustomOperator *) = nullptr;
    ElementType (*output_type)(const CustomOperator *, size_t) = nullptr;
    size_t (*num_outputs)(const CustomOperator *) = nullptr;
    void (*compute)(void *kernel, KernelContext *) = nullptr;
    void (*destroy)(void *kernel) = nullptr;
    Presence (*input_presence)(const CustomOperator *, size_t) = nullptr;
    Presence (*output_presence)(const CustomOperator *, size_t) = nullptr;
    MemoryType (*input_memory)(const CustomOperator *, size_t) = nullptr;
    int (*variadic_input_minimum)(const CustomOperator *) = nullptr;
    int (*variadic_input_homogeneous)(const CustomOperator *) = nullptr;
    int (*variadic_output_minimum)(const CustomOperator *) = nullptr;
    int (*variadic_output_homogeneous)(const CustomOperator *) = nullptr;
    Status *(*create_with_status)(const CustomOperator *, const Api *, const KernelInfo *, void **kernel) = nullptr;
    Status *(*compute_with_status)(void *kernel, KernelContext *) = nullptr;
    Status *(*infer_shape)(const CustomOperator *, void *) = nullptr;
    int (*first_version)(const CustomOperator *) = nullptr;
    int (*last_version)(const CustomOperator *) = nullptr;
};

}  // namespace distile::ort

#endif
