#include "network.h"

namespace distile::networks {

const std::vector<NetworkType> &network_types() {
    static const std::vector<NetworkType> types = {
        {"dynconv-resnet", "DynConv's ResNet-101, with a mask unit in every block", make_dynconv_resnet},
        {"avit-t", "A-ViT of 192 channels: tokens halt, each at a layer of its own", make_avit_t},
        {"avit-s", "A-ViT of 384 channels", make_avit_s},
    };
    return types;
}

}  // namespace distile::networks
