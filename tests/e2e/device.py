#!/usr/bin/env python3
"""Workers with --device cuda in real jobs, on two devices: those of the stand-in of
tests/cuda_on_cpu, which LD_LIBRARY_PATH puts in the place of NVIDIA's libraries."""
import os
import struct

from cluster import expect, expect_equal, main, read_metrics

MODELS = ("gpt2:1x32x2", "llama:1x32x4x2")
SHAPE = ["--seq-len", "16", "--batch", "2", "--block-values", "1000"]
EXACT = ["--push", "none", "--pull", "none"]
MACHINE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                       "two_switches.xml")
NEAREST = ["mlx5_1:1", "mlx5_0:1"]  # there, of the stand-in's devices


def metrics_of(folder, schema="rubato.step/1", name="metrics.jsonl"):
    return read_metrics(os.path.join(folder, name), schema)


def expect_near(actual, wanted, tolerance, what):
    expect(abs(actual - wanted) <= tolerance * abs(wanted),
           f"{what} is {actual}, expected {wanted} within {tolerance:g} of it")


def run(cluster, device, *options, worker_options=(), environment=None):
    """A job of one server and one worker -> the worker, the losses of its steps, and at the end."""
    number = len(cluster.processes)
    folder = cluster.path(f"run{number}")
    server = cluster.coordinator(*options, *SHAPE, servers=1, workers=1)
    worker = cluster.worker("--device", device, "--run-dir", folder, *worker_options,
                            name=f"worker {number}", environment=environment)
    for process in (worker, server):
        process.wait_exit(0)
    steps = metrics_of(folder)
    for line in steps:
        expect_equal("mfu" in line, "--peak-tflops" in worker_options, "mfu is told")
        if "mfu" in line and options[1] == MODELS[0]:
            # 64 tokens a step of 6 * 12 C^2 + 6 C V + 12 C T; `wait` has the waits within forward
            flops = 64 * (72 * 32 ** 2 + 6 * 32 * 256 + 12 * 32 * 16)
            seconds = (line["ms"]["forward"] + line["ms"]["backward"] + line["ms"]["wait"]) / 1e3
            expect_near(line["mfu"], flops / 1e9 / seconds, 1e-2, "mfu")
        expect_equal(0 < line.get("device_bytes", 0) <= line.get("device_bytes_most", 0),
                     device != "cpu", "the device's memory is in the metrics")
    losses = [line["loss"] for line in steps]
    (result,) = metrics_of(folder, "rubato.result/1")
    return worker, losses, result["val_loss"]


def trains_as_the_cpu(cluster):
    """both families: the losses of each step and at the end are the CPU's within roundings, with
    dropout, several batches a step, a validation in between and the next forward overlapped; both
    tell the model FLOPs utilisation, of one device's peak"""
    for model in MODELS:
        options = ["--model", model, "--steps", 4, "--accumulate", 2, "--dropout", 0.1,
                   "--lr", 0.01, *EXACT]
        mine = ["--compute", "f32", "--eval-every", 2, "--eval-batches", 2, "--peak-tflops", 0.001]
        _, wanted, final = run(cluster, "cpu", *options, worker_options=mine)
        worker, losses, last = run(cluster, "cuda:0", *options, worker_options=mine)
        worker.expect_line(r" info --device cuda:0 is .+ with [0-9.]+ GiB of memory")
        worker.expect_line(r" info this is worker 0 of 1: .*, compute f32 on ")
        expect_equal(len(losses), len(wanted), "steps")
        expect(wanted[-1] != wanted[0], "nothing was learned")
        for step, (loss, other) in enumerate(zip(losses, wanted)):
            expect_near(loss, other, 1e-4, f"{model}: loss of step {step + 1}")
        expect_near(last, final, 1e-4, f"{model}: the loss at the end")


