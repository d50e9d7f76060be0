#!/usr/bin/env bash
# Says what limits a kernel: runs one variant of a masked convolution under ncu and prints the use of the tensor cores, of
# the second-level cache and of shared memory, the occupancy, and why warps wait. Lies beside measure_gpu.sh.
#
# Usage: profile_gpu.sh <operator> <type> <batch> <density> <variant>
#   for instance: profile_gpu.sh op3 tf32 32 0.3 m128n256s4
#   the types: float32, tf32, float16, bfloat16; NCU=<path of ncu>
set -euo pipefail
(($# == 5)) || { sed -n 's/^# \(Usage: .*\)/\1/p' "${BASH_SOURCE[0]}" >&2; exit 2; }
type=/$2
[[ $2 != float32 ]] || type=
row="^$1/blob/$4/n$3/keep/plain/cudnn$type\$"
variant=$5
cd "$(dirname "${BASH_SOURCE[0]}")"
ncu=${NCU:-$(command -v ncu || true)}
if [[ -z $ncu ]]; then
    echo "profile_gpu.sh: there is no ncu; install NVIDIA Nsight Compute, or name it with NCU=<path>" >&2
    exit 1
fi
objects=()
! compgen -G 'objects/*.so' >/dev/null || objects=(--objects objects)
sections=()
for section in SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis WarpStateStats Occupancy LaunchStats; do
    sections+=(--section "$section")
done
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$ncu" --profile-from-start off "${sections[@]}" --csv --page raw --log-file "$report" \
    ./distile_cuda_bench --rows rows_cuda.json --data data "${objects[@]}" --filter "$row" --profile "$variant"
python3 - "$report" <<'PYTHON'
import csv, re, sys

WANTED = [("time", r"gpu__time_duration\.sum"), ("tensor pipe", r"pipe_tensor.*pct"),
          ("L2", r"lts__t.*throughput.*pct"), ("shared memory", r"(l1tex__data_pipe|l1tex__data_bank).*pct"),
          ("L1 and shared memory", r"l1tex__throughput.*pct"), ("device memory", r"dram__throughput.*pct"),
          ("occupancy", r"sm__warps_active.*pct|launch__occupancy_limit|launch__registers_per_thread$")]
STALL = r"issue_stalled_(\w+)_per_issue_active"

lines = [line for line in open(sys.argv[1]) if line.startswith('"')]
if not lines:
    sys.exit("ncu measured nothing. It said:\n" + open(sys.argv[1]).read())
names, units, *kernels = csv.reader(lines)
for kernel in kernels:
    values = list(zip(names, units, kernel))
    print(dict(zip(names, kernel))["Kernel Name"])
    for title, pattern in WANTED:
        for name, unit, value in values:
            # Averages over the units of the chip, of what is used at all.
            if value not in ("", "0") and re.search(pattern, name) and not re.search(r"\.(min|max|sum)\.pct", name):
                print(f"  {title:22} {value:>12} {unit:10} {name}")
    stalls = {}
    for name, _, value in values:
        found = re.search(STALL, name)
        if found and value and "not_issued" not in name:
            stalls[found.group(1)] = float(value.replace(",", ""))
    for reason, value in sorted(stalls.items(), key=lambda stall: -stall[1])[:6]:
        print(f"  waits: {reason:15} {value:>12.2f} warps an issue")
PYTHON
