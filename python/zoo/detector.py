"""The part of torchvision's detectors that sees the image."""

from torch import nn


class Detector(nn.Module):
    """The backbone, and the head that marks boxes at every pixel of each level."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.backbone = model.backbone
        self.head = model.rpn.head if hasattr(model, "rpn") else model.head

    def forward(self, x):
        return self.head(list(self.backbone(x).values()))
