#!/usr/bin/env bash
# The wheel alone is enough: in a root of Debian 12 that holds Python and no compiler, pip installs it with its extra
# `compiler`, and a PolyKernel for a shape that does not ship is built and compared with the dense layer.
# Usage: bare_root.sh <wheel> <folder with PyTorch, a site-packages of this system's Python> <scratch folder>
# Needs root, and Debian's and Python's packages from the network: 30 and 190 MB.
set -euo pipefail
wheel=$(realpath "$1")
torch=$(realpath "$2")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$3"
scratch=$(realpath "$3")
root=$scratch/root

# Every package that these need, as if none were installed.
mkdir -p "$scratch/debs/partial" "$scratch/wheels"
: >"$scratch/status"
apt-get -o Dir::State::status="$scratch/status" -o Dir::Cache::archives="$scratch/debs" -qq -y --no-install-recommends \
    --download-only install base-files bash coreutils python3-venv libstdc++6 >/dev/null
rm -rf "$root"
mkdir -p "$root"/{proc,dev,tmp,root,usr/{bin,lib,lib64,sbin},wheels,torch,tests}
ln -s usr/bin usr/lib usr/lib64 usr/sbin "$root"
for package in "$scratch"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
done
ln -sf bash "$root/usr/bin/sh"
python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 -d "$scratch/wheels" \
    'halide==21.*' 'ziglang>=0.17.1,<0.18' numpy imageio pillow
cp "$wheel" "$scratch/wheels"

cat >"$root/tests/in_root.sh" <<'END'
set -euo pipefail
for program in cc gcc clang ld as cmake ninja nvcc; do
    ! type -P "$program" || { echo "the root is not bare: it has $program"; exit 1; }
done
python3 -m venv /env
# PyTorch and what else its folder holds, but distile. It wants a newer setuptools than a new environment has.
/env/bin/pip uninstall -q -y setuptools
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
