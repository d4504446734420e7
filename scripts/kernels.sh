#!/usr/bin/env bash
# Compiles every CUDA kernel with NVRTC and assembles it with ptxas, without a GPU or a toolkit, and
# prints registers, shared memory and spills of each. Fails where one does not compile or assemble.
#
#   scripts/kernels.sh            check, also that the committed PTX is that of the source
#   scripts/kernels.sh --renew    and write the PTX that tests use where NVRTC is not installed, or too new for the driver
set -euo pipefail
cd "$(dirname "$0")/.."

release=12.9.86
architectures=(75 80 90 120)
# The release that writes the committed PTX: its version of PTX is one that every driver of CUDA 12 takes.
old_release=12.0.140
old_architecture=75
committed=crates/arena-train/tests/ptx/kernels.ptx

if [[ $# -gt 0 && $1 != --renew ]]; then
    echo "usage: scripts/kernels.sh [--renew]" >&2
    exit 2
fi

[[ -x .venv/bin/python3 ]] || python3 -m venv .venv
.venv/bin/python3 -m pip install --quiet --disable-pip-version-check \
    "nvidia-cuda-nvrtc-cu12==$release" "nvidia-cuda-nvcc-cu12==$release"
# Two releases of a package do not fit one environment.
old=.venv/nvrtc-$old_release
[[ -d $old ]] || .venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$old" \
    "nvidia-cuda-nvrtc-cu12==$old_release"
packages=$(.venv/bin/python3 -c 'import nvidia.cuda_nvrtc as n; print(list(n.__path__)[0])')/..
ptxas=$packages/cuda_nvcc/bin/ptxas

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Writes PTX with the NVRTC of a folder.
write_ptx() {
    local nvrtc=$1
    shift
    LD_LIBRARY_PATH=$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        cargo run --quiet --package arena-train --features cuda --example write_ptx -- "$@"
}
write_ptx "$packages/cuda_nvrtc/lib" "$folder" examples/cudarc_cnn.cu "${architectures[@]/#/compute_}"
mkdir "$folder/old"
write_ptx "$PWD/$old/nvidia/cuda_nvrtc/lib" "$folder/old" "compute_$old_architecture"

for architecture in "${architectures[@]}"; do
    for ptx in "$folder"/*"compute_$architecture.ptx"; do
        echo "$(basename "$ptx" .ptx)"
        "$ptxas" -v -arch="sm_$architecture" "$ptx" \
            -o "$folder/kernels.cubin" 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
        # Three lines of ptxas become one line of the table.
        awk '
            /Compiling entry function/ { split($0, quoted, "\x27"); name = quoted[2] }
            /spill stores/ { spills = $5 + $9 }
            /Used [0-9]+ registers/ {
                shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
                match($0, /Used [0-9]+/)
                registers = substr($0, RSTART + 5, RLENGTH - 5)
                printf "  %-24s %3d registers %6d bytes shared %4d bytes spilt\n",
                    name, registers, shared, spills
                kernels++
            }
            END { if (kernels == 0) { print "no kernel was assembled" > "/dev/stderr"; exit 1 } }
        ' "$folder/log" | sort
    done
done

if [[ ${1:-} == --renew ]]; then
    cp "$folder/old/compute_$old_architecture.ptx" "$committed"
    echo "renewed $committed"
fi
if ! cmp "$folder/old/compute_$old_architecture.ptx" "$committed"; then
    echo "$committed is not that of the source: scripts/kernels.sh --renew writes it" >&2
    exit 1
fi
