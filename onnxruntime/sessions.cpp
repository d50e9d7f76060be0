#include "onnxruntime/sessions.h"
#include "bindings/cuda_session.h"
#include <algorithm>
#include <map>
#include <new>

namespace distile::ort {

void HostedSession::parallel_for(void *user, distile_task task, void *closure, int32_t count) {
    struct Loop {
        distile_task task;
        void *closure;
    } loop{task, closure};
    const Call *call = static_cast<const Host *>(user)->call;
    if (!call || count == 1) {
        for (int32_t i = 0; i < count; i++) {
            task(closure, i);
        }
        return;
    }
    const auto run = [](void *context, size_t i) {
        const auto &own = *static_cast<const Loop *>(context);
        own.task(own.closure, static_cast<int32_t>(i));
    };
    check(call->api(), call->api()->KernelContext_ParallelFor(call->context(), run, static_cast<size_t>(count), 0,
                                                              static_cast<void *>(&loop)));
}

Context HostedSession::make(int32_t device_number, void *stream, int32_t threads, Host &host) {
    if (device_number >= 0) {
        return bindings::make_cuda_context_of(device_number, stream, DISTILE_MATH_DEFAULT);
    }
    distile_context_options options{};
    options.threads = threads;
    options.parallel_for = parallel_for;
    options.parallel_for_user = &host;
    return make_context(options);
}

HostedSession::HostedSession(int32_t device_number, void *stream, int32_t threads)
    : host_(std::make_unique<Host>()), device_number_(device_number), stream_(stream),
      session_(make(device_number, stream, threads, *host_)) {
}

void *HostedSession::scratch(size_t number, size_t bytes) {
    scratch_.resize(std::max(scratch_.size(), number + 1));
    std::vector<uint64_t> &memory = scratch_[number];
    memory.resize(std::max(memory.size(), (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t)));
    return memory.data();
}

std::shared_ptr<Sessions> Sessions::shared(int32_t threads) {
    static std::mutex mutex;
    static std::map<int32_t, std::weak_ptr<Sessions>> all;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Sessions> sessions = all[threads].lock();
    if (!sessions) {
        sessions = std::make_shared<Sessions>(threads);
        all[threads] = sessions;
    }
    return sessions;
}

std::unique_ptr<HostedSession> Sessions::take(int32_t device_number, void *stream) {
    {
        const std::lock_guard lock(mutex_);
        const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                        [&](const auto &session) { return session->is_for(device_number, stream); });
        if (found != idle_.rend()) {
            std::unique_ptr<HostedSession> session = std::move(*found);
            idle_.erase(std::next(found).base());
            return session;
        }
    }
    return std::make_unique<HostedSession>(device_number, stream, threads_);
}

void Sessions::give_back(std::unique_ptr<HostedSession> session) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(session));
}

Lease::Lease(Sessions &sessions, const Call &call, int32_t device_number)
    : sessions_(sessions), session_(sessions.take(device_number, device_number < 0 ? nullptr : call.stream())) {
    session_->serve(&call);
}

Lease::~Lease() {
    session_->serve(nullptr);
    try {
        sessions_.give_back(std::move(session_));
    } catch (const std::bad_alloc &) {
        // The next call makes another.
    }
}

}  // namespace distile::ort
