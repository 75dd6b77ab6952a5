#!/usr/bin/env python3
"""Proves what docs/RELIABILITY.md promises of connections that are reset while a job runs: data
connections come back and the weights are the same bits, over --channel tls and over UCX; a reset
control connection is the loss of its process, which ends the job or not, as the mode says.
How: in a network namespace of its own, where `ss -K` has the kernel reset both ends. Where either
is not to be had, the test is skipped (77).
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

from cluster import PATIENCE_S, SLACK_S, TINY, expect, expect_equal, main, wait_until
from keys import make_key
from strangers import listening_ports

INSIDE = "TEST_RESETS_INSIDE"
LEASE_S = 2
PROMPT_S = 1 + SLACK_S
# Two thirds of a megabyte each way and step, so that there is mostly something under way.
MODEL = ["--model", "gpt2:2x64x2", "--seq-len", "32", "--batch", "2", "--push", "none", "--pull",
         "none", "--block-values", "20000"]


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          timeout=PATIENCE_S)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def enter_namespace():
    """Starts this program again in a network namespace, as root of a user namespace if need be."""
    if os.environ.get(INSIDE):
        return
    if not shutil.which("unshare") or not shutil.which("ss") or not shutil.which("ip"):
        skip("no unshare, ss or ip")
    for flags in ("-n", "-rn"):
        if run("unshare", flags, "true").returncode == 0:
            os.environ[INSIDE] = "yes"
            os.execvp("unshare", ["unshare", flags, sys.executable, *sys.argv])
    skip("no right to make a network namespace")


def reset(*condition):
    """Resets all established connections for which it holds; their number."""
    return len(run("ss", "-K", "-tnH", "state", "established", *condition).stdout.splitlines())


def need_resets():
    if run("ip", "link", "set", "lo", "up").returncode != 0:
        skip("no right to set up the network namespace")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as peer:
            peer.settimeout(1)
            reset("dport", "=", f":{listener.getsockname()[1]}")
            try:
                peer.recv(1)
            except ConnectionError:
                return
            except TimeoutError:
                pass
    skip("this kernel or this user cannot reset connections by ss -K")


def data_ports(cluster, processes):
    return [port for _, port in listening_ports(processes) if port != cluster.port]


def run_job(cluster, channel, *options):
    return cluster.start_job(*MODEL, *options, server_options=("--channel", channel),
                             worker_options=("--channel", channel))


def tls_goes_on(cluster):
    """sync over tls, 150 steps, all data connections reset every 50 ms: same bits as undisturbed,
    and both servers and workers say that connections came back"""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    run_job(cluster, "tls", "--steps", 150)
    cluster.finish_job()
    alone = cluster.model_bytes()
    cluster.run_dir += "-reset"
    servers, workers = run_job(cluster, "tls", "--steps", 150)
    cluster.wait_steps(3)
    ports = data_ports(cluster, servers + workers)
    expect_equal(len(ports), 4, "data ports")
    over, resets = threading.Event(), []

    def reset_often():
        while not over.wait(0.05):
            resets.append(sum(reset("dport", "=", f":{port}") for port in ports))

    thread = threading.Thread(target=reset_often)
    thread.start()
    try:
        for process in servers + workers:
            process.wait_exit(0)
    finally:
        over.set()
        thread.join()
    expect(sum(resets) >= 8, f"connections that were reset: {resets}")
    expect_equal(cluster.steps(), 150, "steps of the job")
    expect(cluster.model_bytes() == alone, "the weights differ from those of the undisturbed job")
    for group in (servers, workers):
        said = "".join(process.err() for process in group)
        expect(re.search(r"tls: a connection to peer \d+ is back after", said),
               f"no {group[0].name} says that a connection came back")


def own_ports(process, *condition):
    """The process's own ports of its established connections for which it holds."""
    lines = run("ss", "-tnpH", "state", "established", *condition).stdout
    return {line.split()[2].rpartition(":")[2] for line in lines.splitlines()
            if f"pid={process.pid}," in line}


