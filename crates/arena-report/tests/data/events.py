#!/usr/bin/env python3
"""Writes `events.jsonl`: the events of an arena in a small run, with all operations and fields of the format."""

import json
from pathlib import Path

CAPACITY, MARK = 65_536, 10_000


def main():
    lines = [{"op": "begin", "format": "watermark-arena events 1", "device": "host", "capacity_bytes": CAPACITY, "mark_bytes": MARK}]
    kept = time = 0

    def write(op, **fields):
        lines.append({"op": op, "step": step, **fields})

    for step in range(8):
        size = 600 if step % 4 == 3 else 1200
        mode = "repeating" if step >= 4 else "bump"
        write("step", key="train", variant=64 if size == 1200 else 32, mode=mode, start_bytes=MARK, kept_floor_bytes=CAPACITY - kept, time_ns=time)
        place, cursor, kept_alive = 0, MARK, []

        def alloc(number, bytes_, site, **fields):
            nonlocal cursor
            offset = -(-cursor // 256) * 256
            cursor = offset + bytes_
            write("alloc", id=number, offset_bytes=offset, bytes=bytes_, alignment_bytes=256, site=site, **fields)

        for layer in range(3):
            write("open", scope=f"block {layer}" if layer else "", depth=2)
            alloc(2 * layer, size, f"src/model.rs:{10 + layer}:9", tag=f"hidden {layer}", last_use=20 - 2 * layer, time_ns=time + layer)
            alloc(2 * layer + 1, size // 2, "src/layers.rs:88:13", last_use=4 + 4 * layer, last_site="src/layers.rs:90:1")
            write("drop", id=2 * layer + 1, time_ns=time + layer)
            write("merge" if layer < 2 else "close", depth=2)
        for layer in range(2):
            alloc(6 + layer, size, "src/backward.rs:30:11", stream=0, last_use=19 + layer)
        write("drop", id=2)
        if step == 5:
            write("failed", error="the device is out of memory")
        time += 1000
        if step % 3 == 2:
            kept += 512
        write("end", time_ns=time, high_water_bytes=cursor, used_bytes=MARK, committed_bytes=CAPACITY, kept_bytes=kept, deviations=2 if step == 6 else 0, signature="0f")
        write("result", loss=2.5 / (step + 1), predictions=64, elapsed_ns=1_000_000 + step)
    lines.append({"op": "lost", "steps": 3})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (Path(__file__).parent / "events.jsonl").write_text(text)


if __name__ == "__main__":
    main()
