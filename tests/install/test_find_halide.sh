#!/usr/bin/env bash
# A project finds Halide where CMAKE_PREFIX_PATH names the package that pip installed, or the Python environment around
# it, whatever Python the system has. It is told so where it does not.
# Usage: test_find_halide.sh <folder of the installation> <folder of HalideConfig.cmake> <scratch folder>
#                            <command that configures a project>...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
installed=$1
config=$(realpath "$2")
scratch=$3
configure=("${@:4}")
package=${config%/lib*/cmake/Halide}
environment=${package%/lib/python*/site-packages/halide}

# try <CMAKE_PREFIX_PATH> <CMAKE_PREFIX_PATH of the environment>: what CMake says, which looks in no folder of the PATH.
try() {
    rm -rf "$scratch"
    PATH=/usr/bin:/bin CMAKE_PREFIX_PATH=$2 "${configure[@]}" -B "$scratch" "-DCMAKE_PREFIX_PATH=$installed$1" 2>&1
}
# The environment is that of Python, or the same as the package where Halide was built by hand.
for prefixes in ";$environment|" ";$package|" "|/none:$environment"; do
    output=$(try "${prefixes%|*}" "${prefixes#*|}") || fail "'$prefixes' is no prefix of Halide:" "$output"
    found=$(sed -n 's/^Halide_DIR:[^=]*=//p' "$scratch/CMakeCache.txt")
    [[ $(realpath "$found") == "$config" ]] || fail "'$prefixes' gives the Halide in '$found', not in '$config'"
done
output=$(try "" "") && fail "Halide is found in '$(grep '^Halide_DIR' "$scratch/CMakeCache.txt")', where nobody named a folder"
# CMake breaks lines.
[[ $(tr -s ' \n' ' ' <<<"$output") == *"add its prefix to CMAKE_PREFIX_PATH"*".venv"* ]] || fail "without Halide CMake said:" "$output"
echo "all right"
