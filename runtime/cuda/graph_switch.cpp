#include "runtime/cuda/graph_switch.h"
#include "runtime/cuda/kernels/switch.h"
#include <algorithm>
#include <array>
#ifdef DISTILE_CUDA_SWITCHES
#include "switch_ptx.h"
#endif

using namespace distile;

static_assert(most_ways == DISTILE_MOST_WAYS && most_switch_masks == DISTILE_MOST_SWITCH_MASKS);
static_assert(switch_learns == int32_t{DISTILE_WAY_LEARNED} && switch_settled == int32_t{DISTILE_WAY_SETTLED});

namespace {

SwitchMasks masks_of(const distile_cuda_switch_args &args) {
    SwitchMasks masks{};
    masks.count = static_cast<uint32_t>(args.num_masks);
    for (int32_t mask = 0; mask < args.num_masks; mask++) {
        const auto pixels = static_cast<uint64_t>(args.mask_bytes[mask]);
        masks.masks[mask] = {static_cast<const uint8_t *>(args.masks[mask]), pixels};
        masks.pixels += pixels;
    }
    return masks;
}

}  // namespace

distile_cuda_switch::distile_cuda_switch(CudaDevice &device, const distile_cuda_switch_args &args)
    : context(device.context), device_(device), state_(device), num_graphs_(args.num_graphs) {
    try {
        build(args);
    } catch (...) {
        destroy();
        throw;
    }
}

distile_cuda_switch::~distile_cuda_switch() {
    // Its last launch may be on a stream that the context had before.
    device_.driver.cuCtxSynchronize();
    destroy();
}

void distile_cuda_switch::launch() const {
    if (device_.is_capturing()) {
        throw Failure{fail(&context, DISTILE_ERROR_CAPTURING,
                           "distile_cuda_switch_launch: a graph takes in no switch; launch it behind that graph")};
    }
#ifdef DISTILE_CUDA_SWITCHES
    device_.check(device_.driver.cuGraphLaunch(instance_, device_.caller_stream), "cuGraphLaunch");
#endif
}

void distile_cuda_switch::set_mode(int32_t mode) const {
    device_.refuse_capture("distile_cuda_switch_set");
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    device_.check(device_.driver.cuMemcpyHtoD(state_.address() + offsetof(SwitchState, mode), &mode, sizeof(mode)),
                  "cuMemcpyHtoD");
    // The caller's stream may not wait for the default stream, which did the copy.
    device_.check(device_.driver.cuCtxSynchronize(), "cuCtxSynchronize");
}

distile_cuda_switch_info distile_cuda_switch::info() const {
    device_.refuse_capture("distile_cuda_switch_get_info");
    SwitchState state;
    device_.check(device_.driver.cuMemcpyDtoHAsync(&state, state_.address(), sizeof(state), device_.caller_stream),
                  "cuMemcpyDtoHAsync");
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    distile_cuda_switch_info info{};
    info.way = state.way;
    info.num_graphs = num_graphs_;
    info.density = static_cast<double>(state.density) / (switch_densities - 1);
    for (int32_t way = 0; way < most_ways; way++) {
        info.runs[way] = static_cast<int64_t>(state.runs[way]);
        info.us[way] = static_cast<double>(estimated_us(state, state.density, way));
    }
    return info;
}

#ifdef DISTILE_CUDA_SWITCHES

namespace {

constexpr int oldest_cuda = 12080;  // As cuDriverGetVersion() has it.

/** Appends nodes to a graph, each behind the one before. */
class NodeChain {
public:
    NodeChain(const CudaDevice &device, CUgraph graph) : device_(device), graph_(graph) {
    }

    /** With null for data that edges have, as every edge is of the usual kind. */
    void append(CUgraphNodeParams &params, const char *what) {
        CUgraphNode node = nullptr;
        device_.check(
            device_.driver.cuGraphAddNode(&node, graph_, last_ ? &last_ : nullptr, nullptr, last_ ? 1 : 0, &params),
            what);
        last_ = node;
    }
    void append_kernel(CUfunction function, uint32_t blocks, uint32_t threads, void **arguments) {
        CUgraphNodeParams params{};
        params.type = CU_GRAPH_NODE_TYPE_KERNEL;
        params.kernel.func = function;
        params.kernel.gridDimX = blocks;
        params.kernel.gridDimY = params.kernel.gridDimZ = 1;
        params.kernel.blockDimX = threads;
        params.kernel.blockDimY = params.kernel.blockDimZ = 1;
        params.kernel.kernelParams = arguments;
        append(params, "cuGraphAddNode of a kernel");
    }

private:
    const CudaDevice &device_;
    CUgraph graph_;
    CUgraphNode last_ = nullptr;
};

}  // namespace

