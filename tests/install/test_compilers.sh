#!/usr/bin/env bash
# Kernels build with every compiler that CMake takes: behind a launcher, as in CC="ccache gcc", and with spaces in its path.
# The command `distile` takes them too. Usage: test_compilers.sh <scratch folder> <command that configures a project>...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
scratch=$1
configure=("${@:2}")
place="$scratch/somebody's compilers"

rm -rf "$scratch"
mkdir -p "$place"
cat >"$scratch/launcher" <<'END'
#!/bin/sh
exec "$@"
END
printf '#!/bin/sh\nexec %s "$@"\n' "${cc[*]@Q}" >"$place/cc"
chmod +x "$scratch/launcher" "$place/cc"

# build <$CC> <option of CMake>...: builds a kernel.
build() {
    rm -rf "$scratch/build"
    CC=$1 "${configure[@]}" -B "$scratch/build" "${@:2}" >"$scratch/log" 2>&1 || fail "CC=\"$1\" ${*:2}:" "$(<"$scratch/log")"
    cmake=$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' "$scratch/build/CMakeCache.txt")
    "$cmake" --build "$scratch/build" --target my_conv >"$scratch/log" 2>&1 || fail "CC=\"$1\" ${*:2}:" "$(<"$scratch/log")"
}
build "$scratch/launcher $(type -P "${cc[0]}")"
build "$place/cc"
build "" "-DCMAKE_C_COMPILER=$place/cc"
# CMake itself quotes no space in what follows a launcher.
build "" "-DCMAKE_C_COMPILER=$scratch/launcher;$(type -P "${cc[0]}")"
echo "all right"