def other_modes(cluster):
    """pushes that are not answered by rounds, and steps of the worker's own, end as on the CPU,
    also on the second device; such steps are made there, or on both, and what came of them is
    encoded there, in parts that come late, with a validation of own weights in between; with an
    optimizer that the device lacks they are made on the host, and a line says why"""
    parts = ["--fragments", 2, "--overlap", 1, "--mix", 0.5, "--inner-state", "reset"]
    for device, options, steps, pushes in (
            ("cuda:1", ["--mode", "async", "--steps", 2], None, "on cuda:1"),
            ("cuda:1", ["--mode", "local:2", "--steps", 3, "--accumulate", 2, "--optimizer", "sgd"],
             "on cuda:1", "on cuda:1"),
            ("cuda", ["--mode", "diloco:4", "--steps", 6, "--freeze-v-after", 2, *parts],
             "on all 2 devices", "on cuda:0,1"),
            ("cuda:1", ["--mode", "diloco:1", "--steps", 1, "--optimizer", "lion"],
             "on the host: a device has only adamw and sgd, with --moments f32",
             "on the host: what local steps have come to is there")):
        options = ["--model", MODELS[0], "--lr", 0.01, *EXACT, *options]
        mine = ["--compute", "f32", "--eval-every", 2, "--eval-batches", 1]
        _, wanted, final = run(cluster, "cpu", *options, worker_options=mine)
        worker, losses, last = run(cluster, device, *options, worker_options=mine)
        expect_equal(len(losses), len(wanted), "steps")
        if steps is not None:
            worker.expect_line(f" info local steps are made {steps}$")
        worker.expect_line(f" info pushes are encoded {pushes}$")
        for step, (loss, other) in enumerate(zip(losses, wanted)):
            expect_near(loss, other, 1e-4, f"{options}: loss of step {step + 1}")
        expect_near(last, final, 1e-4, f"{options}: the loss at the end")


def in_bf16_with_a_cpu(cluster):
    """--compute auto is bf16 there; a job of a CPU worker and a CUDA worker with compressed frames
    ends near the same job of two CPU workers, and the CUDA worker writes the sample"""
    ends = []
    for device in ("cpu", "cuda:0"):
        folder = cluster.path(device.replace(":", ""))
        job = ["--model", MODELS[0], "--steps", 6, "--lr", 0.01, "--push", "int8", *SHAPE]
        server = cluster.coordinator(*job, servers=1, workers=2)
        first = cluster.worker("--device", device, "--index", 0, "--run-dir", folder,
                               "--sample-tokens", 20, name=f"first {device[:4]}")
        second = cluster.worker("--index", 1, "--run-dir", folder, name=f"second {device[:4]}")
        for process in (first, second, server):
            process.wait_exit(0)
        (result,) = metrics_of(folder, "rubato.result/1")
        ends.append(result["val_loss"])
        expect(len(first.out()) > 20, "there is no sample")
    first.expect_line(r", compute bf16 on ")
    expect_near(ends[1], ends[0], 0.02, "the loss at the end")


def planned(cluster):
    """`rubato plan` tells what a worker then takes of the device, with steps of its own, or of two
    that share the batch, in each number type, with encoders and what one holds back, and with
    gradients that are added apart: all but cuBLAS's workspace, to the last digit that is
    printed"""
    for device, compute, *mode in (("cuda:1", "f32", "--mode", "diloco:1", "--push", "int8,ef"),
                                   ("cuda:0,1", "bf16", "--mode", "local:1", "--block-values", 1000,
                                    "--push", "powersgd:2,ef", "--push-policy", "all")):
        job = ["--model", "llama:1x64x4x2", "--seq-len", 64, "--batch", 4, "--vocab", 600,
               "--steps", 1, *mode]
        own = ["--device", device, "--compute", compute, "--recompute", "attention"]
        if device == "cuda:1":
            own += ["--accumulate", 2, "--accumulate-apart"]
        plan = cluster.start("plan", [cluster.program("rubato"), "plan", *map(str, [*job, *own])])
        plan.wait_exit(0)
        name = "each of its devices" if "," in device else "its device"
        (total,) = [line.split()[-1] for line in plan.out().splitlines() if line.startswith(name)]
        folder = cluster.path(f"planned{compute}")
        server = cluster.coordinator(*job, servers=1, workers=1)
        worker = cluster.worker(*own, "--sample-tokens", 0, "--eval-batches", 1, "--run-dir",
                                folder, name=f"planned {compute}")
        for process in (worker, server):
            process.wait_exit(0)
        (line,) = metrics_of(folder)
        expect_equal(line["device_bytes_most"], line["device_bytes"], "the peak")
        taken = line["device_bytes"] / 2 ** 20 - 32
        expect(abs(taken - float(total)) < 0.051,
               f"{device} {compute}: planned are {total} MiB, taken {taken:.2f}")


