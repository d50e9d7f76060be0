#!/usr/bin/env bash
# The wheel alone is enough: in a root of a Debian that holds Python and no compiler, pip installs it with its extra
# `compiler`, and a PolyKernel for a shape that does not ship is built and compared with the dense layer.
# Usage: bare_root.sh <wheel> <folder with PyTorch> <scratch folder> [suite]
# The suite is bookworm (Debian 12, Python 3.11), or another that this system's mirror has, as trixie (Debian 13, Python
# 3.13). The folder has PyTorch, ONNX Runtime and the others of requirements/python.txt for the suite's Python: the
# site-packages of this system's environment, or for another Python what this installs:
#   pip install --target <folder> --python-version 3.13 --only-binary :all: -r requirements/python.txt
# Needs root, and Debian's and Python's packages from the network: 30 and 190 MB.
set -euo pipefail
wheel=$(realpath "$1")
torch=$(realpath "$2")
suite=${4:-bookworm}
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$3"
scratch=$(realpath "$3")
root=$scratch/root

# Every package that these need, as if none were installed.
mkdir -p "$scratch/$suite"/{debs,lists}/partial "$scratch/wheels"
: >"$scratch/$suite/status"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1)
echo "deb $mirror $suite main" >"$scratch/$suite/sources.list"
apt() {
    apt-get -o Dir::Etc::SourceList="$scratch/$suite/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$scratch/$suite/lists" -o Dir::State::status="$scratch/$suite/status" \
        -o Dir::Cache::archives="$scratch/$suite/debs" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -qq "$@"
}
apt update
apt -y --no-install-recommends --download-only install base-files bash coreutils python3-venv libstdc++6 >/dev/null
version=$(echo "$scratch/$suite"/debs/python3.*-venv_*.deb | sed 's/.*python\(3[.0-9]*\)-venv_.*/\1/')
compgen -G "$torch/torch/_C.cpython-${version/./}-*" >/dev/null ||
    { echo "$torch has no PyTorch for Python $version, which is that of $suite" >&2; exit 1; }
rm -rf "$root"
mkdir -p "$root"/{proc,dev,tmp,root,usr/{bin,lib,lib64,sbin},wheels,torch,tests}
ln -s usr/bin usr/lib usr/lib64 usr/sbin "$root"
for package in "$scratch/$suite"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
done
# What the packages' scripts would do: pip of Debian 13 starts with no certificate missing.
ln -sf bash "$root/usr/bin/sh"
mkdir -p "$root/etc/ssl/certs"
find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
python3 -m pip download -q --no-deps --only-binary :all: --python-version "$version" -d "$scratch/wheels" \
    'halide==21.*' 'ziglang>=0.17.1,<0.18' numpy imageio pillow
cp "$wheel" "$scratch/wheels"

cat >"$root/tests/in_root.sh" <<'END'
set -euo pipefail
for program in cc gcc clang ld as cmake ninja nvcc; do
    ! type -P "$program" || { echo "the root is not bare: it has $program"; exit 1; }
done
python3 -m venv /env
# PyTorch and what else its folder holds, but distile. It wants a newer setuptools than a new environment has.
/env/bin/pip uninstall -q -y setuptools 2>/dev/null
mkdir /linked
for package in /torch/*; do
    [[ $package == */distile* ]] || ln -s "$package" /linked
done
echo /linked >"$(echo /env/lib/python3*/site-packages)/torch.pth"
before=$(du -sm /env | cut -f1)
begin=$SECONDS
/env/bin/pip install -q --no-index --find-links /wheels 'distile[compiler]'
echo "\$ pip install 'distile[compiler]': $((SECONDS - begin)) s, $(($(du -sm /env | cut -f1) - before)) MB"
/env/bin/python /tests/bare_root.py
END
cp "$here/bare_root.py" "$root/tests"
unshare -m bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount --bind -o ro "$2" "$1/torch"
    mount --bind "$3" "$1/wheels"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/bin HOME=/root bash /tests/in_root.sh' bash "$root" "$torch" "$scratch/wheels"
