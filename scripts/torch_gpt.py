#!/usr/bin/env python3
"""The decoder of crates/arena-train/src/decoder.rs in PyTorch: its losses, and the memory and the speed of its training step.

    scripts/torch_gpt.py losses > crates/arena-train/tests/torch/gpt_steps.txt
    scripts/torch_gpt.py memory [--network cnn] [SIZES]
    scripts/torch_gpt.py speed [SIZES]

Needs PyTorch 2.15, from any index, and numpy; it runs on the CPU. `losses` are those of 30 steps of AdamW from weights and
tokens that crates/arena-train/tests/suite/torch.rs makes by the same formula. `memory` and `speed` print one line of JSON.

`memory` counts the bytes of live tensors: it runs two steps under the profiler, which reports each allocation and each
release of PyTorch's CPU allocator with its bytes, from before the first tensor is made, and adds them up in the order of
their times. The peak is that of the second step, which finds gradients' and optimizer's memory as every later one does.
Before, the count is checked: a few tensors of known sizes, and a gradient's, must give the peak that they have. What MKL and oneDNN take for
themselves does not go through that allocator; it is in the resident set, which another process without profiler measures.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256

# The small network of `losses`, and its run.
SMALL = {"context": 16, "layers": 2, "width": 32, "heads": 4, "batch": 4}
STEPS, BATCHES, RATE, DECAY = 30, 3, 3e-3, 0.1


class Block(nn.Module):
    """x + attention(norm(x)), and of that y + feed_forward(norm(y))."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, context, width = x.shape
        heads = self.inward(self.norm1(x)).view(batch, context, 3, self.heads, width // self.heads)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.outward(attention.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embeddings, blocks, a layer norm, and logits by the same table as the embedding."""

    def __init__(self, context, layers, width, heads, checkpointing=False):
        super().__init__()
        self.checkpointing = checkpointing
        tables = {"tokens": nn.Embedding(VOCABULARY, width), "positions": nn.Embedding(context, width)}
        self.embedding = nn.ModuleDict(tables)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        for number, block in enumerate(self.blocks):
            self.add_module(f"block{number}", block)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        x = self.embedding["tokens"](tokens) + self.embedding["positions"](places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return F.linear(self.norm(x), self.embedding["tokens"].weight)


def cnn():
    """The network of crates/arena-train/src/model.rs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def loss_of(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def formula(seed, count):
    """Values between -1 and 1. Whole numbers until the division: every program makes the same."""
    number = (7919 * np.arange(count) + seed) % 65521
    return (number * number % 65521) * (2 / 65521) - 1


def fill(model):
    """Weights by `formula`, with a seed from their names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = 0
            for byte in name.removeprefix("embedding.").encode():
                seed = (31 * seed + byte) % 65521
            values = formula(seed, parameter.numel())
            if ".norm" in f".{name}" and name.endswith("weight"):
                values = 1 + 0.1 * values
            elif parameter.dim() == 1 or name.startswith("embedding."):
                values = 0.1 * values
            else:
                values = values / np.sqrt(parameter.shape[1])
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).view_as(parameter))


def text(number, batch, context):
    """The tokens of batch `number`, and of each token the one that follows."""
    at = np.arange(batch * context + 1, dtype=np.int64) + 1000 * number
    tokens = torch.from_numpy(at * at % 97 + at % 5)
    return tokens[:-1].view(batch, context), tokens[1:].view(batch, context)


def losses():
    torch.set_num_threads(1)
    context, batch = SMALL["context"], SMALL["batch"]
    model = Gpt(context, SMALL["layers"], SMALL["width"], SMALL["heads"])
    fill(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    found = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        loss = loss_of(model, *text(step % BATCHES, batch, context))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    print("pytorch", torch.__version__.split("+")[0])
    for name, size in SMALL.items():
        print(name, size)
    print("batches", BATCHES)
    print("rate", RATE)
    print("weight_decay", DECAY)
    print("losses", " ".join(f"{loss:.9g}" for loss in found))


class Training:
    """A network, its optimizer, and steps over batches of random tokens or images."""

    def __init__(self, options):
        self.options = options
        torch.manual_seed(1)
        if options.network == "cnn":
            self.model = cnn()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=options.fused)
        else:
            sizes = (options.context, options.layers, options.width, options.heads)
            self.model = Gpt(*sizes, options.checkpointing)
            rule = torch.optim.AdamW
            self.optimizer = rule(self.model.parameters(), lr=1e-4, weight_decay=DECAY, fused=options.fused)

    def batch(self):
        batch, context = self.options.batch, self.options.context
        if self.options.network == "cnn":
            return torch.rand(batch, 1, 28, 28), torch.randint(10, (batch,))
        return torch.randint(VOCABULARY, (2, batch, context)).unbind()

    def step(self):
        self.optimizer.zero_grad()
        for _ in range(self.options.accumulate):
            loss = loss_of(self.model, *self.batch())
            (loss / self.options.accumulate).backward()
            del loss
        self.optimizer.step()

    def bytes(self):
        """Of the parameters, of their gradients, and of the optimizer's state."""
        size = lambda tensors: sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        parameters = list(self.model.parameters())
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        return size(parameters), size(parameter.grad for parameter in parameters), size(state)


