#!/usr/bin/env bash
# Code for Android, without its NDK: Debian's cross compiler stands in for clang, with Android's conventions. A PolyKernel
# for its CPUs, one for OpenCL and the trials of a search link with libraries that offer just what symbols.txt lists.
# Usage: test_android.sh <distile of the machine that builds> <source folder> <folder of HalideRuntime.h>
#                        <C++ compiler> <linker> <objcopy> <nm> <objdump>
# $CC is the C compiler.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
tools=${1%/*}
source_folder=$2
halide=$3
cxx=$4
linker=$5
objcopy=$6
nm=$7
objdump=$8
fixtures=$source_folder/tests/fixtures
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# The libraries of the system.
mkdir lib
touch lib/lib{c,m,dl,log}.c
while read -r name library _; do
    echo "void $name(void) {}" >>"lib/$library.c"
done < <(grep -v '^#' "$source_folder/tests/android/symbols.txt")
for library in libc libm libdl liblog; do
    "${cc[@]}" -w -fno-builtin -shared -nostdlib -Wl,-soname,$library.so -o "lib/$library.so" "lib/$library.c"
done

# The objects that code links, as a build with the NDK makes them. The platform's register is the system's.
conventions=(-fPIC -ffixed-x18 -mno-outline-atomics)
hooks=(-std=c++17 -O2 "${conventions[@]}" -ffunction-sections -fno-exceptions -fno-rtti -I "$halide"
    -I "$source_folder/runtime/include" -I "$source_folder")
mkdir objects
cat "$source_folder/kernels/halide/"{call_halide,call_row_blocks,halide_hooks}.cpp >distile_hooks.cpp
cp "$source_folder/kernels/halide/halide_gpu_hooks.cpp" distile_gpu_hooks.cpp
for object in distile_hooks distile_gpu_hooks; do
    "$cxx" "${hooks[@]}" -c -o objects/$object.o $object.cpp
done
"$tools/distile_generators" -r distile_halide_runtime -e object -o objects target=arm-64-android
export DISTILE_OBJECTS=$folder/objects
export CC="$CC ${conventions[*]} -nostdlib -L$folder/lib -Wl,--no-as-needed -lc"
eval "cc=($CC)"

# check_object <object>: it keeps the conventions, and links with these libraries alone.
check_object() {
    "$objdump" --file-headers "$1" | has 'architecture: aarch64' || fail "$1 is not for AArch64"
    "$objdump" --disassemble --no-show-raw-insn "$1" | has -wE '[wx]18' && fail "$1 uses the register x18"
    "$objdump" --section-headers "$1" | has -E '\.t(data|bss)' && fail "$1 has thread-local variables"
    "${cc[@]}" -shared -Wl,-z,defs,-z,text -Wl,-Bsymbolic -o linked.so "$1" -llog -ldl -lm || fail "$1 does not link"
}

# What distile_add_polykernel makes, with the symbol that it shows.
build() {
    local symbol=$1
    shift
    "$tools/distile_builder" build "$@" --platform arm-64-android --symbol "$symbol" --object "$symbol.o" \
        --header "$symbol.h" --folder parts --linker "$linker" --objcopy "$objcopy"
    shown=$("$nm" --defined-only --extern-only --format=posix "$symbol.o" | awk 'NF > 2 {print $1}')
    [[ $shown == "$symbol" ]] || fail "$symbol.o shows" $shown
    check_object "$symbol.o"
}
build on_cpu --operator "$fixtures/operators/test_linear_24_40_gelu.json" --backend cpu
for plan in 0:arm-64-android-arm_dot_prod-arm_fp16 1:arm-64-android; do
    grep -q "\"target\":\"${plan#*:}\"" "parts/plan_${plan%:*}.json" || fail "plan ${plan%:*} is not for ${plan#*:}"
done
build on_opencl --operator "$fixtures/operators/test_conv3_16_48.json" --backend opencl
grep -q '"target":"arm-64-android-opencl"' parts/plan_0.json || fail "the plan for OpenCL is for another target"
grep -qa '__kernel' on_opencl.o || fail "the code for OpenCL has no kernels"

# Plans by name: for this system, and for another.
program=("$distile")
op=$fixtures/operators/test_conv3_16_48.json
"$distile" plan "$op" --platform arm-64-android --backend opencl --bound-only -o . -q
"$distile" info test_conv3_16_48_opencl.json | has 'an OpenCL 1.2 device' || fail "info does not say what the plan needs"
build by_plan --operator "$op" --plan test_conv3_16_48_opencl.json
"$distile" plan "$op" --platform arm-64-linux --bound-only -o . -q
program=("$tools/distile_builder")
expect_error "is for the target arm-64-linux-arm_dot_prod-arm_fp16, but the build is for arm-64-android" build \
    --operator "$op" --plan test_conv3_16_48_armv82.json --platform arm-64-android --symbol never --object never.o \
    --header never.h --folder parts

# What the command on a phone measures: a plan, and the trials of a search.
"$distile" compile test_conv3_16_48_opencl.json -o plan.so -q
tune() {
    "$distile" tune "$op" --masks blob:0.2:1 -k 1 --trials 2 --counts 2 --jobs 1 --threads 1 --folder "$1" -o "$1.json" "${@:2}" |
        has "distile measure $1" || fail "tune compiled no batch $1"
    grep -q "\"target\": *\"${*: -1}\"" "$1/request.json" || fail "the batch $1 is for another target"
}
tune opencl --backend opencl --device generic_opencl --target arm-64-android-opencl
tune cpu --device generic_armv82 --target arm-64-android-arm_dot_prod-arm_fp16
for object in plan.so opencl/trial0.so opencl/trial1.so cpu/trial0.so cpu/trial1.so; do
    "$objdump" --private-headers $object >headers.txt
    grep -q 'file format elf64-littleaarch64' headers.txt || fail "$object is not for AArch64"
    needed=$(awk '$1 == "NEEDED" {print $2}' headers.txt | sort | xargs)
    [[ $needed == "libc.so libdl.so liblog.so libm.so" ]] || fail "$object needs $needed"
    "$objdump" --disassemble --no-show-raw-insn $object | has -wE '[wx]18' && fail "$object uses the register x18"
    "$nm" --dynamic --undefined-only --format=posix $object | while read -r name _; do
        grep -q "^$name lib" "$source_folder/tests/android/symbols.txt" || fail "$object needs $name"
    done
done
echo "all right"
