#!/usr/bin/env python3
"""Proves that whoever connects to any port of a job without belonging to it changes nothing: every
listening port of every process (the coordinator's, and UCX's own) is bombarded with what scanners
and lost clients send; no process ends, the job goes on, and the trained weights are the same bits.
"""
import random
import signal
import socket
import subprocess
import threading

from cluster import PATIENCE_S, TINY, expect, expect_equal, main, wait_until
from keys import make_key

SOURCE = random.Random(3)
STRANGE = {
    "zeros": bytes(512),
    "random bytes": SOURCE.randbytes(4096),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scan\r\n\r\n",
    # A record of 512 bytes: ClientHello, legacy version 1.2, random, no session.
    "a TLS ClientHello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SOURCE.randbytes(32)
                          + bytes([0]) + SOURCE.randbytes(473)),
    "0xff bytes": b"\xff" * 256,
    "one byte": b"\x01",
    "nothing": b"",
    # Lengths that a careless reader would allocate or wait for.
    "a huge length": b"\xff\xff\xff\x7f" + bytes(60),
    "a length and half of it": b"\x00\x01\x00\x00" + bytes(100),
}
# Frames must go where the strangers knock.
BY_UCX = {"server_options": ("--channel", "ucx"), "worker_options": ("--channel", "ucx")}
HELD_MOST = 24  # connections that stay open after what they have sent


def listening_ports(processes):
    """(address, port) of every listening TCP socket of the processes."""
    output = subprocess.run(["ss", "-ltnpH"], check=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S).stdout
    ports = []
    for line in output.splitlines():
        if any(f"pid={process.pid}," in line for process in processes):
            address, _, port = line.split()[3].rpartition(":")
            ports.append((address.split("%")[0].strip("[]"), int(port)))
    return ports


def send_strange(address, content, held):
    """Connects, sends, and closes, or keeps the connection. The other side may do what it likes."""
    host = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
    try:
        peer = socket.create_connection((host, address[1]), timeout=2)
    except OSError:
        return
    try:
        peer.settimeout(0.2)
        peer.sendall(content)
        if len(held) < HELD_MOST and len(content) % 2 == 0:
            held.append(peer)
            return
        peer.shutdown(socket.SHUT_WR)
        peer.recv(256)
    except OSError:
        pass
    peer.close()


def bombard(ports, held):
    for content in STRANGE.values():
        for address in ports:
            send_strange(address, content, held)


def expect_all_run(processes):
    for process in processes:
        expect(process.running(), f"{process.name} has ended: exit {process.popen.poll()}")


def bombard_running_job(cluster):
    """Rounds against each port; after each the step count must have risen and nobody have ended."""
    servers, workers = cluster.start_job(*TINY, "--steps", 1000000000, **BY_UCX)
    cluster.wait_steps(3)
    processes = servers + workers
    ports = listening_ports(processes)
    expect(("127.0.0.1", cluster.port) in ports, f"the coordinator's port is not among {ports}")
    for host, port in ports:
        expect_equal(host, "127.0.0.1", f"address of port {port}, UCX's or the coordinator's")
    expect(len(ports) >= 5, f"four data channels and the control channel listen: {ports}")
    held = []
    for _ in range(3):
        bombard(ports, held)
        expect_all_run(processes)
        cluster.wait_steps(cluster.steps() + 20)
    for peer in held:
        peer.close()
    cluster.wait_steps(cluster.steps() + 20)
    expect_all_run(processes)
    servers[0].signal(signal.SIGINT)
    servers[0].wait_exit(130)
    for process in servers[1:] + workers:
        process.wait_exit(69)


def job_goes_on(cluster):
    """all ports of a job on loopback are bound to that alone; after three rounds of all that is
    strange at each of them its steps go on"""
    bombard_running_job(cluster)


def job_with_key_goes_on(cluster):
    """the same at a job with a key, whose control channel is TLS"""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    bombard_running_job(cluster)


def bombard_until_end(cluster, processes, rounds):
    """From the first moment on, at whatever ports are there."""
    held = []
    while all(process.running() for process in processes):
        bombard(listening_ports(processes), held)
        rounds.append(1)
        while len(held) > HELD_MOST // 2:
            held.pop(0).close()
    for peer in held:
        peer.close()


def same_bits(cluster):
    """a job of 600 steps in sync mode, bombarded from its start to its end, leaves the same
    model.safetensors byte for byte as one that is left alone"""
    job = [*TINY, "--steps", 600]
    cluster.start_job(*job, **BY_UCX)
    cluster.finish_job()
    alone = cluster.model_bytes()
    cluster.run_dir += "-bombarded"
    servers, workers = cluster.start_job(*job, **BY_UCX)
    rounds = []
    thread = threading.Thread(target=bombard_until_end, args=(cluster, servers + workers, rounds))
    thread.start()
    try:
        for process in servers + workers:
            process.wait_exit(0)
    finally:
        for process in servers + workers:
            process.popen.kill()
        thread.join()
    expect(rounds, "the job ended before it was bombarded")
    expect_equal(cluster.steps(), 600, "steps of the job")
    expect(cluster.model_bytes() == alone, "the weights differ from those of the job left alone")


def stranger_as_first(cluster):
    """a coordinator that strangers find before its members do gathers its job all the same"""
    coordinator = cluster.coordinator(*TINY, "--steps", 5, servers=1, workers=1)
    coordinator.wait_line("waiting for 1 of 1 worker", PATIENCE_S)
    held = []
    for _ in range(3):
        bombard([("127.0.0.1", cluster.port)], held)
    expect_all_run([coordinator])
    worker = cluster.worker()
    for process in (coordinator, worker):
        process.wait_exit(0)
    for peer in held:
        peer.close()
    wait_until(lambda: cluster.steps() == 5, 1, "all steps are in the metrics")


if __name__ == "__main__":
    main(__doc__, [job_goes_on, job_with_key_goes_on, same_bits, stranger_as_first], parallel=2)