def reset_data(cluster):
    """Resets all data connections of the job; their number."""
    return reset("dport", "!=", f":{cluster.port}", "and", "sport", "!=", f":{cluster.port}")


def reset_in_between(cluster, processes):
    """Six times, each once what the last reset broke is back and steps were made, in a job of 150
    steps, whose processes end well."""
    cluster.wait_steps(5)
    for _ in range(6):
        wait_until(lambda: reset_data(cluster) > 0, PATIENCE_S, "a data connection to reset")
        cluster.wait_steps(cluster.steps() + 3)
    for process in processes:
        process.wait_exit(0)
    expect_equal(cluster.steps(), 150, "steps of the job")


def ucx_goes_on(cluster):
    """sync over UCX, 150 steps, all data connections reset six times: same bits as
    undisturbed, and both servers and workers say that connections broke and came back"""
    run_job(cluster, "ucx", "--steps", 150)
    cluster.finish_job()
    alone = cluster.model_bytes()
    cluster.run_dir += "-reset"
    servers, workers = run_job(cluster, "ucx", "--steps", 150, "--lease", LEASE_S)
    reset_in_between(cluster, servers + workers)
    expect(cluster.model_bytes() == alone, "the weights differ from those of the undisturbed job")
    for process in servers + workers:
        peer = "worker" if process in servers else "shard"
        process.expect_line(rf" warn the data connection to {peer} \d+ broke: connecting again")
        process.expect_line(rf" info the data connection to {peer} \d+ is back after")


def ucx_goes_on_async(cluster):
    """the same in async, where only the number of steps and of applied pushes can be the same"""
    servers, workers = run_job(cluster, "ucx", "--steps", 150, "--lease", LEASE_S, "--mode",
                               "async")
    reset_in_between(cluster, servers + workers)
    for process in servers:
        process.expect_line(r" info worker \d .*: 150 reports counted, 0 dropped")


def control_port_of(cluster, process):
    """The process's own port of its connection to the coordinator."""
    ports = own_ports(process, "dport", "=", f":{cluster.port}")
    expect_equal(len(ports), 1, f"control connections of {process.name}")
    return ports.pop()


def reset_control(cluster, *options):
    """A job whose second worker loses its control connection: (servers, the other worker), and how
    the others name the one that lost it, which ends with 69."""
    servers, workers = cluster.start_job(*TINY, "--steps", 1000000000, *options)
    cluster.wait_steps(20)
    saver = [worker for worker in workers if "this is worker 0 of 2" in worker.err()][0]
    victim = workers[1] if saver is workers[0] else workers[0]
    expect_equal(reset("sport", "=", f":{control_port_of(cluster, victim)}"), 1, "resets")
    victim.wait_exit(69, PROMPT_S)
    victim.expect_line(rf" error coordinator {re.escape(cluster.address)} lost")
    return servers, saver, rf"worker 1 \([^)]*:{victim.pid}\).* lost"


def control_ends_sync(cluster):
    """sync: a worker's control connection is reset; it ends with 69, and the others, who name it"""
    servers, saver, named = reset_control(cluster)
    for process in (*servers, saver):
        process.wait_exit(69, PROMPT_S)
        process.expect_line(rf" error .*{named}")


def control_is_missed_by_nobody(cluster):
    """async: the same; the job goes on without the worker, whom the coordinator names"""
    servers, saver, named = reset_control(cluster, "--mode", "async", "--sync-warmup", 0)
    servers[0].wait_line(rf" warn {named}.*the job goes on", PROMPT_S)
    cluster.wait_steps(cluster.steps() + 100)
    expect(all(process.running() for process in (*servers, saver)), "the others have ended")


if __name__ == "__main__":
    enter_namespace()
    need_resets()
    main(__doc__, [tls_goes_on, ucx_goes_on, ucx_goes_on_async, control_ends_sync,
                   control_is_missed_by_nobody])
