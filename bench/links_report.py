#!/usr/bin/env python3
"""The table of bench/links.sh, from what it left in its folder; also results.jsonl there.

usage: links_report.py FOLDER [--target ARM] [--at SECONDS]

A step's time is rank 0's: forward, backward and what it waited, without validation (in
which a transfer of --overlap goes on). The columns:
  tok/s        of both workers, from the mean step time after the first steps
  kept         that over the same arm's where links are not shaped (rate "none")
  step_ms      mean
  out, in      MB a step, sent and received over the busier worker's cable, with headers
  val@S        validation loss after S seconds of steps (--at; else where the first arm of the rate
               ends), between two validations by a straight line; and the steps made until then
  to L         seconds until the validation loss is --target's (default bf16) last one at this rate
  sooner       the target arm's seconds over these
  val_loss     the last one, after so many steps
"""
import argparse
import json
import os
import sys

# Local modes report every so many steps at most: means are over whole periods.
PERIOD = 20


def read_lines(path):
    """Complete lines alone: a run that was ended may leave a part of one."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]


def window(steps):
    """The steps that are counted: first < i <= last."""
    warm = min(max(3, steps // 10), 10, max(steps - 1, 0))
    count = (steps - warm) // PERIOD * PERIOD or steps - warm
    return steps - count, steps


def mean_wire(folder, first, last):
    """MB a step of the busier worker: (sent, received), from the first sight of two steps. The last
    step is left out, since the final pull follows it."""
    seen = {}
    for line in read_lines(os.path.join(folder, "wire.txt")):
        step, machine, sent, received = line.split()
        seen.setdefault(machine, {}).setdefault(int(step), (int(sent), int(received)))
    most = [None, None]
    for samples in seen.values():
        inside = [step for step in sorted(samples) if first <= step < last]
        if len(inside) < 2:
            continue
        begin, end = inside[0], inside[-1]
        if end - begin > PERIOD:
            end = max(step for step in inside if step <= begin + (end - begin) // PERIOD * PERIOD)
        for i in range(2):
            rate = (samples[end][i] - samples[begin][i]) / (end - begin) / 1e6
            most[i] = max(rate, most[i] or 0)
    return most


def read_arm(folder):
    lines = read_lines(os.path.join(folder, "arm.txt"))
    arm = dict(line.rstrip("\n").split(" ", 1) for line in lines)
    entries = [json.loads(line) for line in read_lines(os.path.join(folder, "metrics.jsonl"))]
    steps = [entry for entry in entries if "step" in entry]
    clock, curve, before = [0.0], [], None
    for entry in steps:
        clock.append(clock[-1] + sum(entry["ms"][k] for k in ("forward", "backward", "wait")) / 1e3)
        if entry["val_loss"] is not None and entry["val_loss"] != before:
            before = entry["val_loss"]
            curve.append((clock[-1], entry["step"], before))
    result = [entry for entry in entries if entry.get("schema", "").startswith("rubato.result")]
    if result:
        curve.append((clock[-1], len(steps), result[0]["val_loss"]))
    arm.update(made=len(steps), clock=clock, curve=curve, tok_s=None, step_ms=None, out=None)
    arm["in"] = None
    if len(steps) >= 2:
        first, last = window(len(steps))
        seconds = clock[last] - clock[first]
        arm["tok_s"] = (steps[last - 1]["tokens"] - steps[first - 1]["tokens"]) / seconds
        arm["step_ms"] = 1e3 * seconds / (last - first)
        arm["out"], arm["in"] = mean_wire(folder, first, last)
    return arm


def loss_at(arm, seconds):
    curve = arm["curve"]
    for (t0, _, a), (t1, _, b) in zip(curve, curve[1:]):
        if t0 <= seconds <= t1:
            return a + (b - a) * (seconds - t0) / (t1 - t0) if t1 > t0 else b
    return None


def time_to(arm, loss):
    before = None
    for seconds, _, value in arm["curve"]:
        if value <= loss:
            if before is None or before[1] == value:
                return seconds
            t0, a = before
            return t0 + (seconds - t0) * (a - loss) / (a - value)
        before = (seconds, value)
    return None


def steps_at(arm, seconds):
    return sum(t <= seconds for t in arm["clock"][1:])


def add_comparison(arms, rate, settings):
    """Adds to each arm of a rate what it is beside the others -> (S, L)."""
    here = [arm for arm in arms if arm["rate"] == rate and arm["curve"]]
    if not here:
        return None, None
    free = {(arm["placement"], arm["compute"], arm["arm"]): arm["tok_s"] for arm in arms
            if arm["rate"] == "none"}
    at = settings.at or min(arm["curve"][-1][0] for arm in here)
    target = next((arm for arm in here if arm["arm"] == settings.target), None)
    loss = target["curve"][-1][2] if target else None
    for arm in here:
        base = free.get((arm["placement"], arm["compute"], arm["arm"]))
        arm["kept"] = arm["tok_s"] / base if base and arm["tok_s"] else None
        arm["val_at"], arm["steps_at"] = loss_at(arm, at), steps_at(arm, at)
        arm["to_target"] = time_to(arm, loss) if loss is not None else None
        if arm["to_target"]:
            arm["sooner"] = target["curve"][-1][0] / arm["to_target"]
    return at, loss


def cell(value, form):
    return "-" if value is None else format(value, form)


def print_table(arms, rate, at, loss):
    here = [arm for arm in arms if arm["rate"] == rate]
    print(f"\nlink {rate}, {here[0]['placement']}, compute {here[0]['compute']}" +
          (f"; S = {at:.0f} s" if at else "") + (f", L = {loss:.4f}" if loss else ""))
    heads = ["arm", "tok/s", "kept", "step_ms", "out", "in", "val@S", "steps@S", "to L", "sooner",
             "val_loss", "steps"]
    print(f"{heads[0]:<16}" + "".join(f"{head:>9}" for head in heads[1:]))
    for arm in here:
        if not arm["curve"] and arm["outcome"] in ("failed", "skipped"):
            print(f"{arm['arm']:<16} {arm['outcome']}: {arm['reason']}")
            continue
        last = arm["curve"][-1][2] if arm["curve"] else None
        cells = [cell(arm["tok_s"], ".0f"), cell(arm.get("kept"), ".0%"),
                 cell(arm["step_ms"], ".0f"), cell(arm["out"], ".2f"), cell(arm["in"], ".2f"),
                 cell(arm.get("val_at"), ".4f"), cell(arm.get("steps_at"), "d"),
                 cell(arm.get("to_target"), ".0f"), cell(arm.get("sooner"), ".2f"),
                 cell(last, ".4f"), f"{arm['made']}"]
        print(f"{arm['arm']:<16}" + "".join(f"{text:>9}" for text in cells) +
              ("" if arm["outcome"] in ("done", "limit") else f"  {arm['outcome']}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--target", default="bf16")
    parser.add_argument("--at", type=float)
    settings = parser.parse_args()
    arms = []
    for place, _, files in os.walk(settings.folder):
        if "arm.txt" in files:
            written = os.path.getmtime(os.path.join(place, "arm.txt"))
            arms.append((written, read_arm(place)))
    arms = [arm for _, arm in sorted(arms, key=lambda pair: pair[0])]
    if not arms:
        sys.exit(f"links_report: no arms in {settings.folder}")
    for rate in dict.fromkeys(arm["rate"] for arm in arms):
        at, loss = add_comparison(arms, rate, settings)
        print_table(arms, rate, at, loss)
    with open(os.path.join(settings.folder, "results.jsonl"), "w", encoding="utf-8") as file:
        for arm in arms:
            print(json.dumps(arm), file=file)


if __name__ == "__main__":
    main()
