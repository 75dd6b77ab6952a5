#!/usr/bin/env python3
"""Proves that each mode with each push codec trains to the end and leaves sound files, that a run
can be repeated bit for bit from its own options.conf, that sync does not depend on how the servers
are cut, and that servers with --stay serve job after job."""
import json
import math
import os
import re
import signal
import time

from cluster import (PATIENCE_S, SLACK_S, TINY, expect, expect_equal, expect_pushes, main,
                     read_metrics, read_safetensors)

STEPS = 60
WORKERS = 2
LR, LR_MIN_RATIO, WARMUP = 0.01, 0.1, 20
JOB = [*TINY, "--steps", STEPS, "--lr", LR]
KEYS = {"schema", "step", "seconds", "loss", "val_loss", "lr", "tokens", "tok_s", "ms",
        "push_bytes", "pull_bytes", "push_ratio", "staleness", "resent", "weight", "local_steps",
        "round", "dropped", "codec_bytes", "residual_norm"}
PHASES = {"forward", "backward", "wait", "forward_wait", "first_push", "last_push", "codec"}
# f32 bytes over bytes on the wire: frame headers cost something in blocks of 300 values.
PUSH_RATIOS = {"none": (0.8, 1), "bf16": (1.5, 2), "int8": (2.4, 4)}
# Of whole blocks, for every block; with the share of a gradient that error feedback holds back.
COARSE = {"int4:sr,had": (3.5, 8, 0), "topk:0.01,ef+zstd": (10, 200, 0.5),
          "onebit,ef=loco": (5, 32, 0.05)}
CHANNELS, VOCAB, LENGTH = 16, 256, 16
VALUES = (VOCAB + LENGTH) * CHANNELS + 12 * CHANNELS**2 + 13 * CHANNELS + 2 * CHANNELS


