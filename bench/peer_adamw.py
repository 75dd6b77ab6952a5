#!/usr/bin/env python3
"""The reference of bench_server: AdamW of PyTorch or of DeepSpeed on one thread.

Arguments: VALUES FORM, the form being `default` (what torch.optim.AdamW does by itself), `fused`, or
`deepspeed`: DeepSpeedCPUAdam, which builds itself when it is first used (a minute or two).
Says "ready DESCRIPTION" after one step, then answers each line "N" on standard input with the
processor seconds of N steps. The values are tensors of GPT-2's shapes, as many as it takes, f32.
"""
import os
import sys
import time

# DeepSpeed's kernel has an OpenMP of its own, which torch.set_num_threads() does not reach.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("DS_ACCELERATOR", "cpu")

try:
    import torch
except ImportError as error:
    sys.exit(f"peer_adamw: {error}: name a Python that has it by --python")


def parameters(values):
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    made = []
    while values > 0:
        shape = shapes[len(made) % len(shapes)]
        rows = max(1, min(shape[0], values // shape[1]))
        parameter = torch.nn.Parameter(torch.randn(rows, shape[1]))
        parameter.grad = torch.randn_like(parameter) * 1e-3
        values -= parameter.numel()
        made.append(parameter)
    return made


def make_optimizer(made, form):
    """The optimizer, and what it is called."""
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if form == "deepspeed":
        try:
            import deepspeed
            from deepspeed.ops.adam import DeepSpeedCPUAdam
        except ImportError as error:
            sys.exit(f"peer_adamw: {error}: name a Python that has it by --python")
        return DeepSpeedCPUAdam(made, **settings), f"deepspeed {deepspeed.__version__}, CPU Adam"
    extra = {"fused": True} if form == "fused" else {}
    return torch.optim.AdamW(made, **settings, **extra), f"torch {torch.__version__}, AdamW, {form}"


def main():
    values, form = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    made = parameters(values)
    optimizer, name = make_optimizer(made, form)
    optimizer.step()
    print(f"ready {name}, {len(made)} tensors", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.thread_time()
            optimizer.step()
            seconds.append(time.thread_time() - start)
        print(*(f"{s:.6f}" for s in seconds), flush=True)


if __name__ == "__main__":
    main()