void distile_cuda_switch::build(const distile_cuda_switch_args &args) {
    const Driver &driver = device_.driver;
    if (device_.driver_version < oldest_cuda || !driver.cuGraphConditionalHandleCreate) {
        throw Failure{fail(&context, DISTILE_ERROR_OLD_DRIVER,
                           "distile_cuda_switch_create: graphs that choose need a driver of CUDA %d.%d",
                           oldest_cuda / 1000, oldest_cuda % 1000 / 10)};
    }
    device_.refuse_capture("distile_cuda_switch_create");
    SwitchState first{};
    first.way = -1;
    first.mode = switch_learns;
    first.budget = static_cast<float>(args.budget > 0 ? args.budget : .01);
    state_.reserve(sizeof(first));
    device_.check(driver.cuMemcpyHtoD(state_.address(), &first, sizeof(first)), "cuMemcpyHtoD");
    // As in set_mode().
    device_.check(driver.cuCtxSynchronize(), "cuCtxSynchronize");

    module_ = device_.loader->load(distile_switch_ptx);
    CUfunction begin = device_.loader->find(module_, "distile_switch_begin");
    CUfunction end = device_.loader->find(module_, "distile_switch_end");
    device_.check(driver.cuGraphCreate(&graph_, 0), "cuGraphCreate");
    CUgraphConditionalHandle handle = 0;
    device_.check(driver.cuGraphConditionalHandleCreate(&handle, graph_, device_.handle(), 0, 0),
                  "cuGraphConditionalHandleCreate");

    NodeChain nodes(device_, graph_);
    SwitchMasks masks = masks_of(args);
    auto *state = state_.as<SwitchState>();
    void *begin_arguments[] = {&state, &masks, &num_graphs_, &handle};
    constexpr uint64_t thread_bytes = 64;
    const uint64_t blocks = masks.pixels / (thread_bytes * block_threads) + 1;
    nodes.append_kernel(begin, static_cast<uint32_t>(std::min<uint64_t>(blocks, device_.most_blocks())), block_threads,
                        begin_arguments);
    CUgraphNodeParams branches{};
    branches.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    branches.conditional.handle = handle;
    branches.conditional.type = CU_GRAPH_COND_TYPE_SWITCH;
    branches.conditional.size = static_cast<unsigned int>(num_graphs_);
    branches.conditional.ctx = device_.handle();
    nodes.append(branches, "cuGraphAddNode of a switch");
    for (int32_t way = 0; way < num_graphs_; way++) {
        CUgraphNodeParams body{};
        body.type = CU_GRAPH_NODE_TYPE_GRAPH;
        body.graph.graph = static_cast<CUgraph>(args.graphs[way]);
        NodeChain(device_, branches.conditional.phGraph_out[way]).append(body, "cuGraphAddNode of a given graph");
    }
    void *end_arguments[] = {&state};
    nodes.append_kernel(end, 1, 1, end_arguments);
    device_.check(driver.cuGraphInstantiateWithFlags(&instance_, graph_, 0), "cuGraphInstantiateWithFlags");
}

void distile_cuda_switch::destroy() {
    const Driver &driver = device_.driver;
    if (instance_) {
        driver.cuGraphExecDestroy(instance_);
    }
    if (graph_) {
        driver.cuGraphDestroy(graph_);
    }
    if (module_) {
        driver.cuModuleUnload(module_);
    }
}

#else

void distile_cuda_switch::build(const distile_cuda_switch_args &) {
    throw Failure{fail(&context, DISTILE_ERROR_OLD_DRIVER,
                       "distile_cuda_switch_create: the library was built with a CUDA toolkit that has no such graphs: "
                       "build it with 12.8 or later")};
}

void distile_cuda_switch::destroy() {
}

#endif
