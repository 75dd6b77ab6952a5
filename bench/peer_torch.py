#!/usr/bin/env python3
"""The reference of bench_compute: GPT-2 training steps in plain PyTorch, on the CPU or a GPU.

Started by `bench_compute --peer torch`, which gives it the model's sizes as arguments and the
threads as --threads and OMP_NUM_THREADS. Prints one line when two warm-up steps are done,

    ready PARAMETERS LOSS DESCRIPTION

then, for each line "N" on standard input, makes N steps and prints their seconds on one line.
A step is what bench_compute's is: a new batch, forward with the mean cross-entropy, backward,
clipping to the global norm 1, AdamW. Attention is scaled_dot_product_attention and AdamW the fused
one where this PyTorch has them for the device; else a masked softmax, and the foreach form. On a
GPU the model goes through torch.compile.
Needs torch 1.13 or later, nothing else. Debian's (python3-torch) multiplies with OpenBLAS, which
should be its OpenMP build (libopenblas0-openmp, so that one pool of threads does all), and which
may have to be told the chip if it is newer than OpenBLAS 0.3.21: OPENBLAS_CORETYPE=SkylakeX.
"""
import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Attention(nn.Module):
    def __init__(self, channels, heads, longest):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        mask = torch.ones(longest, longest, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        split = (B, T, self.heads, C // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (C // self.heads) ** -0.5
            y = scores.masked_fill(self.mask[:T, :T], float("-inf")).softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, channels, heads, longest):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attention = Attention(channels, heads, longest)
        self.norm2 = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, 4 * channels)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * channels, channels)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class GPT2(nn.Module):
    def __init__(self, args):
        super().__init__()
        C = args.channels
        self.tokens = nn.Embedding(args.vocab, C)
        self.positions = nn.Embedding(args.positions, C)
        self.layers = nn.ModuleList(
            Layer(C, args.heads, args.seq_len) for _ in range(args.layers))
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, args.vocab, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model):
    """AdamW, in the fastest form that this PyTorch has for the device; and its name."""
    settings = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    for form in ({"fused": True}, {"foreach": True}, {}):
        try:
            return torch.optim.AdamW(model.parameters(), **settings, **form), " ".join(form)
        except (RuntimeError, TypeError):
            continue
    raise SystemExit("peer_torch: no AdamW")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("layers", "channels", "heads", "vocab", "positions", "batch", "seq-len",
                 "threads"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--compute", choices=("f32", "bf16"), required=True)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = torch.device(args.device)
    model = GPT2(args).to(device)
    optimizer, form = make_optimizer(model)
    parameters = list(model.parameters())
    bf16 = args.compute == "bf16"
    on_gpu = device.type == "cuda"
    network = torch.compile(model) if on_gpu else model

    def step():
        batch = torch.randint(0, args.vocab, (args.batch, args.seq_len + 1), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = network(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize(device)
        return float(loss)

    for _ in range(2):
        loss = step()
    blas = "MKL" if torch.backends.mkl.is_available() else "OpenBLAS"
    if on_gpu:
        blas = f"{torch.cuda.get_device_name(device)}, compiled"
    attention = "sdpa" if HAS_SDPA else "masked softmax"
    print("ready", sum(p.numel() for p in parameters), f"{loss:.4f}",
          f"torch {torch.__version__} ({blas}, {attention}, AdamW {form or 'plain'})", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(f"{time.perf_counter() - start:.6f}")
        print(*seconds, flush=True)


if __name__ == "__main__":
    main()
