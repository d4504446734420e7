#!/usr/bin/env python3
"""Applies small faults, one at a time; the tests of the crate must notice each.

scripts/mutants/TABLE.toml lists the faults of a crate: `file`, the `old` text, which occurs in it once, the
`new` text, and what it `breaks`. In the new text, MUTANT is true when the fault is on. All faults are built at
once in a copy of the tree, under target/mutants, and switched on by an environment variable.

A table is about the crate of its name, whose own tests must notice. It may name another `crate`, the crates whose
`tests` are run, the `features` that they are built with, and a `filter`: which of their tests.

In CUDA C++, MUTANT becomes a macro that the kernels are compiled with. NVRTC has to be where scripts/kernels.sh
installs it.

The exit code is 1 when a fault survives, when an old text is not found once, or when tests fail without any.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "scripts/mutants"
WORK = ROOT / "target/mutants"
TREE = WORK / "tree"
# A fault that makes the tests run on for so long is noticed: so many seconds, and so many times as long as they take
# without a fault. The second is for a busy machine, on which tests are slow that no fault holds up.
LEAST_LIMIT_SECONDS = 120
LIMIT_FACTOR = 6
# However long a build takes, some faults are tried.
LEAST_SECONDS = 60
# Tests that build programs would build the faults again, and cannot tell them.
SKIPPED = ["--skip", "does_not_compile"]

SWITCH = """
/// Which fault is on, of which table.
pub(crate) mod mutants {
    pub(crate) fn is_on(table: &str, number: u32) -> bool {
        static ON: std::sync::OnceLock<Option<(String, u32)>> = std::sync::OnceLock::new();
        let on = ON.get_or_init(|| {
            let on = std::env::var("MUTANT").ok()?;
            let (table, number) = on.split_once(' ')?;
            Some((table.to_owned(), number.parse().ok()?))
        });
        on.as_ref().is_some_and(|on| on.1 == number && on.0 == table)
    }
}
"""


# The same for kernels: an option for their compiler.
KERNEL_COMPILER = "src/backend/cuda/compile.rs"
KERNEL_OPTIONS = '"--std=c++17"'
KERNEL_SWITCH = """
        &format!("--define-macro=MUTANT={}", std::env::var("MUTANT").ok()
            .and_then(|on| on.strip_prefix("TABLE ")?.parse::<u32>().ok()).unwrap_or(0))"""


def load(name):
    table = tomllib.loads((TABLES / f"{name}.toml").read_text())
    return {"name": name, "crate": name, "tests": [table.get("crate", name)], "features": [], "filter": []} | table


def copy_tree():
    """The tree as git sees it. Files that did not change keep their times, so that little is built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    files = {name for name in listed if name and (ROOT / name).is_file()}
    for old in TREE.rglob("*"):
        if old.is_file() and str(old.relative_to(TREE)) not in files:
            old.unlink()
    return {name: (ROOT / name).read_bytes() for name in files}


def write_tree(contents):
    for name, content in contents.items():
        path = TREE / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            shutil.copymode(ROOT / name, path)


def apply(table, contents):
    """Puts all faults of a table into its crate's files; gives the number of those whose text is not there once."""
    lost, crate = 0, table["crate"]
    if any(mutant["file"].endswith(".cu") for mutant in table["mutant"]):
        name = f"crates/{crate}/{KERNEL_COMPILER}"
        text = contents.get(name, b"").decode()
        if text.count(KERNEL_OPTIONS) != 1:
            print(f"{table['name']}: the options of the kernels' compiler are not in {name}")
            return 1
        switch = f"{KERNEL_OPTIONS}, {KERNEL_SWITCH.replace('TABLE', table['name'])}"
        contents[name] = text.replace(KERNEL_OPTIONS, switch).encode()
    for number, mutant in enumerate(table["mutant"], 1):
        name = f"crates/{crate}/{mutant['file']}"
        text = contents.get(name, b"").decode()
        if text.count(mutant["old"]) != 1:
            print(f"{table['name']} {number}: found {text.count(mutant['old'])} times in {name}: {mutant['breaks']}")
            lost += 1
            continue
        on = f'crate::mutants::is_on("{table["name"]}", {number})'
        if name.endswith(".cu"):
            on = f"MUTANT == {number}"
        contents[name] = text.replace(mutant["old"], mutant["new"].replace("MUTANT", on)).encode()
    return lost


def build(crates, features):
    """The test programs of some crates, each with its crate."""
    manifests = [tomllib.loads((TREE / "crates" / crate / "Cargo.toml").read_text()) for crate in crates]
    packages = [word for manifest in manifests for word in ("--package", manifest["package"]["name"])]
    command = ["cargo", "test", *packages, "--lib", "--tests", "--no-run", "--message-format=json"]
    command += [f"--features={feature}" for feature in features]
    # Most of the build is what others have written, and little of that is run often enough to be optimised.
    for package in ['"*"'] + ([] if features else ["cuda-standin", "cublas-standin", "cublaslt-standin"]):
        command += ["--config", f"profile.dev.package.{package}.opt-level=0"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(WORK / "target"), "CARGO_INCREMENTAL": "0"}
    done = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        for message in messages:
            if message.get("message", {}).get("level") == "error":
                print(message["message"]["rendered"])
        sys.exit(f"the tree does not build with its faults:\n{done.stderr[-2000:]}")
    return [
        (Path(message["manifest_path"]).parent.name, message["executable"])
        for message in messages
        if message.get("profile", {}).get("test") and message.get("executable")
    ]


