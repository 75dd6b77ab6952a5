#!/usr/bin/env python3
"""Proves that two values of an option of the job never train together: both sides are told which
option, both values and who gave them (exit 78), and a job that runs is not disturbed by newcomers.
"""
import signal

from cluster import SLACK_S, TINY, TINY_JOB, expect, expect_equal, main

PROMPT_S = 10 + SLACK_S  # a refusal is prompt: well below any time-out


def expect_refused(processes, option, one, other):
    """Each ends with 78 and one line that names the option, both values and both sides."""
    for process in processes:
        process.wait_exit(78, PROMPT_S)
        process.expect_line(rf" error {option}: {one} \(.+\) is not {other} \(.+\)$")


def conflict(cluster, option, one, other):
    coordinator = cluster.coordinator(f"--{option}", one, servers=1, workers=1)
    worker = cluster.worker(f"--{option}", other)
    expect_refused([coordinator, worker], option, one, other)
    for process in (coordinator, worker):
        process.expect_line(
            rf"{one} \(the coordinator\) is not {other} \(worker on .*:{worker.pid}\)")


def conflict_lr(cluster):
    """--lr 0.001 at the coordinator, 0.002 at a worker"""
    conflict(cluster, "lr", "0.001", "0.002")


def conflict_mode(cluster):
    """--mode sync at the coordinator, ssp:3 at a worker"""
    conflict(cluster, "mode", "sync", "ssp:3")


def conflict_push(cluster):
    """--push int8 at the coordinator, none at a worker"""
    conflict(cluster, "push", "int8", "none")


def conflict_seq_len(cluster):
    """--seq-len 16 at the coordinator, 32 at a worker"""
    conflict(cluster, "seq-len", "16", "32")


def conflict_of_default(cluster):
    """a value that is given beats nobody's default: --lease 5, the default, given at the
    coordinator, 6 at a worker is a conflict as any other"""
    conflict(cluster, "lease", "5", "6")


def conflict_of_workers(cluster):
    """--lr 0.001 at one worker, 0.002 at another: all three processes say so"""
    coordinator = cluster.coordinator(servers=1, workers=2)
    first = cluster.worker("--lr", "0.001", name="worker a")
    first.wait_line("waiting for 1 of 2 workers", PROMPT_S)
    second = cluster.worker("--lr", "0.002", name="worker b")
    expect_refused([coordinator, first, second], "lr", "0.001", "0.002")
    second.expect_line(rf"\(worker on .*:{first.pid}\) is not 0.002 \(worker on .*:{second.pid}\)")


def conflict_of_servers(cluster):
    """--optimizer adamw at the coordinator, sgd at a server; two options at once: a line each"""
    coordinator = cluster.coordinator("--optimizer", "adamw", "--clip", 1, workers=1)
    server = cluster.server("--optimizer", "sgd", "--clip", "0.5")
    expect_refused([coordinator, server], "optimizer", "adamw", "sgd")
    expect_refused([coordinator, server], "clip", "1", "0.5")
    server.expect_line(rf"is not sgd \(server on .*:{server.pid}\)")


def same_value(cluster):
    """one value in several spellings, 1e-3 and 0.001, and by variable, is no conflict"""
    cluster.coordinator(*TINY_JOB, "--lr", "1e-3", servers=1, workers=2)
    cluster.worker("--lr", "0.001", name="worker a")
    cluster.worker(name="worker b", environment={"RUBATO_LR": "0.0010"})
    cluster.finish_job()


def newcomers(cluster):
    """to a job that runs: a worker with another --lr (78), one that is one too many (73), a server
    too many (73), one with another --seq-len (78) are turned away, and the job finishes with 0"""
    servers, workers = cluster.start_job(*TINY, "--steps", 300, "--lr", "0.001", "--lease", 60)
    cluster.wait_steps(3)
    # The job must outlast the newcomers on a machine of any speed: one worker pauses, less than a
    # lease, and in sync mode the others wait for it.
    workers[1].signal(signal.SIGSTOP)
    other = cluster.worker("--lr", "0.002", name="other worker")
    extra = cluster.worker(name="extra worker")
    extra_server = cluster.server("--lr", "0.001", name="extra server")
    other_server = cluster.server("--seq-len", 17, name="other server")
    expect_refused([other], "lr", "0.001", "0.002")
    expect_refused([other_server], "seq-len", "16", "17")
    extra.wait_exit(73, PROMPT_S)
    extra.expect_line(r" error .*the job has all its workers")
    extra_server.wait_exit(73, PROMPT_S)
    extra_server.expect_line(r" error .*the job has all its servers")
    workers[1].signal(signal.SIGCONT)
    for process in servers + workers:
        process.wait_exit(0)
    expect_equal(cluster.steps(), 300, "steps of the job")
    for who in (other, extra):
        expect(f":{who.pid}" in servers[0].err(), f"the coordinator does not name {who.name}")


def extra_worker_in_motion(cluster):
    """a newcomer's refusal leaves a job alone that is in the middle of its steps"""
    servers, workers = cluster.start_job(*TINY, "--steps", 1000000, "--mode", "async")
    cluster.wait_steps(10)
    for _ in range(3):
        steps = cluster.steps()
        cluster.worker(name="extra worker").wait_exit(73, PROMPT_S)
        cluster.wait_steps(steps + 50)
    expect(all(process.running() for process in servers + workers), "the job has ended")


if __name__ == "__main__":
    main(__doc__, [conflict_lr, conflict_mode, conflict_push, conflict_seq_len, conflict_of_default,
                   conflict_of_workers, conflict_of_servers, same_value, newcomers,
                   extra_worker_in_motion], parallel=3)
