#!/usr/bin/env python3
"""Measures transformer blocks over active tokens beside PyTorch's dense blocks, all sides in turns.

vit: blocks of A-ViT-S (384 channels, 6 heads, 197 tokens). Queries and keys are the active tokens. Rows "layers" are of
all 12 blocks, of which ever fewer tokens are active, this share of them on average.
diffusion: a block of a diffusion transformer (1536 channels, 24 heads, 4096 tokens) that edits a region: it computes
the active tokens' queries, keys and values, and they attend to the keys and values of all tokens, which a cache keeps.

A block: x += projection(attention(linear(layer norm(x)))); x += linear(gelu(linear(layer norm(x)))).

Examples:
  blocks.py --library build/release/runtime/libdistile.so --objects folder --out cpu-blocks.json
  blocks.py --library libdistile_cuda.so --objects folder --device cuda --dtype bfloat16 --out h200-blocks.json

The folder has attention_<heads>_64 and linear_<inputs>_<outputs>, with _<dtype> unless that is float32.
"""
import math

import numpy as np

from c_api import Distile, NormalizeArgs, RunArgs, Tokens
from measuring import CpuClock, GpuClock, Results, fastest, find_object, measure, parse_options, times_of, torch

LAYERS = 12
DENSITIES = [.3, .1, .5, .7, 1.0]
EPSILON = 1e-6
# Name, channels, heads, tokens, images, layers, whether all keys count.
CPU_NETWORKS = [("vit", 384, 6, 197, 1, 1, False), ("vit", 384, 6, 197, 1, LAYERS, False),
                ("vit", 384, 6, 197, 16, 1, False)]
GPU_NETWORKS = [("diffusion", 1536, 24, 4096, 1, 1, True), ("diffusion", 1536, 24, 4096, 4, 1, True),
                ("vit", 384, 6, 197, 1, LAYERS, False), ("vit", 384, 6, 197, 16, LAYERS, False)]


class Weights:
    """A block's random weights in float32, as NumPy arrays."""

    def __init__(self, channels, random):
        def linear(inputs, outputs):
            return (random.uniform(-1, 1, (outputs, inputs)).astype(np.float32) / math.sqrt(inputs),
                    random.uniform(-.1, .1, outputs).astype(np.float32))

        self.linears = {"qkv": linear(channels, 3 * channels), "projection": linear(channels, channels),
                        "up": linear(channels, 4 * channels), "down": linear(4 * channels, channels)}
        self.norms = [tuple(random.uniform(low, 1, channels).astype(np.float32) for low in (.5, -1)) for _ in range(2)]


class Memory:
    """Arrays of either device: PyTorch's tensors."""

    def __init__(self, device, dtype):
        self.device, self.dtype = device, getattr(torch, dtype)

    def of(self, array, dtype=None):
        return torch.from_numpy(array).to(self.device, dtype or self.dtype)

    def zeros(self, *shape):
        return torch.zeros(shape, device=self.device, dtype=self.dtype)