def run(table, crate, program, number, limit_seconds=None):
    """What notices a fault in a crate's test program, if anything does, and the program's seconds."""
    nvrtc = [str(path) for path in ROOT.glob(".venv/lib/python*/site-packages/nvidia/cuda_nvrtc/lib")]
    # The same random programs each time, so that a fault noticed once is noticed always.
    environment = os.environ | {
        "PROPTEST_RNG_SEED": "1",
        "MUTANT": f"{table['name']} {number}",
        "CARGO_MANIFEST_DIR": str(TREE / "crates" / crate),
        "LD_LIBRARY_PATH": ":".join([*nvrtc, os.environ.get("LD_LIBRARY_PATH", "")]),
        "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
        "PROPTEST_MAX_SHRINK_ITERS": "0",
        "RUST_BACKTRACE": "0",
    }
    begin = time.monotonic()
    with subprocess.Popen(
        [program, "--test-threads=2", *SKIPPED, *table["filter"]],
        cwd=TREE / "crates" / crate, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as tests:
        too_long = threading.Event()

        def end():
            too_long.set()
            tests.kill()

        limit = threading.Timer(limit_seconds, end) if limit_seconds else None
        if limit:
            limit.start()
        # One test that fails is enough.
        failed = any(line.endswith(b"... FAILED\n") for line in tests.stdout)
        if failed:
            tests.kill()
        if limit:
            limit.cancel()
    name = Path(program).name.rsplit("-", 1)[0]
    noticed = None
    if failed:
        noticed = f"noticed by {name}"
    elif too_long.is_set():
        noticed = f"noticed only by the time limit of {limit_seconds:.0f} s in {name}"
    elif tests.returncode != 0:
        noticed = f"noticed by the end of {name} with {tests.returncode}"
    return noticed, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="all, if none is named")
    parser.add_argument("--sample", type=int, help="only so many faults of each table")
    parser.add_argument("--minutes", type=float, help="as many faults as fit into so many minutes, the build included")
    parser.add_argument("--seed", default="", help="says which ones, as a commit's hash does")
    parser.add_argument("--only", type=int, help="only the fault of this number")
    parser.add_argument("--check", action="store_true", help="only look whether every text is found")
    options = parser.parse_args()

    tables = [load(name) for name in options.tables or sorted(table.stem for table in TABLES.glob("*.toml"))]
    TREE.mkdir(parents=True, exist_ok=True)
    contents, todo, lost = copy_tree(), [], 0
    for table in tables:
        lost += apply(table, contents)
        chosen = [(table, number, mutant) for number, mutant in enumerate(table["mutant"], 1)]
        if options.only:
            chosen = chosen[options.only - 1 : options.only]
        if options.sample is not None:
            chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
        todo += chosen
    for crate in {table["crate"] for table in tables}:
        contents[f"crates/{crate}/src/lib.rs"] += SWITCH.encode()
    if options.check or lost:
        sys.exit(lost > 0)
    if options.minutes is not None:
        random.Random(options.seed).shuffle(todo)

    write_tree(contents)
    start = time.monotonic()
    built = {}
    for features in sorted({tuple(table["features"]) for table in tables}):
        crates = {crate for table in tables if tuple(table["features"]) == features for crate in table["tests"]}
        built[features] = build(sorted(crates), features)
    print(f"built in {time.monotonic() - start:.0f} s", flush=True)
    programs = {}
    for table in tables:
        timed = []
        for crate, program in built[tuple(table["features"])]:
            if crate in table["tests"]:
                noticed, seconds = run(table, crate, program, 0)
                if noticed:
                    sys.exit(f"{Path(program).name} fails without a fault: {noticed}")
                timed.append((seconds, crate, program))
                print(f"{table['name']}: {Path(program).name} takes {seconds:.0f} s without a fault", flush=True)
        programs[table["name"]] = [
            (crate, program, max(LEAST_LIMIT_SECONDS, LIMIT_FACTOR * seconds))
            for seconds, crate, program in sorted(timed)
        ]

    begin, survivors, tried = time.monotonic(), [], 0
    end = None if options.minutes is None else max(start + options.minutes * 60, begin + LEAST_SECONDS)
    for table, number, mutant in todo:
        if end is not None and time.monotonic() > end:
            break
        tried += 1
        name = table["name"]
        tried_programs = (run(table, crate, program, number, limit)[0] for crate, program, limit in programs[name])
        noticed = next((by for by in tried_programs if by), None)
        print(f"{name} {number}: {noticed or 'SURVIVES'}: {mutant['breaks']}", flush=True)
        if noticed is None:
            survivors.append((name, number, mutant["breaks"]))
    print(f"{tried} of {len(todo)} faults tried, {len(survivors)} survived, {time.monotonic() - begin:.0f} s")
    for name, number, breaks in survivors:
        print(f"  {name} {number}: {breaks}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
