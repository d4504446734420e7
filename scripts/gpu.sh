#!/usr/bin/env bash
# Everything that a machine with a GPU can show, in at most eight minutes, with one summary at the end.
#
#   scripts/gpu.sh                      build into target/gpu, and run from there
#   scripts/gpu.sh build DIR            only build: DIR is then carried, with a checkout, to the machine
#   scripts/gpu.sh run DIR [PART ...]   only run; the parts are suite, train, memcheck and table
#   scripts/gpu.sh rehearse             the part suite, with the stand-ins where the loader looks for a driver and for
#                                       cuBLAS: all work is done at its call, as if on an infinitely fast device
#
# CUDA_FEATURE   version of the bindings (default cuda-13000): cudarc looks for libraries of its major version
# VENDOR_DIR     what `cargo vendor` wrote, for a build without a registry
# DRY_RUN        a folder with four small MNIST files, to try this script where a GPU is only pretended: five steps of
#                four images wherever the program trains, and no accuracy is expected
#
# Exit status of a run: 0 when every part passed, 1 when one failed or could not run, 2 without a device.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}

# --- build -------------------------------------------------------------------------------------------

# What has tests about CUDA.
packages=(--package watermark-arena-core --package arena-scope --package arena-train
    --package arena-benches --package arena-examples)

build() {
    local folder=$1 feature=${CUDA_FEATURE:-cuda-13000} cargo=(cargo)
    if [[ -n ${VENDOR_DIR:-} ]]; then
        cargo+=(--offline --config 'source.crates-io.replace-with="vendored"'
            --config "source.vendored.directory='$VENDOR_DIR'")
    fi
    tests "$folder" "$feature" take
    "${cargo[@]}" build --release --package arena-train --features "$feature"
    "${cargo[@]}" build --release --package arena-benches --features "$feature" --bin cuda_allocators
    local release=${CARGO_TARGET_DIR:-target}/release
    take "$release/arena-train" "$folder/arena-train"
    take "$release/cuda_allocators" "$folder/cuda_allocators"
    printf 'built with %s: %s\n' "$feature" "$(du -sh "$folder/tests" "$folder/arena-train" "$folder/cuda_allocators" | xargs)"
}

# Builds the test programs with a feature, and puts each into FOLDER/tests/PACKAGE/NAME by a command.
tests() {
    local folder=$1 feature=$2 put=$3 list package name program
    list=$("${cargo[@]}" test "${packages[@]}" --features "$feature" --test '*' --no-run --message-format=json |
        python3 -c '
import json, pathlib, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        package = pathlib.Path(message["manifest_path"]).parent.name
        print(package, message["target"]["name"], message["executable"])
')
    rm -rf "$folder/tests"
    while read -r package name program; do
        mkdir -p "$folder/tests/$package"
        $put "$program" "$folder/tests/$package/$name"
    done <<<"$list"
}

# Line tables would triple what has to be carried.
take() {
    cp "$1" "$2"
    if command -v strip >/dev/null; then strip --strip-debug "$2"; fi
}

# --- run ---------------------------------------------------------------------------------------------

summary=()
bad=0

# passed | FAILED | cannot run | absent (nothing that could run here), the part, and what there is to say
tell() {
    summary+=("$(printf '%-10s %-22s %s' "$1" "$2" "$3")")
    printf '%s\n' "${summary[-1]}"
    case $1 in FAILED | 'cannot run') bad=1 ;; esac
}

# How many times longer than on a device each part may take.
patience=1

# Runs a command with a limit in seconds and into a log; 124 when its time, or that of the whole, is up.
limited() {
    local seconds=$(($1 * patience)) log=$2 left=$((470 * patience - SECONDS))
    shift 2
    if ((left < seconds)); then seconds=$left; fi
    if ((seconds <= 0)); then return 124; fi
    timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1
}

why() {
    if [[ $1 == 124 || $1 == 137 ]]; then echo "its time is up, see $2"; else echo "exit status $1, see $2"; fi
}

