#!/usr/bin/env python3
"""The table of scripts/gpu-check, from the lines that its benches wrote.

usage: gpu_report.py FIGURES.jsonl
       gpu_report.py --exchange METRICS.jsonl    a run's line for FIGURES, to standard output

Operations are compared with the device's copy or its largest product (bench_kernels), codecs with
the copy of as many values; training with the largest bf16 product, which gives the model FLOPs
utilisation (of worker/model_flops.h, as in a worker's line), and with PyTorch's whole step.
Ours is forward and backward with weights and gradient moving between host and device; clipping and
the optimizer are a server's. An exchange's hidden part is what a step does not wait for; a run whose
loss does not fall is refused.
"""
import json
import statistics
import sys

WARM_STEPS = 3


def exchange(path):
    with open(path, encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line["schema"] == "rubato.step/1"]
    if len(steps) <= WARM_STEPS:
        sys.exit(f"gpu_report.py: {path} has no more than {WARM_STEPS} steps")
    losses = [step["loss"] for step in steps]
    if None in losses or losses[-1] >= losses[0]:  # null: not finite
        sys.exit(f"gpu_report.py: {path} learned nothing: its losses are {losses}")
    warm = [step["ms"] for step in steps[WARM_STEPS:]]
    median = {name: statistics.median(ms[name] for ms in warm) for name in warm[0]}
    print(json.dumps({"bench": "exchange", "steps": len(warm), "ms": median,
                      "losses": [losses[0], losses[-1]]}))


def operations(lines):
    print(f"{'operation':28s} {'GB/s':>10s} {'TFLOP/s':>10s} {'of the copy or product':>24s}")
    for line in lines:
        share = line.get("of_copy", line.get("of_largest_product"))
        rates = [f"{line[key]:.4g}" if key in line else "" for key in ("gb_s", "tflop_s")]
        print(f"{line['operation']:28s} {rates[0]:>10s} {rates[1]:>10s} {share:>24.2f}")


def codecs(lines):
    """Rates are of f32 values; of the copy: values a second, of those that are copied."""
    print(f"\n{'codec':22s} {'encode GB/s':>12s} {'of the copy':>12s} {'decode, add GB/s':>17s} "
          f"{'of the copy':>12s} {'f32/bytes':>10s}")
    for line in lines:
        ratio = 4 * line["block_values"] / line["block_bytes"]
        print(f"{line['codec']:22s} {line['encode_gb_s']:>12.4g} {line['encode_of_copy']:>12.2f} "
              f"{line['add_gb_s']:>17.4g} {line['add_of_copy']:>12.2f} {ratio:>10.1f}")


def training(lines, peak):
    """Of a model that was measured twice, the last: beside PyTorch."""
    print(f"\n{'training':12s} {'tokens/s':>10s} {'MFU':>6s} {'forward ms':>11s} "
          f"{'backward ms':>12s} {'PyTorch tokens/s':>17s} {'ratio':>6s}")
    for line in {line["model"]: line for line in lines}.values():
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
             for kind in ("kernels", "codecs", "compute", "exchange")}
    peak = next((line["tflop_s"] * 1e12 for line in kinds["kernels"]
                 if line["operation"] == "largest product, bf16"), 0)
    if kinds["kernels"]:
        print(kinds["kernels"][0]["device"])
        operations(kinds["kernels"])
    if kinds["codecs"]:
        codecs(kinds["codecs"])
    if kinds["compute"]:
        training(kinds["compute"], peak)
    for line in kinds["exchange"]:
        print("\nexchange with a server, median ms of a step: " +
              ", ".join(f"{name} {value:.2f}" for name, value in line["ms"].items()) +
              "\nloss of its first and last step: {:.3f}, {:.3f}".format(*line["losses"]))


if __name__ == "__main__":
    main()
