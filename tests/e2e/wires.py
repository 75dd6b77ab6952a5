#!/usr/bin/env python3
"""Proves that jobs over --channel tls, with each protection, leave the same weights as over UCX,
bit for bit; that strangers at their data ports and a killed worker do not stop them; and that
options which do not fit together are refused with a reason."""
import signal

from cluster import PATIENCE_S, TINY, TINY_JOB, expect, expect_equal, main
from keys import make_key
from strangers import bombard, expect_all_run, listening_ports

TLS = ["--channel", "tls"]


def job(cluster, name, channel, *options):
    """A job of two servers of two shards and two workers; its processes, ended, and its weights."""
    cluster.run_dir = cluster.path(name)
    cluster.processes = []
    cluster.start_job(*TINY, "--steps", 40, *options, worker_options=channel,
                      server_options=[*channel, "--shards", 2])
    cluster.finish_job()
    return cluster.processes, cluster.model_bytes()


def same_bits(cluster):
    """40 steps of sync: --wire encrypt, auth and plain, auto with and without a key, and UCX"""
    _, wanted = job(cluster, "ucx", ["--channel", "ucx"])
    processes, weights = job(cluster, "no-key", TLS)
    for process in processes:
        process.expect_line(r"gradients and weights by TCP of 127.0.0.1, in the clear")
    expect(weights == wanted, "weights over tls without a key are not those over UCX")
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    for wire, words in (("auto", "encrypted"), ("encrypt", "encrypted"), ("auth", "authenticated"),
                        ("plain", "in the clear")):
        processes, weights = job(cluster, wire, TLS, "--wire", wire)
        for process in processes:
            process.expect_line(rf"gradients and weights by TCP of 127.0.0.1, {words}")
        expect(weights == wanted, f"weights of --wire {wire} are not those over UCX")


def strangers_and_a_loss(cluster):
    """async, encrypted: strangers at every port, then a killed worker; steps go on"""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    servers, workers = cluster.start_job(
        *TINY, "--steps", 1000000000, "--mode", "async", "--sync-warmup", 0, "--lease", 2,
        server_options=[*TLS, "--log-level", "debug"], worker_options=TLS)
    cluster.wait_steps(3)
    ports = listening_ports(servers + workers)
    expect_equal(len(ports), 5, f"ports that listen, of a coordinator and four channels: {ports}")
    held = []
    for _ in range(2):
        bombard(ports, held)
        expect_all_run(servers + workers)
        cluster.wait_steps(cluster.steps() + 20)
    for peer in held:
        peer.close()
    saver = [worker for worker in workers if "this is worker 0 of 2" in worker.err()][0]
    other = workers[1] if saver is workers[0] else workers[0]
    other.signal(signal.SIGKILL)
    other.popen.wait()
    # Its connections are dialled again for a lease; then they are lost, and nobody minds.
    for server in servers:
        server.wait_line(r"tls: peer \d lost", PATIENCE_S)
    cluster.wait_steps(cluster.steps() + 200)
    expect_all_run(servers + [saver])


def refusals(cluster):
    """a key that is missing (77), a protection that UCX lacks, devices that are not used (2)"""
    server = cluster.coordinator(*TINY_JOB, *TLS, "--wire", "encrypt", servers=1, workers=1)
    worker = cluster.worker(*TLS)
    for process in (server, worker):
        expect(process.popen.wait(PATIENCE_S) in (69, 77), "neither 77 nor a lost peer")
    said = server.err() + worker.err()
    expect("--wire encrypt needs a key: make one with `rubato keygen FILE`" in said, "no reason")
    server = cluster.coordinator(*TINY_JOB, "--wire", "auth", servers=1, workers=1)
    worker = cluster.worker()
    for process in (server, worker):
        expect(process.popen.wait(PATIENCE_S) != 0, "--wire auth is ignored over UCX")
    expect("--wire auth needs --channel tls" in server.err() + worker.err(), "no reason")
    worker = cluster.worker(*TLS, "--net-devices", "lo")
    worker.wait_exit(2)
    worker.expect_line(r" error --channel tls uses no UCX: leave out --net-devices and --tls")


def nothing_in_common(cluster):
    """--channel tls at the server, ucx at a worker: both end and say why"""
    server = cluster.coordinator(*TINY_JOB, *TLS, servers=1, workers=1)
    worker = cluster.worker("--channel", "ucx")
    for process in (server, worker):
        expect(process.popen.wait(PATIENCE_S) != 0, "a job without a channel in common runs")
    expect("uses another --channel" in server.err() + worker.err(), "nobody says why")


if __name__ == "__main__":
    main(__doc__, [same_bits, strangers_and_a_loss, refusals, nothing_in_common])
