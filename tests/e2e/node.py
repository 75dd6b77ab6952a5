#!/usr/bin/env python3
"""Workers with several devices (--device cpu:2, cuda) in real jobs: they compute what as many
workers with a share of the batch each compute together, to the bit.

usage: node.py BIN [cuda]     with "cuda" on both devices of the stand-in of tests/cuda_on_cpu,
                              which LD_LIBRARY_PATH puts in the place of NVIDIA's libraries
"""
import os
import sys

from cluster import expect, expect_equal, expect_pushes, free_port, main, read_metrics

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


def push_overlap(cluster):
    """one device and several hand their blocks over during backward, with --no-push-overlap when it
    is done: with the same bytes in the model and the same losses, for pushes that are encoded where
    the gradient is, and on the host"""
    for devices in (ONE, TWO):
        for where in ([], ["--host-encode"]):
            found = []
            for flag in ("--push-overlap", "--no-push-overlap"):
                folder = cluster.path(f"run{len(cluster.processes)}")
                server = cluster.coordinator("--model", "gpt2:2x16x2", "--steps", 2, "--push",
                                             "int8,ef", "--lr", 0.01, "--seq-len", 8, "--batch", 2,
                                             "--block-values", 1000, servers=1, workers=1)
                worker = cluster.worker(*devices, flag, *where, "--run-dir", folder, "--threads", 1,
                                        "--eval-batches", 1, name=f"worker {flag}")
                for process in (worker, server):
                    process.wait_exit(0)
                if KIND == "cuda":
                    place = "the host" if where else "cuda:"
                    worker.expect_line(f" info pushes are encoded on {place}")
                with open(os.path.join(folder, "model.safetensors"), "rb") as file:
                    model = file.read()
                steps = read_metrics(os.path.join(folder, "metrics.jsonl"), "rubato.step/1")
                for step in steps:
                    expect_pushes(step["ms"], flag == "--push-overlap")
                found.append((model, [step["loss"] for step in steps]))
            expect(found[0] == found[1], f"{devices} {where}: weights or losses differ")


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


def nccl_faults(cluster):
    """an NCCL that fails or hangs ends the worker within 24 leases (of 2 s), with the exit code of
    a device that failed and a line that says where, and with it the server; where all is saved and
    only its end hangs, both exit codes are those of the job"""
    faults = (("fail:40", 72, 69, r"error cuda:\d .* among 2 devices failed: NCCL: an error of"),
              ("async:40", 72, 69, r"error cuda:\d .*: a collective among 2 devices failed: NCCL:"),
              ("hang:40", 72, 69, r"error cuda:\d .* is stuck, also after its group was aborted"),
              ("init", 72, 69, "error NCCL hangs: ncclCommInitAll of cuda:0,1 .* NCCL_DEBUG=INFO"),
              ("destroy", 0, 0, "warn NCCL hangs: ncclCommDestroy of cuda:0,1 .* NCCL_DEBUG=INFO"))
    jobs = []
    for fault, *expected in faults:
        address = f"127.0.0.1:{free_port()}"
        steps = 3 if fault == "destroy" else 1000000000
        server = cluster.coordinator("--model", MODELS[0], "--batch", 2, *EXACT, "--lease", 2,
                                     "--steps", steps, listen=address, servers=1, workers=1)
        worker = cluster.worker(*TWO, "--run-dir", cluster.path(fault), "--eval-batches", 1,
                                join=address, name=f"worker {fault}",
                                environment={"CUDA_ON_CPU_NCCL": fault})
        jobs.append((server, worker, expected))
    for server, worker, (code, server_code, line) in jobs:
        worker.wait_exit(code)
        server.wait_exit(server_code)
        worker.expect_line(" " + line)
    expect("result: val_loss=" in worker.out(), "the result is not told")
    expect(os.path.exists(cluster.path("destroy/model.safetensors")), "nothing was saved")


def without_nccl(cluster):
    """where NCCL cannot be loaded, or is an older one, a worker with several devices ends with one
    line that says so, and one with a single device trains"""
    libraries = os.environ["LD_LIBRARY_PATH"]
    nccl = cluster.write("libnccl.so.2", b"")
    environment = {"LD_LIBRARY_PATH": f"{cluster.folder}:{libraries}"}
    job = ["--model", MODELS[0], "--batch", 2, "--steps", 1, *EXACT]
    for line in (r"cannot be loaded: .*libnccl\.so\.2: .*; use one device a worker",
                 r"needs a later NCCL: libnccl\.so\.2 has no ncclCommInitAll"):
        server = cluster.coordinator(*job, servers=1, workers=1)
        worker = cluster.worker(*TWO, environment=environment)
        worker.wait_exit(2)
        server.wait_exit(69)
        worker.expect_line(" error a group of CUDA devices .*" + line)
        expect_equal(len(worker.lines("error")), 1, "error lines")
        os.remove(nccl)  # and now a library that has nothing of NCCL's
        os.symlink(os.path.join(libraries.split(":")[0], "libnvidia-ml.so.1"), nccl)
    server = cluster.coordinator(*job, servers=1, workers=1)
    worker = cluster.worker(*ONE, "--eval-batches", 1, environment=environment)
    for process in (worker, server):
        process.wait_exit(0)


def many_devices(cluster):
    """of more devices than a worker can have, the first are used, and a line says so"""
    server = cluster.coordinator("--model", MODELS[0], "--batch", 3, "--seq-len", 16, servers=1,
                                 workers=1)
    worker = cluster.worker(*TWO, environment={"CUDA_ON_CPU_DEVICES": "17"})
    worker.wait_exit(2)
    server.wait_exit(69)
    worker.expect_line(" warn --device cuda: of 17 devices that are here the first 16 are used")
    worker.expect_line(" error --batch 3 cannot be shared evenly by 16 devices")


if __name__ == "__main__":
    cases = [as_two_workers, as_one_device, push_overlap, refusals]
    if KIND == "cuda":
        cases += [nccl_faults, without_nccl, many_devices]
    main(__doc__, cases)