class MaskedNetwork:
    """Our side."""

    def __init__(self, distile, kernels, network, weights, memory, dtype, x):
        _, self.channels, _, self.tokens, self.batch, layers, self.all_keys = network
        self.distile, self.kernels, self.dtype = distile, kernels, dtype
        self.input, self.x = x, x.clone()
        self.normal, self.attended = memory.zeros(*x.shape), memory.zeros(*x.shape)
        self.qkv, self.hidden = (memory.zeros(self.batch, self.tokens, times * self.channels) for times in (3, 4))
        self.masks = [distile.mask() for _ in range(layers)]
        self.layers = []
        for each in weights:
            packed = {name: distile.weights(kernels[name], *each.linears[name]) for name in each.linears}
            self.layers.append((packed, [[memory.of(array, torch.float32) for array in norm] for norm in each.norms]))

    def view(self, tensor, channels, first=0):
        row = tensor.shape[2]
        return Tokens(tensor.data_ptr(), self.dtype, self.batch, self.tokens, channels, row, first).pointer()

    def set_masks(self, mask_bytes):
        for mask, of_layer in zip(self.masks, mask_bytes):
            self.distile.mask_setter(mask, of_layer.data_ptr(), self.batch, self.tokens)()

    def fill_cache(self):
        """Keys and values of all tokens, as an earlier step of the diffusion left them."""
        everything = torch.ones((self.batch, self.tokens), dtype=torch.uint8, device=self.x.device)
        self.set_masks([everything])
        self.project(*self.layers[0], self.masks[0], self.input)
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def normalize(self, norm, mask, source):
        self.distile.normalize(NormalizeArgs(
            input=self.view(source, self.channels), output=self.view(self.normal, self.channels), mask=mask,
            gamma=norm[0].data_ptr(), beta=norm[1].data_ptr(), epsilon=EPSILON))

    def linear(self, name, weights, source, target, mask, residual=None):
        self.distile.run(self.kernels[name], RunArgs(
            input=self.view(source, source.shape[2]), output=self.view(target, target.shape[2]), mask=mask,
            weights=weights[name], residual=self.view(residual, residual.shape[2]) if residual is not None else None))

    def project(self, weights, norms, mask, source):
        self.normalize(norms[0], mask, source)
        self.linear("qkv", weights, self.normal, self.qkv, mask)

    def run(self):
        # The first layer leaves the input as it is. Tokens that no layer computes keep it in x.
        source = self.input
        for mask, (weights, norms) in zip(self.masks, self.layers):
            self.project(weights, norms, mask, source)
            query, key, value = (self.view(self.qkv, self.channels, part * self.channels) for part in range(3))
            self.distile.run(self.kernels["attention"], RunArgs(
                input=query, key=key, value=value, output=self.view(self.attended, self.channels), mask=mask,
                key_mask=None if self.all_keys else mask))
            self.linear("projection", weights, self.attended, self.x, mask, source)
            source = self.x
            self.normalize(norms[1], mask, source)
            self.linear("up", weights, self.normal, self.hidden, mask)
            self.linear("down", weights, self.hidden, self.x, mask, self.x)


class TorchNetwork:
    """The dense network, and by its definition the masked one."""

    def __init__(self, network, weights, memory, x):
        _, self.channels, self.heads, *_ = network
        self.x = x
        self.layers = [({name: [memory.of(array) for array in pair] for name, pair in each.linears.items()},
                        [[memory.of(array) for array in norm] for norm in each.norms]) for each in weights]

    def attend(self, query, key, value):
        heads = [part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value)]
        return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)

    def block(self, x, linears, norms, cache=None):
        function = torch.nn.functional
        normal = function.layer_norm(x, (self.channels,), *norms[0], EPSILON)
        query, key, value = function.linear(normal, *linears["qkv"]).split(self.channels, dim=2)
        if cache is not None:
            key, value = cache
        x = x + function.linear(self.attend(query, key, value), *linears["projection"])
        normal = function.layer_norm(x, (self.channels,), *norms[1], EPSILON)
        return x + function.linear(function.gelu(function.linear(normal, *linears["up"])), *linears["down"])

    def run(self):
        x = self.x
        for linears, norms in self.layers:
            x = self.block(x, linears, norms)
        return x

    def masked(self, mask_bytes, all_keys):
        """One image at a time, with the inactive tokens removed."""
        x = self.x.clone()
        for (linears, norms), of_layer in zip(self.layers, mask_bytes):
            function = torch.nn.functional
            for image in range(x.shape[0]):
                rows = of_layer[image].nonzero()[:, 0]
                cache = None
                if all_keys:
                    normal = function.layer_norm(x[image:image + 1], (self.channels,), *norms[0], EPSILON)
                    cache = function.linear(normal, *linears["qkv"]).split(self.channels, dim=2)[1:]
                x[image, rows] = self.block(x[image:image + 1, rows], linears, norms, cache)[0]
        return x


def draw_masks(network, share, random):
    """A mask for each layer: the same share in one layer, an ever smaller one in several."""
    _, _, _, tokens, batch, layers, _ = network
    masks = np.zeros((layers, batch, tokens), np.uint8)
    for image in range(batch):
        order = random.permutation(tokens)
        for layer in range(layers):
            left = share if layers == 1 else (1 - (layer + .5) / layers) ** ((1 - share) / share)
            masks[layer, image, order[:max(1, round(left * tokens))]] = 1
    return masks


def work_fraction(network, masks):
    """The multiplications of the masked network by those of the dense one."""
    _, channels, _, tokens, _, _, all_keys = network
    rows = masks.mean(axis=2)
    linear, attention = 12 * channels ** 2 * tokens, 2 * channels * tokens ** 2
    return float((linear * rows + attention * rows * (1 if all_keys else rows)).mean() / (linear + attention))


