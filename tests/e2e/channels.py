#!/usr/bin/env python3
"""Proves which data channel processes of one host take: shared memory by themselves, UCX where one
side has only that, with the same weights, bit for bit; that two sides without a kind in common are
refused; and that a killed worker leaves nothing mapped in the servers that go on.
"""
import re
import signal

from cluster import PATIENCE_S, TINY, TINY_JOB, expect, expect_equal, main, wait_until


def job(cluster, name, server_channel, worker_channels):
    """A job of one server and two workers; its processes, ended, and its weights."""
    cluster.run_dir = cluster.path(name)
    cluster.processes = []
    cluster.coordinator(*TINY_JOB, "--channel", server_channel, servers=1)
    for rank, channel in enumerate(worker_channels):
        cluster.worker("--channel", channel, "--index", rank, name=f"worker {rank}")
    cluster.finish_job()
    return cluster.processes, cluster.model_bytes()


def by_themselves(cluster):
    """auto is shared memory here, and its weights are those of --channel ucx and shm"""
    (server, *workers), shared = job(cluster, "auto", "auto", ["auto", "auto"])
    server.expect_line(r"data: 2 of 2 connections to workers by shared memory")
    for worker in workers:
        worker.expect_line(r"data: 1 of 1 connections to shards by shared memory")
    (server, *workers), alone = job(cluster, "shm", "shm", ["shm", "shm"])
    server.expect_line(r"data: 2 of 2 connections to workers by shared memory")
    expect("UCX" not in server.err(), "--channel shm speaks of UCX")
    processes, network = job(cluster, "ucx", "ucx", ["ucx", "ucx"])
    for process in processes:
        expect("shared memory" not in process.err(), "--channel ucx speaks of shared memory")
    expect(shared == network, "weights over shared memory are not those over UCX")
    expect(shared == alone, "weights of --channel shm are not those of auto")


def mixed(cluster):
    """a worker with --channel ucx and one with shm in a job of auto: each by its own, same bits"""
    (server, other, local), weights = job(cluster, "mixed", "auto", ["ucx", "shm"])
    server.expect_line(r"data: 1 of 2 connections to workers by shared memory")
    local.expect_line(r"data: 1 of 1 connections to shards by shared memory")
    expect("shared memory" not in other.err(), "--channel ucx speaks of shared memory")
    _, network = job(cluster, "ucx", "ucx", ["ucx", "ucx"])
    expect(weights == network, "weights of a mixed job are not those over UCX")


def nothing_in_common(cluster):
    """--channel shm at the server, ucx at a worker: both end and say why"""
    server = cluster.coordinator(*TINY_JOB, "--channel", "shm", servers=1, workers=1)
    worker = cluster.worker("--channel", "ucx")
    codes = [process.popen.wait(PATIENCE_S) for process in (server, worker)]
    expect(all(code != 0 for code in codes), f"exit codes {codes}")
    said = server.err() + worker.err()
    expect("no kind in common" in said, "neither says that they have no kind in common")


def contradiction(cluster):
    """--channel shm with a network device is refused: exit 2"""
    worker = cluster.worker("--channel", "shm", "--net-devices", "lo")
    worker.wait_exit(2)
    worker.expect_line(r" error --channel shm .*: leave out --net-devices and --tls")


def mappings(process):
    """Pieces of shared memory that the process maps."""
    with open(f"/proc/{process.pid}/maps", encoding="ascii", errors="replace") as file:
        return sum("/memfd:rubato" in line for line in file)


def exported_variables(cluster):
    """UCX_ALLOC_PRIO, which ends a process that lets UCX read it, and UCX_TCP_RCVBUF, which stops
    it, are exported: the launcher says once that they are ignored, a process by itself says so,
    too, and the job ends well"""
    exported = {"UCX_ALLOC_PRIO": "none", "UCX_TCP_RCVBUF": "4k"}
    said = r" warn ignored, though exported: UCX_\w+, UCX_\w+; .*--net-devices and --tls"
    launch = cluster.start("launch", [
        cluster.program("rubato"), "launch", "--channel", "ucx", "--data", cluster.data,
        "--run-dir", cluster.run_dir, "--eval-every", 0, "--sample-tokens", 0, *TINY_JOB], exported)
    launch.wait_exit(0)
    expect_equal(len(re.findall(said, launch.err() + launch.out())), 1, "lines about them")
    processes = [cluster.coordinator(*TINY_JOB, "--channel", "ucx", servers=1, workers=1,
                                     environment=exported),
                 cluster.worker("--channel", "ucx", environment=exported)]
    cluster.finish_job()
    for process in processes:
        process.expect_line(said)


def killed_worker(cluster):
    """async: workers are killed one after the other; the server keeps none of their memory"""
    server = cluster.coordinator(*TINY, "--steps", 1000000000, "--mode", "async",
                                 "--sync-warmup", 0, servers=1, workers=3)
    workers = [cluster.worker("--index", rank, name=f"worker {rank}") for rank in range(3)]
    cluster.wait_steps(20)
    counts = [mappings(server)]
    for worker in workers[:0:-1]:
        worker.signal(signal.SIGKILL)
        worker.popen.wait()
        steps = cluster.steps()
        cluster.wait_steps(steps + 10)
        wait_until(lambda: mappings(server) < counts[-1], PATIENCE_S, "a dead worker's memory")
        counts.append(mappings(server))
    expect_equal(counts[0] - counts[1], counts[1] - counts[2], "what the second one left")
    expect(server.running() and workers[0].running(), "the job ended with the killed workers")


if __name__ == "__main__":
    main(__doc__, [by_themselves, mixed, nothing_in_common, contradiction, exported_variables,
                   killed_worker])
