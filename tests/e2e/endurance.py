#!/usr/bin/env python3
"""Proves that long jobs do not grow: 10,000 steps of a tiny model with int8 pushes, in sync and
async, over each channel; from step 1,000 to the end no server's and no worker's memory (RSS) grows
by more than 1 %. Minutes: it runs only when it is named.
"""
import time

from cluster import Failure, TINY, expect, main

FIRST, LAST = 1000, 10000
MOST = 0.01
SECONDS = 300  # for a case, on a machine that others use, too
PUSH = ["--push", "int8", "--pull", "delta-int8"]


def rss_kib(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def await_steps(cluster, count):
    """As wait_steps, but reads the long file seldom."""
    deadline = time.monotonic() + SECONDS
    while cluster.steps() < count:
        if time.monotonic() > deadline:
            raise Failure(f"step {count} is not reached after {SECONDS} s")
        time.sleep(0.25)


def grow(cluster, channel, *options):
    servers, workers = cluster.start_job(
        *TINY, *PUSH, "--steps", 1000000000, *options, servers=1,
        server_options=("--channel", channel), worker_options=("--channel", channel))
    processes = servers + workers
    await_steps(cluster, FIRST)
    first = [rss_kib(process) for process in processes]
    await_steps(cluster, LAST)
    last = [rss_kib(process) for process in processes]
    for process, before, after in zip(processes, first, last):
        print(f"{cluster.folder.split('-')[1]}: {process.name}: {before} KiB, then {after}: "
              f"{(after - before) / before:+.2%}")
    for process, before, after in zip(processes, first, last):
        expect(after <= before * (1 + MOST), f"{process.name} grows from {before} to {after} KiB")


def sync_ucx(cluster):
    """sync over UCX"""
    grow(cluster, "ucx")


def async_ucx(cluster):
    """async over UCX"""
    grow(cluster, "ucx", "--mode", "async", "--sync-warmup", 0)


def sync_shm(cluster):
    """sync over shared memory"""
    grow(cluster, "shm")


def async_shm(cluster):
    """async over shared memory"""
    grow(cluster, "shm", "--mode", "async", "--sync-warmup", 0)


def async_tls(cluster):
    """async over tls"""
    grow(cluster, "tls", "--mode", "async", "--sync-warmup", 0)


if __name__ == "__main__":
    main(__doc__, [sync_ucx, async_ucx, sync_shm, async_shm, async_tls])
