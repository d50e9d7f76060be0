/** \file
 * A second stream beside the caller's.
 */
#ifndef DISTILE_CUDA_SIDE_STREAM_H
#define DISTILE_CUDA_SIDE_STREAM_H

#include <cuda.h>

namespace distile {

class CudaDevice;

/** Its functions throw Failure. */
class SideStream {
public:
    explicit SideStream(CudaDevice &device);
    ~SideStream();
    SideStream(const SideStream &) = delete;
    SideStream &operator=(const SideStream &) = delete;

    CUstream stream() const {
        return stream_;
    }
    /** Marks the current work on the caller's stream; begin() makes this stream wait for it. */
    void fork() const;
    void begin() const;
    /** Makes the caller's stream wait for the current work on this stream. */
    void join() const;

private:
    void destroy() const;

    CudaDevice &device_;
    CUstream stream_ = nullptr;
    CUevent forked_ = nullptr, ended_ = nullptr;
};

}  // namespace distile

#endif
