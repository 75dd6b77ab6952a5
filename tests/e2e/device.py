#!/usr/bin/env python3
"""Workers with --device cuda in real jobs, on two devices: those of the stand-in of
tests/cuda_on_cpu, which LD_LIBRARY_PATH puts in the place of NVIDIA's libraries."""
import os

from cluster import expect, expect_equal, main, read_metrics

MODELS = ("gpt2:1x32x2", "llama:1x32x4x2")
SHAPE = ["--seq-len", "16", "--batch", "2", "--block-values", "1000"]
EXACT = ["--push", "none", "--pull", "none"]


def metrics_of(folder, schema="rubato.step/1", name="metrics.jsonl"):
    return read_metrics(os.path.join(folder, name), schema)


def expect_near(actual, wanted, tolerance, what):
    expect(abs(actual - wanted) <= tolerance * abs(wanted),
           f"{what} is {actual}, expected {wanted} within {tolerance:g} of it")


def run(cluster, device, *options, worker_options=()):
    """A job of one server and one worker -> the worker, the losses of its steps, and at the end."""
    number = len(cluster.processes)
    folder = cluster.path(f"run{number}")
    server = cluster.coordinator(*options, *SHAPE, servers=1, workers=1)
    worker = cluster.worker("--device", device, "--run-dir", folder, *worker_options,
                            name=f"worker {number}")
    for process in (worker, server):
        process.wait_exit(0)
    steps = metrics_of(folder)
    for line in steps:
        expect_equal(0 < line.get("device_bytes", 0) <= line.get("device_bytes_most", 0),
                     device != "cpu", "the device's memory is in the metrics")
    losses = [line["loss"] for line in steps]
    (result,) = metrics_of(folder, "rubato.result/1")
    return worker, losses, result["val_loss"]


def trains_as_the_cpu(cluster):
    """both families: the losses of each step and at the end are the CPU's within roundings, with
    dropout, several batches a step, a validation in between and the next forward overlapped"""
    for model in MODELS:
        options = ["--model", model, "--steps", 4, "--accumulate", 2, "--dropout", 0.1,
                   "--lr", 0.01, *EXACT]
        mine = ["--compute", "f32", "--eval-every", 2, "--eval-batches", 2]
        _, wanted, final = run(cluster, "cpu", *options, worker_options=mine)
        worker, losses, last = run(cluster, "cuda", *options, worker_options=mine)
        worker.expect_line(r" info --device cuda:0 is .+ with [0-9.]+ GiB of memory")
        worker.expect_line(r" info this is worker 0 of 1: .*, compute f32 on ")
        expect_equal(len(losses), len(wanted), "steps")
        expect(wanted[-1] != wanted[0], "nothing was learned")
        for step, (loss, other) in enumerate(zip(losses, wanted)):
            expect_near(loss, other, 1e-4, f"{model}: loss of step {step + 1}")
        expect_near(last, final, 1e-4, f"{model}: the loss at the end")


def other_modes(cluster):
    """steps of the worker's own, whose gradients are wanted on the host, and pushes that are not
    answered by rounds, end as on the CPU; also on the second device"""
    for options in (["--mode", "diloco:2", "--steps", 4], ["--mode", "async", "--steps", 3]):
        options = ["--model", MODELS[0], "--lr", 0.01, *options, *EXACT]
        _, _, final = run(cluster, "cpu", *options, worker_options=["--compute", "f32"])
        _, _, last = run(cluster, "cuda:1", *options, worker_options=["--compute", "f32"])
        expect_near(last, final, 1e-4, "the loss at the end")


def in_bf16_with_a_cpu(cluster):
    """--compute auto is bf16 there; a job of a CPU worker and a CUDA worker with compressed frames
    ends near the same job of two CPU workers, and the CUDA worker writes the sample"""
    ends = []
    for device in ("cpu", "cuda"):
        folder = cluster.path(device)
        job = ["--model", MODELS[0], "--steps", 6, "--lr", 0.01, "--push", "int8", *SHAPE]
        server = cluster.coordinator(*job, servers=1, workers=2)
        first = cluster.worker("--device", device, "--index", 0, "--run-dir", folder,
                               "--sample-tokens", 20, name=f"first {device}")
        second = cluster.worker("--index", 1, "--run-dir", folder, name=f"second {device}")
        for process in (first, second, server):
            process.wait_exit(0)
        (result,) = metrics_of(folder, "rubato.result/1")
        ends.append(result["val_loss"])
        expect(len(first.out()) > 20, "there is no sample")
    first.expect_line(r", compute bf16 on ")
    expect_near(ends[1], ends[0], 0.02, "the loss at the end")


def refusals(cluster):
    """a device that is none, or that is not here, or has too little memory ends the worker with one
    line that says why"""
    for device, code, line in (("gpu", 2, r"--device.*gpu.*cpu, cuda, cuda:N"),
                               ("cuda:-1", 2, r"--device.*cuda:-1.*cpu, cuda, cuda:N"),
                               ("cuda:99", 2, r"there is no cuda:99")):
        worker = cluster.worker("--device", device)
        worker.wait_exit(code)
        expect_equal(len(worker.lines("error")), 1, "error lines")
        worker.expect_line(" error .*" + line)
    server = cluster.coordinator("--model", MODELS[0], "--seq-len", 64, "--batch", 64, servers=1,
                                 workers=1)
    # 32 MiB are cuBLAS's.
    worker = cluster.worker("--device", "cuda", environment={"CUDA_ON_CPU_MEMORY_MB": "36"})
    worker.wait_exit(71)
    server.wait_exit(69)
    worker.expect_line(r" error .*memory")


def on_two_devices(cluster):
    """two workers, each on a device of its own, end with the loss of two CPU workers"""
    ends = []
    for devices in (("cpu", "cpu"), ("cuda:0", "cuda:1")):
        folder = cluster.path(devices[0].replace(":", ""))
        job = ["--model", MODELS[1], "--steps", 3, "--lr", 0.01, *SHAPE, *EXACT]
        server = cluster.coordinator(*job, servers=1, workers=2)
        workers = [cluster.worker("--device", device, "--compute", "f32", "--run-dir", folder,
                                  name=f"worker {device} {i}")
                   for i, device in enumerate(devices)]
        for process in (*workers, server):
            process.wait_exit(0)
        (result,) = metrics_of(folder, "rubato.result/1")
        ends.append(result["val_loss"])
    expect_near(ends[1], ends[0], 1e-4, "the loss at the end")


if __name__ == "__main__":
    main(__doc__, [trains_as_the_cpu, other_modes, in_bf16_with_a_cpu, refusals, on_two_devices])
