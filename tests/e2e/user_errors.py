#!/usr/bin/env python3
"""Proves that each mistake of a user's gives its exit code and exactly one error line, which names
what is wrong and where, and that nothing is written and nobody is dialled before."""
import os
import socket
import struct

from cluster import PATIENCE_S, SLACK_S, TINY, TINY_JOB, expect, expect_equal, main, seeded_text

PROMPT_S = 5 + SLACK_S  # before any peer is waited for


def expect_error(cluster, process, code, *patterns):
    """One error line, which matches all patterns; nothing but the two logs is written."""
    process.wait_exit(code, PROMPT_S)
    errors = process.lines("error")
    expect_equal(len(errors), 1, f"error lines of {process.name}")
    for pattern in patterns:
        process.expect_line(rf" error .*{pattern}")
    expect_equal(process.out(), "", "standard output")
    for folder in (cluster.run_dir, cluster.path("runs")):
        expect(not os.path.exists(folder), f"{folder} was written")


def tokens_file(cluster, name, tokens, count=None):
    """An llm.c .bin of 16 bit tokens."""
    header = struct.pack("<256i", 20240520, 1, len(tokens) if count is None else count,
                         *[0] * 253)
    return cluster.write(name, header + struct.pack(f"<{len(tokens)}H", *tokens))


def port_in_use(cluster):
    """a port that somebody has: 73, and the line names host and port"""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", cluster.port))
        holder.listen()
        expect_error(cluster, cluster.coordinator(*TINY_JOB), 73, cluster.address, "in use")


def port_of_a_job(cluster):
    """a second coordinator at the first one's port: 73, and the first one's job goes on"""
    first = cluster.coordinator(*TINY_JOB, servers=1, workers=1)
    first.wait_line("listening at", PATIENCE_S)
    expect_error(cluster, cluster.coordinator(*TINY_JOB), 73, cluster.address, "in use")
    worker = cluster.worker()
    for process in (first, worker):
        process.wait_exit(0)


def address_of_nobody(cluster):
    """an address that is not this machine's: 73, named"""
    process = cluster.coordinator("--insecure", listen=f"192.0.2.1:{cluster.port}")
    expect_error(cluster, process, 73, f"192.0.2.1:{cluster.port}", "annot assign")


def too_few_files(cluster):
    """a hard limit of files that is too low for the job's workers: 74 before anybody joins, with
    both numbers and how to raise it; for the launcher, too"""
    process = cluster.start_limited("coordinator", "-n 100", "rubato-server", "--listen",
                                    cluster.address, "--servers", 1, "--workers", 40, *TINY_JOB)
    expect_error(cluster, process, 74, "may open 100 files and needs 169 .*`ulimit -n`")
    process = cluster.start_limited("launch", "-n 100", "rubato", "launch", "--workers", 40,
                                    "--data", cluster.data, *TINY_JOB)
    expect_error(cluster, process, 74, "may open 100 files and needs 146 .*`ulimit -n`")


def data_unreadable(cluster):
    """a data file that is not there, a folder, or an empty file: 66, named"""
    missing = cluster.path("missing.txt")
    expect_error(cluster, cluster.worker(data=missing), 66, missing, "No such file")
    expect_error(cluster, cluster.worker(data=cluster.folder), 66, cluster.folder, "not a file")
    empty = cluster.write("empty.txt", b"")
    expect_error(cluster, cluster.worker(data=empty), 66, empty, "empty")
    expect_error(cluster, cluster.worker("--val-data", missing), 66, missing, "No such file")


def data_forbidden(cluster):
    """a data file that may not be read: 66, named"""
    if os.geteuid() == 0:
        return  # root reads everything
    path = cluster.write("secret.txt", seeded_text(1000))
    os.chmod(path, 0)
    expect_error(cluster, cluster.worker(data=path), 66, path, "Permission denied")


def data_too_short(cluster):
    """a file shorter than a sequence: 66, with both lengths"""
    short = cluster.write("short.txt", seeded_text(100))
    expect_error(cluster, cluster.worker("--seq-len", 256, data=short), 66, short, "256")
    expect_error(cluster, cluster.worker("--seq-len", 16, "--val-data",
                                         cluster.write("val.txt", b"abc")), 66, "val.txt", "16")


def token_beyond_vocabulary(cluster):
    """llm.c tokens: one of 50257, not below the vocabulary, is named by file, byte, value: 65"""
    path = tokens_file(cluster, "tokens.bin", [7] * 5000 + [50257] + [7] * 500)
    worker = cluster.worker("--vocab", 50257, data=path)
    expect_error(cluster, worker, 65, path, "token 50257", f"byte {1024 + 2 * 5000}", "50257$")
    bytes_file = cluster.write("bytes.txt", b"a" * 2000 + b"\xff" + b"a" * 100)
    worker = cluster.worker("--seq-len", 16, "--vocab", 128, data=bytes_file)
    expect_error(cluster, worker, 65, bytes_file, "token 255", "byte 2000", "128$")


def damaged_tokens(cluster):
    """llm.c .bin cut short, with a header cut short, or of another version: 65, with the numbers"""
    path = tokens_file(cluster, "cut.bin", [7] * 5000, count=6000)
    expect_error(cluster, cluster.worker(data=path), 65, path, "6000", "13024", "11024")
    path = cluster.write("header.bin", struct.pack("<3i", 20240520, 1, 5))
    expect_error(cluster, cluster.worker(data=path), 65, path, "byte 12", "header")
    path = cluster.write("version.bin", struct.pack("<256i", 20240520, 9, 5, *[0] * 253))
    expect_error(cluster, cluster.worker(data=path), 65, path, "version 9")
    path = cluster.write("odd.bin", b"\x01\x00" * 500 + b"\x01")
    expect_error(cluster, cluster.worker(data=path), 65, path, "half a token")


