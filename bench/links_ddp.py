#!/usr/bin/env python3
"""One rank of PyTorch DDP over gloo: the peer of bench/links.sh, which starts two of these.

Trains what Rubato trains there, so that the loss curves can be compared step by step: the first
weights are read from a folder that a Rubato run wrote, the batches are the same ones in the same
order (the order of worker/data.h, made here again), the optimizer is AdamW with Rubato's defaults,
clipped to the norm 1. Writes metrics.jsonl (metrics.rank1.jsonl) as a worker does: an object a step
with the three times that make up a step, and the validation loss of the same batches. All ranks
validate, so that none gets ahead meanwhile; the step's times leave it out.

--hook  none             all-reduce of f32
        fp16             DDP's fp16_compress_hook
        powersgd:R:S     DDP's PowerSGD of rank R with error feedback and warm start; the first S
                         steps are all-reduced as f32
Needs torch 2.4 or later (fused AdamW on CPUs). Exit code 77 where torch is missing.
"""
import argparse
import json
import math
import os
import struct
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    print(f"links_ddp: skipped: {error}", file=sys.stderr)
    sys.exit(77)

from peer_torch import GPT2  # imports torch, too

WORD = 0xFFFFFFFF
DATA_ORDER = 2  # base/random.h: RANDOM_DATA_ORDER
VALIDATION_PART = 20  # worker/train.c


def philox(key, counter):
    """base/random.c: random_philox."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


class Stream:
    """worker/data.h: windows of T + 1 bytes, in an order that (seed, epoch) determine."""

    def __init__(self, content, first, count, T, seed):
        self.content, self.first, self.T, self.seed = content, first, T, seed
        self.windows = (count - 1) // T
        self.half_bits = 1
        while 1 << 2 * self.half_bits < self.windows:
            self.half_bits += 1

    def feistel(self, key, value):
        mask = (1 << self.half_bits) - 1
        left, right = value >> self.half_bits, value & mask
        for turn in range(8):
            left, right = right, left ^ (philox(key, (right, turn, 0, 0))[0] & mask)
        return left << self.half_bits | right

    def window(self, number):
        epoch, index = divmod(number, self.windows)
        key = philox((self.seed & WORD, DATA_ORDER),
                     (0, self.seed >> 32, epoch & WORD, epoch >> 32))[:2]
        value = self.feistel(key, index)
        while value >= self.windows:
            value = self.feistel(key, value)
        return value

    def read(self, number, batch):
        """Sequences number, number + 1, ... -> tokens, targets [batch, T]."""
        rows = []
        for n in range(number, number + batch):
            at = self.first + self.window(n) * self.T
            rows.append(torch.frombuffer(self.content, dtype=torch.uint8, count=self.T + 1,
                                         offset=at))
        rows = torch.stack(rows).long()
        return rows[:, :-1], rows[:, 1:]


def load_weights(model, folder, layers):
    """Hugging Face's names and layout: its products keep [in, out], torch's [out, in]."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        values = bytearray(file.read())
    places = {"tokens.weight": ("wte.weight", False), "positions.weight": ("wpe.weight", False),
              "norm.weight": ("ln_f.weight", False), "norm.bias": ("ln_f.bias", False)}
    parts = {"norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
             "norm2": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for layer in range(layers):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                turned = kind == "weight" and "norm" not in ours
                places[f"layers.{layer}.{ours}.{kind}"] = (f"h.{layer}.{theirs}.{kind}", turned)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs, turned = places.pop(name)
            entry = head["transformer." + theirs]
            begin = entry["data_offsets"][0]
            tensor = torch.frombuffer(values, dtype=torch.float32, offset=begin,
                                      count=math.prod(entry["shape"])).view(entry["shape"])
            parameter.copy_(tensor.t() if turned else tensor)
    assert not places, f"not in the model: {places}"


def make_model(args):
    with open(os.path.join(args.init, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    shape = argparse.Namespace(layers=config["n_layer"], channels=config["n_embd"],
                               heads=config["n_head"], vocab=config["vocab_size"],
                               positions=config["n_positions"], seq_len=args.seq_len)
    model = GPT2(shape)
    load_weights(model, args.init, shape.layers)
    return model


def wrap(model, hook):
    """DDP. Its buffers are constant masks, which need not be sent before each step."""
    name, *numbers = hook.split(":")
    if name == "powersgd":
        # Over gloo the ranks' collectives of several buckets get out of order, and the job dies;
        # one bucket holds all.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1024, broadcast_buffers=False)
        rank, start = map(int, numbers)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank,
                                            start_powerSGD_iter=start)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return wrapped
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True,
                                      broadcast_buffers=False)
    if name == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return wrapped


def make_optimizer(model, lr):
    """Rubato's defaults: only matrices decay."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


class Trainer:
    def __init__(self, args, world):
        self.args, self.world = args, world
        with open(args.data, "rb") as file:
            content = bytearray(file.read())
        held = len(content) // VALIDATION_PART
        train = len(content) - held
        self.train = Stream(content, 0, train, args.seq_len, args.seed)
        self.val = Stream(content, train, held, args.seq_len, args.seed)
        self.model = make_model(args)
        self.ddp = wrap(self.model, args.hook)
        self.optimizer = make_optimizer(self.model, args.lr)
        self.bf16 = args.compute == "bf16"

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16)

    def validate(self):
        losses = []
        with torch.no_grad(), self.autocast():
            for i in range(self.args.eval_batches):
                batch = self.val.read(i * self.args.batch, self.args.batch)
                losses.append(float(self.model(*batch)))
        return sum(losses) / len(losses)

    def step(self, index):
        """One step -> (loss, [forward, backward with the all-reduce, the rest] in ms)."""
        args = self.args
        times = [time.perf_counter()]
        for group in self.optimizer.param_groups:
            group["lr"] = args.lr * min(1, (index + 1) / max(args.warmup, 1))
        turn = index * self.world + args.rank
        tokens, targets = self.train.read(turn * args.batch, args.batch)
        with self.autocast():
            loss = self.ddp(tokens, targets)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
        return float(loss), [1e3 * (b - a) for a, b in zip(times, times[1:])]

    def run(self, metrics):
        args, started, val_loss = self.args, time.perf_counter(), None
        for index in range(args.steps):
            loss, (forward, backward, rest) = self.step(index)
            if (index + 1) % args.eval_every == 0 or index + 1 == args.steps:
                val_loss = self.validate()
            line = {"step": index + 1, "seconds": time.perf_counter() - started, "loss": loss,
                    "val_loss": val_loss,
                    "tokens": (index + 1) * self.world * args.batch * args.seq_len,
                    "ms": {"forward": forward, "backward": backward, "wait": rest}}
            print(json.dumps(line, separators=(",", ":")), file=metrics, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rank", "batch", "seq-len", "steps", "warmup", "seed", "eval-every",
                 "eval-batches"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--hook", required=True)
    parser.add_argument("--compute", choices=("f32", "bf16"), required=True)
    for name in ("address", "interface", "init", "data", "run-dir"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    world = 2
    os.environ["GLOO_SOCKET_IFNAME"] = args.interface
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://" + args.address, rank=args.rank,
                            world_size=world)
    trainer = Trainer(args, world)
    name = "metrics.jsonl" if args.rank == 0 else f"metrics.rank{args.rank}.jsonl"
    with open(os.path.join(args.run_dir, name), "w", encoding="ascii") as metrics:
        trainer.run(metrics)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
