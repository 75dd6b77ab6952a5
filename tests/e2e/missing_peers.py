#!/usr/bin/env python3
"""Proves that who waits says within 2 s for whom and where, and ends at the deadline, with exit
code 69 and a last line that says so."""
import socket
import time

from cluster import PATIENCE_S, SLACK_S, TINY_JOB, expect, main, wait_until

NAMED_WITHIN_S = 2 + SLACK_S
TIMEOUT = ("--join-timeout", 3)


def expect_waits(processes, pattern):
    """Each says within 2 s of its start for whom it waits."""
    for process in processes:
        process.wait_line(rf" info waiting for {pattern}", NAMED_WITHIN_S)


def expect_end(processes, pattern):
    """Each ends at the deadline of 3 s after its start, neither before nor long after."""
    for process in processes:
        process.wait_exit(69, 3 + SLACK_S)
        expect(time.monotonic() - process.started > 2.5, f"{process.name} gave up too early")
        errors = process.lines("error")
        expect(errors, f"{process.name} ended without an error line")
        process.expect_line(rf" error .*{pattern}")


def worker_without_coordinator(cluster):
    """a worker alone names the address that does not answer, and ends with 69 after 3 s"""
    processes = [cluster.worker(*TIMEOUT)]
    expect_waits(processes, rf"the coordinator at {cluster.address} \(.*refused.*\), \d+ s left")
    expect_end(processes, f"no coordinator at {cluster.address} within 3 s")


def server_without_coordinator(cluster):
    """a server alone names the address that does not answer, and ends with 69 after 3 s"""
    processes = [cluster.server(*TIMEOUT)]
    expect_waits(processes, rf"the coordinator at {cluster.address} \(.*refused.*\)")
    expect_end(processes, f"no coordinator at {cluster.address} within 3 s")


def coordinator_alone(cluster):
    """a coordinator to which nobody comes names who is missing, and ends with 69 after 3 s"""
    processes = [cluster.coordinator(*TINY_JOB, *TIMEOUT)]
    expect_waits(processes, "1 of 2 servers, 2 of 2 workers")
    expect_end(processes, "gave up waiting for 1 of 2 servers, 2 of 2 workers after 3 s")


def missing_worker(cluster):
    """all who are there say that one of two workers is missing, and end with 69 together"""
    processes = [cluster.coordinator(*TINY_JOB, *TIMEOUT), cluster.server(), cluster.worker()]
    expect_waits(processes, "1 of 2 workers")
    expect_end(processes, "1 of 2 workers")


def missing_server(cluster):
    """all who are there say that one of two servers is missing, and end with 69 together"""
    processes = [cluster.coordinator(*TINY_JOB, *TIMEOUT), cluster.worker(name="worker 0"),
                 cluster.worker(name="worker 1")]
    expect_waits(processes, "1 of 2 servers")
    expect_end(processes, "1 of 2 servers")


def impatient_worker(cluster):
    """a worker whose own deadline is first leaves with 69; the others wait on, and with another in
    its place the job finishes"""
    others = [cluster.coordinator(*TINY_JOB), cluster.server()]
    worker = cluster.worker(*TIMEOUT)
    expect_waits(others + [worker], "1 of 2 workers")
    expect_end([worker], f"within 3 s: waiting for 1 of 2 workers .coordinator {cluster.address}")
    others[1].wait_line("waiting for 2 of 2 workers", SLACK_S)
    others += [cluster.worker(name="worker 0"), cluster.worker(name="worker 1")]
    for process in others:
        process.wait_exit(0)


def mute_coordinator(cluster):
    """something that accepts at the address and says nothing is named, and given up after 3 s"""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", cluster.port))
        mute.listen(8)
        processes = [cluster.worker(*TIMEOUT, "--lease", 10)]
        expect_waits(processes, f".*{cluster.address}")
        expect_end(processes, cluster.address)


def foreign_coordinator(cluster):
    """something at the address that is no coordinator (a web server) is named, exit 76"""
    with socket.socket() as web:
        web.bind(("127.0.0.1", cluster.port))
        web.listen(8)
        process = cluster.worker(*TIMEOUT)
        web.settimeout(PATIENCE_S)
        peer, _ = web.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            process.wait_exit(76)
        process.expect_line(rf" error coordinator {cluster.address}")


def lost_before_the_start(cluster):
    """a worker that is killed while the job gathers only makes room: the others say that they wait
    for two again, and the job finishes with those who come"""
    others = [cluster.coordinator(*TINY_JOB), cluster.server()]
    worker = cluster.worker()
    expect_waits(others, "1 of 2 workers")
    worker.popen.kill()
    worker.wait_exit(-9)
    wait_until(lambda: "waiting for 2 of 2 workers" in others[1].err().split("1 of 2 workers")[-1],
               2 + SLACK_S, "the server says that two workers are missing")
    others += [cluster.worker(name="worker 0"), cluster.worker(name="worker 1")]
    for process in others:
        process.wait_exit(0)


if __name__ == "__main__":
    main(__doc__, [worker_without_coordinator, server_without_coordinator, coordinator_alone,
                   missing_worker, missing_server, impatient_worker, mute_coordinator,
                   foreign_coordinator, lost_before_the_start], parallel=5)