def unknown_flags(cluster):
    """an unknown flag, of the program or at all: 2, with the one that was meant"""
    expect_error(cluster, cluster.worker("--step", 5), 2, "--step\\b", "did you mean --steps")
    expect_error(cluster, cluster.worker("--shards", 2), 2, "--shards")
    expect_error(cluster, cluster.coordinator("--worker", 2), 2, "did you mean --workers")
    expect_error(cluster, cluster.coordinator("--data", "x"), 2, "--data")
    expect_error(cluster, cluster.worker("extra"), 2, "extra")
    expect_error(cluster, cluster.worker("--lr"), 2, "--lr")


def bad_values(cluster):
    """a value out of range or not of the type: 2, with option, value and what is allowed"""
    for name, value, allowed in (
            ("lr", "-1", "0 to 1000"), ("lr", "fast", "0 to 1000"), ("lr", "nan", "0 to 1000"),
            ("steps", "0", "1 to 1000000000"), ("batch", "2.5", "1 to 4096"),
            ("steps", "99999999999999999999", "1 to 1000000000"),
            ("mode", "snyc", "sync, ssp:S, async, local:H or diloco:H"),
            ("mode", "ssp:-1", "ssp:S"),
            ("push", "int9", "none, bf16, "), ("model", "gpt3:tiny", "gpt2:"),
            ("lease", "0.1", "0.5 to 300"), ("optimizer", "adam", "adamw, sgd"),
            ("join", "nowhere", "host:port"), ("join", "127.0.0.1:70000", "host:port"),
            ("log-level", "loud", "error, warn, info, debug, trace")):
        expect_error(cluster, cluster.worker(f"--{name}", value), 2, f"--{name}", value, allowed)
    expect_error(cluster, cluster.worker(environment={"RUBATO_STEPS": "many"}), 2, "RUBATO_STEPS",
                 "many")
    config = cluster.write("job.conf", b"lr = 0.001\nstep = 5\n")
    expect_error(cluster, cluster.worker("--config", config), 2, f"{config}, line 2", "--steps")


def missing_options(cluster):
    """a worker without --data, any program without an address, a server with two: 2"""
    worker = [cluster.program("rubato-worker")]
    server = [cluster.program("rubato-server")]
    join = ["--join", cluster.address]
    expect_error(cluster, cluster.start("worker", worker + join), 2, "--data FILE")
    expect_error(cluster, cluster.start("worker", worker + ["--data", cluster.data]), 2, "--join")
    expect_error(cluster, cluster.start("server", server), 2, "--listen", "--join")
    expect_error(cluster, cluster.start("server", server + join + ["--listen", "127.0.0.1:1"]), 2,
                 "--listen", "--join")


def run_folder_cannot_be_made(cluster):
    """--run-dir below a file: the worker ends with 73 and names what is in the way; the others end,
    too, and name the worker"""
    folder = cluster.data + "/run"
    coordinator = cluster.coordinator(*TINY_JOB, servers=1, workers=1)
    worker = cluster.worker("--run-dir", folder)
    worker.wait_exit(73, PROMPT_S)
    worker.expect_line(rf" error .*{cluster.data}")
    coordinator.wait_exit(69, PROMPT_S)
    coordinator.expect_line(r" error .*worker 0 .*run's folder")


def data_does_not_fit_the_job(cluster):
    """a file that is too short for the --seq-len that only the coordinator was given: the worker
    ends with 66 and the lengths, the coordinator with 69 and the worker's name"""
    short = cluster.write("short.txt", seeded_text(1000))
    coordinator = cluster.coordinator(*TINY, "--seq-len", 600, servers=1, workers=1)
    expect_error(cluster, cluster.worker(data=short), 66, short, "600")
    coordinator.wait_exit(69, PROMPT_S)
    coordinator.expect_line(r" error .*worker 0 .*its data does not fit")


def data_fits_the_job(cluster):
    """data that fits the --seq-len and --vocab that only the coordinator was given, and not the
    defaults: with the vocabulary that the data implies the worker ends with 65; the job trains"""
    short = tokens_file(cluster, "short.bin", [7] * 90 + [50257])
    job = ["--model", "gpt2:1x16x2", "--batch", 2, "--seq-len", 16, "--steps", 2]
    coordinator = cluster.coordinator(*job, servers=1, workers=1)
    expect_error(cluster, cluster.worker(data=short), 65, short, "token 50257")
    coordinator.wait_exit(69, PROMPT_S)
    coordinator = cluster.coordinator(*job, "--vocab", 50304, servers=1, workers=1)
    cluster.worker(data=short).wait_exit(0)
    coordinator.wait_exit(0)


def model_is_none(cluster):
    """a --model that has a possible name but does not exist: the worker ends with 2 and names it"""
    coordinator = cluster.coordinator("--model", "gpt2:huge", servers=1, workers=1)
    expect_error(cluster, cluster.worker(), 2, "--model gpt2:huge")
    coordinator.wait_exit(69, PROMPT_S)
    coordinator.expect_line(r" error .*worker 0 ")


if __name__ == "__main__":
    main(__doc__, [port_in_use, port_of_a_job, address_of_nobody, too_few_files, data_unreadable,
                   data_forbidden, data_too_short, data_fits_the_job, token_beyond_vocabulary,
                   damaged_tokens, unknown_flags, bad_values, missing_options,
                   run_folder_cannot_be_made, data_does_not_fit_the_job, model_is_none], parallel=3)