def learning_rate(step):
    """Linear warm-up, then a cosine down to LR x LR_MIN_RATIO. Steps count from 0."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    least = LR * LR_MIN_RATIO
    return least + 0.5 * (LR - least) * (1 + math.cos(math.pi * progress))


def check_metrics(path, mode, push):
    steps = read_metrics(path)
    expect_equal([step["step"] for step in steps], list(range(1, STEPS + 1)), f"steps in {path}")
    for before, step in zip([None] + steps, steps):
        expect_equal(set(step), KEYS, "keys of a step")
        expect_equal(step["schema"], "rubato.step/1", "schema")
        expect_equal(set(step["ms"]), PHASES, "keys of ms")
        expect(step["ms"]["wait"] >= step["ms"]["forward_wait"] >= 0, f"waits in {step['ms']}")
        expect_pushes(step["ms"], True)
        expect(step["ms"]["codec"] > 0 and step["codec_bytes"] > 0, "codecs cost nothing")
        expect_equal(step["residual_norm"], 0, "residual without error feedback")
        wanted = learning_rate(step["step"] - 1)
        expect(math.isclose(step["lr"], wanted, rel_tol=1e-5), f"lr {step['lr']}, not {wanted}")
        expect(0 < step["loss"] < 8, f"loss {step['loss']} of step {step['step']}")
        least = PUSH_RATIOS[push][0]
        expect(least < step["push_ratio"] < PUSH_RATIOS[push][1], f"ratio {step['push_ratio']}")
        expect(step["push_bytes"] > 0 and step["pull_bytes"] > 0, "no bytes moved")
        expect(step["tokens"] >= step["step"] * 2 * LENGTH, f"tokens {step['tokens']}")
        expect(step["tokens"] <= STEPS * WORKERS * 2 * LENGTH, f"tokens {step['tokens']}")
        if mode == "sync":
            expect_equal(step["staleness"], 0, "staleness in sync mode")
        expect(step["staleness"] >= 0, f"staleness {step['staleness']}")
        expect_equal((step["weight"], step["local_steps"], step["dropped"]), (1, 1, 0),
                     "weight, local steps and dropped reports")
        expect(step["round"] >= step["step"] * (1 if mode == "sync" else 0), "round")
        if before is not None:
            expect(step["tokens"] >= before["tokens"], "tokens run backwards")
            expect(step["seconds"] >= before["seconds"], "time runs backwards")
    # From ln 256 = 5.545 nats a token; the text has 26 letters and spaces.
    expect(abs(steps[0]["loss"] - math.log(VOCAB)) < 0.3, f"first loss {steps[0]['loss']}")
    expect(steps[-1]["loss"] < 4.5, f"last loss {steps[-1]['loss']}: nothing was learned")
    return steps


def check_model(cluster):
    tensors = read_safetensors(cluster.model_bytes())
    expect_equal(sum(len(values) for _, values in tensors.values()), VALUES, "values of the model")
    embedding = [shape for name, (shape, _) in tensors.items() if name.endswith("wte.weight")]
    expect_equal(embedding, [[VOCAB, CHANNELS]], "shape of the token embedding")
    with open(os.path.join(cluster.run_dir, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    wanted = {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": LENGTH,
              "n_embd": CHANNELS, "n_layer": 1, "n_head": 2}
    for key, value in wanted.items():
        expect_equal(config[key], value, f"{key} in config.json")


def check_result(cluster, worker, mode, push):
    lines = [line for line in worker.out().splitlines() if line.startswith("result: ")]
    expect_equal(len(lines), 1, "result lines")
    fields = dict(word.split("=", 1) for word in lines[0].split()[1:])
    expect_equal(list(fields), ["val_loss", "bits_per_byte", "steps", "mode", "push_ratio", "tok_s",
                                "run_dir"], "fields of the result line")
    expect_equal((fields["steps"], fields["mode"], fields["run_dir"]),
                 (str(STEPS), mode, cluster.run_dir), "fields of the result line")
    val_loss = float(fields["val_loss"])
    expect(2 < val_loss < 4.5, f"val_loss {val_loss}")
    expect(abs(float(fields["bits_per_byte"]) - val_loss / math.log(2)) < 2e-4, "bits_per_byte")
    least, most = PUSH_RATIOS[push]
    expect(least < float(fields["push_ratio"]) < most, f"push_ratio {fields['push_ratio']}")
    expect(float(fields["tok_s"]) > 0, f"tok_s {fields['tok_s']}")


def new_run_dir(cluster):
    cluster.run_dir = cluster.path(f"run-{len(cluster.processes)}")


def run_mode(cluster, mode):
    for push in ("none", "bf16", "int8"):
        new_run_dir(cluster)
        _, workers = cluster.start_job(*JOB, "--mode", mode, "--push", push)
        cluster.finish_job()
        check_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"), mode, push)
        check_metrics(os.path.join(cluster.run_dir, "metrics.rank1.jsonl"), mode, push)
        check_model(cluster)
        first = [worker for worker in workers if "this is worker 0 of 2" in worker.err()]
        expect_equal(len(first), 1, "workers of rank 0")
        check_result(cluster, first[0], mode, push)
        other = [worker for worker in workers if worker is not first[0]]
        expect_equal(other[0].out(), "", "standard output of the other worker")


def mode_sync(cluster):
    """sync with push none, bf16, int8: exit 0, metrics with the learning rate's closed form and a
    falling loss, a whole model, and a result line with its fields"""
    run_mode(cluster, "sync")


def mode_ssp(cluster):
    """ssp:2 with push none, bf16, int8: the same"""
    run_mode(cluster, "ssp:2")


def mode_async(cluster):
    """async with push none, bf16, int8: the same"""
    run_mode(cluster, "async")


def coarse_codecs(cluster):
    """codecs of few bits, for every block: exit 0, the loss falls, the wire's ratio and what error
    feedback holds back are in the metrics, and the last line is the result"""
    for push, (least, most, held) in COARSE.items():
        new_run_dir(cluster)
        cluster.start_job(*JOB, "--push", push, "--push-policy", "all", "--dense-warmup", 0,
                          "--density-schedule", 0, "--block-values", 262144)
        cluster.finish_job()
        path = os.path.join(cluster.run_dir, "metrics.jsonl")
        steps = read_metrics(path)
        expect_equal(len(steps), STEPS, f"steps with {push}")
        expect(steps[-1]["loss"] < 4.9, f"last loss {steps[-1]['loss']} with {push}")
        ratio = steps[-1]["push_ratio"]
        expect(least < ratio < most, f"ratio {ratio} with {push}")
        norm = steps[-1]["residual_norm"]
        expect(norm > held if held > 0 else norm == 0, f"residual {norm} with {push}")
        (result,) = read_metrics(path, "rubato.result/1")
        expect_equal((result["steps"], result["push"]), (STEPS, push), "the result's line")
        expect(2 < result["val_loss"] < 5, f"val_loss {result['val_loss']} with {push}")
        with open(path, encoding="utf-8") as file:
            expect("rubato.result/1" in file.read().splitlines()[-1], "the result is not last")


def onebit_adam(cluster):
    """--optimizer worker:1bit-adam with 1 bit a value both ways: the loss falls before and after
    the warm-up, whose end shows in the bytes, then less than 1/20 of f32 each way"""
    warm = STEPS // 3
    new_run_dir(cluster)
    cluster.start_job("--model", "gpt2:1x64x2", "--seq-len", 16, "--batch", 2, "--steps", STEPS,
                      "--lr", LR / 4, "--optimizer", "worker:1bit-adam", "--push", "onebit,ef",
                      "--push-policy", "all", "--dense-warmup", warm)
    cluster.finish_job()
    steps = read_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"))
    expect_equal(len(steps), STEPS, "steps")
    expect(steps[warm - 1]["loss"] < steps[0]["loss"] - 0.5, "nothing was learned in the warm-up")
    expect(steps[-1]["loss"] < steps[warm - 1]["loss"] - 0.1, "nothing was learned after it")
    tensors = read_safetensors(cluster.model_bytes())
    dense = 4 * sum(len(values) for _, values in tensors.values())
    for way in ("push_bytes", "pull_bytes"):
        expect(steps[warm - 1][way] > dense / 3, f"{way} {steps[warm - 1][way]} in the warm-up")
        expect(steps[-1][way] < dense / 20, f"{way} {steps[-1][way]} of {dense} after it")


def model_of_job(cluster, *options, servers=2, shards=1, workers=WORKERS):
    new_run_dir(cluster)
    cluster.start_job(*options, servers=servers, workers=workers,
                      server_options=("--shards", shards))
    cluster.finish_job()
    return cluster.model_bytes()


def sync_bits(cluster):
    """in sync mode 1 server x 1 shard, 2 servers x 2 shards and 3 servers x 1 shard leave the same
    bytes in model.safetensors, with push bf16 and int8; with another --seed they do not"""
    for push in ("bf16", "int8"):
        job = [*JOB, "--push", push]
        whole = model_of_job(cluster, *job, servers=1)
        cut = model_of_job(cluster, *job, servers=2, shards=2)
        expect(cut == whole, f"push {push}: 2 servers x 2 shards differ from 1 server x 1 shard")
        expect(model_of_job(cluster, *job, servers=3) == whole, f"push {push}: 3 servers differ")
    other = model_of_job(cluster, *job, "--seed", 2, servers=1)
    expect(other != whole, "the seed does not matter")


def forward_overlap(cluster):
    """in sync mode over a slow link steps may start before all their weights are there; with
    --no-forward-overlap none waits in its middle; the bytes of model.safetensors are the same, for
    codecs whose answers are weights, differences, and gradients"""
    link = ("--link", "2mbit")
    for options in (["--clip", 0], ["--pull", "delta-int8"],
                    ["--optimizer", "worker:adamw", "--push", "int8"]):
        models = []
        for flag in ("--forward-overlap", "--no-forward-overlap"):
            new_run_dir(cluster)
            cluster.start_job(*TINY, "--steps", 12, *options, server_options=link,
                              worker_options=(flag, *link))
            cluster.finish_job()
            models.append(cluster.model_bytes())
            steps = read_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"))
            waits = [step["ms"]["forward_wait"] for step in steps]
            expect_equal(len(waits), 12, f"steps with {flag}")
            # Whether one waits in its middle is the machine's to say; without, none may.
            expect(flag == "--forward-overlap" or not any(waits), f"{waits} with {flag}")
        expect(models[0] == models[1], f"{options}: --forward-overlap has other weights")


def push_overlap(cluster):
    """each step's first block is handed over before backward has ended, with --no-push-overlap
    after it; losses and the bytes of model.safetensors are the same, in rounds with codecs that
    round and hold back, with workers that step, and where each push is an update. In local modes
    the flag changes nothing, and steps without a report have no push"""
    shape = ["--model", "gpt2:3x16x2", "--seq-len", 16, "--batch", 2, "--block-values", 300,
             "--steps", 9]
    for workers, options in ((2, ["--push", "int8,ef", "--accumulate", 2]),
                             (2, ["--optimizer", "worker:adamw", "--push", "int8"]),
                             (1, ["--mode", "async"]), (2, ["--mode", "local:3"])):
        found = []
        for flag in ("--push-overlap", "--no-push-overlap"):
            new_run_dir(cluster)
            cluster.start_job(*shape, *options, workers=workers, worker_options=(flag,))
            cluster.finish_job()
            steps = read_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"))
            expect_equal(len(steps), 9, f"steps with {flag}")
            for step in steps:
                local = "local:3" in options
                if local and step["step"] % 3 > 0:
                    expect_equal((step["ms"]["first_push"], step["ms"]["last_push"]), (None, None),
                                 "pushes of a step that is not reported")
                else:
                    expect_pushes(step["ms"], flag == "--push-overlap" and not local)
            found.append((cluster.model_bytes(), [step["loss"] for step in steps]))
        expect(found[0] == found[1], f"{options}: --push-overlap has other weights or losses")


def repeated_from_options(cluster):
    """options.conf of a run, given as --config to the workers, repeats the run's weights byte for
    byte; validation and a sample on the way do not change them"""
    first = model_of_job(cluster, *JOB, "--weight-decay", "0.03", "--clip", "0.7", "--seed", 7)
    config = os.path.join(cluster.run_dir, "options.conf")
    new_run_dir(cluster)
    _, workers = cluster.start_job(
        worker_options=("--config", config, "--eval-every", 20, "--sample-tokens", 32, "--prompt",
                        "the "))
    cluster.finish_job()
    expect(cluster.model_bytes() == first, "the repeated run has other weights")
    steps = read_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"))
    values = {step["val_loss"] for step in steps}
    expect_equal(len(values - {None}), 2, "validations at steps 20 and 40, before the last")
    text = "".join(worker.out() for worker in workers)
    expect(re.search(r"--- sample ---\nthe .*\n?--- end ---", text, re.DOTALL), "no sample")


def stay(cluster):
    """servers with --stay serve job after job: after a pause longer than --join-timeout, after a
    job that failed; the last has the options of the first and leaves its bytes, so nothing carries
    over; Ctrl-C ends the servers with 130"""
    servers = [cluster.coordinator("--stay", "--join-timeout", 3),
               cluster.server("--stay", "--join-timeout", 3)]

    def run_job(*options):
        new_run_dir(cluster)
        workers = [cluster.worker(*options, name=f"worker {i}") for i in range(WORKERS)]
        for worker in workers:
            worker.wait_exit(0)
        expect(all(server.running() for server in servers), "a server ended with the job")
        return cluster.model_bytes()

    first = run_job(*JOB)
    time.sleep(4)
    expect(all(server.running() for server in servers), "a server ended while it waits")
    expect(run_job(*JOB, "--mode", "async", "--seed", 2) != first, "the second job is the first")
    new_run_dir(cluster)
    doomed = [cluster.worker(*TINY, "--steps", 1000000000, name=f"doomed {i}") for i in range(2)]
    cluster.wait_steps(5)
    doomed[0].signal(signal.SIGKILL)
    doomed[1].wait_exit(69, 1 + SLACK_S)
    expect(run_job(*JOB) == first, "a job after others is not what it is alone")
    for server in servers:
        server.wait_line("waiting for 2 of 2 workers", PATIENCE_S)
    for server in servers:
        server.signal(signal.SIGINT)
        server.wait_exit(130, 2 + SLACK_S)


def launched(cluster):
    """`rubato launch` of a whole job: exit 0, one result line on standard output, files in place"""
    launcher = cluster.start("launch", [
        cluster.program("rubato"), "launch", "--servers", 2, "--workers", WORKERS, "--data",
        cluster.data, "--run-dir", cluster.run_dir, "--eval-every", 0, "--sample-tokens", 0, *JOB])
    launcher.wait_exit(0)
    check_result(cluster, launcher, "sync", "bf16")
    check_metrics(os.path.join(cluster.run_dir, "metrics.jsonl"), "sync", "bf16")
    check_model(cluster)


if __name__ == "__main__":
    main(__doc__, [mode_sync, mode_ssp, mode_async, coarse_codecs, onebit_adam, sync_bits,
                   forward_overlap, push_overlap, repeated_from_options, stay, launched],
         parallel=2)
