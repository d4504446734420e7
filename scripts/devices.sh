#!/usr/bin/env bash
# The kernel and training tests on the stand-in as several devices with several drivers, each with an arithmetic of its
# own. Where NVRTC is newer than the driver, the committed PTX runs.
#
#   scripts/devices.sh               every pair
#   scripts/devices.sh COUNT SEED    so many pairs, drawn by the seed (a commit's hash)
set -euo pipefail
cd "$(dirname "$0")/.."

# 12.0 is the first that the bindings work with, 12.8 is older than the NVRTC of scripts/kernels.sh, 13.0 is newer.
pairs=$(for capability in 7.5 8.0 9.0 12.0; do for driver in 12.0 12.8 13.0; do echo "$capability $driver"; done; done)
if [[ $# -gt 0 ]]; then
    pairs=$(shuf -n "$1" --random-source=<(yes "${2:?a seed}") <<<"$pairs")
fi
rounding=0
while read -r capability driver; do
    rounding=$((rounding + 1))
    export CUDA_STANDIN=capability=$capability,driver=$driver,rounding=$rounding
    printf -- '-- %s\n' "$CUDA_STANDIN"
    cargo test --package arena-train --features cuda --test suite -- cuda_kernels cuda_training cuda_two_networks cuda_decoder
done <<<"$pairs"