def profiled(cluster):
    """the phases are NVTX ranges, which nest, and --profile-steps lets a profiler record the steps
    that it names, also where the next forward overlaps, and in local modes, which have two more;
    the host refuses it, and a step that the job has not"""
    marks = cluster.path("marks")
    stand_in = os.path.join(os.environ["LD_LIBRARY_PATH"].split(":")[0], "libcudart.so.13")
    environment = {"CUDA_ON_CPU_MARKS": marks, "NVTX_INJECTION64_PATH": stand_in}
    for number, (overlap, mode) in enumerate((("--forward-overlap", "sync"),
                                              ("--no-forward-overlap", "diloco:2"))):
        local = mode != "sync"
        server = cluster.coordinator("--model", MODELS[0], "--steps", 6, "--mode", mode, *SHAPE,
                                     servers=1, workers=1)
        worker = cluster.worker("--device", "cuda:0", "--profile-steps", "2:3", overlap,
                                "--eval-every", 3, "--eval-batches", 1, "--accumulate", 2,
                                "--compute", "tf32", "--peak-tflops", 1, "--progress", "line",
                                "--run-dir", cluster.path(f"profiled{number}"),
                                name=f"profiled {overlap}", environment=environment)
        for process in (worker, server):
            process.wait_exit(0)
        worker.expect_line(r"\| mfu [0-9.]+% \| push")
        worker.expect_line(r" info this is worker 0 of 1: .*, compute tf32 on ")
        with open(marks, encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
        os.remove(marks)
        steps = lines[lines.index("start") + 1:lines.index("stop")]
        for passed in (lines, steps):
            depth = 0
            for line in passed:
                depth += line.startswith("begin") - (line == "end")
                expect(0 <= depth < 4, "ranges do not nest")
            expect_equal(depth, 0, "ranges that did not end")
        expect_equal([lines.count(word) for word in ("start", "stop")], [1, 1], "starts and stops")
        for name, all_count, count in (("step", 6, 2), ("forward", 12, 4), ("backward", 12, 4),
                                       ("validation", 2, 0), ("optimizer", 6 * local, 2 * local),
                                       ("push", 3 * local, local)):
            expect_equal(lines.count(f"begin {name}"), all_count, f"ranges of {name}")
            expect_equal(steps.count(f"begin {name}"), count, f"recorded ranges of {name}")
        expect(lines.count("begin wait") > 0, "there is no wait")
    for options, line in ((["--device", "cpu"], "--device cpu is none"),
                          (["--device", "cpu", "--compute", "tf32"], "--compute tf32")):
        worker = cluster.worker("--profile-steps", "2:3", *options)
        worker.wait_exit(2)
        worker.expect_line(" error .*" + line)
    server = cluster.coordinator("--steps", 3, *SHAPE, servers=1, workers=1)
    worker = cluster.worker("--device", "cuda:0", "--profile-steps", "2:4")
    worker.wait_exit(2)
    server.wait_exit(69)
    worker.expect_line(r" error --profile-steps 2:4: the job has 3 --steps")


def round_model(folder, unit):
    """Its weights become multiples of `unit`."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        content = file.read()
    start = 8 + int.from_bytes(content[:8], "little")
    values = [unit * round(value / unit) for (value,) in struct.iter_unpack("<f", content[start:])]
    with open(path, "wb") as file:
        file.write(content[:start] + struct.pack(f"<{len(values)}f", *values))


def decodes_weights(cluster):
    """weights that come in bf16 become f32 on the device, or on two that gather them: where all
    steps are by a unit that bf16 has exactly, the model at the end is, byte for byte, that of the
    same job whose weights come in f32, as are all losses, with a validation in between"""
    unit = 2 ** -6
    run(cluster, "cpu", "--model", MODELS[0], "--steps", 1)
    first = cluster.path("run0")
    round_model(first, unit)
    job = ["--model", MODELS[0], "--steps", 3, "--optimizer", "lion", "--lr", unit,
           "--schedule", "constant", "--warmup", 0, "--weight-decay", 0]
    mine = ["--init", first, "--eval-every", 2, "--eval-batches", 1, "--compute", "f32"]
    for device, streams in (("cuda:0", "lazy"), ("cuda:0,1", "random")):
        found = []
        for pull in ("none", "bf16"):
            worker, losses, last = run(cluster, device, *job, "--pull", pull, worker_options=mine,
                                       environment={"CUDA_ON_CPU_STREAMS": streams})
            said = [line for line in worker.lines("info") if "weights are decoded" in line]
            expect_equal(len(said), pull == "bf16", "lines that say so")
            if pull == "bf16":
                worker.expect_line(" info weights are decoded on cuda$")
            path = os.path.join(cluster.path(f"run{len(cluster.processes) - 2}"),
                                "model.safetensors")
            with open(path, "rb") as file:
                found.append((file.read(), losses, last))
        expect(found[0] == found[1], f"{device}: the models differ")
        expect(losses[0] != losses[-1], "nothing was learned")


def encodes_pushes(cluster):
    """pushes are encoded where the gradient is, with the bits that the host gives them: with codecs
    that round at random, hold back and start dense, the model at the end is, byte for byte, that of
    the same job whose pushes the host encodes, and as many bytes were pushed; also where the host
    packs what comes from the device; of two devices, each of which sums and encodes some of the
    blocks, after two batches a step; and what has come of local steps there"""
    job = ["--model", MODELS[0], "--steps", 3, "--lr", 0.01, "--dense-warmup", 1,
           "--density-schedule", 0, "--seq-len", 8]
    one = ["cuda:0", "", "--batch", 1, "--block-values", 5000]
    two = ["cuda:0,1", "*.mlp.* topk:0.01,ef\n", "--batch", 2, "--block-values", 1000,
           "--accumulate", 2]
    local = ["cuda:0,1", "", "--batch", 2, "--block-values", 1000, "--mode", "diloco:1"]
    for push, (device, more, *own) in (("int8", one), ("int4:sr,had", one), ("onebit,ef", one),
                                       ("topk:0.01,ef", one), ("powersgd:2,ef", one),
                                       ("bf16+zstd", one), ("int8", two), ("int8,ef", local)):
        models, kept, pushed = [], [], []
        for where, line in (([], device), (["--host-encode"], "the host: --host-encode says so")):
            folder = cluster.path(f"{device}-{push}-{len(where)}".replace(":", "-"))
            policy = cluster.write("policy", f"{more}*.ln_1.weight none\n".encode())
            server = cluster.coordinator("--push", push, "--push-policy", policy, *job, *own,
                                         servers=1, workers=1)
            worker = cluster.worker("--device", device, "--run-dir", folder, "--eval-batches", 1,
                                    *where, name=f"worker {device} {push} {' '.join(where)}")
            for process in (worker, server):
                process.wait_exit(0)
            worker.expect_line(f" info pushes are encoded on {line}$")
            worker.expect_line(" info weights are decoded on " + (
                "the host: local modes" if "diloco:1" in own else "cuda$"))
            with open(os.path.join(folder, "model.safetensors"), "rb") as file:
                models.append(file.read())
            kept.append([line["residual_norm"] for line in metrics_of(folder)])
            pushed.append([line["push_bytes"] for line in metrics_of(folder)])
        expect(models[0] == models[1], f"{push}: the models differ")
        expect_equal(pushed[0], pushed[1], f"{push}: bytes pushed")
        for mine, wanted in zip(*kept):
            expect_near(mine, wanted, 1e-4, f"{push}: residual_norm")
        expect_equal(kept[0][-1] > 0, "ef" in push + more, f"{push}: something is held back")


def shares_factors(cluster):
    """powersgd with a factor that workers share, which answers move on the host: two devices encode
    with it what the host does, so that the model at the end is, byte for byte, that of the same job
    whose pushes the host encodes"""
    models = []
    for where, line in (([], "cuda:0,1"), (["--host-encode"], "the host: --host-encode says so")):
        folder = cluster.path(f"shares{len(where)}")
        server = cluster.coordinator("--model", MODELS[0], "--steps", 5, "--lr", 0.01,
                                     "--optimizer", "worker:adamw", "--push",
                                     "powersgd:2,shared,ef", "--push-policy", "all",
                                     "--dense-warmup", 1, *SHAPE, servers=1, workers=1)
        worker = cluster.worker("--device", "cuda:0,1", "--run-dir", folder, "--eval-batches", 1,
                                *where, name=f"worker {' '.join(where)}")
        for process in (worker, server):
            process.wait_exit(0)
        worker.expect_line(f" info pushes are encoded on {line}$")
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            models.append(file.read())
    expect(models[0] == models[1], "the models differ")


def sends_from_the_device(cluster):
    """where UCX knows CUDA and all goes by RDMA, as ucx_cuda.c pretends, payloads never come to the
    host: the model at the end is, byte for byte, that of the same job without. Of two devices each
    one's leave while it is current, by a context of its own with the nearest RDMA device of those
    that are named; so do those of a single device where several are named. Where shared memory or
    TCP may be used, and of two devices where no RDMA device is named, payloads do come. One that is
    named and chosen, but is not there, is refused"""
    preload = os.path.join(os.environ["LD_LIBRARY_PATH"].split(":")[0], "libucx_cuda.so")
    job = ["--model", MODELS[0], "--steps", 3, "--lr", 0.01, "--push", "int8,ef", *SHAPE]
    ucx = ["--channel", "ucx", "--net-devices", "lo"]
    two = ["--channel", "ucx", "--net-devices", "mlx5_0:1,mlx5_1:1", "--tls", "rc"]
    models, marks = {}, cluster.path("sent")
    environment = {"CUDA_ON_CPU_MARKS": marks, "LD_PRELOAD": preload, "HWLOC_XMLFILE": MACHINE}
    for number, (device, channel, rails) in enumerate((
            ("cuda:0", ["--channel", "auto"], None), ("cuda:0,1", [*ucx, "--tls", "ud"], None),
            ("cuda:0", [*ucx, "--tls", "tcp,ud"], None), ("cuda:0", [*ucx, "--tls", "ud"], ["lo"]),
            ("cuda:0,1", two, NEAREST), ("cuda:1", two, NEAREST))):
        run_dir = cluster.path(f"sends{number}")
        server = cluster.coordinator(*job, servers=1, workers=1)
        worker = cluster.worker("--device", device, "--run-dir", run_dir, "--eval-batches", 1,
                                *channel, name=f"sends {number}", environment=environment)
        for process in (worker, server):
            process.wait_exit(0)
        devices = [int(text) for text in device[len("cuda:"):].split(",")]
        said = [line for line in worker.lines("info") if "leave from the memory" in line]
        expect_equal(len(said), rails is not None, "lines that say so")
        expect_equal(os.path.exists(marks), rails is not None, "payloads were sent from a device")
        chosen = [line for line in worker.lines("info") if " sends by " in line]
        expect_equal(chosen, [f"cuda:{i} sends by {NEAREST[i]}" for i in devices]
                     if rails == NEAREST else [], "lines that say by what")
        if rails is not None:
            with open(marks, encoding="utf-8") as file:
                sent = [line.split() for line in file]
            os.remove(marks)
            sizes = [int(size) for size, *_ in sent]
            expect(min(sizes) <= 240 < max(sizes), f"payloads of all sizes: {sizes}")
            expect_equal({tuple(where) for _, *where in sent},
                         {(str(i), str(i), rails[i]) for i in devices}, "how payloads left")
        with open(os.path.join(run_dir, "model.safetensors"), "rb") as file:
            models.setdefault(device.count(","), set()).add(file.read())
    expect_equal([len(models[0]), len(models[1])], [1, 1], "different models")
    server = cluster.coordinator(*job, servers=1, workers=1)
    worker = cluster.worker("--device", "cuda:0,1", "--channel", "ucx", "--net-devices",
                            "mlx5_1:1,mlx5_0:9", "--tls", "rc", environment=environment)
    worker.wait_exit(2)
    server.wait_exit(69)
    worker.expect_line(" error --net-devices mlx5_0:9: UCX cannot use it by rc")


def fails_while_encoding(cluster):
    """a device that fails while it encodes the pushes of a step ends the worker with one line, and
    the server with it; and so does the second of two, while it encodes or sums; in local modes also
    at work of the first weights, of a report, and of its answer"""
    local = ["--mode", "local:1", "--mix", 0.5]
    for device, work, *mode in (("cuda:0", "3:200"), ("cuda:0,1", "7:100"), ("cuda:0,1", "6:30"),
                                ("cuda:0", "3:90", *local), ("cuda:0", "0:60", *local),
                                ("cuda:0", "0:305", *local), ("cuda:0", "0:350", *local),
                                ("cuda:0,1", "4:200", *local), ("cuda:0,1", "0:350", *local)):
        server = cluster.coordinator("--model", MODELS[0], "--push", "int8", *SHAPE, *mode,
                                     servers=1, workers=1)
        worker = cluster.worker("--device", device, environment={"CUDA_ON_CPU_FAIL": work},
                                name=f"worker {work}")
        worker.wait_exit(72)
        server.wait_exit(69)
        worker.expect_line(r" error cuda:[01] .* failed: .*what it computes is worth nothing")
        if device == "cuda:0":
            expect_equal(len(worker.lines("error")), 1, "error lines")


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
    worker = cluster.worker("--device", "cuda:1", environment={"CUDA_ON_CPU_MEMORY_MB": "36"})
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
    main(__doc__, [trains_as_the_cpu, other_modes, in_bf16_with_a_cpu, planned, profiled,
                   decodes_weights, encodes_pushes, shares_factors, sends_from_the_device,
                   fails_while_encoding, refusals, on_two_devices])
