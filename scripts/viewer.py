#!/usr/bin/env python3
"""PyTorch's own `_memory_viz.py` reads snapshots that `arena-report --pytorch` has written.

    scripts/viewer.py

Needs the package `torch`, of which only this one file is run: no GPU and no library of CUDA. Each step is read by
`stats`, `trace`, `trace_plot` and `segment_plot`. What they say must have the sizes that `arena-report advise` states.
"""

import importlib.util
import json
import pickle
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/debug/arena-report"
FILES = [
    ROOT / "benches/traces/mnistadam.csv",
    ROOT / "benches/traces/resnet50.csv",
    ROOT / "crates/arena-plan/data/steps/gpt2s_b8_t1024_adamw.csv",
    ROOT / "crates/arena-report/tests/data/from_the_middle.pickle",
]


def memory_viz():
    """The module, without `import torch`."""
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("memory_viz", Path(folder) / "cuda/_memory_viz.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(viz, file, folder):
    snapshot, advice = folder / "step.pickle", folder / "advice.json"
    subprocess.run([PROGRAM, "advise", file, "--json", advice], check=True, stdout=subprocess.DEVNULL)
    kinds = [kind for kind in json.loads(advice.read_text())["kinds"] if kind["is_whole"]]
    kind = max(kinds, key=lambda kind: kind["live_peak_bytes"])
    subprocess.run([PROGRAM, file, "--step", kind["name"], "--pytorch", snapshot], check=True)
    data = pickle.loads(snapshot.read_bytes())

    # The timeline that the viewer draws, in a few lines: what is live at the end, and backwards what was.
    trace = data["device_traces"][0]
    live = sum(block["size"] for segment in data["segments"] for block in segment["blocks"] if block["state"] == "active_allocated")
    peak = live
    for entry in reversed(trace):
        live += {"free_completed": 1, "alloc": -1}.get(entry["action"], 0) * entry["size"]
        peak = max(peak, live)
    assert peak == kind["live_peak_bytes"], (peak, kind["live_peak_bytes"])
    for segment in data["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]

    stats, listed = viz.segsum(data), viz.trace(data)
    allocations = sum(entry["action"] == "alloc" for entry in trace)
    assert "total_reserved" in stats
    assert f"{len(trace)} entries" in listed and listed.count("\ndel ") > 0
    assert listed.count(" = ") == allocations + 1
    for plot in (viz.trace_plot, viz.segment_plot):
        page = plot(data)
        assert "MemoryViz.js" in page and "snapshot.pickle" in page
    print(f"{file.name}, {kind['name']}: {allocations} allocations, {peak} bytes live at most; read by stats, trace, trace_plot, segment_plot")


def main():
    subprocess.run(["cargo", "build", "--quiet", "-p", "arena-report"], check=True, cwd=ROOT)
    viz = memory_viz()
    with tempfile.TemporaryDirectory() as folder:
        for file in FILES:
            check(viz, file, Path(folder))


if __name__ == "__main__":
    main()
