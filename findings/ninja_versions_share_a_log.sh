#!/usr/bin/env bash
# Ninja 1.11.1 and 1.13.0 (PyPI's packages 1.11.1.4 and 1.13.0) in one build folder: each compiles everything again that the
# other has built, every time, and says nothing.
#
# The guess: the log of commands has a version. The newer Ninja takes over the older one's log, the older one refuses the
# newer one's with a warning, and what is up to date is built again once at most.
# What happens instead: the newer one starts the log over, with a warning, once. From then on the older one reads the newer
# log as its own, because it only refuses older ones, but compares and writes hashes of commands by another function. So at
# each switch every command counts as changed, for either of them, and the log still says version 7.
# Why it matters: CMake that pip installed calls the Ninja beside it, a shell the distribution's, and a build that calls
# another tree's build may mix both. The result is right, so one only wonders where the time goes.
# Seen: after the first switch, "no work" within a version and "1 built" at every switch, without a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 1.11.1.4 1.13.0; do
    python3 -m venv "$version"
    "$version/bin/pip" install --quiet "ninja==$version"
done
printf 'rule copy\n  command = cp $in $out\nbuild out: copy in\n' >build.ninja
echo text >in
# build <version>: what it did, and whether it warned.
build() {
    "$1/bin/ninja" >said 2>&1
    echo "$(grep -c '^\[1/1\]' said || true) built, $(grep -c warning said || true) warnings, log $(head -n 1 .ninja_log)"
}
old=1.11.1.4 new=1.13.0
seen=$(for version in $old $old $new $new $old $old $new $old; do build $version; done)
echo "$seen"
diff <(echo "$seen") - <<'EXPECTED'
1 built, 0 warnings, log # ninja log v5
0 built, 0 warnings, log # ninja log v5
1 built, 1 warnings, log # ninja log v7
0 built, 0 warnings, log # ninja log v7
1 built, 0 warnings, log # ninja log v7
0 built, 0 warnings, log # ninja log v7
1 built, 0 warnings, log # ninja log v7
1 built, 0 warnings, log # ninja log v7
EXPECTED
echo "as described"
