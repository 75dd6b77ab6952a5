#!/usr/bin/env python3
"""bench_kernels: that it times every operation and codec that a device has, and what gpu_report.py
makes of it.

usage: test_bench_kernels.py BIN DEVICE

Nothing is asserted on time but that it passed. A row's work must be what its sizes say, its share
that of the copy's rate or of the product's of its type; payloads must be as long as compression/
scheme.h says, so that a codec that was not run, or was another one, is found.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

LIMIT_S = 250
REPORT = os.path.join(os.path.dirname(__file__), "..", "bench", "gpu_report.py")
B, T, C, HEADS, VOCAB, SQUARE = 2, 16, 32, 2, 64, 32
N, I = B * T, 4 * C
VALUES = N * I  # one block of codecs and optimizers
SIZES = ["--batch", B, "--seq-len", T, "--channels", C, "--heads", HEADS, "--vocab", VOCAB,
         "--square", SQUARE, "--turns", 1]

BYTES = {
    "copy": 8 * VALUES, "embedding": 8 * N * C, "embedding, backward": 12 * N * C,
    "residual and norm": 16 * N * C, "norm, backward": 16 * N * C,
    "residual and RMS norm": 16 * N * C, "RMS norm, backward": 16 * N * C,
    "RoPE": 16 * N * C, "RoPE, backward": 16 * N * C,
    "bias and GELU": 8 * VALUES, "bias and GELU, backward": 12 * VALUES,
    "SwiGLU": 6 * VALUES, "SwiGLU, backward": 10 * VALUES, "dropout": 8 * N * C,
    "cross entropy": 8 * N * VOCAB, "AdamW": 28 * VALUES, "SGD, momentum": 20 * VALUES,
    "sum of squares": 4 * VALUES, "local steps' delta": 12 * VALUES, "mixing weights": 12 * VALUES,
    "adding gradients": 12 * VALUES,
}
CUDA_BYTES = {"bf16 weights to f32": 6 * VALUES}
SCORES, PRODUCT = N * C * T, 2 * N * C * I
FLOPS = {"largest product": 2 * SQUARE ** 3, "product": PRODUCT, "product, backward": 2 * PRODUCT}
ATTENTION_FLOPS = {"attention": 2 * SCORES, "attention, backward": 5 * SCORES}

SCALED = VALUES // 128
TOPK = math.ceil(0.01 * 4096)  # of each 4096 values, of which the block has one
PAYLOADS = {
    "none": 4 * VALUES, "bf16": 2 * VALUES, "fp16": 2 * VALUES, "int8": VALUES + 2 * SCALED,
    "int8,ef": VALUES + 2 * SCALED, "fp8": 1 + VALUES + 2 * SCALED,
    "fp8:e5m2": 1 + VALUES + 2 * SCALED, "int4": 2 + VALUES // 2 + 2 * SCALED,
    "int4:sr": 2 + VALUES // 2 + 2 * SCALED, "int4:sr,had": 2 + VALUES // 2 + 2 * SCALED,
    "int4,ef": 2 + VALUES // 2 + 2 * SCALED, "int4:sr,had,ef": 2 + VALUES // 2 + 2 * SCALED,
    "qsgd": 2 + VALUES // 2 + 2 * SCALED, "onebit": 1 + VALUES // 8 + 2 * VALUES // 512,
    "onebit,ef": 1 + VALUES // 8 + 2 * VALUES // 512, "signsgd": 1 + VALUES // 8,
    "topk:0.01": 4 + (12 * TOPK + 7) // 8 + 2 * TOPK,
    "topk:0.01,ef": 4 + (12 * TOPK + 7) // 8 + 2 * TOPK,
    "powersgd:4": 8 + 2 * 4 * (N + I), "powersgd:4,ef": 8 + 2 * 4 * (N + I),
    "powersgd:4,shared,ef": 4 + 2 * 4 * N, "terngrad": VALUES // 4 + 2 * VALUES // 512,
    "natural": VALUES,
}
# Gaps between places, and which runs are picked, differ by values and step.
VARYING = {"topk:0.01,global", "topk:0.01,global,ef", "randk:0.01", "randk:0.01,ef"}


def expect(condition, what):
    if not condition:
        sys.exit(f"test_bench_kernels.py: {what}")


def bench(*words):
    return subprocess.run([os.path.join(sys.argv[1], "bench_kernels"), *map(str, words)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)


def work_of(device):
    types = ["f32", "bf16"] if device == "cpu" else ["f32", "tf32", "bf16"]
    attention = ["f32"] if device == "cpu" else ["f32", "bf16"]
    work = BYTES if device == "cpu" else BYTES | CUDA_BYTES
    for name, flops in FLOPS.items():
        first, *rest = name.split(", ")
        work |= {", ".join([first, kind, *rest]): flops for kind in types}
    for name, flops in ATTENTION_FLOPS.items():
        first, *rest = name.split(", ")
        work |= {", ".join([first, kind, *rest]): flops for kind in attention}
    return work


def operations(device, lines):
    rows = {line["operation"]: line for line in lines}
    work = work_of(device)
    expect(len(rows) == len(lines), "no operation has two rows")
    expect(rows.keys() == work.keys(), f"rows differ: {sorted(rows.keys() ^ work.keys())}")
    for name, row in rows.items():
        memory = "gb_s" in row
        found = row["bytes" if memory else "flops"]
        expect(found == work[name], f"{name}: its work is {found}, expected {work[name]}")
        kind = next((kind for kind in ("tf32", "f32", "bf16") if kind in name.split(", ")), None)
        rate, ceiling = ("gb_s", "copy") if memory else ("tflop_s", f"largest product, {kind}")
        expect(row[rate] > 0, f"{name}: {rate} is {row[rate]}")
        share = row["of_copy" if memory else "of_largest_product"]
        wanted = row[rate] / rows[ceiling][rate]
        expect(abs(share - wanted) <= 1e-3 * wanted, f"{name}: {share} of {ceiling}, not {wanted}")


def codecs(lines):
    rows = {line["codec"]: line for line in lines}
    expect(len(rows) == len(lines), "no codec has two rows")
    names = PAYLOADS.keys() | VARYING
    expect(rows.keys() == names, f"codecs differ: {sorted(rows.keys() ^ names)}")
    for name, row in rows.items():
        expect(row["block_values"] == VALUES, f"{name}: a block of {row['block_values']} values")
        size = row["block_bytes"]
        if name in PAYLOADS:
            expect(size == PAYLOADS[name], f"{name}: {size} bytes, expected {PAYLOADS[name]}")
        else:
            expect(0 < size < VALUES / 10, f"{name}: {size} bytes")
        for rate in ("encode_gb_s", "encode_of_copy", "add_gb_s", "add_of_copy"):
            expect(row[rate] > 0, f"{name}: {rate} is {row[rate]}")
        ratio = row["encode_gb_s"] / row["add_gb_s"] * row["add_of_copy"] / row["encode_of_copy"]
        expect(abs(ratio - 1) < 1e-2, f"{name}: rates are compared with two copies")


def report(path, lines):
    done = subprocess.run([sys.executable, REPORT, path], text=True, check=True,
                          stdout=subprocess.PIPE)
    table = done.stdout.splitlines()
    for line in lines:
        name = line.get("operation", line.get("codec"))
        rows = [row for row in table if row.startswith(name + "  ")]
        expect(len(rows) == 1, f"the report has {len(rows)} rows of {name}:\n{done.stdout}")
    expect(sum(row.startswith("codec ") for row in table) == 1, "codecs have a table of their own")


def refusals(device):
    cases = [
        (("--device", "tpu:0"), 2, "allowed: cpu, cuda:n"),
        (("--device", "cuda:99"), 72, "cuda"),
        (("--device", device, *SIZES, "--heads", "3"), 2, "--heads 3 must divide --channels 32"),
        (("--device", device, "--turns", "0"), 2, "--turns"),
        (("--device", device, *SIZES, "--json", "/nonexistent/rows"), 74, "/nonexistent/rows"),
    ]
    for words, code, reason in cases:
        done = bench(*words)
        expect(done.returncode == code, f"{words}: exit code {done.returncode}: {done.stderr}")
        expect(reason in done.stderr.lower(), f"{words}: '{reason}' is not in {done.stderr}")
        expect(done.stdout == "", f"{words}: refused after the table has begun")


def main():
    device = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.jsonl")
        done = bench("--device", device, *SIZES, "--json", path)
        expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        expect(len({line["device"] for line in lines}) == 1, "all rows are of one device")
        expect(len(done.stdout.splitlines()) == len(lines) + 4, f"a table with\n{done.stdout}")
        operations(device, [line for line in lines if line["bench"] == "kernels"])
        codecs([line for line in lines if line["bench"] == "codecs"])
        report(path, lines)
    refusals(device)
    done = bench("--device", device, *SIZES, "--json", "/dev/full")
    expect(done.returncode == 74, f"a full disk: exit code {done.returncode}: {done.stderr}")
    expect("--json /dev/full cannot be written" in done.stderr, f"a full disk: {done.stderr}")


main()
