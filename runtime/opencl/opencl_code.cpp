#include "runtime/opencl/opencl_code.h"
#include "kernels/call.h"
#include "runtime/gpu/rehearsal.h"
#include "runtime/opencl/opencl_device.h"

namespace distile {

/** Runs the body of a hook. Lets no exception escape into the code that called it. */
template<typename Body> int OpenClCode::guarded_hook(distile_hooks *hooks, const Body &body) {
    auto &context = *static_cast<distile_context *>(hooks);
    OpenClCode &code = *static_cast<OpenClDevice &>(*context.device).running;
    try {
        body(code);
        return 0;
    } catch (const Failure &failure) {
        code.status_ = failure.status;
    } catch (const std::bad_alloc &) {
        code.status_ = fail(&context, DISTILE_ERROR_OUT_OF_MEMORY, "distile_run: an allocation failed");
    } catch (const std::exception &error) {
        code.status_ = fail(&context, DISTILE_ERROR_INTERNAL, "distile_run: an unexpected exception: %s", error.what());
    } catch (...) {
        code.status_ = fail(&context, DISTILE_ERROR_INTERNAL, "distile_run: an unexpected exception");
    }
    // The code also reports this failure, but our message says more.
    context.kernel_failed = true;
    constexpr int refused = -1;
    return refused;
}

const distile_gpu_hooks OpenClCode::hooks = {
    [](distile_hooks *hooks, const char *source, size_t bytes) {
        return guarded_hook(hooks, [&](OpenClCode &code) { code.program_ = &code.program(source, bytes); });
    },
    [](distile_hooks *hooks, const distile_gpu_launch *launch) {
        return guarded_hook(hooks, [&](OpenClCode &code) { code.launch(*launch); });
    },
    nullptr,
    [](distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        return guarded_hook(hooks, [&](OpenClCode &code) {
            *address = code.rehearsal_ ? nowhere : reinterpret_cast<uint64_t>(code.allocate(bytes));
        });
    },
    nullptr,
    nullptr,
    [](distile_hooks *hooks, uint64_t address) -> uint64_t {
        const OpenClDevice &device = static_cast<OpenClDevice &>(*static_cast<distile_context *>(hooks)->device);
        const std::optional<Place> place = device.space->find(reinterpret_cast<const void *>(address));
        // A launch with an address of no buffer fails.
        return place ? place->offset : 0;
    }};

RunResult OpenClCode::run(const distile_variant &variant, distile_kernel_call &call, bool rehearsal) {
    rehearsal_ = rehearsal;
    program_ = nullptr;
    status_ = DISTILE_OK;
    scratch_used_ = 0;
    call.hooks = &device_.context;
    device_.running = this;
    const int result = variant.run(&call);
    device_.running = nullptr;
    return {result,
            status_ != DISTILE_OK                  ? status_
            : result == DISTILE_CALL_OUT_OF_MEMORY ? DISTILE_ERROR_OUT_OF_MEMORY
                                                   : DISTILE_ERROR_KERNEL,
            0};
}

Program &OpenClCode::program(const char *source, size_t bytes) {
    auto found = programs_.find(source);
    if (found == programs_.end()) {
        // Halide counts the 0 byte at the end.
        const std::string text(source, source[bytes - 1] == '\0' ? bytes - 1 : bytes);
        found = programs_.emplace(source, std::make_unique<Program>(device_, text)).first;
    }
    return *found->second;
}

void OpenClCode::launch(const distile_gpu_launch &launch) {
    const Program::Kernel &kernel = program_->kernel(launch.kernel);
    ItemGrid grid{};
    size_t items = 1;
    bool empty = false;
    for (size_t i = 0; i < 3; i++) {
        grid.group.at(i) = static_cast<size_t>(launch.threads[i]);
        grid.items.at(i) = grid.group.at(i) * static_cast<size_t>(launch.blocks[i]);
        items *= grid.group.at(i);
        empty = empty || launch.blocks[i] == 0;
    }
    if (items > kernel.most_items) {
        throw Failure{fail(&device_.context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "the kernel has work-groups of %zu items, but the device runs it with at most %zu", items,
                           kernel.most_items)};
    }
    if (static_cast<uint64_t>(launch.shared_bytes) > device_.local_bytes()) {
        throw Failure{fail(&device_.context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "the kernel needs %d bytes of local memory, but the device has %llu", launch.shared_bytes,
                           static_cast<unsigned long long>(device_.local_bytes()))};
    }
    if (rehearsal_ || empty) {
        return;
    }
    cl_uint index = 0;
    for (void *const *next = launch.arguments; *next; next++) {
        const auto &argument = *static_cast<const distile_opencl_argument *>(*next);
        if (argument.is_buffer != 0) {
            const void *address = *static_cast<const void *const *>(argument.value);
            device_.set_buffer(kernel.handle, index++, device_.place_of(address, "argument of a kernel").buffer);
        } else {
            device_.check(device_.library.clSetKernelArg(kernel.handle, index++, argument.bytes, argument.value),
                          "clSetKernelArg");
        }
    }
    // No argument may be local memory of 0 bytes.
    device_.check(device_.library.clSetKernelArg(kernel.handle, index,
                                                 static_cast<size_t>(std::max(launch.shared_bytes, 1)), nullptr),
                  "clSetKernelArg");
    device_.enqueue(kernel.handle, grid);
}

void *OpenClCode::allocate(uint64_t bytes) {
    if (scratch_used_ == scratch_.size()) {
        scratch_.push_back(std::make_unique<GrowingBuffer>(device_));
    }
    GrowingBuffer &memory = *scratch_[scratch_used_];
    memory.reserve(bytes);
    scratch_used_++;
    return memory.as<void>();
}

}  // namespace distile
