#!/usr/bin/env python3
"""What one slow worker costs the others, in each mode.

usage: bench/straggler.py BIN [--steps N] [--floor X] [--times X] [--workers N] [--repeat N]
                          [--mode NAME ...]

For each mode two real jobs, one after the other: all workers alike, and the same with the last one
--times (4) times slower; so often as --repeat (1) says, with the median of the rates. Every step is
made --floor (10) times as long as it computes, by sleeping, so that a small machine is mostly idle
and the figures are about waiting, not about cores.

The table's columns:
  alike, one slow   steps of the job a second that the other workers reach (under a quorum a step is
                    a round), over the part of the run in which all of them are at work
  kept              the second over the first
  ahead             most steps that another worker was ahead of the slow one at any moment, as the
                    workers' metrics files tell while they grow
  the servers say   the slow worker as the servers' log names it
Exit code 1 where a mode does not do what docs/MODES.md says of it: sync falls to about the slow
worker's pace; async and a quorum keep 90 %; ssp:S goes to its bound and not beyond.
"""
import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MODEL = ["--model", "gpt2:2x32x2", "--seq-len", "32", "--batch", "4", "--block-values", "20000"]
STALENESS = 4
MODES = {
    "sync": ["--mode", "sync"],
    "quorum": ["--mode", "sync", "--backup-workers", "1", "--grace", "0"],
    f"ssp:{STALENESS}": ["--mode", f"ssp:{STALENESS}", "--sync-warmup", "0"],
    "async": ["--mode", "async", "--sync-warmup", "0"],
}
WARM_STEPS = 5  # before these, memory and connections warm up
JOB_LIMIT_S = 300


class Watch(threading.Thread):
    """Follows the workers' metrics files: when each step of each appeared, on one clock."""

    def __init__(self, folder, workers):
        super().__init__()
        names = ["metrics.jsonl"] + [f"metrics.rank{rank}.jsonl" for rank in range(1, workers)]
        self.paths = [os.path.join(folder, name) for name in names]
        self.files = [None] * workers
        self.partial = [b""] * workers
        self.steps = [[] for _ in names]  # of each rank: (seconds, place in the job)
        self.ahead = 0
        self.done = threading.Event()

    def read(self, rank):
        if self.files[rank] is None:
            if not os.path.exists(self.paths[rank]):
                return
            self.files[rank] = open(self.paths[rank], "rb")
        text = self.partial[rank] + self.files[rank].read()
        *lines, self.partial[rank] = text.split(b"\n")
        now = time.monotonic()
        entries = [json.loads(line) for line in lines]
        self.steps[rank] += [(now, entry["step"]) for entry in entries if "step" in entry]

    def run(self):
        ended = False
        while not ended:
            ended = self.done.is_set()
            # The slow one is read last, so that nobody seems further ahead of it than he was.
            for rank in range(len(self.paths)):
                self.read(rank)
            slow = len(self.steps[-1])
            self.ahead = max([self.ahead] + [len(steps) - slow for steps in self.steps[:-1]])
            time.sleep(0.001)
        for file in self.files:
            if file is not None:
                file.close()

    def rate(self):
        """Steps a second, the mean of the workers but the last."""
        others = self.steps[:-1]
        first = max(steps[WARM_STEPS][0] for steps in others)
        last = min(steps[-1][0] for steps in others)
        rates = []
        for steps in others:
            within = [entry for entry in steps if first <= entry[0] <= last]
            rates.append((within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0]))
        return sum(rates) / len(rates)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_job(settings, mode, slow):
    """One job -> (its watch, the servers' log)."""
    folder = tempfile.mkdtemp(prefix="rubato-straggler-")
    address = f"127.0.0.1:{free_port()}"
    data = os.path.join(folder, "data.txt")
    with open(data, "w", encoding="ascii") as file:
        file.write("the quick brown fox jumps over the lazy dog\n" * 2000)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
    environment["OMP_WAIT_POLICY"] = "passive"
    server = [os.path.join(settings.bin, "rubato-server"), "--listen", address, "--workers",
              str(settings.workers), "--steps", str(settings.steps), *MODEL, *MODES[mode]]
    commands = [server]
    for rank in range(settings.workers):
        times = settings.floor
        if slow and rank + 1 == settings.workers:
            times *= settings.times
        commands.append([os.path.join(settings.bin, "rubato-worker"), "--join", address, "--index",
                         str(rank), "--data", data, "--threads", "1", "--slow", str(times),
                         "--eval-every", "0", "--sample-tokens", "0", "--run-dir", folder])
    watch = Watch(folder, settings.workers)
    processes = []
    log = os.path.join(folder, "log.txt")
    try:
        with open(log, "wb") as file:
            processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.DEVNULL, stderr=file, env=environment)
                         for command in commands]
        watch.start()
        codes = [process.wait(JOB_LIMIT_S) for process in processes]
        watch.done.set()
        watch.join()
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if any(codes):
            sys.exit(f"{mode}: exit codes {codes}\n{text[-3000:]}")
        return watch, text
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        watch.done.set()
        shutil.rmtree(folder, ignore_errors=True)


def straggler_of(log):
    """The servers' own words: the last line that names the slowest, and what became of its
    reports."""
    named = re.findall(r"slowest (worker \d+) \(.*?\): ([\d.]+) steps/s of ([\d.]+)", log)
    if not named:
        return None
    name, rate, median = named[-1]
    counts = re.findall(rf"{name} \(.*?\): (\d+ reports counted, \d+ dropped)", log)
    return f"slowest {name}: {rate} steps/s of {median}; {counts[-1]}"


def verdict(settings, mode, kept, ahead, named):
    """None, or what is not as it should be."""
    if named is None or f"worker {settings.workers - 1}:" not in named:
        return "does not name the slow worker"
    if mode == "sync" and kept > 1.4 / settings.times:
        return "does not wait for the slow worker"
    if mode in ("async", "quorum") and kept < 0.9:
        return "keeps less than 90 %"
    if mode.startswith("ssp") and not STALENESS <= ahead <= STALENESS + 1:
        return "does not stop at its bound"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of rubato-server and rubato-worker")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--floor", type=float, default=10,
                        help="--slow of the workers that are not slow")
    parser.add_argument("--times", type=float, default=4, help="slower the last worker is")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    settings = parser.parse_args()
    print(f"{settings.workers} workers, one {settings.times:g} times slower; {settings.steps} "
          f"steps, each made {settings.floor:g} times as long as it computes")
    print(f"{'mode':<8} {'alike':>9} {'one slow':>9} {'kept':>6} {'ahead':>6}  the servers say")
    failures = []
    for mode in settings.mode:
        alike, slowed, ahead, names = [], [], 0, []
        for _ in range(settings.repeat):
            alike.append(run_job(settings, mode, False)[0].rate())
            watch, log = run_job(settings, mode, True)
            slowed.append(watch.rate())
            ahead = max(ahead, watch.ahead)
            names.append(straggler_of(log))
        rates = statistics.median(alike), statistics.median(slowed)
        kept = rates[1] / rates[0]
        # In a short job the slow one may not have told its pace before the others were done.
        named = next((name for name in reversed(names) if name is not None), None)
        print(f"{mode:<8} {rates[0]:7.1f}/s {rates[1]:7.1f}/s {kept:6.1%} {ahead:6d}  {named}",
              flush=True)
        wrong = verdict(settings, mode, kept, ahead, named)
        failures += [f"{mode} {wrong}"] if wrong else []
    for failure in failures:
        print(f"straggler.py: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
