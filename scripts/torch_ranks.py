#!/usr/bin/env python3
"""Two ranks beside one, of this project and of PyTorch: the CNN of arena-train, one thread for each rank, on this machine.

    scripts/torch_ranks.py [ROUNDS]

Needs PyTorch with its backend gloo, arena-train built with `--release --features mpi`, and an MPI. In each round every
program runs once, one after the other; the last lines are the medians in images a second, and what two ranks bring.
PyTorch's ranks are DistributedDataParallel, which sends gradients while the backward pass goes on. The batch has 64 images
for all ranks together, as `arena-train` has it.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed
import torch.multiprocessing as processes
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
STEPS, WARM_UP, BATCH = 300, 20, 64


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def rank(number, ranks, port, result):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=number, world_size=ranks)
    torch.manual_seed(1)
    model = network().to(memory_format=torch.channels_last)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    images = torch.rand(BATCH // ranks, 1, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH // ranks,))
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            distributed.barrier()
            begin = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
    result[number] = STEPS * BATCH / (time.monotonic() - begin)
    distributed.destroy_process_group()


def of_torch(ranks, port):
    result = processes.Manager().dict()
    processes.spawn(rank, (ranks, port, result), nprocs=ranks)
    return min(result.values())


def of_arena(ranks):
    program = ROOT / "target/release/arena-train"
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [program, "--ranks", str(ranks), "--threads", "1", "--steps", str(STEPS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ | allowed)
    return float(re.search(r"([\d.]+) images/s", done.stdout)[1])


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seen = {(who, ranks): [] for who in ("arena-train", "PyTorch") for ranks in (1, 2)}
    for number in range(rounds):
        for who, ranks in seen:
            rate = of_arena(ranks) if who == "arena-train" else of_torch(ranks, 29_500 + 2 * number + ranks)
            seen[who, ranks].append(rate)
            print(f"round {number + 1}: {who}, {ranks} rank{'s' * (ranks - 1)}: {rate:.0f} images/s", flush=True)
    for who in ("arena-train", "PyTorch"):
        one, two = (statistics.median(seen[who, ranks]) for ranks in (1, 2))
        print(f"{who}: {one:.0f} images/s with one rank, {two:.0f} with two, {two / one:.2f} times as many")


if __name__ == "__main__":
    main()
