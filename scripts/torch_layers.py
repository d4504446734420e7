#!/usr/bin/env python3
"""Values of PyTorch's layers and their gradients, for crates/arena-train/tests/suite/torch.rs.

    scripts/torch_layers.py > crates/arena-train/tests/torch/layers.txt

Needs the packages `torch` and `numpy`. The inputs are sines, which the test makes in the same way. A line has a name and
its values, row by row.
"""

import numpy as np
import torch
import torch.nn.functional as F


def sines(seed, *shape):
    """Element i is sin(1.7 i + seed)."""
    count = int(np.prod(shape))
    values = np.sin(1.7 * np.arange(count, dtype=np.float64) + seed).astype(np.float32)
    return torch.from_numpy(values.reshape(shape)).requires_grad_()


def show(name, tensor):
    values = " ".join(f"{value:.9g}" for value in tensor.detach().flatten().tolist())
    print(name, values)


def backward(name, output, seed, **inputs):
    """Prints the output, and the gradients of its product with sines."""
    show(name, output)
    output.backward(sines(seed, *output.shape).detach())
    for key, tensor in inputs.items():
        show(f"{name}.{key}", tensor.grad)


def main():
    torch.set_num_threads(1)

    x, weight, bias = sines(1, 5, 12), sines(2, 12), sines(3, 12)
    output = F.layer_norm(x, [12], weight, bias, eps=1e-5)
    backward("layer_norm", output, 4, input=x, weight=weight, bias=bias)

    x = sines(1, 40)
    scaled = 4 * x
    scaled.retain_grad()
    output = F.gelu(scaled, approximate="tanh")
    backward("gelu", output, 4, input=scaled)

    batch, context, heads, width = 2, 7, 3, 4
    x = sines(1, batch, context, 3, heads, width)
    queries, keys, values = (part.squeeze(2).transpose(1, 2) for part in (2 * x).split(1, dim=2))
    output = F.scaled_dot_product_attention(queries, keys, values, is_causal=True).transpose(1, 2)
    backward("attention", output, 4, input=x)

    tokens = torch.tensor([[2, 0, 2, 4], [1, 2, 3, 0]])
    table, places = sines(1, 5, 6), sines(2, 4, 6)
    output = F.embedding(tokens, table) + places
    backward("embedding", output, 4, tokens=table, positions=places)

    logits, labels = sines(1, 6, 9), torch.tensor([0, 8, 3, 3, 1, 5])
    output = F.cross_entropy(3 * logits, labels)
    show("cross_entropy", output)
    output.backward()
    show("cross_entropy.logits", logits.grad)

    x, weight, bias = sines(1, 4, 10), sines(2, 6, 10), sines(3, 6)
    backward("linear", F.linear(x, weight, bias), 4, input=x, weight=weight, bias=bias)

    # Three steps of each from these values, with gradients that change.
    for name, rule, decay in [("adam", torch.optim.Adam, 0), ("adam_w", torch.optim.AdamW, 0.5)]:
        x = sines(1, 8)
        optimizer = rule([x], lr=0.01, weight_decay=decay)
        for step in range(3):
            x.grad = sines(10 + step, 8).detach()
            optimizer.step()
        show(name, x)


main()
