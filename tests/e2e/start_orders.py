#!/usr/bin/env python3
"""Proves that processes find each other in any order of starting, and that an option of the job may
be given to any one of them."""
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import (Cluster, TINY, TINY_JOB, expect, expect_equal, main, read_metrics)

STAGGER_S = 0.06


def start_in_order(cluster, order):
    starters = {
        "coordinator": lambda: cluster.coordinator(*TINY_JOB),
        "server": lambda: cluster.server(),
        "worker a": lambda: cluster.worker(name="worker a"),
        "worker b": lambda: cluster.worker(name="worker b"),
    }
    for name in order:
        starters[name]()
        time.sleep(STAGGER_S)
    cluster.finish_job()
    expect_equal(cluster.steps(), 5, "steps in metrics.jsonl")


def all_orders(cluster):
    """all 24 orders of starting 2 servers and 2 workers, 60 ms apart, come up and finish with 0"""
    orders = list(itertools.permutations(("coordinator", "server", "worker a", "worker b")))
    expect_equal(len(orders), 24, "number of orders")

    def run_order(order):
        inner = Cluster(cluster.binaries, "order")
        failed = True
        try:
            start_in_order(inner, order)
            failed = False
        finally:
            if failed:
                print("failed in the order: " + ", ".join(order), flush=True)
            inner.close(failed)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run_order, orders))


def late_coordinator(cluster):
    """three processes that have waited for 2.5 s, longer than the first dials, come together"""
    cluster.worker(name="worker 0")
    cluster.worker(name="worker 1")
    cluster.server()
    time.sleep(2.5)
    cluster.coordinator(*TINY_JOB)
    cluster.finish_job()


def options_from_others(cluster):
    """options given to one worker (flag, variable), one server or a config file count for all"""
    cluster.coordinator("--join-timeout", 30)
    cluster.server("--seq-len", 16, "--batch", 2, "--block-values", 300)
    config = cluster.write("job.conf", b"# of the job\nsteps = 7\npush = int8\n")
    workers = [
        cluster.worker("--lr", "0.004", "--warmup", 0, "--schedule", "constant",
                       "--model", "gpt2:1x16x2", name="worker a"),
        cluster.worker("--config", config, name="worker b", environment={"RUBATO_MODE": "ssp:1"}),
    ]
    cluster.finish_job()
    for name in ("metrics.jsonl", "metrics.rank1.jsonl"):
        steps = read_metrics(os.path.join(cluster.run_dir, name))
        expect_equal([step["lr"] for step in steps], [0.004] * 7, f"learning rates in {name}")
        expect_equal(steps[0]["tokens"] % 32, 0, f"tokens of a step of 2 x 16 in {name}")
    for process in workers:
        process.expect_line("this is worker [01] of 2: gpt2:1x16x2, mode ssp:1, push int8")
    with open(os.path.join(cluster.run_dir, "options.conf"), encoding="utf-8") as file:
        saved = file.read()
    for line in ("lr = 0.004", "steps = 7", 'push = "int8"', "seq-len = 16", 'mode = "ssp:1"'):
        expect(line in saved, f"options.conf lacks {line!r}:\n{saved}")


def one_of_each(cluster):
    """the smallest job, one server and one worker, with all options on the worker"""
    cluster.worker(*TINY, "--steps", 3, name="worker 0")
    cluster.coordinator(servers=1, workers=1)
    cluster.finish_job()
    expect_equal(cluster.steps(), 3, "steps in metrics.jsonl")


def few_files(cluster):
    """40 workers and 2 servers, each in a shell that allows 40 files: they raise their limits, the
    coordinator before it listens"""
    workers, files = 40, "-Sn 40"
    cluster.start_limited("coordinator", files, "rubato-server", "--listen", cluster.address,
                          "--servers", 2, "--workers", workers, *TINY, "--steps", 1)
    cluster.start_limited("server", files, "rubato-server", "--join", cluster.address)
    for rank in range(workers):
        cluster.start_limited(f"worker {rank}", files, "rubato-worker", "--join", cluster.address,
                              "--data", cluster.data, "--threads", 1, "--eval-every", 0,
                              "--sample-tokens", 0, "--run-dir", cluster.run_dir)
    cluster.finish_job()
    for process in cluster.processes:
        expect("annot accept" not in process.err(), f"{process.name} had too few files")


if __name__ == "__main__":
    main(__doc__, [all_orders, late_coordinator, options_from_others, one_of_each, few_files])
