#!/usr/bin/env bash
# The tests of the library for ONNX Runtime, in Python. Skipped (77) where its packages are not installed.
#
# Usage: test_onnx.sh SOURCE LIBRARY COMPILER
#   LIBRARY   distile_onnxruntime.so
#   COMPILER  the folder of distile's compiler
set -euo pipefail
python=${DISTILE_ONNX_PYTHON:-$1/.venv/bin/python}
if ! "$python" -c 'import onnx, onnxruntime, pytest' 2>/dev/null; then
    echo "[SKIP] onnx: ONNX Runtime is not installed; 'make onnx' installs it"
    exit 77
fi
export DISTILE_ONNXRUNTIME=$2 DISTILE_COMPILER=$3 PYTHONPATH=$1/python PYTHONDONTWRITEBYTECODE=1
"$python" -m pytest -q -p no:cacheprovider "$1/python/tests/onnx"
