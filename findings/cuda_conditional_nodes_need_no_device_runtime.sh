#!/usr/bin/env bash
# NVRTC 13.0.88 and ptxas of the CUDA Toolkit 13.0 (PyPI's nvidia-cuda-nvrtc and nvidia-cuda-nvcc): cudaGraphSetConditional,
# by which a kernel steers a conditional node of a CUDA graph, needs neither relocatable code nor libcudadevrt.
#
# The guess: it is declared in cuda_device_runtime_api.h, among the functions of dynamic parallelism. So, as those, it
# needs -rdc=true, a device link with libcudadevrt, and machine code for each GPU, and a program that compiles its
# kernels by NVRTC when it runs, with no toolkit there, cannot have conditional nodes.
# What happens instead: the assembler and nvlink leave the name to the driver without a word. PTX of plain NVRTC is
# enough, even with the function declared by hand and no header of CUDA. Its neighbour in the header, cudaGetDevice, is an
# inline call of __cudaCDP2GetDevice, which is unresolved as guessed.
# Why it matters: whoever follows the guess ships a library under NVIDIA's licence and a binary for each generation of
# GPUs, or leaves the choice to the host, which then waits for the GPU.
# Seen: "set: assembled, linked" and "neighbour: unresolved, unresolved". Needs no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96
cat >compile.py <<'PYTHON'
"""compile.py <name>: the kernel NAME.cu as NAME.ptx and as relocatable machine code, NAME.cubin, by NVRTC."""
import ctypes
import glob
import pathlib
import sys

nvidia = glob.glob("venv/lib/python3*/site-packages/nvidia")[0]
nvrtc = ctypes.CDLL(glob.glob(f"{nvidia}/**/libnvrtc.so.*", recursive=True)[0])
includes = [f"-I{folder}" for folder in glob.glob(f"{nvidia}/**/include", recursive=True)]
source = pathlib.Path(f"{sys.argv[1]}.cu").read_bytes()
for form, options in (("PTX", ["-arch=compute_90"]), ("CUBIN", ["-arch=sm_90", "-rdc=true"])):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None) == 0
    texts = [text.encode() for text in options + includes]
    assert nvrtc.nvrtcCompileProgram(program, len(texts), (ctypes.c_char_p * len(texts))(*texts)) == 0
    assert getattr(nvrtc, f"nvrtcGet{form}Size")(program, ctypes.byref(size)) == 0
    code = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{form}")(program, code) == 0
    pathlib.Path(f"{sys.argv[1]}.{form.lower()}").write_bytes(code.raw.rstrip(b"\0") if form == "PTX" else code.raw)
PYTHON
cat >set.cu <<'CUDA'
extern "C" __device__ void cudaGraphSetConditional(unsigned long long node, unsigned value);
extern "C" __global__ void kernel(unsigned long long node, unsigned value) { cudaGraphSetConditional(node, value); }
CUDA
cat >neighbour.cu <<'CUDA'
#include <cuda_device_runtime_api.h>
extern "C" __global__ void kernel(int *device) { cudaGetDevice(device); }
CUDA
tools=$(dirname "$(find "$folder/venv" -name ptxas | head -n 1)")
# tried <what it does if all is well> <command>
tried() {
    local well=$1
    shift
    if "$@" >said 2>&1; then echo "$well"; else grep -qiE 'unresolved|undefined' said && echo unresolved; fi
}
seen=$(for kernel in set neighbour; do
    venv/bin/python compile.py "$kernel"
    echo "$kernel: $(tried assembled "$tools/ptxas" -arch=sm_90 -o out "$kernel.ptx")," \
        "$(tried linked "$tools/nvlink" -arch=sm_90 -o out "$kernel.cubin")"
done)
echo "$seen"
diff <(echo "$seen") - <<'EXPECTED'
set: assembled, linked
neighbour: unresolved, unresolved
EXPECTED