# The modules of a test program that are about CUDA, but for `cuda_program`, which runs a program of the build folder on
# the stand-in.
modules() {
    "$1" --list | sed -nE 's/^(cuda_[a-z_]*|device_conformance)::.*: test$/\1/p' | sort -u | grep -vx cuda_program
}

# One module of a test program on the real driver, in a process of its own, for an error that breaks a device breaks it
# for the process. Tests that end at what only the stand-in can do are counted apart.
suite_module() {
    local program=$1 module=$2 package manifest name log status=0 passed stopped skipped failed
    package=$(basename "$(dirname "$program")")
    manifest=crates/$package
    if [[ ! -d $manifest ]]; then manifest=$package; fi
    name=$package/$module
    log=$logs/suite.$package.$module
    ARENA_REAL_DRIVER=1 ARENA_ALLOW_SKIPS=1 CARGO_MANIFEST_DIR=$manifest \
        limited 100 "$log" "$program" "$module::" --test-threads=1 || status=$?
    read -r passed stopped skipped failed < <(awk '
        /^test .* \.\.\. / { result[$2] = / skipped: / ? "skipped" : / \.\.\. ignored/ ? "ignored" : $NF }
        /^---- .* stdout ----$/ { section = $2 }
        /only the stand-in has/ && section { stopped[section] = 1 }
        END {
            for (test in result) {
                if (result[test] == "ok") { passed++ }
                else if (test in stopped) { apart++ }
                else if (result[test] == "skipped") { skipped++ }
                else if (result[test] != "ignored") { failed++ }
            }
            print passed + 0, apart + 0, skipped + 0, failed + 0
        }' "$log")
    local counts="$passed passed, $stopped need the stand-in, $skipped skipped, $failed failed"
    if [[ $status != 0 && $status != 101 ]]; then
        tell FAILED "$name" "$counts; $(why "$status" "$log")"
    elif ((failed > 0 || passed + stopped + skipped == 0)); then
        tell FAILED "$name" "$counts; see $log"
    elif ((passed == 0)); then
        tell absent "$name" "$counts"
    else
        tell passed "$name" "$counts"
    fi
}

part_suite() {
    local program module
    for program in "$folder"/tests/*/*; do
        for module in $(modules "$program"); do suite_module "$program" "$module"; done
    done
}

part_train() {
    local log=$logs/train status=0 expect=(--expect-accuracy 0.988)
    if [[ -n ${DRY_RUN:-} ]]; then expect=(); fi
    limited 100 "$log" "${arena_train[@]}" "${expect[@]}" --json "$logs/train.json" || status=$?
    if [[ $status == 0 ]]; then
        tell passed train "$(grep -m1 -i accuracy "$log" | xargs)"
    else
        tell FAILED train "$(why "$status" "$log")"
    fi
}

memcheck() {
    local what=memcheck/$1 log=$logs/memcheck.$1 status=0
    limited 60 "$log" "$sanitizer" --tool memcheck --error-exitcode 9 \
        "${arena_train[@]}" "${twenty[@]}" --placement "$1" || status=$?
    case $status in
        0) tell passed "$what" "$(grep 'ERROR SUMMARY' "$log" | tail -1)" ;;
        9) tell FAILED "$what" "$(grep 'ERROR SUMMARY' "$log" | tail -1), see $log" ;;
        *) tell FAILED "$what" "$(why "$status" "$log")" ;;
    esac
}

part_memcheck() {
    local sanitizer
    sanitizer=$(PATH=$PATH:$cuda/bin command -v compute-sanitizer) || {
        tell 'cannot run' memcheck 'there is no compute-sanitizer, in PATH or in the toolkit'
        return
    }
    local twenty=(--steps 20) placement
    if [[ -n ${DRY_RUN:-} ]]; then twenty=(); fi
    # Alone in its allocation a buffer has its end where the sanitizer looks; guard zones move it away.
    for placement in unguarded separate bump; do memcheck "$placement"; done
}

part_table() {
    local log=$logs/table status=0
    local few=()
    if [[ -n ${DRY_RUN:-} ]]; then few=(--rounds 2 --steps 2); fi
    limited 60 "$log" "$folder/cuda_allocators" "${few[@]}" || status=$?
    if [[ $status == 0 ]]; then
        cat "$log"
        tell passed table "$log"
    else
        tell FAILED table "$(why "$status" "$log")"
    fi
    graph bumped
    graph planned --plan
}

# The whole training with a step that is replayed; the summary has a line about it when one was.
graph() {
    local what=train/graph/$1 log=$logs/graph.$1 status=0
    shift
    limited 60 "$log" "${arena_train[@]}" --graph "$@" --json "$log.json" || status=$?
    if [[ $status != 0 ]]; then
        tell FAILED "$what" "$(why "$status" "$log")"
    elif ! grep -q '^graph .*replayed [1-9]' "$log"; then
        tell FAILED "$what" "no step was replayed, see $log"
    else
        tell passed "$what" "$(grep -E '^(training|graph) ' "$log" | xargs)"
    fi
}

# The loader finds libraries by this path and its cache alone. What the caller has put there comes first, then the
# toolkit, then the packages that pip installs.
find_libraries() {
    local python folder
    cuda=${CUDA_HOME:-/usr/local/cuda}
    while read -r folder; do
        if [[ -d $folder ]]; then LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
    done < <(
        echo "$cuda/lib64"
        for python in .venv/bin/python3 python3; do
            "$python" -c '
import glob, nvidia
for packages in nvidia.__path__:
    print(*glob.glob(packages + "/*/lib"), sep="\n")' 2>/dev/null || true
        done
    )
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
}

