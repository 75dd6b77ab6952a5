#!/usr/bin/env python3
"""Proves what `rubato compare` says of real runs: every number of its table, in report.html and as
printed, is made again here from results.jsonl by the definitions in tools/compare_table.h, and the
series there are those of the runs' own metrics.jsonl. report.html must be well-formed XML that
refers to nothing outside and has every figure; where Chromium is installed, a picture of it must
not be blank. Lists are taken apart as the manual says, and flags that would do nothing are refused;
a failed arm stops no other; arms with options of their own run with them; --resume runs what is
missing and nothing else; --progress and --pin do what they say; Ctrl-C leaves a report, and no
process.

  test_compare.py FOLDER   where rubato, rubato-server and rubato-worker are
"""
import glob
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
import zlib

PATIENCE_S = 120
BIN = os.path.abspath(sys.argv[1])
JOB = ["--model", "gpt2:1x16x2", "--seq-len", "16", "--batch", "2", "--block-values", "2000",
       "--warmup", "2", "--lr", "0.01", "--steps", "30", "--eval-every", "7", "--eval-batches", "2"]
FIGURES = ["plot-loss-step", "plot-loss-time", "plot-loss-bytes", "plot-phases", "plot-bandwidth"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
ENVIRONMENT["OMP_WAIT_POLICY"] = "passive"


class Failure(Exception):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def expect_equal(actual, wanted, what):
    expect(actual == wanted, f"{what} is {actual!r}, expected {wanted!r}")


def compare(code, *words, **environment):
    process = subprocess.run([os.path.join(BIN, "rubato"), "compare", *words], text=True,
                             capture_output=True, timeout=PATIENCE_S, check=False,
                             env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL)
    expect(process.returncode == code, f"{words}: exit {process.returncode}, expected {code}\n"
           f"{process.stdout}\n{process.stderr}")
    return process


def results(folder):
    with open(os.path.join(folder, "results.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def corpus(folder):
    """Words with some order to learn."""
    path = os.path.join(folder, "corpus.txt")
    draw = random.Random(1)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(4000):
            file.write(draw.choice(["the cat sat ", "on a mat ", "and saw ", "two dogs. "]))
    return path


def programs(folder, special):
    """A folder of programs where rubato-worker does `special`, lines of a shell script, first."""
    path = os.path.join(folder, "bin")
    os.makedirs(path)
    os.symlink(os.path.join(BIN, "rubato-server"), os.path.join(path, "rubato-server"))
    worker = os.path.join(path, "rubato-worker")
    with open(worker, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{special}\nexec '{BIN}/rubato-worker' \"$@\"\n")
    os.chmod(worker, 0o755)
    return path


# ---- the table, once more ----

def mean(values):
    return sum(values) / len(values)


def step_ms(run):
    return [f + b + w for f, b, w in zip(run["forward_ms"], run["backward_ms"], run["wait_ms"])]


def loss_at(run, step):
    before = None
    for at, loss in run["val"]:
        if at == step or (at > step and before is None):
            return loss
        if at > step:
            return before[1] + (step - before[0]) / (at - before[0]) * (loss - before[1])
        before = (at, loss)
    return before[1]


def curve(runs):
    points = []
    for step, _ in runs[0]["val"]:
        if not all(any(at == step for at, _ in run["val"]) for run in runs):
            continue
        made = [sum(1 for s in run["step"] if s <= step) for run in runs]
        points.append((
            mean([loss for run in runs for at, loss in run["val"] if at == step]),
            mean([sum(step_ms(run)[:n]) / 1000 for run, n in zip(runs, made)]),
            mean([sum(run["push_bytes"][:n]) + sum(run["pull_bytes"][:n])
                  for run, n in zip(runs, made)])))
    return points


def to_target(points, target, member):
    for i, point in enumerate(points):
        if point[0] > target:
            continue
        if i == 0:
            return point[member]
        before = points[i - 1]
        part = (before[0] - target) / (before[0] - point[0])
        return before[member] + part * (point[member] - before[member])
    return None


def row_of(runs, baseline, equal_step, target):
    """The row of an arm's finished runs; values that are not known are None."""
    losses = [loss_at(run, equal_step) for run in runs]
    other = {run["seed"]: loss_at(run, equal_step) for run in baseline}
    common = [loss - other[run["seed"]] for run, loss in zip(runs, losses) if run["seed"] in other]
    off = [x - mean(common) for x in common]
    cut = [min(10, len(run["step"]) // 10) for run in runs]
    last = [-max(1, len(run["step"]) // 10) for run in runs]
    up_end = mean([b for run, n in zip(runs, last) for b in run["push_bytes"][n:]])
    down_end = mean([b for run, n in zip(runs, last) for b in run["pull_bytes"][n:]])
    times = sorted(t for run, n in zip(runs, cut) for t in step_ms(run)[n:])
    half = len(times) // 2
    up = mean([b for run in runs for b in run["push_bytes"]])
    down = mean([b for run in runs for b in run["pull_bytes"]])
    values = 4 * runs[0]["values"]
    row = {"val_loss": mean(losses),
           "sd": math.sqrt(sum((x - mean(losses)) ** 2 for x in losses) / (len(losses) - 1))
           if len(losses) > 1 else None,
           "delta": mean(common) if common else mean(losses) - mean(list(other.values())),
           "se": math.sqrt(sum(x ** 2 for x in off) / (len(off) - 1) / len(off))
           if len(off) > 1 and runs is not baseline else None,
           "f32_up_end": values / up_end, "bf16_end": values / (up_end + down_end),
           "runs": len(runs), "up_bytes": up, "down_bytes": down, "f32_up": values / up,
           "f32_down": values / down, "bf16": values / (up + down),
           "median_ms": times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2,
           "p99_ms": times[math.ceil(0.99 * len(times)) - 1],
           "tok_s": runs[0]["workers"] * runs[0]["step_tokens"] * 1000 / mean(times),
           "target_s": to_target(curve(runs), target, 1),
           "target_bytes": to_target(curve(runs), target, 2)}
    for key in ("forward_ms", "backward_ms", "wait_ms", "codec_ms"):
        if key in runs[0]:
            row[key] = mean([t for run, n in zip(runs, cut) for t in run[key][n:]])
    if row.get("codec_ms", 0) > 0:
        row["codec_gb_s"] = values / row["codec_ms"] / 1e6
    row.pop("codec_ms", None)
    for key in ("residual_norm", "codec_bytes"):
        if key in runs[0] and runs[0][key][-1] is not None:
            row[key] = mean([run[key][-1] for run in runs])
    return row


def table_of(lines):
    """Arm -> row, from the lines of results.jsonl alone."""
    good = [line for line in lines if line["state"] == "ok"]
    equal_step = min(run["val"][-1][0] for run in good)
    arms = list(dict.fromkeys(line["arm"] for line in lines))
    runs = {arm: [run for run in good if run["arm"] == arm] for arm in arms}
    baseline = runs[next(line["arm"] for line in lines if line["baseline"])]
    target = lines[0]["target"]
    return {arm: row_of(runs[arm], baseline, equal_step, target) if runs[arm] else None
            for arm in arms}


def close(a, b):
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b)) + 1e-12


def report_page(folder):
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        text = file.read()
    head, rest = text.split("\n", 1)
    expect_equal(head, "<!DOCTYPE html>", "the first line of report.html")
    return text, ElementTree.fromstring(rest)


def check_table(folder, printed):
    """report.html and the printed table against what results.jsonl gives."""
    table = table_of(results(folder))
    page = report_page(folder)[1].find(".//table[@id='table']")
    rows = page.findall("tbody/tr")
    expect_equal(len(rows), len(table), "the number of rows")
    numbers = 0
    for arm, row in table.items():
        cells = next(r for r in rows
                     if r.find("th").text.replace(" (baseline)", "") == arm).findall("td")
        shown = [cell.text for cell in cells]
        line = next(li for li in printed.splitlines() if li.startswith(arm + "  "))
        expect_equal(line[len(arm):].split(), shown, f"the printed row of {arm}")
        for cell in cells:
            key, text = cell.attrib["data-key"], cell.attrib["data-value"]
            wanted = row.get(key) if row else None
            if row is None and key == "runs":
                wanted = 0
            expect((text == "") == (wanted is None), f"{arm} {key} is '{text}', not {wanted}")
            if wanted is None:
                expect_equal(cell.text, "-", f"{arm} {key}")
                continue
            expect(close(float(text), wanted), f"{arm} {key} is {text}, recomputed {wanted!r}")
            numbers += 1
            if key != "runs":  # what is shown is that number, rounded and in its unit
                unit = 1e6 if key.endswith("_bytes") else 1
                digits = len(cell.text.split(".")[1]) if "." in cell.text else 0
                expect(abs(float(cell.text) - wanted / unit) <=
                       max(0.51 * 10 ** -digits, 1e-3 * abs(wanted / unit)),
                       f"{arm} {key} is shown as {cell.text}, it is {wanted / unit!r}")
    return numbers


def check_series(folder):
    """The series of results.jsonl are what worker 0 wrote down."""
    for run in results(folder):
        if run["state"] != "ok":
            continue
        with open(os.path.join(run["folder"], "metrics.jsonl"), encoding="utf-8") as file:
            steps = [s for s in map(json.loads, file) if s["schema"] == "rubato.step/1"]
        for key in ("step", "loss", "push_bytes", "pull_bytes"):
            expect_equal(run[key], [s[key] for s in steps], f"{key} of {run['arm']}")
        for key in ("forward", "backward", "wait"):
            expect_equal(run[key + "_ms"], [s["ms"][key] for s in steps], f"{key} of {run['arm']}")
        expect_equal([at for at, _ in run["val"]], [7, 14, 21, 28, 30], "steps of validation")
        with open(os.path.join(run["folder"], "log.txt"), encoding="utf-8") as file:
            last = float(re.search(r"result: val_loss=([0-9.]+)", file.read()).group(1))
        expect(abs(run["val"][-1][1] - last) < 1e-4, f"last loss of {run['arm']}")


def check_page(folder, arms):
    """Well-formed (ElementTree), self-contained, all figures with something in them."""
    text, page = report_page(folder)
    for bad in ("http:", "https:", "src=", "href=", "url(", "@import", "<script", "//"):
        expect(bad not in text, f"report.html has '{bad}'")
    for name in FIGURES:
        figure = page.find(f".//figure[@id='{name}']")
        expect(figure is not None, f"no figure {name}")
        inside = {element.tag for element in figure.iter()}
        expect({"svg", "text", "ul"} <= inside, f"{name} has only {inside}")
    for name in FIGURES[:3]:
        lines = page.findall(f".//figure[@id='{name}']/svg/polyline")
        expect_equal(len(lines), arms, f"the number of curves of {name}")
    bars = page.findall(".//figure[@id='plot-phases']/svg/rect")
    expect_equal(len(bars), 3 * arms, "the number of bars")
    text = "".join(page.find(".//figure[@id='plot-bandwidth']").itertext())
    expect("measured" in text and "modelled" in text, "the figure does not tell what is measured")


def picture_is_not_blank(path):
    """PNG of 8-bit colours -> several colours in its rows?"""
    with open(path, "rb") as file:
        data = file.read()
    expect_equal(data[:8], b"\x89PNG\r\n\x1a\n", "the picture's first bytes")
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    expect(len(set(zlib.decompress(packed))) > 50, "the picture is blank")


def screenshot(folder):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        print("  no chromium here: no picture is taken")
        return
    path = os.path.join(folder, "report.png")
    for size in ("1280,1900", "400,3200"):
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu",
                        f"--user-data-dir={folder}/chromium", f"--window-size={size}",
                        f"--screenshot={path}", "file://" + os.path.join(folder, "report.html")],
                       timeout=PATIENCE_S, check=True, capture_output=True)
        picture_is_not_blank(path)
        os.remove(path)


# ---- cases ----

def lists(folder):
    """lists: commas, semicolons, repeated flags, a config file, each value once; wrong values are
    refused by name"""
    def arms(*words, **environment):
        lines = compare(0, "--dry-run", *words, **environment).stdout.splitlines()
        return [tuple(word.split("=", 1)[1] for word in line.split()) for line in lines]

    expect_equal(arms(), [("bf16", "bf16", "sync", "none")], "the default arm")
    wanted = [("none", "bf16", "sync", "none"), ("bf16", "bf16", "sync", "none"),
              ("int8", "bf16", "sync", "none")]
    for words in (["--push", "none,bf16,int8"], ["--push=none;bf16;int8"],
                  ["--push", "none,bf16;int8;"], ["--push=none", "--push", "bf16,int8,none"]):
        expect_equal(arms(*words), wanted, f"the arms of {words}")
    expect_equal(arms(RUBATO_PUSH="none,bf16,int8"), wanted, "the arms of a variable")
    path = os.path.join(folder, "lists.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write("push = none,bf16,int8\n")
    expect_equal(arms("--config", path), wanted, "the arms of a config file")
    grid = arms("--push=none,int8", "--pull=bf16,none", "--mode=sync,ssp:3", "--link=none,1gbit")
    expect_equal(len(set(grid)), 16, "the number of arms")
    expect_equal(grid[:2], [("none", "bf16", "sync", "none"), ("none", "bf16", "sync", "1gbit")],
                 "the first arms")
    for words, name in ((["--push", "bf16,wrong"], "bf16,wrong"), (["--link", "fast"], "fast"),
                        (["--mode", ";sync"], "--mode"), (["--push"], "--push"),
                        (["--run-dir", "x"], "--run-dir"), (["--resume"], "--out"),
                        (["--pin", "--jobs", "2"], "--jobs 2"), (["--progress", "x"], "auto")):
        expect(name in compare(2, "--dry-run", *words).stderr, f"{words} does not name {name}")
    expect("no-such" in compare(66, "--data", "no-such").stderr, "the missing file is not named")
    with open(path, "w", encoding="utf-8") as file:
        file.write(compare(0, "--push=none,bf16", "--push=int8", "--print-config").stdout)
    expect_equal(arms("--config", path), wanted, "the arms of what --print-config printed")
    compare(66, folder, folder, RUBATO_STEPS="3")
    compare(2, folder)
    for words, name in ((["--push", "none"], "--push"), (["--link=none"], "--link"),
                        (["--steps", "3"], "--steps"), (["--seeds", "2"], "--seeds"),
                        (["--data", path], "--data"), (["--resume"], "--resume"),
                        (["--progress", "off"], "--progress")):
        stderr = compare(2, folder, folder, *words).stderr
        expect(name + ":" in stderr and "--out" in stderr, f"{words} with folders: {stderr}")


def progress(folder):
    """--progress: line and auto say each run's start and end on a pipe, off only what failed; --pin
    gives the workers their cores"""
    words = ["--data", corpus(folder), *JOB, "--push", "none,bf16", "--steps", "3"]
    for value, starts in (("line", 2), ("off", 0)):
        out = os.path.join(folder, value)
        tools = programs(os.path.join(folder, value + "-tools"),
                         'case "$*" in *--push=none*) exit 65;; esac')
        stderr = compare(1, *words, "--progress", value, "--out", out, "--bin", tools, "--pin",
                         "--threads", "1").stderr
        expect_equal(stderr.count(" ...\n"), starts, f"runs that start, with {value}:\n{stderr}")
        expect_equal(stderr.count("val_loss"), starts // 2, f"ends with {value}:\n{stderr}")
        expect_equal(stderr.count("FAILED"), 1, f"failures with {value}:\n{stderr}")
        with open(os.path.join(results(out)[0]["folder"], "log.txt"), encoding="utf-8") as file:
            expect("--pin" in file.readline(), "launch is not told to pin")


def grid(folder):
    """a grid with a failing arm: the table is made again from results.jsonl; report; picture"""
    out = os.path.join(folder, "out")
    tools = programs(folder, 'case "$*" in *--push=none*) echo broken on purpose >&2; exit 65;; '
                             'esac')
    run = compare(1, "--data", corpus(folder), *JOB, "--workers", "2", "--push", "none,bf16,int8",
                  "--link", "none,50mbit", "--seeds", "2", "--out", out, "--bin", tools)
    lines = results(out)
    expect_equal(len(lines), 12, "the number of results")
    for line in lines:
        bad = line["push"] == "none"
        expect_equal(line["state"], "failed" if bad else "ok", f"{line['arm']}")
        expect_equal(line["baseline"], line["push"] == "bf16" and line["link"] == "none",
                     "the baseline")
    seeds = [line["seed"] for line in lines]
    expect_equal(seeds, [1] * 6 + [2] * 6, "the order of the seeds")
    numbers = check_table(out, run.stdout)
    expect(numbers > 4 * 14, f"only {numbers} numbers in the table")
    check_series(out)
    check_page(out, 4)
    expect(run.stderr.count("FAILED") == 4 and "log.txt" in run.stderr, "failures are not told")
    with open(os.path.join(lines[0]["folder"], "log.txt"), encoding="utf-8") as file:
        expect("broken on purpose" in file.read(), "the log of a failed run has not its words")
    expect("token bucket" in run.stdout, "it is not said that links are paced")
    loss = {(line["arm"], line["seed"]): line["val"][-1][1] for line in lines if "val" in line}
    for seed in (1, 2):  # in sync mode the pace changes no bit
        expect_equal(loss["bf16 link=none", seed], loss["bf16 link=50mbit", seed], "the paced loss")
    screenshot(out)


def again(folder):
    """another comparison does not overwrite; --resume runs what is missing, or has other options;
    folders of runs compare as the arms did"""
    out = os.path.join(folder, "out")
    words = ["--data", corpus(folder), *JOB, "--push", "bf16,int8", "--mode", "sync,async", "--out",
             out, "--jobs", "2"]
    first = compare(0, *words)
    check_table(out, first.stdout)
    folders = [line["folder"] for line in results(out)]
    compare(73, *words)

    def times():
        return {f: os.stat(os.path.join(f, "metrics.jsonl")).st_mtime_ns for f in folders}

    before = times()
    resumed = compare(0, *words, "--resume")
    expect_equal(times(), before, "the runs' times")
    expect_equal(resumed.stdout, first.stdout, "the table of a comparison that was complete")
    os.remove(os.path.join(folders[1], "compare.done"))
    compare(0, *words, "--resume")
    expect_equal([f for f in folders if times()[f] != before[f]], [folders[1]], "what ran again")
    before = times()
    compare(0, *words, "--resume", "--weight-decay", "0.05")
    expect(all(times()[f] != before[f] for f in folders), "other options, and the old runs")
    both = os.path.join(folder, "both")
    run = compare(0, folders[0], folders[1], "--out", both)
    expect_equal([line["arm"] for line in results(both)], folders[:2], "the arms")
    check_table(both, run.stdout)
    check_page(both, 2)


def own_options(folder):
    """--arms: lines with any options, over those of all; what is wrong is told with its line; the
    arms run as they say, --resume runs the line that changed, and the table comes from
    results.jsonl"""
    path, out = os.path.join(folder, "arms"), os.path.join(folder, "out")

    def write(*lines):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))

    for lines, words in ((["a --lr 1"], "NAME:"), (["a:"], "without an option"),
                         (["", "a: --learning 1"], "line 2"), (["a: --lr x"], "--lr"),
                         (["a: --lr"], "--lr"), (["a: lr 1"], "'lr'"), (["a: --seed 2"], "--seed"),
                         (["a: --run-dir x"], "--run-dir"), (["a: --out x"], "--out"),
                         (["a: --config x"], "--config"), (["a: --help"], "--help"),
                         (["a: --push int9"], "int9"), (["a: --prompt 'x"], "quote"),
                         (["a: --lr 1", "a: --lr 2"], "already"), (["bf16: --lr 1"], "'bf16'"),
                         (["a: --optimizer worker:adamw --pull none"], "--pull"),
                         (["# nothing"], "no arm")):
        write(*lines)
        stderr = compare(2, "--dry-run", "--arms", path).stderr
        expect(words in stderr, f"{lines} is refused without {words}:\n{stderr}")
    compare(2, "--dry-run", "--arms", os.path.join(folder, "no-such"))

    one_bit = "--optimizer worker:1bit-adam --push onebit,ef --push-policy all --dense-warmup 5"
    own = ["fast: --lr=0.02 --push int8", f"  1 bit both ways : {one_bit}", "# no arm",
           "short: --steps '28' --eval-every 14", "broken: --batch 3"]
    write(*own)
    words = ["--data", corpus(folder), *JOB, "--workers", "2", "--seeds", "2", "--out", out,
             "--bin", programs(folder, 'case "$*" in *--batch=3*) exit 65;; esac'),
             "--push", "bf16,none"]
    dry = compare(0, "--dry-run", "--arms", path, *words, RUBATO_PULL="bf16,none").stdout
    expect_equal(dry.splitlines()[4:],
                 ["fast: --lr 0.02 --push int8", f"1 bit both ways: {one_bit}",
                  "short: --steps 28 --eval-every 14", "broken: --batch 3"], "the arms")
    run = compare(1, "--arms", path, *words)
    lines = {line["arm"]: line for line in results(out)}
    expect_equal([(arm, line["push"], line["baseline"], line["state"], line.get("options"))
                  for arm, line in lines.items()],
                 [("bf16", "bf16", True, "ok", None), ("none", "none", False, "ok", None),
                  ("fast", "int8", False, "ok", "--lr 0.02 --push int8"),
                  ("1 bit both ways", "onebit,ef", False, "ok", one_bit),
                  ("short", "bf16", False, "ok", "--steps 28 --eval-every 14"),
                  ("broken", "bf16", False, "failed", "--batch 3")], "the arms that ran")
    check_table(out, run.stdout)
    table = table_of(list(results(out)))
    expect(table["1 bit both ways"]["bf16_end"] > 1.1 * table["1 bit both ways"]["bf16"],
           "the dense start is not told from what follows")
    for arm, line in lines.items():
        expect(line.get("options", arm) in run.stdout, f"the options of {arm} are not printed")
        if line["state"] == "failed":
            continue
        with open(os.path.join(line["folder"], "options.conf"), encoding="utf-8") as file:
            given = dict(re.findall(r'^(\S+) = "?([^\s"]+)', file.read(), re.M))
        expect_equal(float(given["lr"]), 0.02 if arm == "fast" else 0.01, f"--lr of {arm}")
        expect_equal(given["steps"], "28" if arm == "short" else "30", f"--steps of {arm}")
        expect_equal(given["optimizer"], "worker:1bit-adam" if arm.startswith("1 bit") else
                     "adamw", f"--optimizer of {arm}")
    expect("--optimizer worker:1bit-adam" in report_page(out)[0], "the report has no options")

    before = {line["folder"]: os.stat(os.path.join(line["folder"], "log.txt")).st_mtime_ns
              for line in results(out)}
    own[0] = "fast: --lr 0.03 --push int8"
    write(*own[:-1])
    compare(0, "--arms", path, "--resume", *words)
    changed = {line["arm"] for line in results(out) if before[line["folder"]] !=
               os.stat(os.path.join(line["folder"], "log.txt")).st_mtime_ns}
    expect_equal(changed, {"fast"}, "what ran again")


def interrupted(folder):
    """Ctrl-C: a report of what there is, no process left, and --resume goes on"""
    out, mark = os.path.join(folder, "out"), os.path.join(folder, "pid")
    tools = programs(folder, f'case "$*" in *--push=int8*) echo $$ >"{mark}.new"; '
                             f'mv "{mark}.new" "{mark}"; exec sleep 1000;; esac')
    words = ["--data", corpus(folder), *JOB, "--push", "bf16,int8", "--seeds", "2", "--out", out]
    with subprocess.Popen([os.path.join(BIN, "rubato"), "compare", *words, "--bin", tools],
                          env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not os.path.exists(mark):
            expect(process.poll() is None and time.monotonic() < deadline, "it does not come there")
            time.sleep(0.02)
        with open(mark, encoding="utf-8") as file:
            pid = int(file.read())
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    expect_equal(process.returncode, 130, f"the exit code\n{stderr}\n")
    expect(not os.path.exists(f"/proc/{pid}"), "the worker is left behind")
    expect("--resume" in stderr and "bf16" in stdout, "it does not say how to go on")
    expect_equal([line["state"] for line in results(out)], ["ok"] + 3 * ["pending"], "the states")
    expect("--resume" in report_page(out)[0], "the report does not say how to go on")
    check_table(out, stdout)
    done = compare(0, *words, "--resume")
    expect("1 of 4 runs are there already" in done.stderr, "the first run is made again")
    expect_equal([line["state"] for line in results(out)], 4 * ["ok"], "the states")
    check_table(out, done.stdout)
    expect(len(glob.glob(os.path.join(out, "arms", "*"))) == 4, "the runs' folders")


def main():
    failed = 0
    for case in (lists, progress, grid, again, own_options, interrupted):
        print(f"{case.__name__}: {' '.join(case.__doc__.split())}", flush=True)
        with tempfile.TemporaryDirectory(prefix="rubato-compare-") as folder:
            try:
                case(folder)
            except Failure as failure:
                print(f"FAILED: {failure}", flush=True)
                failed += 1
    sys.exit(1 if failed else 0)


main()
