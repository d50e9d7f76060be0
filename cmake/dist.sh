#!/usr/bin/env bash
# Packs what a release uploads, and tries each file as its user would: the wheel, the source, an archive and a package for
# Debian with the C library, its PolyKernels and the command, notices, a bill of materials, and checksums.
# The folder that it writes is replaced once everything is tried.
# Usage: dist.sh <folder of CMake's programs> <release build> <folder of the wheel> <environment with PyTorch> <folder to write>
set -euo pipefail
programs=$(realpath "$1")
build=$(realpath "$2")
wheel=$(realpath "$3"/distile-*.whl)
torch=$(realpath "$4")
dist=$(realpath -m "$5")
source_folder=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    printf 'dist: %s\n' "$@" >&2
    exit 1
}
step() {
    printf '%3d s  %s\n' "$SECONDS" "$*"
}
# cached <variable>: its value in the build.
cached() {
    sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}

pack() {
    cp "$wheel" "$made"
    git -C "$source_folder" archive --prefix="distile-$version/" HEAD | gzip -n -9 >"$made/distile-$version.tar.gz"
    "$programs/cpack" --config "$build/CPackConfig.cmake" -B "$scratch/packed" >"$scratch/log" 2>&1 || fail "$(<"$scratch/log")"
    mv "$scratch"/packed/*.tar.gz "$scratch"/packed/*.deb "$made"
    cp "$build/install/THIRD_PARTY_NOTICES" "$source_folder/LICENSE" "$made"
    python3 "$source_folder/cmake/sbom.py" "$version" "$made" >"$scratch/sbom"
    mv "$scratch/sbom" "$made/distile-$version.cdx.json"
    (cd "$made" && sha256sum -- *) >"$scratch/sums"
    mv "$scratch/sums" "$made/SHA256SUMS"
}

# try_library <folder with bin, include and lib>: builds and runs docs/install.md's first program.
try_library() {
    sed -n '/^cmake_minimum_required/,/^```$/p' "$source_folder/docs/install.md" | sed '$d' >"$scratch/project/CMakeLists.txt"
    cp "$source_folder/apps/first_program.c" "$scratch/project"
    rm -rf "$scratch/first"
    { "$programs/cmake" -S "$scratch/project" -B "$scratch/first" "-DCMAKE_PREFIX_PATH=$1" -DCMAKE_BUILD_TYPE=Release &&
        "$programs/cmake" --build "$scratch/first"; } >"$scratch/log" 2>&1 || fail "$(<"$scratch/log")"
    "$scratch/first/first_program"
    "$1/bin/distile" info "$1/share/distile/plans/conv3x3_256_avx2.json" >"$scratch/log"
    ! grep -rlaF "$source_folder" "$1" || fail "these files name $source_folder"
}

# Its packages are linked one by one: the environment may hold another distile.
try_wheel() {
    /usr/bin/python3 -m venv "$scratch/python"
    mkdir "$scratch/linked"
    for package in "$torch"/lib/python3*/site-packages/*; do
        [[ $package == */distile* ]] || ln -s "$package" "$scratch/linked"
    done
    echo "$scratch/linked" >"$(echo "$scratch"/python/lib/python3*/site-packages)/torch.pth"
    "$scratch/python/bin/pip" install --quiet --no-index --no-deps "$made"/*.whl
    "$scratch/python/bin/python" "$source_folder/python/examples/block.py"
    "$scratch/python/bin/distile" info "$source_folder/data/plans/conv3x3_256_avx2.json" >"$scratch/log"
}

# Configuring it says whether a file lacks.
try_source() {
    tar -xzf "$made/distile-$version.tar.gz" -C "$scratch"
    "$programs/cmake" -S "$scratch/distile-$version" -B "$scratch/from_source" -G Ninja \
        "-DCMAKE_MAKE_PROGRAM=$programs/ninja" "-DHalide_DIR=$(cached Halide_DIR)" "-DHalideHelpers_DIR=$(cached HalideHelpers_DIR)" \
        -DCMAKE_DISABLE_FIND_PACKAGE_Halide_Python=ON >"$scratch/log" 2>&1 || fail "$(<"$scratch/log")"
}

version=$(cached CMAKE_PROJECT_VERSION)
[[ $wheel == */distile-"$version"-* ]] || fail "the wheel ${wheel##*/} is not of version $version"
[[ -z $(git -C "$source_folder" status --porcelain) ]] || fail "there are changes that no commit has: a release is a commit"
[[ $(cached DISTILE_GPU_POLYKERNELS) == all ]] ||
    echo "dist: without some PolyKernels for GPUs, for DISTILE_GPU_POLYKERNELS is $(cached DISTILE_GPU_POLYKERNELS)" >&2
made=$scratch/dist
mkdir "$made" "$scratch"/{archive,debian,project}
step "packing"
pack
step "the archive: unpacked, and the first program with it"
tar -xzf "$made"/distile-*-linux-*.tar.gz -C "$scratch/archive" --strip-components=1
try_library "$scratch/archive"
step "the package for Debian: the same"
dpkg-deb -x "$made"/distile_*.deb "$scratch/debian"
try_library "$scratch/debian/usr"
step "the wheel: installed, and a masked block with PyTorch"
try_wheel
step "the source: configured"
try_source
rm -rf "$dist"
mkdir -p "$(dirname "$dist")"
mv "$made" "$dist"
step "all tried; in $dist:"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS && ls -sh)
