"""The architectures of the zoo: timm's and torchvision's small models of every family, with random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Its import takes longer than to list the architectures.
    import torch
    from torch import nn

Size = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model's definition, the height and width of its input, and what is called with it."""

    name: str
    make: Callable[[], nn.Module]
    size: Size
    inputs: Callable[[torch.Tensor], tuple] = lambda x: (x,)


def _timm(name: str, size: Size, fixed: bool) -> Architecture:
    def make():
        import timm

        return timm.create_model(name, pretrained=False, **({"img_size": size} if fixed else {}))

    return Architecture(name, make, size)


def _torchvision(name: str, size: Size) -> Architecture:
    def make():
        import torchvision

        more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        family = torchvision.models.get_model_builder(name).__module__
        if "segmentation" in family or "detection" in family:
            more["weights_backbone"] = None
        model = torchvision.models.get_model(name, weights=None, **more)
        if name == "maskrcnn_resnet50_fpn":  # As a whole: what it leaves is said.
            model.transform.min_size = (128,)
        if name in HEADS.split():
            from detector import Detector

            return Detector(model)
        return model

    inputs = Architecture.inputs
    if name.startswith("raft"):
        inputs = lambda x: (x, x.roll(1, 3))
    elif name == "maskrcnn_resnet50_fpn":
        inputs = lambda x: (list(x),)
    return Architecture(f"torchvision/{name}", make, size, inputs)


# Detectors, of which the part that sees the image is here: around it, lists of images and of boxes have no masks.
HEADS = """retinanet_resnet50_fpn fcos_resnet50_fpn fasterrcnn_mobilenet_v3_large_320_fpn ssdlite320_mobilenet_v3_large
    keypointrcnn_resnet50_fpn"""
# Height and width differ where a model allows it, so that they cannot be taken for each other; and some are no multiple
# of the strides.
CONVOLUTIONAL: dict[Size, str] = {
    (96, 128): """resnet18 resnet26d resnet50_gn resnetv2_18 seresnet18 skresnet18 resnest14d resnetblur18 resnext26ts
        ecaresnet26t gcresnext26ts res2net50_14w_8s selecsls42b regnetx_002 regnety_002 regnetz_005
        mobilenetv1_100 mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small_050
        mobilenetv4_hybrid_medium_075 efficientnet_b0 efficientnet_b0_gn efficientnetv2_rw_t efficientnet_es mixnet_s
        mnasnet_050 fbnetc_100 lcnet_050 tinynet_e rexnet_100 hardcorenas_a spnasnet_100 ghostnet_050 ghostnetv2_100
        repghostnet_050 densenet121 rdnet_tiny dla46_c dla60x_c hrnet_w18_small
        vovnet39a ese_vovnet19b_slim_dw repvgg_a0
        mobileone_s0 repvit_m0_9 cspdarknet53 cs3darknet_focus_s darknet17 cspnext_tiny gernet_s hgnet_tiny hgnetv2_b0
        convnext_atto convnext_atto_ols convnextv2_atto inception_next_atto nfnet_l0 nf_regnet_b0 nf_resnet26 tresnet_m
        xception41 vgg11_bn poolformer_s12 poolformerv2_s12 convformer_s18 caformer_s18 mambaout_femto starnet_s1
        fasternet_t0 fastvit_t8 convmixer_768_32 lambda_resnet26t
        torchvision/alexnet torchvision/squeezenet1_0 torchvision/squeezenet1_1 torchvision/googlenet
        torchvision/shufflenet_v2_x0_5 torchvision/mnasnet0_5 torchvision/convnext_tiny torchvision/efficientnet_b0
        torchvision/densenet121 torchvision/resnet18 torchvision/resnext50_32x4d torchvision/mobilenet_v2
        torchvision/mobilenet_v3_small torchvision/regnet_y_400mf torchvision/fcn_resnet50
        torchvision/deeplabv3_mobilenet_v3_large torchvision/lraspp_mobilenet_v3_large""",
    (100, 72): "resnet34 tf_efficientnet_b0 resnet14t torchvision/vgg11 torchvision/mobilenet_v3_large",
    (139, 107): "inception_v3 inception_v4 legacy_xception torchvision/inception_v3",
}
# Images of any size, in which these have parts of fixed size.
ANY: dict[Size, str] = {
    (128, 192): """xcit_nano_12_p16_224 pvt_v2_b0 twins_svt_small twins_pcpvt_small edgenext_xx_small davit_tiny
        focalnet_tiny_srf efficientvit_b0 mobilevit_xxs mobilevitv2_050 nextvit_small
        shvit_s1 swiftformer_xs""",
    (128, 128): "efficientvit_m0 tiny_vit_5m_224 torchvision/swin_t torchvision/swin_v2_t",
    (224, 224): """visformer_tiny coat_lite_tiny efficientformer_l1 coatnet_nano_rw_224 maxvit_tiny_tf_224
        torchvision/maxvit_t torchvision/vit_b_32""",
    (240, 240): "crossvit_9_240",
    (256, 256): "bat_resnext26ts botnet26t_256 halonet26t",
}
# Architectures whose image size is an argument.
FIXED: dict[Size, str] = {
    (128, 192): """vit_tiny_patch16_224 vit_base_patch32_224 vit_small_patch16_dinov3 vit_small_patch14_reg4_dinov2
        vit_relpos_small_patch16_224 vit_tiny_r_s16_p8_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224
        deit3_small_patch16_224 cait_xxs24_224 beit_base_patch16_224 eva02_tiny_patch14_224 tnt_s_patch16_224
        volo_d1_224 pit_ti_224 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 gmixer_12_224 sequencer2d_s""",
    (128, 128): """levit_128s levit_conv_128s efficientformerv2_s0 nest_tiny mvitv2_tiny hiera_tiny_224
        swin_s3_tiny_224 gcvit_xxtiny""",
    (112, 112): "swin_tiny_patch4_window7_224 swinv2_cr_tiny_ns_224 convit_tiny",
    (128, 256): "swinv2_tiny_window8_256",
}
MORE: dict[Size, str] = {
    (128, 192): " ".join(f"torchvision/{name}" for name in HEADS.split()),
    (128, 128): "torchvision/raft_small torchvision/maskrcnn_resnet50_fpn",
}


def _all():
    for table in (CONVOLUTIONAL, ANY, FIXED, MORE):
        for size, names in table.items():
            for name in names.split():
                library, _, rest = name.rpartition("/")
                yield _torchvision(rest, size) if library else _timm(rest, size, table is FIXED)


NAMED = {architecture.name: architecture for architecture in _all()}
