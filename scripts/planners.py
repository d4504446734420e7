#!/usr/bin/env python3
"""Plans the same files with `arena-plan` and with omnimalloc, one after the other, on one thread.

    scripts/planners.py [--seconds S] FILE...

A file is a table of buffers, with a first line `id,lower,upper,size`. For each file and planner one line tells the peak,
its ratio to the bound that `arena-plan` proves, and the seconds. omnimalloc 1.0.0 comes from PyPI into `.venv`. Its
`omni` is what it uses by default; `supermalloc` searches until its time is up; `greedy_by_size` places the largest
first, as many compilers do. A planner that needs more than ten times the seconds is ended.
"""

import argparse
import csv
import pathlib
import subprocess
import sys
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python3"

# Run by the Python of `.venv`: reads a file, plans it, and prints the peak and the seconds without reading.
OMNIMALLOC = """
import csv, sys, time
import omnimalloc
from omnimalloc.allocators import BaseAllocator
name, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
omnimalloc.set_max_threads(1)
with open(path, newline="") as file:
    rows = list(csv.DictReader(file))
buffers = [omnimalloc.Allocation(r["id"], int(r["size"]), int(r["lower"]), int(r["upper"])) for r in rows]
allocator = BaseAllocator.resolve(name)
if name == "supermalloc":
    allocator = type(allocator)(timeout=seconds)
began = time.perf_counter()
placed = omnimalloc.allocate(buffers, allocator)
took = time.perf_counter() - began
omnimalloc.validate_allocation(placed)
print(max((buffer.height for buffer in placed), default=0), took)
"""


def omnimalloc(name, path, seconds):
    command = [PYTHON, "-c", OMNIMALLOC, name, path, str(seconds)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 60)
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1])
    peak, took = result.stdout.split()
    return int(peak), float(took)


def arena_plan(path, seconds):
    """The peak, the bound and the seconds, of which reading is a part."""
    command = [ROOT / "target/release/arena-plan", "solve", path, "--seconds", str(seconds), "--threads", "1"]
    began = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True)
    took = time.perf_counter() - began
    if result.returncode not in (0, 1):
        raise RuntimeError(result.stderr.strip())
    last = dict(field.split("=", 1) for field in result.stdout.strip().splitlines()[-1].split())
    return int(last["peak"]), int(last["bound"]), took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="the time limit of a search (default 10)")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True)
    install = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "omnimalloc==1.0.0"]
    subprocess.run(install, check=True)
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "arena-plan"], check=True, cwd=ROOT)

    failed = False
    print(f"{'file':32} {'buffers':>8} {'planner':16} {'peak':>16} {'of bound':>9} {'seconds':>9}")
    for path in arguments.files:
        with open(path, newline="") as file:
            buffers = sum(1 for _ in csv.reader(file)) - 1
        peak, bound, took = arena_plan(path, arguments.seconds)
        lines = [("arena-plan", peak, took)]
        for name in ("omni", "supermalloc", "greedy_by_size"):
            try:
                lines.append((name, *omnimalloc(name, path, arguments.seconds)))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed = True
                print(f"{path.name}: {name}: {error}", file=sys.stderr)
        for name, peak, took in lines:
            print(f"{path.name:32} {buffers:8} {name:16} {peak:16} {peak / max(bound, 1):9.5f} {took:9.3f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