def measure_network(distile, kernels, network, share, options):
    random = np.random.default_rng(1)
    name, channels, _, tokens, batch, layers, all_keys = network
    memory = Memory("cuda" if options.device == "cuda" else "cpu", options.dtype)
    weights = [Weights(channels, random) for _ in range(layers)]
    x = memory.of(random.standard_normal((batch, tokens, channels), np.float32))
    masks = draw_masks(network, share, random)
    mask_bytes = [memory.of(mask, torch.uint8) for mask in masks]
    if x.is_cuda:
        distile.set_stream(torch.cuda.current_stream())
    ours = MaskedNetwork(distile, kernels, network, weights, memory, options.dtype, x)
    dense = TorchNetwork(network, weights, memory, x)
    if all_keys:
        ours.fill_cache()

    def masked():
        ours.set_masks(mask_bytes)
        ours.run()

    compiled = torch.compile(dense.run) if x.is_cuda else dense.run
    sides = {"masked": masked, "masks": lambda: ours.set_masks(mask_bytes), "dense PyTorch": dense.run}
    if x.is_cuda:
        sides["dense PyTorch, compiled"] = compiled
    times = measure(GpuClock(distile) if x.is_cuda else CpuClock(), sides, options.rounds)
    exact_memory = Memory(memory.device, "float32")
    if x.is_cuda:
        distile.set_stream(torch.cuda.current_stream())
    expected = TorchNetwork(network, weights, exact_memory, x.float()).masked(mask_bytes, all_keys)
    masked()
    if x.is_cuda:
        torch.cuda.synchronize()
    error = float((ours.x.float() - expected).abs().max() / expected.abs().max())
    peer, peer_us = fastest(times, "dense")
    fraction, masked_us = work_fraction(network, masks), times["masked"]["median"]
    return {"status": "measured", "kind": "block", "op": name,
            "shape": f"{layers} x {channels} channels, {tokens} tokens", "dtype": options.dtype, "batch": batch,
            "density": float(masks.mean()), "work_fraction": fraction, "max_rel_err": error, "t_masked_us": masked_us,
            "t_masks_us": times["masks"]["median"], "t_peer_us": peer_us, "peer": peer,
            "speedup": peer_us / masked_us, "eta": peer_us * fraction / masked_us, "times_us": times}


def find_kernels(distile, network, options):
    """The kernels of a network by their use; or the name of one that there is not."""
    _, channels, heads, *_ = network
    names = {"attention": f"attention_{heads}_{channels // heads}", "qkv": f"linear_{channels}_{3 * channels}",
             "projection": f"linear_{channels}_{channels}", "up": f"linear_{channels}_{4 * channels}",
             "down": f"linear_{4 * channels}_{channels}"}
    kernels = {}
    for use, name in names.items():
        name += "" if options.dtype == "float32" else f"_{options.dtype}"
        path = find_object(options.objects, name)
        if path is None:
            return None, name
        kernels[use] = distile.kernel(path, times_of(options, path))
    return kernels, None


def main():
    options = parse_options(__doc__)
    if torch is None:
        raise SystemExit("blocks.py: PyTorch is needed")
    networks = GPU_NETWORKS if options.device == "cuda" else CPU_NETWORKS
    results = Results(options)
    distile = Distile(options.library, options.threads, options.device == "cuda")
    rows = [(network, share) for network in networks for share in DENSITIES]
    for number, (network, share) in enumerate(rows, 1):
        layers = "layers" if network[5] > 1 else "block"
        name = f"{network[0]}/{layers}/n{network[4]}/{share}/{options.dtype}"
        if not results.wants(name):
            continue
        kernels, missing = find_kernels(distile, network, options)
        if kernels is None:
            results.add(name, {"status": "skipped", "reason": f"'{options.objects}' has no {missing}"})
            print(f"[{number}/{len(rows)}] {name}: skipped, no {missing}", flush=True)
            continue
        row = measure_network(distile, kernels, network, share, options)
        results.add(name, row)
        print(f"[{number}/{len(rows)}] {name}: {row['t_masked_us']:.0f} us, masks {row['t_masks_us']:.1f}, "
              f"{row['peer']} {row['t_peer_us']:.0f}: {row['speedup']:.2f} times, eta {row['eta']:.2f}, error "
              f"{row['max_rel_err']:.0e}", flush=True)


main()
