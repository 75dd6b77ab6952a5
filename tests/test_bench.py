#!/usr/bin/env python3
"""`rubato bench`: that each kind measures what it says, with each kind of channel, and refuses what
it cannot do.

usage: test_bench.py BIN

Figures are checked for what they must be whatever the machine: a message's payload times the
number of messages is what was moved; with an answer each message moves twice as much; wire bytes
are payloads, as the codec makes them, and headers of 96 bytes; nothing is asserted on time.
Payloads arrive whole: runs with --checksum fail otherwise.
"""
import json
import os
import subprocess
import sys
import tempfile

HEADER = 96
LIMIT_S = 100
BUSY_TRIES = 4  # a machine may be too busy to bring one message to its end in a short run


def bench(*words):
    return subprocess.run([os.path.join(sys.argv[1], "rubato"), "bench", *words], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)


def rows(*words):
    seconds = 0.3
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.jsonl")
        for _ in range(BUSY_TRIES):
            done = bench(*words, "--seconds", str(seconds), "--json", path)
            if "nothing came to its end" not in done.stderr:
                break
            seconds *= 4
        if done.returncode != 0:
            sys.exit(f"{words}: exit code {done.returncode}: {done.stderr}")
        with open(path, encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
    table = done.stdout.splitlines()
    if len(table) != 2 + len(found):
        sys.exit(f"{words}: {len(found)} rows, but the table is\n{done.stdout}")
    return found


def expect(condition, what):
    if not condition:
        sys.exit(f"test_bench.py: {what}")


def near(actual, wanted, slack, what):
    expect(abs(actual - wanted) <= slack, f"{what} is {actual}, expected {wanted} +- {slack}")


def exchange(channel, direction, *more):
    """A snapshot may fall between the parts of a message that is under way."""
    size, depth, ends = 65536, 2, 4
    found = rows("exchange", "--channel", channel, "--direction", direction, "--bytes", str(size),
                 "--depth", str(depth), "--checksum", *more)
    expect(len(found) == 1, "one size is one row")
    row = found[0]
    expect(row["direction"] == direction and row["channel"] == channel, "the row says what it is")
    moved = size * (2 if direction == "both" else 1)
    slack = 8 * moved * depth * ends
    near(row["payload_gb"] * 1e9, row["messages"] * moved, slack, f"payload of {direction}")
    headers = HEADER * row["messages"] * (1 if direction == "push" else 2)
    near((row["wire_gb"] - row["payload_gb"]) * 1e9, headers, 8 * HEADER * depth * ends, "headers")
    expect(row["median_us"] <= row["p99_us"], "the median is not above the 99th percentile")
    expect(row["server_cpu_s"] > 0 and row["workers_cpu_s"] > 0, "both sides use the processor")


def shards(kind, *more):
    blocks, size = 3, 4096
    row = rows(kind, "--bytes", str(size), "--blocks", str(blocks), "--push", "int8", *more)[0] \
        if kind == "push" else rows(kind, "--bytes", str(size), "--blocks", str(blocks), *more)[0]
    near(row["payload_gb"] * 1e9, row["messages"] * size, 1, "f32 bytes: one block an answer")
    a_message = round(row["wire_gb"] * 1e9 / row["messages"], 3)  # GB have been rounded
    # bf16 weights and two headers; an int8 push has a byte a value and its scales.
    least = 2 * HEADER + size // 2 + (size // 4 if kind == "push" else 0)
    expect(least <= a_message <= least + size // 8, f"wire bytes of a {kind}: {a_message}")


def apply():
    blocks, size, workers = 2, 8192, 3
    row = rows("apply", "--bytes", str(size), "--blocks", str(blocks), "--workers", str(workers),
               "--push", "none", "--pull", "none")[0]
    near(row["payload_gb"] * 1e9, row["messages"] * size, 1, "values applied")
    near(row["wire_gb"] * 1e9, row["messages"] * 2 * (HEADER + size), 1, "f32 both ways")
    near(row["messages"] % (blocks * workers), 0, 0, "whole rounds")


def refusals():
    cases = [
        ((), "say what to measure"),
        (("flight",), "'flight' is nothing to measure"),
        (("exchange", "--bytes", "3"), "out of range"),
        (("exchange", "--bytes", "1026"), "no multiple of 4"),
        (("exchange", "--bytes", "1k,"), "not a whole number"),
        (("exchange", "--direction", "up"), "allowed: push, pull, both"),
        (("exchange", "--channel", "pigeon"), "--channel pigeon"),
        (("exchange", "--poll", "never"), "--poll never"),
        (("exchange", "--push", "int8"), "--push"),
        (("exchange", "--channel", "shm", "--tls", "tcp"), "uses no network"),
        (("exchange", "--wire", "encrypt"), "needs --channel tls"),
        (("push", "--direction", "both"), "--direction"),
        (("push", "--push", "int3"), "--push int3"),
        (("apply", "--shards", "2"), "--shards"),
        (("apply", "--pull", "delta-int8", "--optimizer", "worker:adamw"), "leave --pull out"),
    ]
    for words, reason in cases:
        done = bench(*words)
        expect(done.returncode == 2, f"{words}: exit code {done.returncode}: {done.stderr}")
        expect(reason in done.stderr, f"{words}: '{reason}' is not in {done.stderr}")
        expect(done.stdout == "", f"{words}: refused after the table has begun")
    done = bench("exchange", "--json", "/nonexistent/rows", "--seconds", "0.05")
    expect(done.returncode == 73, f"a file that cannot be made: exit code {done.returncode}")
    done = bench("exchange", "--net-devices", "nonesuch0", "--seconds", "0.05")
    expect(done.returncode == 2, f"a device that is not there: exit code {done.returncode}")
    done = bench("--help")
    expect(done.returncode == 0 and "examples:" in done.stdout, "--help has examples")


def main():
    exchange("ucx", "push")
    exchange("ucx", "both", "--workers", "2", "--shards", "2", "--poll", "adaptive")
    exchange("shm", "pull")
    exchange("shm", "push", "--poll", "busy")
    exchange("tls", "both")
    exchange("tls", "pull", "--wire", "plain")
    expect(len(rows("exchange", "--bytes", "1k,4k", "--channel", "shm")) == 2, "a row a size")
    shards("push", "--workers", "2", "--shards", "2")
    shards("pull", "--channel", "shm")
    apply()
    refusals()


main()