def peaks(phases):
    """The peak of live bytes in each phase, and the live bytes at the end."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number, phase in enumerate(phases):
            with record_function(f"phase {number}"):
                phase()
    events = profiler.profiler.kineto_results.events()
    ends = [next(e.end_ns() for e in events if e.name() == f"phase {n}") for n in range(len(phases))]
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    live, found = 0, [0] * len(ends)
    for at, change in sorted(changes, key=lambda change: change[0]):
        live += change
        phase = sum(at > end for end in ends)
        if phase < len(found):
            found[phase] = max(found[phase], live)
    return found, live


def check_peaks():
    """Tensors of known sizes, and a gradient's."""
    kept = []

    def first():
        # 4,000 bytes and 2,000 beside them; then 1,000 beside the 2,000.
        long, short = torch.empty(1000), torch.empty(500)
        del long
        kept.extend([short, torch.empty(250)])

    def second():
        # 1,200 bytes and the 1,200 of the exponentials; their sum is 4 bytes. Behind it, its gradient is 4 bytes, a view of
        # it has the 1,200 of the exponentials', and x's gradient is 1,200 more.
        x = torch.zeros(300, requires_grad=True)
        x.exp().sum().backward()
        kept.append(x.grad)

    (one, two), live = peaks([first, second])
    if (one, two, live) != (6000, 3000 + 3 * 1200 + 2 * 4, 3000 + 1200):
        sys.exit(f"the profiler's events do not add up to the known bytes: {one}, {two}, {live}")


def status(field):
    """A size of this process in bytes, as Linux tells it."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def resident(options):
    """Steps without profiler: the resident set before the network is made, and its peak from there on."""
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    training = Training(options)
    for _ in range(3):
        training.step()
    print(json.dumps({"resident_before_bytes": before, "resident_peak_bytes": status("VmHWM")}))


def memory(options):
    check_peaks()
    made = []
    first = lambda: (made.append(Training(options)), made[0].step())
    (_, peak), _ = peaks([first, lambda: made[0].step()])
    parameters, gradients, state = made[0].bytes()
    apart = {"parameter_bytes": parameters, "gradient_bytes": gradients, "optimizer_bytes": state}
    command = [sys.executable, __file__, "resident", *sys.argv[2:]]
    beside = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps({**told(options), "peak_bytes": peak, **apart, **beside}))


def speed(options):
    training = Training(options)
    times = []
    for _ in range(options.warm_up + options.steps):
        began = time.perf_counter()
        training.step()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[options.warm_up :])
    rows = options.batch * options.accumulate
    rate = rows / seconds if options.network == "cnn" else rows * options.context / seconds
    unit = "images_per_second" if options.network == "cnn" else "tokens_per_second"
    print(json.dumps({**told(options), "steps": options.steps, "median_seconds": seconds, unit: round(rate)}))


def told(options):
    sizes = ["batch"] if options.network == "cnn" else [*SMALL, "checkpointing"]
    names = ["network", *sizes, "accumulate", "threads", "fused"]
    return {"pytorch": torch.__version__, **{name: getattr(options, name) for name in names}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["losses", "memory", "resident", "speed"])
    parser.add_argument("--network", choices=["gpt", "cnn"], default="gpt")
    for name, default in {"context": 128, "layers": 4, "width": 128, "heads": 4, "batch": 16, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step (default 1)")
    parser.add_argument("--checkpointing", action="store_true", help="make each block again in the backward pass")
    parser.add_argument("--fused", action="store_true", help="the optimizer in one kernel, which PyTorch does if asked")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of `speed` (default 30)")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of `speed` before these (default 5)")
    options = parser.parse_args()
    if options.mode == "losses":
        return losses()
    torch.set_num_threads(options.threads)
    return {"memory": memory, "resident": resident, "speed": speed}[options.mode](options)


if __name__ == "__main__":
    main()
