#!/usr/bin/env bash
# The unit tests of cudarc itself on the stand-in with two devices: a suite that nobody here wrote. Each runs in a
# process of its own, and those as well that cudarc ignores because they need two devices or break the device.
# `scripts/kernels.sh` must have run: it installs NVRTC.
#
#   scripts/cudarc_tests.sh            all of them
#   scripts/cudarc_tests.sh FILTER     those whose names match
set -euo pipefail
cd "$(dirname "$0")/.."

# What measures how fast a device is, which the stand-in has no answer to.
timed=(
    driver::safe::core::tests::test_default_pinned_host_reads_are_faster_than_write_combined
    driver::safe::launch::tests::test_par_launch
)
# The headers of the CUDA runtime, which one test includes.
headers=12.9.79

work=$PWD/target/cudarc
[[ -x .venv/bin/python3 ]] || { echo 'run scripts/kernels.sh first: it installs NVRTC' >&2; exit 2; }
.venv/bin/python3 -m pip install --quiet --disable-pip-version-check "nvidia-cuda-runtime-cu12==$headers"
packages=$(.venv/bin/python3 -c 'import nvidia.cuda_nvrtc as n; print(list(n.__path__)[0])')/..

# The crate as the registry gives it. Its test includes from where a distribution puts the headers.
source=$(cargo metadata --format-version 1 | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
print(next(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == "cudarc"))')
rm -rf "$work/source"
mkdir -p "$work"
cp -r "$source" "$work/source"
chmod -R u+w "$work/source"
sed -i "s|\"/usr/include\"|\"$packages/cuda_runtime/include\"|" "$work/source/src/driver/safe/launch.rs"
printf '\n[workspace]\n' >>"$work/source/Cargo.toml"

# The stand-ins under the names that cudarc looks for.
cargo build --quiet --package cuda-standin --package cublas-standin --package nvtx-standin
libraries=${CARGO_TARGET_DIR:-target}/debug
rm -rf "$work/libraries"
mkdir "$work/libraries"
cp "$libraries/libcuda_standin.so" "$work/libraries/libcuda.so"
cp "$libraries/libcublas_standin.so" "$work/libraries/libcublas.so"
cp "$libraries/libnvtx_standin.so" "$work/libraries/libnvToolsExt.so"

program=$(cargo test --manifest-path "$work/source/Cargo.toml" --target-dir "$work/target" --lib --no-run \
    --no-default-features --features std,driver,nvrtc,cublas,f16,cuda-12080,dynamic-loading --message-format=json |
    python3 -c '
import json, sys
messages = [json.loads(line) for line in sys.stdin]
print(next(m["executable"] for m in messages if m.get("executable")))')
export LD_LIBRARY_PATH=$work/libraries:$packages/cuda_nvrtc/lib

passed=0 failed=0 skipped=0
for name in $("$program" --list | sed -n 's/: test$//p' | grep -e "${1:-.}"); do
    if [[ " ${timed[*]} " == *" $name "* ]]; then
        skipped=$((skipped + 1))
        printf 'skipped: %s measures time\n' "$name"
    elif CUDA_STANDIN=devices=2 timeout 120 "$program" --exact "$name" --include-ignored --test-threads 1 >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$name"
        cat "$work/log"
    fi
done
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
# A filter that matches nothing has shown nothing.
((failed == 0 && passed > 0))
