#include "runtime/cuda/side_stream.h"
#include "runtime/cuda/cuda_device.h"

namespace distile {

SideStream::SideStream(CudaDevice &device) : device_(device) {
    try {
        device.check(device.driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        device.check(device.driver.cuEventCreate(&forked_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        device.check(device.driver.cuEventCreate(&ended_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    } catch (...) {
        destroy();
        throw;
    }
}

SideStream::~SideStream() {
    destroy();
}

void SideStream::destroy() const {
    if (stream_) {
        device_.driver.cuStreamDestroy(stream_);
    }
    for (CUevent event : {forked_, ended_}) {
        if (event) {
            device_.driver.cuEventDestroy(event);
        }
    }
}

void SideStream::fork() const {
    device_.check(device_.driver.cuEventRecord(forked_, device_.caller_stream), "cuEventRecord");
}

void SideStream::begin() const {
    device_.check(device_.driver.cuStreamWaitEvent(stream_, forked_, 0), "cuStreamWaitEvent");
}

void SideStream::join() const {
    device_.check(device_.driver.cuEventRecord(ended_, stream_), "cuEventRecord");
    device_.check(device_.driver.cuStreamWaitEvent(device_.caller_stream, ended_, 0), "cuStreamWaitEvent");
}

}  // namespace distile
