/** \file
 * Contexts of distile for the calls of ONNX Runtime, which may come from several threads at once.
 */
#ifndef DISTILE_ONNXRUNTIME_SESSIONS_H
#define DISTILE_ONNXRUNTIME_SESSIONS_H

#include "bindings/session.h"
#include "onnxruntime/host.h"
#include <memory>
#include <mutex>

namespace distile::ort {

/** A session whose loops run in ONNX Runtime's threads, so that the two libraries never compete for cores. */
class HostedSession {
public:
    /** For a GPU and a CUstream, or for CPUs if `device_number` is below 0. On CPUs, `threads` is the number of
     * threads; 0: one per core. */
    HostedSession(int32_t device_number, void *stream, int32_t threads);

    bindings::Session &session() {
        return session_;
    }
    /** Until it is told another call, or none, loops run in this one's threads. */
    void serve(const Call *call) {
        host_->call = call;
    }
    bool is_for(int32_t device_number, const void *stream) const {
        return device_number == device_number_ && stream == stream_;
    }

    /** Scratch memory of the host, at least `bytes` bytes. Valid until the next call with this number. */
    void *scratch(size_t number, size_t bytes);

private:
    struct Host {
        const Call *call = nullptr;
    };
    static void parallel_for(void *user, distile_task task, void *closure, int32_t count);
    static Context make(int32_t device_number, void *stream, int32_t threads, Host &host);

    std::unique_ptr<Host> host_;
    int32_t device_number_;
    void *stream_;
    bindings::Session session_;
    std::vector<std::vector<uint64_t>> scratch_;
};

/** The sessions that the kernels of all models share, so that layers share masks. They live as long as any kernel. */
class Sessions {
public:
    /** The sessions of CPUs with `threads` threads, and of GPUs. */
    static std::shared_ptr<Sessions> shared(int32_t threads);

    explicit Sessions(int32_t threads) : threads_(threads) {
    }
    /** A session that nobody uses, the last used if possible. On a GPU each stream has its own, because a context
     * reuses its memory in the order of its stream. */
    std::unique_ptr<HostedSession> take(int32_t device_number, void *stream);
    void give_back(std::unique_ptr<HostedSession> session);

private:
    int32_t threads_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<HostedSession>> idle_;
};

/** A session for the duration of a call. */
class Lease {
public:
    /** For a GPU by its number, or for CPUs below 0. */
    Lease(Sessions &sessions, const Call &call, int32_t device_number);
    ~Lease();
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;

    bindings::Session *operator->() const {
        return &session_->session();
    }
    bindings::Session &operator*() const {
        return session_->session();
    }
    void *scratch(size_t number, size_t bytes) const {
        return session_->scratch(number, bytes);
    }

private:
    Sessions &sessions_;
    std::unique_ptr<HostedSession> session_;
};

}  // namespace distile::ort

#endif
