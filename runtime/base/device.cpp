#include "runtime/base/device.h"
#include "runtime/base/context.h"

namespace distile {

std::shared_ptr<const void> Device::make_filled(size_t bytes, const std::function<void(void *)> &fill) {
    HostVector<unsigned char> host(bytes, context.memory);
    fill(host.data());
    return upload(host.data(), bytes);
}

}  // namespace distile
