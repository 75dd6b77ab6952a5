#!/usr/bin/env python3
"""What of the exchange a step waits for, with both overlaps, with one of them, and with none.

Whole jobs in sync mode by `rubato launch`, their data channels paced to a link's rate (--link), in
turns of four: both overlaps; `push`, blocks leave during backward but the next step starts when all
weights are back (--no-forward-overlap); `forward`, the other way round (--no-push-overlap); none.
From worker 0's metrics, without the first steps and the last: medians of the wait that is exposed
(ms.wait, of which ms.forward_wait is a part), of the whole step, and of where in it the first block
was handed over: 0 is its start, 1 the end of backward. By default a server and a worker with a
thread each, so that on two cores nobody waits for a core; models and batches are such that a link
needs about as long as computing. All arms compute the same bits: it fails if their losses differ.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

ARMS = {"both": [], "push": ["--no-forward-overlap"], "forward": ["--no-push-overlap"],
        "none": ["--no-push-overlap", "--no-forward-overlap"]}
SHAPES = {"100mbit": ["--model", "gpt2:4x256x4", "--seq-len", "256", "--batch", "8"],
          "1gbit": ["--model", "gpt2:6x384x6", "--seq-len", "128", "--batch", "4"]}
WARM_STEPS = 3


def fail(text):
    sys.exit(f"overlap.py: {text}")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs")
    parser.add_argument("--links", default="100mbit,1gbit", help="of " + ", ".join(SHAPES))
    parser.add_argument("--turns", type=int, default=2, help="of each arm")
    parser.add_argument("--steps", type=int, default=14, help="of a run")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.turns < 1 or chosen.steps < WARM_STEPS + 2:
        parser.error(f"--turns is 1 at least, --steps {WARM_STEPS + 2}")
    for link in chosen.links.split(","):
        if link not in SHAPES:
            parser.error(f"--links: there is no shape for {link}")
    return chosen


def run(chosen, folder, link, arm):
    """-> the phases of worker 0's steps, and their losses."""
    data, run_dir = os.path.join(folder, "data.txt"), os.path.join(folder, "run")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
    environment["OMP_WAIT_POLICY"] = "passive"
    command = [f"{chosen.bin}/rubato", "launch", "--servers", str(chosen.servers), "--workers",
               str(chosen.workers), "--data", data, "--run-dir", run_dir, "--steps",
               str(chosen.steps), *SHAPES[link], "--threads", "1", "--link", link, *ARMS[arm],
               "--eval-every", "0", "--eval-batches", "1", "--sample-tokens", "0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, env=environment, check=False)
    if done.returncode != 0:
        fail(f"{link}, {arm}: exit {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    shutil.rmtree(run_dir)
    steps = [line for line in lines if line["schema"] == "rubato.step/1"]
    return [step["ms"] for step in steps], [step["loss"] for step in steps]


def figures(phases):
    """Medians of a run: exposed wait, whole step, place of the first push."""
    kept = phases[WARM_STEPS:-1]
    computed = [ms["forward"] + ms["forward_wait"] + ms["backward"] for ms in kept]
    return (statistics.median(ms["wait"] for ms in kept),
            statistics.median(ms["forward"] + ms["backward"] + ms["wait"] for ms in kept),
            statistics.median(ms["first_push"] / end for ms, end in zip(kept, computed)))


def measure(chosen, folder, link):
    found, losses = {arm: [] for arm in ARMS}, None
    for _ in range(chosen.turns):
        for arm in ARMS:
            phases, now = run(chosen, folder, link, arm)
            losses = losses or now
            if now != losses:
                fail(f"{link}, {arm}: other losses than before")
            found[arm].append(figures(phases))
    whole = statistics.median(wait for wait, _, _ in found["none"])
    for arm, runs in found.items():
        wait, step, place = (statistics.median(values) for values in zip(*runs))
        each = ", ".join(f"{values[0]:.0f}" for values in runs)
        print(f"{link:<8} {arm:<8} {wait:10.1f} {wait / whole:8.2f} {step:10.1f} {place:11.2f} "
              f"{os.getloadavg()[0]:6.1f}  {each}", flush=True)


def main():
    chosen = options()
    folder = tempfile.mkdtemp(prefix="rubato-overlap-")
    print(f"{chosen.servers} servers, {chosen.workers} workers; {chosen.turns} turns of "
          f"{chosen.steps} steps")
    print(f"{'link':<8} {'overlap':<8} {'exposed ms':>10} {'of none':>8} {'step ms':>10} "
          f"{'first push':>11} {'load':>6}  exposed ms of each run", flush=True)
    try:
        with open(os.path.join(folder, "data.txt"), "w", encoding="ascii") as file:
            file.write("the quick brown fox jumps over the lazy dog\n" * 2000)
        for link in chosen.links.split(","):
            measure(chosen, folder, link)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
