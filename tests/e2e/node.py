#!/usr/bin/env python3
"""Workers with several devices (--device cpu:2, cuda) in real jobs: they compute what as many
workers with a share of the batch each compute together, to the bit.

usage: node.py BIN [cuda]     with "cuda" on both devices of the stand-in of tests/cuda_on_cpu,
                              which LD_LIBRARY_PATH puts in the place of NVIDIA's libraries
"""
import os
import sys

from cluster import expect, expect_equal, main, read_metrics

KIND = sys.argv.pop() if sys.argv[-1] == "cuda" else "cpu"
ONE, TWO = (["--device", "cuda:1"], ["--device", "cuda"]) if KIND == "cuda" else \
    ([], ["--device", "cpu:2"])
EXACT = ["--push", "none", "--pull", "none", "--lr", 0.01, "--seq-len", 16]
MODELS = ("gpt2:1x32x2", "llama:1x36x2x1")  # no tensor's size is a multiple of 3


def run(cluster, workers, devices, batch, *options, own=()):
    """-> the bytes of the model, the losses of worker 0's steps, the loss at the end."""
    number = len(cluster.processes)
    folder = cluster.path(f"run{number}")
    server = cluster.coordinator(*options, *EXACT, "--batch", batch, "--block-values", 1000,
                                 servers=1, workers=workers)
    started = [cluster.worker(*devices, *own, "--index", i, "--compute", "f32", "--threads", 1,
                              "--run-dir", folder, name=f"worker {number}.{i}")
               for i in range(workers)]
    for process in (*started, server):
        process.wait_exit(0)
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        model = file.read()
    steps = read_metrics(os.path.join(folder, "metrics.jsonl"), "rubato.step/1")
    (result,) = read_metrics(os.path.join(folder, "metrics.jsonl"), "rubato.result/1")
    return model, [line["loss"] for line in steps], result["val_loss"]


def as_two_workers(cluster):
    """both families, with dropout and clipping: the model that a worker with two devices leaves is
    that of two workers with half its batch, byte for byte; the next forward overlapped, too"""
    for model in MODELS:
        options = ["--model", model, "--steps", 4, "--dropout", 0.1, "--clip", 0.5]
        own = ["--eval-every", 2, "--eval-batches", 3]
        wanted, _, _ = run(cluster, 2, ONE, 2, *options, own=own)
        for overlap in ("--forward-overlap", "--no-forward-overlap"):
            found, losses, last = run(cluster, 1, TWO, 4, *options, own=[*own, overlap])
            expect(found == wanted, f"{model}: the models differ")
            expect(losses[0] != losses[-1], "nothing was learned")
            expect(0 < last < 6, f"validation is {last}")


def as_one_device(cluster):
    """several batches a step, local steps, and more devices than divide a tensor: the losses are
    those of one device within roundings"""
    more = ["--device", "cpu:3"] if KIND == "cpu" else TWO
    for options in (["--mode", "sync", "--accumulate", 2], ["--mode", "diloco:2"],
                    ["--mode", "async"]):
        options = ["--model", MODELS[1], "--steps", 4, *options]
        _, wanted, final = run(cluster, 1, ONE, 6, *options)
        _, losses, last = run(cluster, 1, more, 6, *options)
        expect_equal(len(losses), len(wanted), "steps")
        for step, (loss, other) in enumerate(zip([*losses, last], [*wanted, final])):
            expect(abs(loss - other) < 2e-4 * other, f"loss {step} is {loss}, expected {other}")


def refusals(cluster):
    """a batch that the devices cannot share, and a list that is none, end the worker with one line
    that says why"""
    server = cluster.coordinator("--model", MODELS[0], "--batch", 3, "--seq-len", 16, servers=1,
                                 workers=1)
    worker = cluster.worker(*TWO)
    worker.wait_exit(2)
    server.wait_exit(69)
    worker.expect_line(r" error --batch 3 cannot be shared evenly by 2 devices: make it a multiple")
    for device in ("cpu:0", "cpu:17", "cuda:0,0", "cuda:0,", "cuda:,1", "gpu:all"):
        worker = cluster.worker("--device", device)
        worker.wait_exit(2)
        worker.expect_line(r" error .*--device.*" + device)


if __name__ == "__main__":
    main(__doc__, [as_two_workers, as_one_device, refusals])
