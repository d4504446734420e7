#!/usr/bin/env bash
# Counts the instructions of the arena's operations under callgrind, and compares them with the budgets in
# benches/instructions.txt, to 3 % both ways: what has become cheaper lowers its budget in the same change.
# The counts are of this compiler and a release build; they do not depend on the machine's speed.
# With --write, the budgets become what was counted.
set -euo pipefail
cd "$(dirname "$0")/.."

budgets=benches/instructions.txt
cargo build --quiet --release -p arena-benches --bin instructions
program=${CARGO_TARGET_DIR:-target}/release/instructions

# All instructions of the program that does an operation so many times.
total() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : //p'
}

# OPERATION TIMES PARTS: the instructions of one of so many parts of the operation.
count() {
    local once twice
    once=$(total "$1" "$2")
    twice=$(total "$1" $(($2 * 2)))
    [ -n "$once" ] && [ -n "$twice" ] || { echo "callgrind counted nothing for $1" >&2; exit 1; }
    awk -v a="$once" -v b="$twice" -v n=$(($2 * $3)) 'BEGIN { printf "%.1f", (b - a) / n }'
}

counted=$(
    # Steps of 1000 pairs; all others one at a time.
    while read -r operation times parts; do
        printf '%s %s\n' "$operation" "$(count "$operation" "$times" "$parts")"
    done <<< 'allocate 4000 1
drop 4000 1
pair 20 1000
virtual_pair 20 1000
planned_pair 20 1000
observed_pair 20 1000
observed_planned_pair 20 1000
recorded_pair 20 1000
root_scope 2000 1
inner_scope 2000 1'
)

if [ "${1:-}" = --write ]; then
    { grep '^#' "$budgets" || true; printf '%s\n' "$counted"; } > "$budgets.new"
    mv "$budgets.new" "$budgets"
    cat "$budgets"
    exit
fi

awk '
    /^#/ { next }
    NR == FNR { budget[$1] = $2; next }
    {
        seen[$1] = 1
        known = $1 in budget
        change = known ? ($2 / budget[$1] - 1) * 100 : 0
        verdict = !known ? "has no budget" : change > 3 ? "over its budget" : change < -3 ? "below: lower its budget" : ""
        printf "%-22s %8.1f instructions  budget %8.1f  %+5.1f %%  %s\n", $1, $2, budget[$1], change, verdict
        if (verdict != "") bad = 1
    }
    END {
        for (name in budget) if (!(name in seen)) { print name " has a budget and was not counted"; bad = 1 }
        exit bad
    }
' "$budgets" <(printf '%s\n' "$counted")
