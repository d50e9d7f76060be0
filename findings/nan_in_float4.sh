#!/usr/bin/env bash
# ml_dtypes 0.6.0 and CUDA 13.0's headers (PyPI's nvidia-cuda-runtime): a NaN in float4 or float6 is zero in one and the
# largest number in the other.
#
# The guess: these types have no NaN, so a NaN becomes the largest number, as what is too large does, and as the
# conversion instructions of GPUs have it; whoever quantizes on the CPU gets the bits of the GPU.
# What happens instead: ml_dtypes, and with it onnx's reference evaluator, makes -0 of a NaN, and 0 of one with the sign
# bit. The functions of cuda_fp4.h and cuda_fp6.h, which run on the host too, make 6, 7.5 and 28 of either.
# Why it matters: a NaN in a weight that is quantized by ml_dtypes looks like a pruned weight, and no result tells of it;
# on the GPU it is a weight as large as any. Tests of one against the other that have no NaN pass.
# Seen: of NaN, float4_e2m1fn -0 and 6, float6_e2m3fn -0 and 7.5, float6_e3m2fn -0 and 28; of 100 both 6, 7.5 and 28.
# Needs a C++ compiler, for the host, and no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet ml_dtypes==0.6.0 onnx==1.23.2 numpy==2.4.6 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
cat >convert.cpp <<'END'
#include <cuda_fp4.h>
#include <cuda_fp6.h>

extern "C" int fp4(float x) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); }
extern "C" int fp6(float x, int e3m2) {
    return __nv_cvt_float_to_fp6(x, e3m2 ? __NV_E3M2 : __NV_E2M3, cudaRoundNearest);
}
END
headers=$(dirname "$(find python -name cuda_fp4.h)")
c++ -shared -fPIC -O1 "-I$headers" "-I$headers/cccl" -o convert.so convert.cpp
python/bin/python - <<'END'
import ctypes

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

convert = ctypes.CDLL("./convert.so")
for function in (convert.fp4, convert.fp6):
    function.argtypes = [ctypes.c_float] + [ctypes.c_int] * (function is convert.fp6)
numbers = np.float32([np.nan, -np.nan, 100, -100, 1])
for kind, largest, header in (
    ("float4_e2m1fn", 6, convert.fp4),
    ("float6_e2m3fn", 7.5, lambda x: convert.fp6(x, 0)),
    ("float6_e3m2fn", 28, lambda x: convert.fp6(x, 1)),
):
    kind = getattr(ml_dtypes, kind)
    host = numbers.astype(kind).astype(np.float32)
    cuda = np.array([header(float(x)) for x in numbers], np.uint8).view(kind).astype(np.float32)
    print(f"{kind.__name__} of {numbers}: ml_dtypes {host}, CUDA {cuda}")
    assert np.array_equal(host, [0, 0, largest, -largest, 1]) and np.signbit(host).tolist()[:2] == [True, False]
    assert np.array_equal(cuda, [largest, largest, largest, -largest, 1])
nodes = [
    helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT4E2M1),
    helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
]
infos = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in "xy")
graph = helper.make_graph(nodes, "g", *([info] for info in infos))
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
evaluated = ReferenceEvaluator(model).run(None, {"x": numbers})[0]
print("onnx:", evaluated)
assert np.array_equal(evaluated, [0, 0, 6, -6, 1])
END
