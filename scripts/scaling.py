#!/usr/bin/env python3
"""Scaling on paper: the table of docs/scaling.md. Nothing here is measured.

A ring all-reduce of S bytes over N ranks takes 2 (N - 1) / N * S / B + 2 (N - 1) * L: in each of its 2 (N - 1) rounds a rank
sends S / N bytes (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009). B is the
bandwidth of a link in one direction, L the time of a round without bytes. A step computes 6 operations for each parameter
and token (Kaplan et al., Scaling laws for neural language models, 2020).

One block is one all-reduce of all gradients. The other column is one for each tensor, as a loop does that knows tensors
alone; the bytes are the same, and each call pays the rounds again.
"""

BANDWIDTH = 50e9  # bytes a second: one InfiniBand NDR link of 400 Gbit/s for each GPU
LATENCY = 5e-6  # seconds of a round
OPERATIONS = 400e12  # a second, of a GPU: 40 % of what an H100 does with 16 bits
TOKENS = 8 * 1024  # of a rank in a step
# A network: parameters, tensors. Gradients have 4 bytes.
NETWORKS = [
    ("arena-train --model gpt", 842_496, 53),
    ("GPT-2 small", 124_439_808, 148),
    ("GPT-2 XL", 1_557_611_200, 580),
]
RANKS = [8, 64, 512]


def ring(size, ranks, calls):
    return 2 * (ranks - 1) / ranks * size / BANDWIDTH + calls * 2 * (ranks - 1) * LATENCY


def main():
    print("| network | MB a step | ranks | computing | one block | by tensor | of a step, one block | by tensor |")
    print("|---|---|---|---|---|---|---|---|")
    for name, parameters, tensors in NETWORKS:
        size = 4 * parameters
        computing = 6 * parameters * TOKENS / OPERATIONS
        for ranks in RANKS:
            block, by_tensor = ring(size, ranks, 1), ring(size, ranks, tensors)
            shares = (100 * time / (time + computing) for time in (block, by_tensor))
            times = (f"{1e3 * time:.2f} ms" for time in (computing, block, by_tensor))
            print(
                f"| {name} | {size / 1e6:.1f} | {ranks} | {' | '.join(times)} | "
                f"{' | '.join(f'{share:.0f} %' for share in shares)} |"
            )


if __name__ == "__main__":
    main()
