#!/bin/sh
# Makes the pictures of README.md, docs/planning.md and docs/reading-memory.md anew. Chromium takes the one of a page: it
# is `chromium` in the path, or what the variable CHROMIUM names.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cargo build --quiet --release -p arena-train -p arena-plan -p arena-report
bin=target/release
$bin/arena-train --threads 1 --device probe --plan "$folder/mnist-cnn-batch-64.json" > "$folder/needs"
$bin/arena-plan draw "$folder/mnist-cnn-batch-64.json" --key train:64 --out docs/planning.svg

$bin/arena-train --threads 1 --steps 100 --events "$folder/mnist.jsonl" > "$folder/summary" 2> "$folder/progress"
$bin/arena-report "$folder/mnist.jsonl" --out "$folder/mnist.html"
"${CHROMIUM:-chromium}" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/profile" \
    --window-size=1100,780 --screenshot="$PWD/docs/page.png" "file://$folder/mnist.html" 2> "$folder/told"
ls -l docs/planning.svg docs/page.png
