#!/usr/bin/env python3
"""What a training step of each network needs, as the table of docs/measurements.md: the sum of its buffers, the bytes
that are live at once, the plan's peak, and the capacity of the whole run, parameters included.

    scripts/memory_table.py                   probes alone: nothing is computed
    scripts/memory_table.py --torch PYTHON    and beside them what PyTorch peaks at for the same step, by a Python with
                                              PyTorch 2.15 (scripts/torch_gpt.py measures it)
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SMALL = {"context": 128, "layers": 4, "width": 128, "heads": 4, "batch": 8}
# Its activations are more than 1 GiB.
LARGE = {"context": 256, "layers": 12, "width": 384, "heads": 6, "batch": 24}
ROWS = [
    ("cnn", {"batch": 64}, []),
    ("cnn", {"batch": 64}, ["--accumulate", "4"]),
    ("gpt", SMALL, []),
    ("gpt", SMALL, ["--accumulate", "4"]),
    ("gpt", SMALL, ["--accumulate", "16"]),
    ("gpt", SMALL, ["--recompute"]),
    ("gpt", LARGE, []),
    ("gpt", LARGE, ["--accumulate", "4"]),
    ("gpt", LARGE, ["--recompute"]),
]


def options(sizes):
    return [text for name, value in sizes.items() for text in (f"--{name}", str(value))]


def probe(model, sizes, more, plan):
    """What the program says that the run needs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "needs.json"
        command = ["cargo", "run", "--quiet", "--release", "-p", "arena-train", "--"]
        command += ["--model", model, "--device", "probe", "--threads", "2", "--json", file]
        subprocess.run(
            command + options(sizes) + more + plan, check=True, cwd=ROOT, stdout=subprocess.DEVNULL
        )
        return json.loads(file.read_text())


def torch_peak(python, model, sizes, more):
    """The peak of live bytes in PyTorch, parameters included."""
    named = {"--recompute": "--checkpointing"}
    command = [python, ROOT / "scripts/torch_gpt.py", "memory", "--network", model, "--threads", "2"]
    command += options(sizes) + [named.get(word, word) for word in more]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout)["peak_bytes"]


def mib(count):
    return f"{count / 2**20:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with PyTorch")
    torch = parser.parse_args().torch
    columns = ["network", "step", "sum", "live peak", "planned peak", "persistent", "capacity, bumped", "capacity, planned"]
    columns += ["PyTorch, all"] if torch else []
    print("| " + " | ".join(columns) + " |")
    print("|---|---|" + "---:|" * (len(columns) - 2))
    for model, sizes, more in ROWS:
        bumped, planned = probe(model, sizes, more, []), probe(model, sizes, more, ["--plan"])
        step = " ".join(more).replace("--", "") or "plain"
        name = model + "".join(f", {key} {value}" for key, value in sizes.items())
        figures = [
            planned["step_sum_bytes"],
            planned["live_peak_bytes"],
            planned["planned_peak_bytes"],
            planned["persistent_bytes"],
            bumped["capacity_bytes"],
            planned["capacity_bytes"],
        ]
        if torch:
            figures.append(torch_peak(torch, model, sizes, more))
        print(f"| {name} | {step} | " + " | ".join(mib(figure) for figure in figures) + " |", flush=True)
    print("\nMiB. Peaks are of the largest training step without what is persistent.")


if __name__ == "__main__":
    main()
