"""Sparse convolutions of libraries without sparse kernels: gather what active pixels read, multiply, scatter. By PyTorch,
from the byte mask on.

"gathered pixels" gathers the window of each active pixel. "gathered im2col blocks" is PIT's way (SOSP 2023) on a CPU: the
im2col of the whole image is explicit, and blocks of its rows with an active pixel are read, multiplied and written.
"""
import torch

BLOCK = 8  # Rows of the im2col.


def sides(problem):
    if problem.groups != 1 or problem.activation == "add":
        return {}
    before, after = problem.margins
    batch, channels, kernel, stride, size = (problem.batch, problem.inputs, problem.kernel, problem.stride, problem.size)
    dtype = problem.image.dtype
    filter_ = torch.from_numpy(problem.filter).to(dtype)
    # [window and channels, outputs], as the rows of the image are gathered.
    matrix = filter_.permute(2, 3, 1, 0).reshape(-1, problem.outputs).contiguous()
    bias = torch.from_numpy(problem.bias).to(dtype)
    image = torch.nn.functional.pad(problem.image, (before, after, before, after)).permute(0, 2, 3, 1).contiguous()
    _, height, width, _ = image.shape
    rows = image.reshape(-1, channels)
    output = torch.zeros(batch * size * size, problem.outputs, dtype=dtype)
    ys, xs = torch.meshgrid(torch.arange(size) * stride, torch.arange(size) * stride, indexing="ij")
    corners = (torch.arange(batch)[:, None, None] * height * width + ys * width + xs).reshape(-1)
    window = (torch.arange(kernel)[:, None] * width + torch.arange(kernel)).reshape(-1)
    mask = problem.mask.reshape(-1)

    def result():
        return output.reshape(batch, size, size, -1).permute(0, 3, 1, 2)

    def pixels():
        active = mask.nonzero()[:, 0]
        read = (corners[active][:, None] + window).reshape(-1)
        gathered = rows.index_select(0, read).reshape(len(active), -1)
        output.index_copy_(0, active, problem.finish(torch.addmm(bias, gathered, matrix), None))
        return result()

    blocks = -(-len(mask) // BLOCK)
    # The last block may be short of rows: they read the first pixel, and nobody reads what they write.
    spare = blocks * BLOCK - len(mask)
    im2col_rows = torch.cat([corners, corners[:1].expand(spare)])
    read_all = (im2col_rows[:, None] + window).reshape(-1)
    wide = torch.zeros(blocks, BLOCK, problem.outputs, dtype=dtype)

    def im2col_blocks():
        columns = rows.index_select(0, read_all).reshape(blocks, -1)
        padded = torch.nn.functional.pad(mask, (0, spare)).reshape(blocks, BLOCK)
        active = padded.any(1).nonzero()[:, 0]
        read = columns.index_select(0, active).reshape(len(active) * BLOCK, -1)
        product = problem.finish(torch.addmm(bias, read, matrix), None)
        wide.index_copy_(0, active, product.reshape(len(active), BLOCK, -1))
        return wide.reshape(-1, problem.outputs)[:len(mask)].reshape(batch, size, size, -1).permute(0, 3, 1, 2)

    return {"gathered pixels": pixels, "gathered im2col blocks": im2col_blocks}
