#!/usr/bin/env python3
"""Headless Chromium opens pages of `arena-report`: in time, without an error, and small enough.

    scripts/pages.py [FILE ...]

Needs Chromium as `chromium` in the path, or in the variable CHROMIUM with its options. Two epochs of training are one
of the pages; FILE is another file for `arena-report`. With ARENA_PICTURES=FOLDER each page is kept there, and its pictures at 1280 and 400 pixels.
"""

import html
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/debug/arena-report"
BROWSER = shlex.split(os.environ.get("CHROMIUM", "chromium"))
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
# A file, and the most bytes that its page may have.
FILES = [
    (ROOT / "crates/arena-report/tests/data/training.pickle", 4 << 20),
    (ROOT / "benches/traces/resnet50.csv", 4 << 20),
    (ROOT / "crates/arena-plan/data/steps/gpt2xl_b2_ckpt_amp_accum16.csv", 15 << 20),
]
MOST_MILLISECONDS = 2000

# Uses what a page offers, and says what came of it: every choice, the buttons, pointing at each part of the map.
PROBE = """<script>
const chosen = [];
for (const select of document.querySelectorAll('select')) {
  for (let place = 0; place < select.options.length; place++) {
    select.selectedIndex = place;
    select.dispatchEvent(new Event('change'));
    chosen.push(select.options[place].textContent);
  }
}
const kinds = document.getElementById('kind');
kinds.selectedIndex = 0;
kinds.dispatchEvent(new Event('change'));
for (const button of document.querySelectorAll('button')) button.click();
document.getElementById('fit').click();
const canvas = document.getElementById('map'), box = canvas.getBoundingClientRect(), seen = new Set();
const point = (name, x, y) => canvas.dispatchEvent(new PointerEvent(name, {clientX: box.left + x, clientY: box.top + y, pointerId: 1}));
for (let x = 90; x < box.width; x += 30) {
  for (let y = 10; y < box.height - 30; y += 15) {
    point('pointermove', x, y);
    seen.add(document.getElementById('detail').textContent);
  }
}
canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -300, clientX: box.left + 200, clientY: box.top + 100, cancelable: true}));
const series = document.getElementById('series');
series.dispatchEvent(new PointerEvent('pointermove', {clientX: series.getBoundingClientRect().left + 100}));
document.documentElement.dataset.probe = JSON.stringify({chosen: chosen.length, buffers: seen.size, step: document.getElementById('series-detail').textContent});
</script>"""


def browse(page, folder, *options):
    command = [*BROWSER, *OPTIONS, f"--user-data-dir={folder}/profile", *options, f"file://{page}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, errors="replace")


def check(file, limit, folder, pictures):
    page = pictures / f"{file.stem}.html"
    subprocess.run([PROGRAM, file, "--out", page], check=True)
    size = page.stat().st_size
    assert size <= limit, f"{page}: {size} bytes"
    seen = browse(page, folder, "--dump-dom")
    # The page says when it had drawn everything, in milliseconds since it was asked for.
    ready = re.search(r'<html[^>]* data-ready="(\d+)"', seen.stdout)
    told = [line for line in seen.stderr.splitlines() if "CONSOLE" in line]
    assert ready and not told, f"{page}: it did not draw everything. {told}"
    assert int(ready[1]) <= MOST_MILLISECONDS, f"{page}: {ready[1]} ms"
    probed = Path(folder) / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    used = browse(probed, folder, "--dump-dom")
    told = [line for line in used.stderr.splitlines() if "CONSOLE" in line]
    probe = re.search(r' data-probe="([^"]*)"', used.stdout)
    assert probe and not told, f"{page}: using it failed. {told}"
    probe = json.loads(html.unescape(probe[1]))
    assert probe["chosen"] > 7 and probe["buffers"] > 5 and "live at most" in probe["step"], probe
    for width in 1280, 400:
        browse(page, folder, f"--window-size={width},2600", f"--screenshot={pictures}/{file.stem}-{width}.png")
    print(f"{file.name}: {size} bytes, drawn after {ready[1]} ms, no error; {probe['buffers']} buffers pointed at")


def main():
    subprocess.run(["cargo", "build", "--quiet", "-p", "arena-report"], check=True, cwd=ROOT)
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "arena-train"], check=True, cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(os.environ.get("ARENA_PICTURES", folder)).resolve()
        events = Path(folder) / "mnist.jsonl"
        run = [ROOT / "target/release/arena-train", "--epochs", "2", "--events", events]
        subprocess.run(run, check=True, cwd=ROOT, capture_output=True)
        files = FILES + [(file, 4 << 20) for file in [events, *(Path(name).resolve() for name in sys.argv[1:])]]
        for file, limit in files:
            check(file, limit, folder, pictures)


if __name__ == "__main__":
    main()
