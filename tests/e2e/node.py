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
    """more devices than divide a tensor: with --accumulate-apart one device, whose batches are
    their shares, computes what they do, byte for byte: the model, and the losses of steps; with
    dropout, targets that do not count, clipping and recomputation, in local steps that are reported
    in parts, late, and mixed, with a tensor that is frozen, and where no rounds are. With several
    batches a step, losses are those of one device within roundings"""
    more, count = (["--device", "cpu:3"], 3) if KIND == "cpu" else (TWO, 2)
    apart = ["--accumulate", count, "--accumulate-apart", "--eval-batches", count]
    for model, own, *options in (
            (MODELS[0], ["--recompute", "attention"], "--mode", "sync", "--dropout", 0.1,
             "--pad-token", 32, "--clip", 0.5),
            (MODELS[1], [], "--mode", "diloco:2", "--clip", 0.5, "--fragments", 2, "--overlap", 1,
             "--mix", 0.5, "--inner-state", "reset", "--rates", "*embed_tokens*=0"),
            (MODELS[1], [], "--mode", "async")):
        options = ["--model", model, "--steps", 3, *options]
        wanted, steps, final = run(cluster, 1, ONE, 6 // count, *options, own=[*own, *apart])
        found, losses, last = run(cluster, 1, more, 6, *options, own=[*own, "--eval-batches", 1])
        expect(found == wanted, f"{options}: the models differ")
        expect_equal(losses, steps, f"{options}: losses")
        expect(losses[0] != losses[-1], "nothing was learned")
        expect(abs(last - final) < 1e-5 * final, f"the last loss is {last}, expected {final}")
    options = ["--model", MODELS[1], "--steps", 2, "--accumulate", 2]
    _, wanted, _ = run(cluster, 1, ONE, 6, *options, own=["--eval-batches", 1])
    _, losses, _ = run(cluster, 1, more, 6, *options, own=["--eval-batches", 1])
    for loss, other in zip(losses, wanted):
        expect(abs(loss - other) < 2e-4 * other, f"a loss is {loss}, expected {other}")


def refusals(cluster):
    """a batch that the devices cannot share, gradients apart that are not to be accumulated or that
    several devices would add, and a list that is none, end the worker with one line that says
    why"""
    server = cluster.coordinator("--model", MODELS[0], "--batch", 3, "--seq-len", 16, servers=1,
                                 workers=1)
    worker = cluster.worker(*TWO)
    worker.wait_exit(2)
    server.wait_exit(69)
    worker.expect_line(r" error --batch 3 cannot be shared evenly by 2 devices: make it a multiple")
    for devices, accumulate, line in ((ONE, 1, "--accumulate is 1: give a larger one"),
                                      (TWO, 2, "names 2: give one of them, --accumulate 2 and")):
        server = cluster.coordinator("--accumulate", accumulate, servers=1, workers=1)
        worker = cluster.worker(*devices, "--accumulate-apart")
        worker.wait_exit(2)
        server.wait_exit(69)
        worker.expect_line(r" error --accumulate-apart .*" + line)
    for device in ("cpu:0", "cpu:17", "cuda:0,0", "cuda:0,", "cuda:,1", "gpu:all"):
        worker = cluster.worker("--device", device)
        worker.wait_exit(2)
        worker.expect_line(r" error .*--device.*" + device)


if __name__ == "__main__":
    main(__doc__, [as_two_workers, as_one_device, refusals])
