#!/usr/bin/env python3
"""Makes the golden values of tests/test_model_golden.c with PyTorch.

Usage: make_gpt2.py [FOLDER]      (default: this script's own folder)
Needs: torch (any 1.13 or later; on the CPU).

Writes gpt2_gradients.f32 (the gradient of every tensor at step 0, computed in float64, stored as
little-endian float32, in the model's order of tensors) and gpt2_values.h (losses, logits, and two
training curves in float32). The model, its weights and its batches are given by formulas of
integers, which tests/golden_gpt2.h repeats in C; keep the two alike.
"""
import math
import os
import sys

import torch
import torch.nn.functional as F

LAYERS, CHANNELS, HEADS, VOCAB, POSITIONS = 2, 32, 4, 61, 20
BATCH, LENGTH, STEPS = 4, 16, 50
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
CURVES = {  # name: peak rate, warm-up steps, floor of the cosine (1: constant)
    "constant": (1e-3, 0, 1.0),
    "cosine": (3e-3, 10, 0.1),
}


def tensor_shapes():
    C = CHANNELS
    yield "transformer.wte.weight", (VOCAB, C)
    yield "transformer.wpe.weight", (POSITIONS, C)
    for layer in range(LAYERS):
        for name, shape in (
            ("ln_1.weight", (C,)),
            ("ln_1.bias", (C,)),
            ("attn.c_attn.weight", (C, 3 * C)),
            ("attn.c_attn.bias", (3 * C,)),
            ("attn.c_proj.weight", (C, C)),
            ("attn.c_proj.bias", (C,)),
            ("ln_2.weight", (C,)),
            ("ln_2.bias", (C,)),
            ("mlp.c_fc.weight", (C, 4 * C)),
            ("mlp.c_fc.bias", (4 * C,)),
            ("mlp.c_proj.weight", (4 * C, C)),
            ("mlp.c_proj.bias", (C,)),
        ):
            yield f"transformer.h.{layer}.{name}", shape
    yield "transformer.ln_f.weight", (C,)
    yield "transformer.ln_f.bias", (C,)


def mix(x):
    """MurmurHash3's 32-bit finaliser."""
    x &= 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def make_weights(dtype):
    weights = {}
    for index, (name, shape) in enumerate(tensor_shapes()):
        count = math.prod(shape)
        unit = [(mix((index << 20) + i) >> 8) / 2.0**24 - 0.5 for i in range(count)]
        unit = torch.tensor(unit, dtype=torch.float32)  # exact: 24 bits
        if len(shape) == 2:
            values = unit * 0.25
        elif name.endswith(".weight"):
            values = 1.0 + unit * 0.5
        else:
            values = unit * 0.125
        weights[name] = values.reshape(shape).to(dtype).requires_grad_(True)
    return weights


def token(n):
    """In groups of four the first token is drawn, the others follow from it: something to learn."""
    return (mix(n // 4 + 12345) % 16 + n % 4 * 15) % VOCAB


def make_batch(step):
    first = step * BATCH * LENGTH
    stream = torch.tensor([token(first + i) for i in range(BATCH * LENGTH + 1)])
    return stream[:-1].reshape(BATCH, LENGTH), stream[1:].reshape(BATCH, LENGTH)


def forward(w, tokens):
    B, T = tokens.shape
    C, D = CHANNELS, CHANNELS // HEADS
    wte = w["transformer.wte.weight"]
    x = wte[tokens] + w["transformer.wpe.weight"][:T]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for layer in range(LAYERS):
        p = f"transformer.h.{layer}."
        y = F.layer_norm(x, (C,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], 1e-5)
        qkv = y @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        q, k, v = (part.reshape(B, T, HEADS, D).transpose(1, 2) for part in qkv.split(C, dim=2))
        scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~mask, -math.inf)
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + y @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        y = F.layer_norm(x, (C,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], 1e-5)
        y = F.gelu(y @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"], approximate="tanh")
        x = x + y @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    x = F.layer_norm(x, (C,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], 1e-5)
    return x @ wte.T


def loss_of(w, tokens, targets):
    return F.cross_entropy(forward(w, tokens).reshape(-1, VOCAB), targets.reshape(-1))


def learning_rate(step, peak, warmup, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / (STEPS - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(peak, warmup, floor):
    w = make_weights(torch.float32)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in w.values() if p.dim() == 2], "weight_decay": DECAY},
            {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=peak,
        betas=BETAS,
        eps=EPS,
    )
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak, warmup, floor)
        optimizer.zero_grad()
        loss = loss_of(w, *make_batch(step))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        optimizer.step()
        losses.append(float(loss.detach()))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {min(norms):.3f}..{max(norms):.3f}")
    return losses


def array(name, comment, values):
    lines = [f"/* {comment} */", f"static const float {name}[{len(values)}] = {{"]
    for i in range(0, len(values), 5):
        lines.append("    " + ", ".join(f"{v:.9e}F" for v in values[i : i + 5]) + ",")
    return lines + ["};", ""]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    versions = f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}"
    print(versions)
    torch.set_num_threads(1)

    w = make_weights(torch.float64)
    tokens, targets = make_batch(0)
    loss = loss_of(w, tokens, targets)
    loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in w.values()]).to(torch.float32)
    print(f"{len(gradients)} gradients, norm {float(gradients.norm()):.6f}")
    with open(os.path.join(folder, "gpt2_gradients.f32"), "wb") as file:
        file.write(gradients.numpy().astype("<f4").tobytes())
    last_logits = forward(w, tokens)[0, -1].tolist()

    text = [
        "/* gpt2_values.h - made by tests/golden/make_gpt2.py; do not edit.",
        f" * {versions}.",
        " */",
        "#ifndef RUBATO_TESTS_GOLDEN_GPT2_VALUES_H",
        "#define RUBATO_TESTS_GOLDEN_GPT2_VALUES_H",
        "",
        "/* clang-format off */",
        "",
        "/* Mean loss of batch 0 with the first weights, computed in float64. */",
        f"#define GOLDEN_LOSS {float(loss.detach()):.17e}",
        "",
    ]
    text += array(
        "golden_logits",
        "Logits after the first sequence of batch 0, computed in float64.",
        last_logits,
    )
    for name, (peak, warmup, floor) in CURVES.items():
        comment = f"Loss before each update; rate {peak}, warm-up {warmup}, then to {floor} of it."
        text += array(f"golden_losses_{name}", comment, train(peak, warmup, floor))
    text.append("#endif")
    with open(os.path.join(folder, "gpt2_values.h"), "w") as file:
        file.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
