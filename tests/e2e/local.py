#!/usr/bin/env python3
"""Proves with real processes what local steps, quorums and departures promise: local:H and diloco:H
train to the end with few bytes and leave sound files, workers may leave or, under a quorum, die
while the job goes on, a slow worker does not hold a quorum up, and the mode of a running job can be
changed."""
import os
import re
import signal

from cluster import (PATIENCE_S, SLACK_S, TINY, expect, expect_equal, main, read_metrics,
                     read_safetensors)

STEPS = 48
STEP_TOKENS = 2 * 16  # of TINY's --batch and --seq-len
JOB = [*TINY, "--steps", STEPS, "--lr", 0.01]
ENDLESS = [*TINY, "--steps", 1000000000]
PROMPT_S = 1 + SLACK_S


def new_run_dir(cluster):
    cluster.run_dir = cluster.path(f"run-{len(cluster.processes)}")


def metrics_name(rank):
    return "metrics.jsonl" if rank == 0 else f"metrics.rank{rank}.jsonl"


def metrics_of(cluster, rank=0, schema="rubato.step/1"):
    return read_metrics(os.path.join(cluster.run_dir, metrics_name(rank)), schema)


def result_of(process):
    lines = [line for line in process.out().splitlines() if line.startswith("result: ")]
    expect_equal(len(lines), 1, "result lines")
    return dict(word.split("=", 1) for word in lines[0].split()[1:])


def run(cluster, *options, workers=2, worker_options=()):
    new_run_dir(cluster)
    cluster.start_job(*options, workers=workers, worker_options=worker_options)
    cluster.finish_job()
    read_safetensors(cluster.model_bytes())
    return metrics_of(cluster)


def bytes_of(steps):
    return sum(step["push_bytes"] for step in steps)


def local_modes(cluster):
    """local:4, and diloco:8 with and without fragments, overlap, mixing, int8 and padding: exit 0,
    a falling loss, reports of H steps, at most 1/H of sync's bytes"""
    sync = bytes_of(run(cluster, *JOB, "--mode", "sync"))
    for steps, options in ((4, ["--mode", "local:4", "--optimizer", "sgd", "--lr", 0.5]),
                           (8, ["--mode", "diloco:8"]),
                           (8, ["--mode", "diloco:8", "--push", "int8", "--pad-token", 32]),
                           (8, ["--mode", "diloco:8", "--inner-state", "reset"]),
                           (2, ["--mode", "diloco:8", "--fragments", 4, "--overlap", 1,
                                "--mix", 0.5])):
        lines = run(cluster, *JOB, *options)
        expect_equal([line["step"] for line in lines], list(range(1, STEPS + 1)), "steps")
        expect(lines[-1]["loss"] < lines[0]["loss"] - 0.5, f"{options}: nothing was learned")
        expect_equal(lines[-2]["local_steps"], steps, f"local steps of {options}")
        expect_equal(lines[-1]["dropped"], 0, "dropped reports")
        if "--fragments" not in options:
            # The last report is under way when the last line is written, at the latest.
            expect(bytes_of(lines) * steps <= sync, f"{options} sends {bytes_of(lines)} of {sync}")


def diloco_bytes(cluster):
    """diloco:20 pushes at most 1/20 of sync's bytes, as the data channel counts them; with 20
    fragments no step pushes more than twice the mean of all steps"""
    job = [*TINY, "--steps", 60]
    sync = run(cluster, *job, "--mode", "sync")
    whole = run(cluster, *job, "--mode", "diloco:20")
    expect(bytes_of(whole) * 20 <= bytes_of(sync), f"{bytes_of(whole)} of {bytes_of(sync)} bytes")
    # The last line has the reports that follow the last step, too.
    parts = run(cluster, *job, "--mode", "diloco:20", "--fragments", 20)[:-1]
    mean = bytes_of(parts) / len(parts)
    peak = max(step["push_bytes"] for step in parts)
    expect(0 < peak <= 2 * mean, f"a step pushes {peak} bytes, {mean:.0f} in the mean")
    expect(20 * bytes_of(parts) <= bytes_of(sync), "fragments send more")


