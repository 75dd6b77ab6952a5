#!/usr/bin/env python3
"""Proves that a process that leaves, dies or freezes ends the job for all in time: the others name
who it was and why (exit 69), a signalled one ends with 128 + n (a worker that gets SIGTERM
leaves with 0), and no process is left behind.
"""
import os
import re
import signal
import time

from cluster import PATIENCE_S, SLACK_S, TINY, expect, main, wait_until

ENDLESS = [*TINY, "--steps", 1000000000]
PROMPT_S = 1 + SLACK_S  # a departure is noticed within a second
LEASE_S = 1


class Job:
    """A job in the middle of its steps."""

    def __init__(self, cluster, *options, steps=5):
        cluster.run_dir = cluster.path(f"run-{len(cluster.processes)}")
        first = len(cluster.processes)
        servers, _ = cluster.start_job(*ENDLESS, *options)
        self.coordinator = servers[0]
        self.processes = cluster.processes[first:]
        cluster.wait_steps(steps)

    def victims(self):
        return [process.name for process in self.processes]

    def others(self, victim):
        return [process for process in self.processes if process is not victim]

    def name_pattern(self, process):
        """How the others' logs call the process: its role and its process number."""
        role = "worker" if "worker" in process.name else "server"
        return rf"{role} \d+ \([^)]*:{process.pid}\)"


def for_each_member(cluster, check, *options):
    """check(job, victim) for a new job and each of its four processes."""
    for index in range(4):
        job = Job(cluster, *options)
        check(job, job.processes[index])


def check_signal(cluster, number):
    """The victim ends with 128 + n, the others with 69 and the line that says who and why."""
    name = signal.Signals(number).name

    def check(job, victim):
        victim.signal(number)
        victim.wait_exit(128 + number, PROMPT_S)
        if victim is job.coordinator:
            pattern = rf" error .*the coordinator was interrupted by {name}"
        else:
            pattern = rf" error .*{job.name_pattern(victim)}.* left: interrupted by {name}"
        for process in job.others(victim):
            process.wait_exit(69, PROMPT_S)
            process.expect_line(pattern)
        victim.expect_line(rf" info .*interrupted by {name}")

    for_each_member(cluster, check)


def interrupt(cluster):
    """SIGINT to each of coordinator, server and both workers in mid-run: it exits with 130, the
    others with 69 and its name"""
    check_signal(cluster, signal.SIGINT)


def terminate(cluster):
    """SIGTERM in mid-run: a server exits with 143, the others with 69 and its name; a worker leaves
    after its step with 0, the job goes on with the other, and ends when that one leaves, too; a
    second SIGTERM ends a worker at once"""
    for index in range(2):
        job = Job(cluster)
        victim = job.processes[index]
        victim.signal(signal.SIGTERM)
        victim.wait_exit(143, PROMPT_S)
        for process in job.others(victim):
            process.wait_exit(69, PROMPT_S)
            process.expect_line(r" error .*left: interrupted by SIGTERM"
                                if victim is not job.coordinator
                                else r" error .*the coordinator was interrupted by SIGTERM")
    job = Job(cluster)
    first, second = job.processes[2:]
    first.signal(signal.SIGTERM)
    first.wait_exit(0, PROMPT_S)
    first.expect_line(" info SIGTERM: leaving the job")
    job.coordinator.wait_line(rf" info {job.name_pattern(first)}.* the job goes on", PROMPT_S)
    time.sleep(0.5)
    expect(all(process.running() for process in job.others(first)), "the job did not go on")
    second.signal(signal.SIGTERM)
    second.wait_exit(0, PROMPT_S)
    for process in job.processes[:2]:
        process.wait_exit(69, PROMPT_S)
        process.expect_line(" error .*all workers have left")
    job = Job(cluster, "--lease", 30)
    victim, frozen = job.processes[2:]
    frozen.signal(signal.SIGSTOP)  # the victim's round can't close now
    time.sleep(0.3)
    victim.signal(signal.SIGTERM)
    victim.wait_line("leaving the job", PROMPT_S)
    victim.signal(signal.SIGTERM)
    victim.wait_exit(-signal.SIGTERM, PROMPT_S)
    frozen.signal(signal.SIGCONT)


