#!/usr/bin/env bash
# Installs what the build needs: the distribution's packages, and a Python environment in .venv with Halide, CMake and
# Ninja. Every goal of the Makefile runs it; it does nothing if everything is there.
#
# Usage: cmake/setup.sh [arm] [bench] [bench-gpu] [fuzz] [lint] [onnx]
#   arm        also installs a cross compiler for AArch64, and qemu, which runs its programs
#   bench      also installs the peers that the benchmarks measure against (requirements/bench.txt)
#   bench-gpu  also installs cuDNN, the peer on NVIDIA GPUs (requirements/bench-gpu.txt)
#   fuzz       also installs clang with libFuzzer
#   lint       also installs clang-format and clang-tidy (requirements/lint.txt)
#   onnx       also installs ONNX Runtime, and what tests the library for it (requirements/onnx.txt)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(g++ make python3-venv catch2 libcli11-dev nlohmann-json3-dev libfmt-dev libeigen3-dev libxgboost-dev libstb-dev
    libtbb-dev opencl-c-headers ocl-icd-libopencl1 pocl-opencl-icd)
programs=(g++ make python3)
headers=(CLI/CLI.hpp nlohmann/json.hpp fmt/core.h eigen3/Eigen/Dense xgboost/c_api.h stb/stb_image.h CL/cl.h)
extras=()
for extra in "$@"; do
    case $extra in
    bench | bench-gpu | onnx)
        extras+=("$extra")
        ;;
    lint)
        extras+=("$extra")
        packages+=(git)
        programs+=(git)
        ;;
    arm)
        packages+=(g++-aarch64-linux-gnu qemu-user)
        programs+=(aarch64-linux-gnu-g++ qemu-aarch64)
        ;;
    fuzz)
        packages+=(clang libclang-rt-dev)
        programs+=(clang++)
        ;;
    *)
        echo "cmake/setup.sh: error: unknown argument '$extra'; the arguments are 'arm', 'bench', 'bench-gpu', 'fuzz', 'lint' and 'onnx'." >&2
        exit 2
        ;;
    esac
done

say() {
    echo "distile: $*"
}

fail() {
    printf '%s\n' "distile: error: $1" "${@:2}" >&2
    exit 1
}

# Debian, Ubuntu and their derivatives: install missing packages if we are root, otherwise name them.
install_debian_packages() {
    local installed missing=() package
    installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
    for package in "${packages[@]}"; do
        grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if ((EUID != 0)); then
        fail "these packages are missing: ${missing[*]}" \
            "Install them with the line below, then run the same command again." \
            "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi

    say "installing packages (a minute or two): ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A killed apt-get leaves packages unpacked but not configured, and refuses to continue before this.
    dpkg --configure -a </dev/null
    apt-get update -qq </dev/null
    apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" </dev/null ||
        fail "apt-get could not install the packages; see its message above."
}

# On other systems we do not know the package manager, so we check for the packages' contents and report what is
# missing.
check_programs_and_headers() {
    local missing=() program header
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || missing+=("the program $program")
    done
    if command -v g++ >/dev/null; then
        for header in "${headers[@]}"; do
            echo "#include <$header>" | g++ -x c++ -std=c++17 -E - >/dev/null 2>&1 ||
                missing+=("the C++ header <$header>")
        done
        # Catch2 renamed its main header in version 3; the tests accept either version.
        echo '#if !__has_include(<catch2/catch_test_macros.hpp>) && !__has_include(<catch2/catch.hpp>)
              #error
              #endif' | g++ -x c++ -std=c++17 -E - >/dev/null 2>&1 || missing+=("Catch2, version 2 or 3")
    fi
    if command -v python3 >/dev/null && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=("the Python modules ensurepip and venv")
    fi
    ((${#missing[@]} == 0)) || fail "this system lacks:" "${missing[@]/#/    }" \
        "Install them with your system's package manager (on Debian: ${packages[*]}), then run the same command again."
}

# Recreates the environment whenever its stamp does not match: after an interrupted install, changed requirements,
# another system Python, or a move of the folder (scripts hold absolute paths).
make_python_environment() {
    local python=/usr/bin/python3 key home
    [[ -x $python ]] || python=$(command -v python3)
    key="$(sha256sum requirements/build.txt) $("$python" --version) $PWD"
    if [[ $(cat .venv/distile.stamp 2>/dev/null) != "$key" ]]; then
        [[ ! -L .venv ]] || fail "$PWD/.venv is a link to $(realpath -m .venv), which an installation here would clear." \
            "Remove the link, then run the same command again."
        say "installing Halide, CMake and Ninja into .venv (120 MB to download)"
        "$python" -m venv --clear .venv
        pip_install -r requirements/build.txt
        # CMakePresets.json looks for Halide here, independent of the Python version.
        home=$(cd .venv && bin/python -c 'import os, halide; print(os.path.relpath(halide.install_dir()))')
        ln -sfn "$home" .venv/halide
        [[ -f .venv/halide/lib64/cmake/Halide/HalideConfig.cmake ]] ||
            fail "the halide wheel in $PWD/.venv has no lib64/cmake/Halide, where CMakePresets.json looks for it."
        echo "$key" >.venv/distile.stamp
    fi

    local extra what
    for extra in ${extras[@]+"${extras[@]}"}; do
        key=$(sha256sum "requirements/$extra.txt")
        if [[ $(cat ".venv/distile-$extra.stamp" 2>/dev/null) != "$key" ]]; then
            case $extra in
            bench) what="the benchmarks' peers into .venv (640 MB to download, 2.3 GB unpacked)" ;;
            bench-gpu) what="the benchmarks' peer on GPUs into .venv (800 MB to download, 1.2 GB unpacked)" ;;
            onnx) what="ONNX Runtime into .venv (50 MB to download, 150 MB unpacked)" ;;
            lint) what="clang-format and clang-tidy into .venv (40 MB to download, 130 MB unpacked)" ;;
            esac
            say "installing $what"
            # An interrupted install can leave a package that pip considers complete; --ignore-installed unpacks it
            # again.
            pip_install --ignore-installed -r "requirements/$extra.txt"
            echo "$key" >".venv/distile-$extra.stamp"
        fi
    done
}

pip_install() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" </dev/null ||
        fail "pip could not install $* into $PWD/.venv; see its message above." \
            "Check the network and the free disk space, then run the same command again."
}

[[ $(uname -sm) == "Linux x86_64" ]] ||
    fail "this is $(uname -sm), but Halide's wheel supports only Linux x86_64." \
        "Build Halide 21 yourself and run: cmake --preset release -DHalide_DIR=... -DHalideHelpers_DIR=..."

# Concurrent installs in this folder take turns. The lock ends with the last process that holds it, so we also wait for
# a pip that outlives a killed build.
if command -v flock >/dev/null; then
    exec 9<requirements/build.txt
    flock -n 9 || { say "waiting for another install in this folder" && flock 9; }
fi

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    install_debian_packages
else
    check_programs_and_headers
fi
make_python_environment
