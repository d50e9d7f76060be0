/** \file
 * Measuring on a GPU: all of it or some of its multiprocessors, and graphs that are timed by replaying them. Needs no
 * header of CUDA.
 */
#ifndef DISTILE_GPU_MEASURE_H
#define DISTILE_GPU_MEASURE_H

#include <cstddef>
#include <distile/distile.hpp>
#include <functional>
#include <memory>
#include <string>

namespace distile {

/** The first GPU, or some of its multiprocessors by a green context, with a stream of its own. Its context is current
 * in the thread that made it until it is destroyed. */
class GpuSlice {
public:
    /** 0 takes all multiprocessors. The driver may round any other number up. Throws std::runtime_error. */
    explicit GpuSlice(int multiprocessors);
    ~GpuSlice();
    GpuSlice(const GpuSlice &) = delete;
    GpuSlice &operator=(const GpuSlice &) = delete;

    /** The CUcontext and the CUstream. */
    void *context() const;
    void *stream() const;
    void synchronise() const;
    int multiprocessors() const;
    /** The GPU's name for itself. */
    std::string device() const;

private:
    struct Handles;
    std::unique_ptr<Handles> handles_;
};

/** A context on a slice, whose kernels store what they choose in `choice` unless that is null: on a GPU nothing else
 * tells. It must outlive the context. By default it takes a plan whatever its math. */
Context make_context(const GpuSlice &slice, distile_choice *choice = nullptr, distile_math math = DISTILE_MATH_TF32);

/** Memory of the GPU's, in the current context. */
class GpuMemory {
public:
    GpuMemory(const void *values, size_t bytes);
    ~GpuMemory();
    GpuMemory(const GpuMemory &) = delete;
    GpuMemory &operator=(const GpuMemory &) = delete;

    void *data() const {
        return data_;
    }

private:
    void *data_;
};

/** Something on a stream, captured in a graph as often as it takes for a clock to tell. */
class GpuGraph {
public:
    /** Calls `call` once before the capture, so that everything is loaded and allocated. */
    GpuGraph(const GpuSlice &slice, const std::function<void()> &call);
    ~GpuGraph();
    GpuGraph(const GpuGraph &) = delete;
    GpuGraph &operator=(const GpuGraph &) = delete;

    /** Microseconds of one call, from one replay. */
    double time() const;
    /** Replays it without timing. */
    void replay() const;

private:
    struct Handles;
    std::unique_ptr<Handles> handles_;
};

}  // namespace distile

#endif
