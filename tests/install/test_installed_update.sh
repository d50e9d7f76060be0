#!/usr/bin/env bash
# A project that is built builds its kernels again when the installed generators have changed.
# Usage: test_installed_update.sh <cmake> <folder of the installation> <build folder of consumer/operator>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
cmake=$1
generators=$(dirname "$(readlink -f "$2/bin/distile")")/distile_generators
build_folder=$3

# What is to be done is only said.
steps() {
    "$cmake" --build "$build_folder" --verbose -- -n
}
steps | has 'distile_builder' && fail "a kernel is built twice: $(steps)"
touch "$generators"
steps | has 'distile_builder.* --symbol my_conv' || fail "new generators, but no new kernel: $(steps)"
echo "all right"
