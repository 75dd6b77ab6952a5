#!/usr/bin/env python3
"""Processor time of a server and a worker that wait, per --channel and --poll.

A job of one server and two workers in sync mode, whose second worker sleeps a thousand times as
long as it computes (--slow), so that the others have nothing to do but their heartbeats, at the
usual lease. What all their threads ran is read from /proc before and after (schedstat,
nanoseconds). The goal: below 1 % of a core each. `busy` is not among them: it takes a core per
thread by intent.
"""
import argparse
import glob
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

GOAL = 0.01
MODEL = ["--model", "gpt2:2x96x4", "--seq-len", "64", "--batch", "8"]  # a step of some 50 ms
START_S = 60
SETTLE_S = 3.0  # the first step of the worker that then waits


def fail(text):
    sys.exit(f"idle.py: {text}")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--channels", default="ucx,shm,tls")
    parser.add_argument("--polls", default="sleep,adaptive")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_seconds(pid):
    """Of all threads that the process has."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def start(chosen, folder, channel, poll):
    """The server, the worker that waits, and the slow one, which have begun to train."""
    address = f"127.0.0.1:{free_port()}"
    both = ["--channel", channel, "--poll", poll]
    data, log = (os.path.join(folder, name) for name in ("data.txt", "log.txt"))
    with open(data, "w", encoding="ascii") as file:
        file.write("the quick brown fox jumps over the lazy dog\n" * 500)
    commands = [[f"{chosen.bin}/rubato-server", "--listen", address, "--workers", "2", *MODEL,
                 *both]]
    for rank, slow in ((0, "1"), (1, "1000")):
        commands.append([f"{chosen.bin}/rubato-worker", "--join", address, "--data", data,
                         "--threads", "1", "--run-dir", folder, "--index", str(rank), "--slow",
                         slow, *both])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
    environment["OMP_WAIT_POLICY"] = "passive"
    with open(log, "wb") as file:
        processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file,
                                      stdout=subprocess.DEVNULL, env=environment)
                     for command in commands]
    deadline = time.monotonic() + START_S
    text = ""
    while "training starts" not in text:
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            end(processes)
            fail(f"--channel {channel}: the job does not run:\n{text[-2000:]}")
        time.sleep(0.05)
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
    return processes


def end(processes):
    for process in processes:
        process.kill()
        process.wait()


def measure(chosen, channel, poll):
    """Parts of a core: of the server, of the worker that waits."""
    folder = tempfile.mkdtemp(prefix="rubato-idle-")
    processes = start(chosen, folder, channel, poll)
    try:
        time.sleep(SETTLE_S)
        began = time.monotonic()
        before = [cpu_seconds(process.pid) for process in processes[:2]]
        time.sleep(chosen.seconds)
        after = [cpu_seconds(process.pid) for process in processes[:2]]
        lasted = time.monotonic() - began
        if any(process.poll() is not None for process in processes[:2]):
            fail(f"--channel {channel}: the job ended")
        return [(last - first) / lasted for first, last in zip(before, after)]
    finally:
        end(processes)
        shutil.rmtree(folder, ignore_errors=True)


def main():
    chosen = options()
    missed = False
    print(f"idle over {chosen.seconds:g} s; goal below {GOAL:.0%} of a core")
    print(f"{'channel':<8} {'poll':<9} {'server':>8} {'worker':>8} {'load':>6}")
    for channel in chosen.channels.split(","):
        for poll in chosen.polls.split(","):
            parts = measure(chosen, channel, poll)
            met = max(parts) < GOAL
            missed = missed or not met
            print(f"{channel:<8} {poll:<9} {parts[0]:8.3%} {parts[1]:8.3%} "
                  f"{os.getloadavg()[0]:6.1f}  {'met' if met else 'MISSED'}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