def kill(cluster):
    """SIGKILL to each in mid-run: within a second the others say that it is lost, exit with 69"""

    def check(job, victim):
        victim.signal(signal.SIGKILL)
        victim.wait_exit(-signal.SIGKILL, PROMPT_S)
        if victim is job.coordinator:
            pattern = rf" error coordinator {re.escape(cluster.address)} lost"
        else:
            pattern = rf" error .*{job.name_pattern(victim)}.* lost"
        for process in job.others(victim):
            process.wait_exit(69, PROMPT_S)
            process.expect_line(pattern)

    for_each_member(cluster, check)


def freeze(cluster):
    """SIGSTOP to each in mid-run: after a lease of 1 s, and not before, the others say that it was
    silent, and exit with 69; when it goes on it ends by itself with 69, too"""

    def check(job, victim):
        stopped = time.monotonic()
        victim.signal(signal.SIGSTOP)
        if victim is job.coordinator:
            pattern = rf" error coordinator {re.escape(cluster.address)} silent for"
        else:
            pattern = rf" error .*{job.name_pattern(victim)}.* silent for 1[.]0 s"
        for process in job.others(victim):
            left_s = LEASE_S + PROMPT_S - (time.monotonic() - stopped)
            process.wait_exit(69, max(left_s, 0.1))
            process.expect_line(pattern)
        # The victim's last sign of life was at most a beat, a tenth of a lease, old.
        expect(time.monotonic() - stopped > 0.8 * LEASE_S, "the others did not wait for the lease")
        victim.signal(signal.SIGCONT)
        victim.wait_exit(69, LEASE_S + PROMPT_S)
        expect(victim.lines("error"), f"{victim.name} does not say why it ends")

    for_each_member(cluster, check, "--lease", LEASE_S)


def pause(cluster):
    """a worker and a server that are stopped for less than a lease delay the job, nothing else"""
    job = Job(cluster, "--lease", 20)
    for process in job.processes[1:3]:
        process.signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.signal(signal.SIGCONT)
        cluster.wait_steps(cluster.steps() + 20)
    expect(all(process.running() for process in job.processes), "a process has ended")


def interrupt_while_waiting(cluster):
    """SIGINT to who waits for the job to gather: 130 at once, dialling or joined; the coordinator's
    departure ends those who have joined"""
    dialling = cluster.worker(name="dialling worker")
    dialling.wait_line("waiting for the coordinator", PATIENCE_S)
    dialling.signal(signal.SIGINT)
    dialling.wait_exit(130, PROMPT_S)
    coordinator = cluster.coordinator(*ENDLESS, workers=3)
    joined = [cluster.server(), cluster.worker(name="worker a"), cluster.worker(name="worker b")]
    joined[0].wait_line("waiting for 1 of 3 workers", PATIENCE_S)
    joined[1].signal(signal.SIGTERM)
    joined[1].wait_exit(143, PROMPT_S)
    joined[0].wait_line("waiting for 2 of 3 workers", PROMPT_S)
    coordinator.signal(signal.SIGINT)
    coordinator.wait_exit(130, PROMPT_S)
    for process in (joined[0], joined[2]):
        process.wait_exit(69, PROMPT_S)
        process.expect_line(" error .*the coordinator was interrupted by SIGINT")


def children_of(pid):
    """Processes whose parent this is."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def launch(cluster, *options):
    command = [cluster.program("rubato"), "launch", "--servers", 2, "--workers", 2, "--data",
               cluster.data, "--run-dir", cluster.run_dir, "--eval-every", 0, "--sample-tokens", 0,
               *options]
    return cluster.start("launch", command)


def launched(cluster):
    """`rubato launch` of 2 servers and 2 workers: SIGINT ends it with 130, SIGTERM with 143,
    SIGKILL to one worker with 137 and the worker's name; no child is left"""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, None)):
        cluster.run_dir = cluster.path(f"run-{number}")
        launcher = launch(cluster, *ENDLESS)
        cluster.wait_steps(5)
        children = children_of(launcher.pid)
        expect(len(children) == 4, f"four children are expected: {children}")
        if code is not None:
            launcher.signal(number)
            launcher.wait_exit(code, 10 + SLACK_S)
        else:
            workers = [pid for pid in children
                       if "rubato-worker" in os.readlink(f"/proc/{pid}/exe")]
            os.kill(workers[1], number)
            launcher.wait_exit(128 + number, 10 + SLACK_S)
            launcher.expect_line(r"worker [01] failed first: signal 9")
        wait_until(lambda pids=tuple(children): not any(is_alive(pid) for pid in pids), PROMPT_S,
                   "all children have ended")


if __name__ == "__main__":
    main(__doc__, [interrupt, terminate, kill, freeze, pause, interrupt_while_waiting, launched],
         parallel=2)