def repeatable(cluster):
    """a local run with fragments and overlap has the same bits for any number of servers"""
    job = [*JOB, "--mode", "diloco:8", "--fragments", 2, "--overlap", 2]
    models = []
    for servers in (1, 3):
        new_run_dir(cluster)
        cluster.start_job(*job, servers=servers)
        cluster.finish_job()
        models.append(cluster.model_bytes())
    expect(models[0] == models[1], "the servers' number changes the weights")


def check_run_folder(run_dir, saver, rank):
    """The files that the saver names are there, and whole."""
    names = {"model.safetensors", "config.json", metrics_name(rank), "options.conf"}
    (line,) = [line for line in saver.out().splitlines() if line.startswith("files: ")]
    expect_equal(set(re.search(r"\((.*)\)", line)[1].split(", ")), names, "files that are named")
    for name in names:
        size = os.path.getsize(os.path.join(run_dir, name))
        expect(size > 0, f"{name} is empty")
    with open(os.path.join(run_dir, "model.safetensors"), "rb") as file:
        read_safetensors(file.read())
    expect_equal(len(read_metrics(os.path.join(run_dir, metrics_name(rank)), "rubato.result/1")), 1,
                 "results in the metrics")
    with open(os.path.join(run_dir, "options.conf"), encoding="utf-8") as file:
        expect(re.search(rf"^steps = {STEPS}\b", file.read(), re.MULTILINE), "steps in the options")


def start_with_leaver(cluster, mode, leaver):
    """Two workers, of which the one of rank `leaver` leaves after 10 steps."""
    new_run_dir(cluster)
    cluster.coordinator(*JOB, "--mode", mode)
    cluster.server()
    return [cluster.worker("--index", rank, *(["--leave-after", 10] if rank == leaver else []),
                           name=f"worker {rank}") for rank in range(2)]


def leave_after(cluster):
    """--leave-after of either worker in sync, async, local and diloco: it ends with 0, the other
    finishes with 0 and saves the run, whoever it is; the result has the tokens of both"""
    for mode in ("sync", "async", "local:4", "diloco:6"):
        for leaver in (0, 1):
            workers = start_with_leaver(cluster, mode, leaver)
            workers[leaver].wait_exit(0)
            cluster.finish_job()
            expect_equal(result_of(workers[1 - leaver])["steps"], str(STEPS), "steps")
            read_safetensors(cluster.model_bytes())
            left = metrics_of(cluster, leaver)
            expect_equal(left[-1]["step"], 10, f"the last step of the leaver in {mode}")
            if mode != "async":
                stayed = metrics_of(cluster, 1 - leaver)
                expect_equal(stayed[-1]["step"], STEPS, "the last step of the other")
            check_run_folder(cluster.run_dir, workers[1 - leaver], 1 - leaver)
            (result,) = metrics_of(cluster, 1 - leaver, "rubato.result/1")
            expect_equal(result["tokens"], (STEPS + 10) * STEP_TOKENS, f"tokens in {mode}")


def saves_without_run_dir(cluster):
    """a saver of rank 1 without --run-dir makes a folder with all that worker 0's would have"""
    cluster.coordinator(*JOB)
    cluster.server()
    program = os.path.abspath(cluster.program("rubato-worker"))
    workers = [cluster.start(f"worker {rank}", [
        "env", "-C", cluster.folder, program, "--join", cluster.address, "--data", cluster.data,
        "--threads", 1, "--eval-every", 0, "--sample-tokens", 0, "--index", rank,
        *(["--leave-after", 10] if rank == 0 else [])]) for rank in range(2)]
    cluster.finish_job()
    run_dir = cluster.path(result_of(workers[1])["run_dir"])
    check_run_folder(run_dir, workers[1], 1)
    with open(os.path.join(run_dir, metrics_name(1)), encoding="utf-8") as file:
        expect_equal(len(file.read().splitlines()), 1, "lines of metrics, which is the result's")


