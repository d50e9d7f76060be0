"""Blocks of known networks, node by node as PyTorch's exporter writes them, with random weights."""

import numpy as np
from networks import Builder
from onnx import numpy_helper


class Exported(Builder):
    """Nodes are named by the module that they come from, as in '/layer1/conv1/Conv'."""

    def node(self, module, op, *inputs, **attributes):
        taken = {node.name for node in self.nodes}
        name = f"{module}/{op}"
        for count in range(1, len(taken) + 1):
            if name not in taken:
                break
            name = f"{module}/{op}_{count}"
        return self.add(op, list(inputs), f"{name}_output_0", name, **attributes)

    def value(self, module, value):
        """A Constant node."""
        return self.node(module, "Constant", value=numpy_helper.from_array(np.asarray(value)))

    def convolution(self, module, x, inner, outer, kernel=1, stride=1, groups=1, bias=True, pad=None):
        key = module.strip("/").replace("/", ".")
        inputs = [x, self.weights(f"{key}.weight", outer, inner // groups, kernel, kernel)]
        if bias:
            inputs.append(self.weights(f"{key}.bias", outer))
        return self.node(
            module, "Conv", *inputs, dilations=[1, 1], group=groups, kernel_shape=[kernel] * 2,
            pads=[kernel // 2 if pad is None else pad] * 4, strides=[stride] * 2,
        )  # fmt: skip

    def batch_norm(self, module, x, channels):
        key = module.strip("/").replace("/", ".")
        statistics = [self.weights(f"{key}.{name}", channels) for name in ("weight", "bias", "running_mean")]
        variance = self.random.uniform(0.5, 2, channels).astype(np.float32)
        statistics.append(self.constant(f"{key}.running_var", variance))
        return self.node(module, "BatchNormalization", x, *statistics, epsilon=1e-5, momentum=0.9)

    def conv_norm(self, module, x, *shape, folded, **more):
        """A convolution, and the batch norm that the exporter folds into it unless it exports for training."""
        x = self.convolution(f"{module}/conv", x, *shape, bias=folded, **more)
        return x if folded else self.batch_norm(f"{module}/bn", x, shape[1])

    def group_norm(self, module, x, channels, groups, norm):
        key = module.strip("/").replace("/", ".")
        if norm != "InstanceNormalization":
            vectors = [self.weights(f"{key}.{name}", channels) for name in ("weight", "bias")]
            return self.node(module, "GroupNormalization", x, *vectors, num_groups=groups, epsilon=1e-6)
        grouped = self.node(module, "Reshape", x, self.value(module, np.array([0, groups, -1])))
        ones, zeros = (self.value(module, np.full(groups, number, np.float32)) for number in (1, 0))
        normal = self.node(module, "InstanceNormalization", grouped, ones, zeros, epsilon=1e-6)
        normal = self.node(module, "Reshape", normal, self.node(module, "Shape", x))
        factors, summands = (self.weights(f"{key}.{name}", channels, 1, 1) for name in ("weight", "bias"))
        return self.node(module, "Add", self.node(module, "Mul", normal, factors), summands)

    def silu(self, module, x):
        return self.node(module, "Mul", x, self.node(module, "Sigmoid", x))

    def relu6(self, module, x):
        return self.node(module, "Clip", x, *(self.value(module, np.float32(limit)) for limit in (0, 6)))

    def layer_norm(self, module, x, channels):
        key = module.strip("/").replace("/", ".")
        vectors = [self.weights(f"{key}.{name}", channels) for name in ("weight", "bias")]
        return self.node(module, "LayerNormalization", x, *vectors, axis=-1, epsilon=1e-6)

    def linear(self, module, x, inner, outer):
        key = module.strip("/").replace("/", ".")
        product = self.node(module, "MatMul", x, self.weights(f"{key}.weight", inner, outer))
        return self.node(module, "Add", self.weights(f"{key}.bias", outer), product)

    def gelu(self, module, x):
        root, one, half = (self.value(module, np.float32(number)) for number in (np.sqrt(2), 1, 0.5))
        erf = self.node(module, "Erf", self.node(module, "Div", x, root))
        return self.node(module, "Mul", self.node(module, "Mul", x, self.node(module, "Add", erf, one)), half)


def resnet(folded):
    """The stem of a ResNet-50, two bottlenecks, and its head."""
    b = Exported()
    x = b.node("", "Relu", b.conv_norm("/stem", "x", 3, 16, 7, 2, folded=folded))
    x = b.node("/maxpool", "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=0)
    for block, (inner, stride) in enumerate([(16, 1), (32, 2)]):
        module = f"/layer/layer.{block}"
        shortcut = x
        y = b.node(module, "Relu", b.conv_norm(f"{module}/1", x, inner, 8, folded=folded))
        y = b.node(module, "Relu", b.conv_norm(f"{module}/2", y, 8, 8, 3, stride, folded=folded))
        y = b.conv_norm(f"{module}/3", y, 8, 32, folded=folded)
        shortcut = b.conv_norm(f"{module}/downsample", x, inner, 32, 1, stride, folded=folded)
        x = b.node(module, "Relu", b.node(module, "Add", y, shortcut))
    x = b.node("/Flatten", "Flatten", b.node("/avgpool", "GlobalAveragePool", x), axis=1)
    b.add("Gemm", [x, b.weights("fc.weight", 5, 32), b.weights("fc.bias", 5)], "y", "/fc/Gemm", transB=1)
    return b.model({"x": ["batch", 3, 45, 38]}, {"y": ["batch", 5]})


def mobilenet(excite):
    """Two inverted residuals of MobileNetV2, or with squeeze-excite and hardswish, of MobileNetV3."""
    b = Exported()
    x = "x"
    for block, stride in enumerate([1, 2]):
        module = f"/features.{block}"
        act = (lambda where, y: b.node(where, "HardSwish", y)) if excite else b.relu6
        y = act(f"{module}/0", b.convolution(f"{module}/0/0", x, 8, 48))
        y = act(f"{module}/1", b.convolution(f"{module}/1/0", y, 48, 48, 3, stride, 48))
        if excite:
            if excite == "GlobalAveragePool":
                pooled = b.node(f"{module}/avgpool", "GlobalAveragePool", y)
            else:
                axes = b.value(f"{module}/se", np.array([2, 3]))
                pooled = b.node(f"{module}/se", "ReduceMean", y, axes, keepdims=1)
            gate = b.node(f"{module}/se", "Relu", b.convolution(f"{module}/se/fc1", pooled, 48, 12))
            gate = b.convolution(f"{module}/se/fc2", gate, 12, 48)
            gate = b.node(f"{module}/se", "HardSigmoid", gate, alpha=1 / 6)
            y = b.node(f"{module}/se", "Mul", gate, y)
        y = b.convolution(f"{module}/2", y, 48, 8)
        x = b.node(module, "Add", x, y) if stride == 1 else y
    b.add("Identity", [x], "y")
    return b.model({"x": [2, 8, 18, 15]}, {"y": [2, 8, 9, 8]}, opset=18)


def vision_transformer():
    """Patches, the class token, positions, one block and the head of a ViT; 3 heads of 64."""
    width, heads = 192, 3
    b = Exported()
    x = b.convolution("/patch_embed/proj", "x", 3, width, 8, 8, pad=0)
    x = b.node("/patch_embed", "Reshape", x, b.value("/patch_embed", np.array([2, width, 16])))
    x = b.node("/patch_embed", "Transpose", x, perm=[0, 2, 1])
    token = b.node("", "Expand", b.weights("cls_token", 1, 1, width), b.value("", np.array([2, 1, width])))
    x = b.node("", "Concat", token, x, axis=1)
    x = b.node("", "Add", x, b.weights("pos_embed", 1, 17, width))
    y = b.linear("/block/attn/qkv", b.layer_norm("/block/norm1", x, width), width, 3 * width)
    y = b.node("/block/attn", "Reshape", y, b.value("/block/attn", np.array([2, 17, 3, heads, 64])))
    y = b.node("/block/attn", "Transpose", y, perm=[2, 0, 3, 1, 4])
    query, key, value = (
        b.node("/block/attn", "Gather", y, b.value("/block/attn", np.array(place)), axis=0) for place in range(3)
    )
    key = b.node("/block/attn", "Transpose", key, perm=[0, 1, 3, 2])
    root = b.value("/block/attn", np.float32(64**-0.25))
    query, key = (b.node("/block/attn", "Mul", operand, root) for operand in (query, key))
    scores = b.node("/block/attn", "Softmax", b.node("/block/attn", "MatMul", query, key), axis=-1)
    y = b.node("/block/attn", "Transpose", b.node("/block/attn", "MatMul", scores, value), perm=[0, 2, 1, 3])
    y = b.node("/block/attn", "Reshape", y, b.value("/block/attn", np.array([2, 17, width])))
    x = b.node("/block", "Add", x, b.linear("/block/attn/proj", y, width, width))
    y = b.gelu("/block/mlp/act", b.linear("/block/mlp/fc1", b.layer_norm("/block/norm2", x, width), width, 256))
    x = b.node("/block", "Add", x, b.linear("/block/mlp/fc2", y, 256, width))
    x = b.node("", "Gather", b.layer_norm("/norm", x, width), b.value("", np.array(0)), axis=1)
    b.add("Gemm", [x, b.weights("head.weight", 5, width), b.weights("head.bias", 5)], "y", "/head/Gemm", transB=1)
    return b.model({"x": [2, 3, 32, 32]}, {"y": [2, 5]})


def unet(norm):
    """Two levels of a diffusion UNet, with the embedding of a time."""
    b = Exported()

    def resnet_block(module, x, inner, outer):
        y = b.silu(f"{module}/act", b.group_norm(f"{module}/norm1", x, inner, 4, norm))
        y = b.convolution(f"{module}/conv1", y, inner, outer, 3)
        key = module.strip("/").replace("/", ".")
        weights = [b.weights(f"{key}.time.weight", outer, 6), b.weights(f"{key}.time.bias", outer)]
        time = b.node(f"{module}/time_emb_proj", "Gemm", "time", *weights, transB=1)
        for axis in (2, 3):
            time = b.node(module, "Unsqueeze", time, b.value(module, np.array([axis])))
        y = b.node(module, "Add", y, time)
        y = b.silu(f"{module}/act", b.group_norm(f"{module}/norm2", y, outer, 4, norm))
        y = b.convolution(f"{module}/conv2", y, outer, outer, 3)
        shortcut = x if inner == outer else b.convolution(f"{module}/conv_shortcut", x, inner, outer)
        return b.node(module, "Add", shortcut, y)

    x = b.convolution("/conv_in", "x", 4, 16, 3)
    high = resnet_block("/down", x, 16, 16)
    x = b.convolution("/down/sampler", high, 16, 16, 3, 2)
    x = resnet_block("/mid", x, 16, 32)
    factors = b.value("/up/sampler", np.array([1, 1, 2, 2], np.float32))
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor", cubic_coeff_a=-0.75)
    x = b.node("/up/sampler", "Resize", x, "", factors, **how)
    x = b.convolution("/up/sampler/conv", x, 32, 32, 3)
    x = resnet_block("/up", b.node("/up", "Concat", x, high, axis=1), 48, 16)
    x = b.silu("/act", b.group_norm("/norm_out", x, 16, 4, norm))
    b.add("Identity", [b.convolution("/conv_out", x, 16, 4, 3)], "y")
    opset = {"InstanceNormalization": 17, "GroupNormalization": 21}[norm]
    return b.model({"x": [2, 4, 12, 16], "time": [2, 6]}, {"y": [2, 4, 12, 16]}, opset=opset)
