#!/usr/bin/env python3
"""The table of scripts/gpu-check, from the lines that its benches wrote.

usage: gpu_report.py FIGURES.jsonl
       gpu_report.py --exchange METRICS.jsonl    a run's line for FIGURES, to standard output

Operations are compared with the device's copy or its largest product (bench_kernels); training with
the largest bf16 product, which gives the model FLOPs utilisation (of worker/model_flops.h, as in a
worker's line), and with PyTorch's whole step.
Ours is forward and backward with weights and gradient moving between host and device; clipping and
the optimizer are a server's. An exchange's hidden part is what a step does not wait for.
"""
import json
import statistics
import sys

WARM_STEPS = 3


def exchange(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = [line["ms"] for line in lines if line["schema"] == "rubato.step/1"][WARM_STEPS:]
    if not steps:
        sys.exit(f"gpu_report.py: {path} has no more than {WARM_STEPS} steps")
    median = {name: statistics.median(ms[name] for ms in steps) for name in steps[0]}
    print(json.dumps({"bench": "exchange", "steps": len(steps), "ms": median}))


def operations(lines):
    print(f"{'operation':28s} {'GB/s':>10s} {'TFLOP/s':>10s} {'of the copy or product':>24s}")
    for line in lines:
        share = line.get("of_copy", line.get("of_largest_product"))
        rates = [f"{line[key]:.4g}" if key in line else "" for key in ("gb_s", "tflop_s")]
        print(f"{line['operation']:28s} {rates[0]:>10s} {rates[1]:>10s} {share:>24.2f}")


def training(lines, peak):
    print(f"\n{'training':12s} {'tokens/s':>10s} {'MFU':>6s} {'forward ms':>11s} "
          f"{'backward ms':>12s} {'PyTorch tokens/s':>17s} {'ratio':>6s}")
    for line in lines:
        seconds = line["load"] + line["forward"] + line["backward"]
        utilisation = f"{line['flops'] / seconds / peak:.2f}" if peak else "-"
        peer = line.get("peer_step")
        theirs = f"{line['tokens'] / peer:.0f}" if peer else "-"
        ratio = f"{peer / seconds:.2f}" if peer else "-"
        print(f"{line['model']:12s} {line['tokens'] / seconds:10.0f} {utilisation:>6s} "
              f"{line['forward'] * 1e3:11.2f} {line['backward'] * 1e3:12.2f} "
              f"{theirs:>17s} {ratio:>6s}")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--exchange":
        exchange(sys.argv[2])
        return
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    kinds = {kind: [line for line in lines if line["bench"] == kind]
             for kind in ("kernels", "compute", "exchange")}
    peak = next((line["tflop_s"] * 1e12 for line in kinds["kernels"]
                 if line["operation"] == "largest product, bf16"), 0)
    if kinds["kernels"]:
        print(kinds["kernels"][0]["device"])
        operations(kinds["kernels"])
    if kinds["compute"]:
        training(kinds["compute"], peak)
    for line in kinds["exchange"]:
        print("\nexchange with a server, median ms of a step: " +
              ", ".join(f"{name} {value:.2f}" for name, value in line["ms"].items()))


if __name__ == "__main__":
    main()