def quorum_goes_on(cluster):
    """with --backup-workers 1 and in async, a worker that is killed is missed by nobody; without,
    its loss ends the job"""
    for options in (["--backup-workers", 1], ["--mode", "async", "--sync-warmup", 0],
                    ["--mode", "local:3", "--backup-workers", 1, "--grace", 50]):
        new_run_dir(cluster)
        first = len(cluster.processes)
        servers, workers = cluster.start_job(*ENDLESS, *options, workers=3)
        cluster.wait_steps(5)
        ranks = {int(re.search(r"this is worker (\d)", worker.err())[1]): worker
                 for worker in workers}
        ranks[2].signal(signal.SIGKILL)
        servers[0].wait_line(r" warn worker 2 .*lost.*; the job goes on with 2 workers", PROMPT_S)
        cluster.wait_steps(cluster.steps() + 20)
        others = [process for process in cluster.processes[first:] if process is not ranks[2]]
        expect(all(process.running() for process in others), "someone else has ended")
        servers[0].signal(signal.SIGINT)
        for process in others[1:]:
            process.wait_exit(69, PROMPT_S)


def launched_quorum(cluster):
    """`rubato launch` with --backup-workers 1, and with async: a worker that is killed is told of
    in one line, the job ends with its result and 0"""
    for options in (["--backup-workers", 1], ["--mode", "async", "--sync-warmup", 0]):
        new_run_dir(cluster)
        launcher = cluster.start("launch", [
            cluster.program("rubato"), "launch", "--workers", 3, "--threads", 1, "--data",
            cluster.data, "--run-dir", cluster.run_dir, "--eval-every", 0, "--sample-tokens", 0,
            *TINY, "--steps", 2000, *options])
        joined = launcher.wait_line(r"worker 2 \(.*:\d+\) joined", PATIENCE_S)
        cluster.wait_steps(5)
        os.kill(int(re.search(r"worker 2 \(.*:(\d+)\) joined", joined)[1]), signal.SIGKILL)
        launcher.wait_exit(0)
        told = [line for line in launcher.err().splitlines() if "signal 9" in line]
        expect_equal(len(told), 1, f"lines on the killed worker of {options}")
        expect("worker 2" in told[0] and "may go on" in told[0], told[0])
        result_of(launcher)
        read_safetensors(cluster.model_bytes())


def slow_worker(cluster):
    """a worker with --slow 20 under --backup-workers 1: the job does not wait for it; its reports
    are dropped, and it finishes with the others"""
    new_run_dir(cluster)
    cluster.coordinator(*JOB, "--backup-workers", 1, workers=3)
    cluster.server()
    for rank in range(3):
        cluster.worker("--index", rank, *(["--slow", 20] if rank == 2 else []),
                       name=f"worker {rank}")
    cluster.finish_job()
    # A busy machine can make any of them the last of a round, but not of most.
    expect(metrics_of(cluster)[-1]["dropped"] < STEPS / 2, "worker 0 counts in too few rounds")
    slow = metrics_of(cluster, 2)
    expect(slow[-1]["dropped"] > 0, "no report of the slow worker was dropped")
    expect(len(slow) < STEPS, "the slow worker made all steps")


def change_mode(cluster):
    """`rubato set mode=async` and back to sync in a running job: the tool ends with 0, each process
    says so once, and the job goes on; what does not fit is refused"""
    new_run_dir(cluster)
    servers, workers = cluster.start_job(*ENDLESS, "--mode", "sync")
    cluster.wait_steps(5)
    for number, (old, new) in enumerate((("sync", "async"), ("async", "ssp:2"), ("ssp:2", "sync"))):
        tool = cluster.start(f"set {number}", [cluster.program("rubato"), "set", "--join",
                                               cluster.address, f"mode={new}"])
        tool.wait_exit(0, PATIENCE_S)
        for process in servers + workers:
            process.wait_line(rf" info mode changed from {old} to {new} at step", PATIENCE_S)
        cluster.wait_steps(cluster.steps() + 20)
    tool = cluster.start("set wrong", [cluster.program("rubato"), "set", "--join", cluster.address,
                                       "mode=diloco:4"])
    expect(tool.popen.wait(PATIENCE_S) != 0, "diloco:4 was not refused")
    expect(all(process.running() for process in servers + workers), "a process has ended")
    servers[0].signal(signal.SIGINT)
    for process in servers[1:] + workers:
        process.wait_exit(69, PROMPT_S)


if __name__ == "__main__":
    main(__doc__, [local_modes, diloco_bytes, repeatable, leave_after, saves_without_run_dir,
                   quorum_goes_on, launched_quorum, slow_worker, change_mode], parallel=2)
