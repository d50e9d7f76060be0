#include "network.h"

namespace distile::networks {

const std::vector<NetworkType> &network_types() {
    static const std::vector<NetworkType> types = {
        {"dynconv-resnet", "DynConv's ResNet-101, with a mask unit in every block", true, make_dynconv_resnet},
        {"dynconv-pose", "DynConv's pose network of MobileNetV2 blocks", true, make_dynconv_pose},
        {"avit-t", "A-ViT of 192 channels: tokens halt, each at a layer of its own", true, make_avit_t},
        {"avit-s", "A-ViT of 384 channels", true, make_avit_s},
        {"sige-ddpm", "SIGE's DDPM UNet on a photo and its edit", false, make_sige_ddpm},
        {"sige-gaugan", "SIGE's GauGAN generator on a map of classes and its edit", false, make_sige_gaugan},
        {"sige-stable-diffusion", "The UNet of Stable Diffusion 1 on an edited region", false,
         make_sige_stable_diffusion},
    };
    return types;
}

}  // namespace distile::networks
