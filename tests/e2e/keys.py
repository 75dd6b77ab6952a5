#!/usr/bin/env python3
"""Proves that nobody without the job's key joins a job that has one, that a key which others can
read is not used, and that beyond this machine nothing is spoken without a key."""
import os
import random
import socket

from cluster import PATIENCE_S, SLACK_S, TINY_JOB, expect, expect_equal, main

PROMPT_S = 10 + SLACK_S  # a refusal is prompt: well below the 60 s of --join-timeout


def make_key(cluster, name):
    tool = cluster.start("keygen", [cluster.program("rubato"), "keygen", cluster.path(name)])
    tool.wait_exit(0)
    cluster.processes.remove(tool)
    return cluster.path(name)


def expect_denied(process, pattern):
    """The process ends with 77 and one error line."""
    process.wait_exit(77, PROMPT_S)
    process.expect_line(rf" error .*{pattern}")
    expect_equal(len(process.lines("error")), 1, f"error lines of {process.name}")


def matching_key(cluster):
    """a key of `rubato keygen` is 0600 and 64 digits, and a whole job runs with it"""
    key = make_key(cluster, "job.key")
    expect_equal(os.stat(key).st_mode & 0o7777, 0o600, "mode of the key file")
    with open(key, encoding="ascii") as file:
        text = file.read()
    expect(len(text) == 65 and set(text[:64]) <= set("0123456789abcdef"), "not 64 digits")
    cluster.key_options = ["--key-file", key]
    cluster.start_job(*TINY_JOB)
    cluster.finish_job()
    expect_equal(cluster.steps(), 5, "steps of the job")


def keygen_keeps(cluster):
    """keygen never overwrites a file (73), and two keys differ"""
    key, other = make_key(cluster, "job.key"), make_key(cluster, "other.key")
    with open(key, "rb") as file, open(other, "rb") as second:
        before = file.read()
        expect(before != second.read(), "two keys are equal")
    again = cluster.start("keygen", [cluster.program("rubato"), "keygen", key])
    again.wait_exit(73)
    again.expect_line(rf" error .*{key}")
    with open(key, "rb") as file:
        expect_equal(file.read(), before, "the key file")


def wrong_key(cluster):
    """a worker and a server with another key are told so (77), and the job goes on without them"""
    key, other = make_key(cluster, "job.key"), make_key(cluster, "other.key")
    cluster.key_options = ["--key-file", key]
    waiting = [cluster.coordinator(*TINY_JOB), cluster.server(name="server 1")]
    waiting[1].wait_line("waiting for 2 of 2 workers", PATIENCE_S)
    cluster.key_options = ["--key-file", other]
    intruders = [cluster.worker(name="intruder"), cluster.server(name="second intruder")]
    for process in intruders:
        expect_denied(process, f"coordinator {cluster.address}: .*key")
    cluster.key_options = ["--key-file", key]
    waiting += [cluster.worker(name="worker 0"), cluster.worker(name="worker 1")]
    for process in waiting:
        process.wait_exit(0)


def key_missing_at_worker(cluster):
    """a worker without a key at a coordinator that has one ends with 77, and the job goes on"""
    key = make_key(cluster, "job.key")
    coordinator = cluster.coordinator(*TINY_JOB, "--key-file", key, servers=1, workers=1)
    coordinator.wait_line("waiting for 1 of 1 worker", PATIENCE_S)
    expect_denied(cluster.worker(name="intruder"), f"coordinator {cluster.address}: .*key")
    worker = cluster.worker("--key-file", key)
    for process in (coordinator, worker):
        process.wait_exit(0)


def key_missing_at_coordinator(cluster):
    """a worker with a key at a coordinator that has none ends with 77: it does not fall back"""
    key = make_key(cluster, "job.key")
    coordinator = cluster.coordinator(*TINY_JOB, servers=1, workers=1)
    coordinator.wait_line("waiting for 1 of 1 worker", PATIENCE_S)
    expect_denied(cluster.worker("--key-file", key), f"coordinator {cluster.address}: .*key")
    expect(coordinator.running(), "the coordinator has ended")


def unusable_key_files(cluster):
    """a key file that others can read, that is malformed, empty, too long, a folder or missing is
    refused with 77 and a line that names it"""
    good = bytes(random.Random(2).choices(b"0123456789abcdef", k=64))
    files = {
        "open.key": (good + b"\n", 0o644, "mode 0644.*chmod 600"),
        "group.key": (good + b"\n", 0o640, "mode 0640"),
        "letters.key": (b"x" * 64 + b"\n", 0o600, "malformed"),
        "short.key": (good[:62] + b"\n", 0o600, "malformed"),
        "long.key": (good + b"00\n", 0o600, "malformed"),
        "empty.key": (b"", 0o600, "malformed"),
    }
    for name, (content, mode, pattern) in files.items():
        path = cluster.write(name, content)
        os.chmod(path, mode)
        expect_denied(cluster.worker("--key-file", path), f"{path}.*{pattern}")
        expect_denied(cluster.coordinator("--key-file", path), f"{path}.*{pattern}")
    missing = cluster.path("missing.key")
    expect_denied(cluster.worker("--key-file", missing), f"{missing}.*No such file")
    expect_denied(cluster.worker("--key-file", cluster.folder), f"{cluster.folder}.*regular file")
    expect(not os.path.exists(cluster.run_dir), "a run folder was written")


def own_address():
    """The address of an interface of this machine that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def beyond_loopback(cluster):
    """without a key: 0.0.0.0 and an interface's address are refused (77) with a hint at keygen and
    --insecure, by who listens and by who dials; loopback is not"""
    addresses = ["0.0.0.0", "[::]"] + ([own_address()] if own_address() else [])
    for host in addresses:
        escaped = host.replace("[", "").replace("]", "").replace(".", "[.]")
        pattern = escaped + ".* not loopback.*rubato keygen.*--key-file.*--insecure"
        expect_denied(cluster.coordinator(listen=f"{host}:{cluster.port}"), pattern)
        expect_denied(cluster.worker(join=f"{host}:{cluster.port}"), pattern)
    expect_denied(cluster.coordinator("--bind", f"0.0.0.0:{cluster.port}"),
                  "0[.]0[.]0[.]0.* not loopback")
    coordinator = cluster.coordinator(servers=1, workers=1)
    coordinator.wait_line("listening at 127.0.0.1", PATIENCE_S)


def insecure(cluster):
    """with --insecure a job on all interfaces starts, warns once, and finishes"""
    coordinator = cluster.coordinator(*TINY_JOB, "--insecure", servers=1, workers=1,
                                      listen=f"0.0.0.0:{cluster.port}")
    host = own_address() or "127.0.0.1"
    worker = cluster.worker("--insecure", join=f"{host}:{cluster.port}")
    for process in (coordinator, worker):
        process.wait_exit(0)
    coordinator.expect_line(r" warn --insecure: whoever reaches 0[.]0[.]0[.]0")


def key_on_all_interfaces(cluster):
    """with a key a job on all interfaces starts and finishes without --insecure"""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    cluster.coordinator(*TINY_JOB, servers=1, workers=1, listen=f"0.0.0.0:{cluster.port}")
    cluster.worker(join=f"{own_address() or '127.0.0.1'}:{cluster.port}")
    cluster.finish_job()


if __name__ == "__main__":
    main(__doc__, [matching_key, keygen_keeps, wrong_key, key_missing_at_worker,
                   key_missing_at_coordinator, unusable_key_files, beyond_loopback, insecure,
                   key_on_all_interfaces], parallel=3)