rehearse() {
    local folder=target/rehearsal cargo=(cargo) libraries
    # As CI builds them, so that nothing is built twice.
    tests "$folder" cuda 'ln -s'
    libraries=$(realpath "${CARGO_TARGET_DIR:-target}/debug/deps")
    mkdir -p "$folder/lib"
    ln -sf "$libraries/libcuda_standin.so" "$folder/lib/libcuda.so"
    ln -sf "$libraries/libcublas_standin.so" "$folder/lib/libcublas.so"
    ln -sf "$libraries/libcublaslt_standin.so" "$folder/lib/libcublasLt.so"
    # The program that asks for a device first; cargo builds it for the tests of its package.
    ln -sf "$libraries/../cuda_allocators" "$folder/cuda_allocators"
    export LD_LIBRARY_PATH=$PWD/$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUDA_STANDIN=mode=eager
    # Kernels are interpreted.
    patience=10
    run "$folder" suite
}

run() {
    SECONDS=0
    folder=$(realpath "$1")
    shift
    logs=$folder/logs
    rm -rf "$logs"
    mkdir -p "$logs"
    arena_train=("$folder/arena-train" --device cuda)
    if [[ -n ${DRY_RUN:-} ]]; then arena_train+=(--data "$DRY_RUN" --batch 4 --steps 5); fi
    find_libraries
    local parts=("$@") part status=0
    if [[ $# == 0 ]]; then parts=(suite train memcheck table); fi
    for part in "${parts[@]}"; do declare -F "part_$part" >/dev/null || usage; done

    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || true
    limited 60 "$logs/device" "$folder/cuda_allocators" --rounds 1 --steps 1 || status=$?
    if [[ $status != 0 ]]; then
        cat "$logs/device" >&2
        printf 'no part can run: %s\n' "$(why "$status" "$logs/device")" >&2
        exit 2
    fi
    for part in "${parts[@]}"; do
        printf '\n== %s (%s s)\n' "$part" "$SECONDS"
        "part_$part"
    done
    printf '\n== summary (%s s)\n' "$SECONDS"
    printf '%s\n' "${summary[@]}"
    if ((bad)); then echo 'NOT ALL PASSED'; else echo 'all passed'; fi
    exit "$bad"
}

case ${1:-} in
    '') build target/gpu; run target/gpu ;;
    build) [[ $# == 2 ]] || usage; build "$2" ;;
    run) [[ $# -ge 2 && -x $2/arena-train ]] || usage; shift; run "$@" ;;
    rehearse) [[ $# == 1 ]] || usage; rehearse ;;
    *) usage ;;
esac
