#!/usr/bin/env python3
"""Writes memory snapshots of the shapes that PyTorch's have, and what is to be read from them.

A caching allocator in miniature runs a training loop in miniature, and records what PyTorch's records. The files go
beside this program; `expected.json` has the figures that the tests compare, computed here from the program's own run.
Only the standard library is used. `snapshots.py DIRECTORY` writes elsewhere.
"""

import json
import os
import pickle
import sys
from pathlib import Path

SMALL = 2 << 20
ROUND = 512


class Allocator:
    """Segments of 2 MiB or more, cut into blocks; the first free block that is large enough is taken."""

    def __init__(self, device=0, expandable=False, frames=True, records=True):
        self.device, self.expandable, self.frames, self.records = device, expandable, frames, records
        self.segments, self.trace, self.time = [], [], 1_700_000_000_000_000
        self.next_address = 0x7F00_0000_0000 + device * (1 << 36)
        self.live, self.stacks, self.most_reserved = {}, {}, 0

    def reserved(self):
        return sum(segment["total_size"] for segment in self.segments)

    def stack(self, line):
        """The frames of a line: shared objects, as PyTorch's are."""
        if not self.frames:
            return []
        if line not in self.stacks:
            self.stacks[line] = [
                {"name": "at::empty", "filename": "??", "line": 0},
                {"name": "forward", "filename": "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 125},
                {"name": "step", "filename": "/home/user/train.py", "line": line},
                {"name": "<module>", "filename": "/home/user/train.py", "line": 99},
            ]
        return self.stacks[line]

    def record(self, action, address, size, line=None):
        self.time += 7
        if self.records:
            entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time}
            entry["frames"] = self.stack(line) if line else []
            self.trace.append(entry)

    def reserve(self, size):
        total = max(SMALL, -(-size // SMALL) * SMALL)
        last = self.segments[-1] if self.segments else None
        if self.expandable and last:
            address = last["address"] + last["total_size"]
            last["total_size"] += total
            last["blocks"].append({"address": address, "size": total, "state": "inactive", "requested_size": 0})
        else:
            address = self.next_address
            self.next_address += total + (1 << 30)
            blocks = [{"address": address, "size": total, "state": "inactive", "requested_size": 0}]
            self.segments.append({
                "device": self.device, "address": address, "total_size": total, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": self.expandable,
                "allocated_size": 0, "active_size": 0, "requested_size": 0, "blocks": blocks, "frames": [],
            })
        self.record("segment_map" if self.expandable else "segment_alloc", address, total)
        self.most_reserved = max(self.most_reserved, self.reserved())

    def find(self, size):
        for segment in self.segments:
            for place, block in enumerate(segment["blocks"]):
                if block["state"] == "inactive" and block["size"] >= size:
                    return segment, place, block
        return None

    def alloc(self, requested, line=10):
        size = -(-requested // ROUND) * ROUND
        if not (found := self.find(size)):
            self.reserve(size)
            found = self.find(size)
        segment, place, block = found
        if block["size"] > size:
            rest = {**block, "address": block["address"] + size, "size": block["size"] - size}
            segment["blocks"].insert(place + 1, rest)
        block.update(size=size, state="active_allocated", requested_size=requested, frames=self.stack(line))
        self.record("alloc", block["address"], requested, line)
        self.live[block["address"]] = requested
        return block["address"]

    def free(self, address, completes=True):
        requested = self.live.pop(address)
        self.record("free_requested", address, requested)
        for segment in self.segments:
            for place, block in enumerate(segment["blocks"]):
                if block["address"] == address:
                    if not completes:
                        block["state"] = "active_pending_free"
                        return
                    self.record("free_completed", address, requested)
                    block.update(state="inactive", requested_size=0)
                    self.merge(segment["blocks"], place)
                    return

    @staticmethod
    def merge(blocks, place):
        for first in (place, place - 1):
            if 0 <= first < len(blocks) - 1:
                one, two = blocks[first], blocks[first + 1]
                if one["state"] == two["state"] == "inactive":
                    one["size"] += two["size"]
                    blocks.pop(first + 1)

    def finish(self):
        for segment in self.segments:
            active = [block for block in segment["blocks"] if block["state"] != "inactive"]
            segment["active_size"] = sum(block["size"] for block in active)
            segment["allocated_size"] = sum(block["size"] for block in active if block["state"] == "active_allocated")
            segment["requested_size"] = sum(block["requested_size"] for block in active)
        return self.segments


# The sizes of a step's activations: they grow and fall as a network's do.
LAYERS = [300_000, 700_001, 1_500_000, 700_001, 40_000]


def parameters(allocator):
    return [allocator.alloc(size, line=3) for size in (1_000_000, 2_000_000, 4_096)]


def step(allocator, layers=LAYERS):
    """Forward keeps an activation of each layer, backward frees them; each layer has scratch. Returns the figures."""
    sizes, live, peak = [], 0, 0

    def alloc(size, line):
        nonlocal live, peak
        sizes.append(size)
        live += size
        peak = max(peak, live)
        return allocator.alloc(size, line)

    def free(address, size):
        nonlocal live
        live -= size
        allocator.free(address)

    kept = []
    for size in layers:
        kept.append((alloc(size, 20), size))
        free(alloc(size // 2, 21), size // 2)
    gradient = None
    for address, size in reversed(kept):
        new = (alloc(size, 30), size)
        if gradient:
            free(*gradient)
        gradient = new
        free(address, size)
    free(*gradient)
    return {"sum": sum(sizes), "own_peak": peak, "buffers": len(sizes)}


def figures(allocator, persistent, of_step, steps):
    return {**of_step, "through": persistent, "steps": steps, "reserved": allocator.most_reserved}


def training(steps=4, **options):
    allocator = Allocator(**options)
    parameters(allocator)
    persistent = sum(allocator.live.values())
    warm = [allocator.alloc(size, line=5) for size in (123_456, 65_537)]
    for address in warm:
        allocator.free(address)
    for _ in range(steps):
        of_step = step(allocator)
    return allocator, figures(allocator, persistent, of_step, steps)


def snapshot(*allocators):
    return {
        "segments": [segment for allocator in allocators for segment in allocator.finish()],
        "device_traces": [allocator.trace for allocator in allocators],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": any(allocator.expandable for allocator in allocators),
            "roundup_power2_divisions": {"1": 0, "2": 0},
        },
        "external_annotations": [],
    }


def old_without_traces():
    """As `torch.cuda.memory_snapshot()` gave them: a bare list, whose blocks have a history."""
    allocator = Allocator(records=False)
    addresses = parameters(allocator)
    allocator.free(addresses[1])
    segments = allocator.finish()
    for segment in segments:
        for block in segment["blocks"]:
            frames = block.pop("frames", [])
            requested = block.pop("requested_size")
            del block["address"]
            if block["state"] == "active_allocated":
                block["history"] = [{"addr": 0, "real_size": requested, "frames": frames}]
    live = sum(allocator.live.values())
    return segments, {"sum": live, "own_peak": live, "buffers": 2, "through": 0, "steps": 1, "reserved": allocator.most_reserved}


def from_the_middle():
    """The history begins in a step: what was allocated before is freed in it. At the end a free waits."""
    allocator, expected = training(5)
    first = next(place for place, entry in enumerate(allocator.trace) if entry["action"] == "free_requested" and entry["size"] == LAYERS[2] // 2)
    del allocator.trace[:first]
    waiting = allocator.alloc(9_999, line=40)
    allocator.free(waiting, completes=False)
    return snapshot(allocator), {**expected, "steps": 4}


def changing():
    """No two steps are alike."""
    allocator = Allocator()
    parameters(allocator)
    total = peak = 0
    before = sum(allocator.live.values())
    for number in range(6):
        of_step = step(allocator, [1000 + 613 * number * number * (layer + 1) for layer in range(3 + number)])
        total, peak = total + of_step["sum"], max(peak, of_step["own_peak"])
    buffers = sum(entry["action"] == "alloc" for entry in allocator.trace)
    return snapshot(allocator), {
        "sum": total + before, "own_peak": peak + before, "buffers": buffers, "through": 0, "steps": 1,
        "reserved": allocator.most_reserved,
    }


class Call:
    """What a hostile file has: a call, here of a function that does no harm."""

    def __reduce__(self):
        return print, ("this must not be printed",)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    shapes = {}
    allocator, expected = training()
    shapes["training"] = 4, snapshot(allocator), expected
    segments, expected = old_without_traces()
    shapes["old_without_traces"] = 2, segments, expected
    first, expected = training(device=0)
    second, _ = training(3, device=1)
    shapes["two_devices"] = 5, snapshot(first, second), expected
    allocator, expected = training(expandable=True)
    shapes["expandable"] = 4, snapshot(allocator), expected
    allocator, expected = training(frames=False)
    shapes["no_frames"] = 3, snapshot(allocator), expected
    shapes["from_the_middle"] = 4, *from_the_middle()
    shapes["changing"] = 2, *changing()
    for name, (protocol, data, _) in shapes.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(data, protocol=protocol))
    (folder / "hostile.pickle").write_bytes(pickle.dumps({"segments": Call(), "device_traces": []}, protocol=4))
    expected = {name: expected for name, (_, _, expected) in shapes.items()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
