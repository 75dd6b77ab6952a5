#!/usr/bin/env python3
"""Proves that thousands of strangers at all ports at once change nothing: garbage of random
lengths, port scans, TLS hellos cut short and genuine connections replayed, resets, and connections
that say nothing and stay. The weights of a besieged job are the same bits as those of one left
alone, and afterwards no process has more descriptors or more memory than before.
How: besiegers.py; what is replayed was recorded on loopback, where raw packets may be read.
"""
import os
import signal
import threading

from besiegers import Recorder, Siege
from cluster import PATIENCE_S, TINY, expect, expect_equal, main, wait_until
from keys import make_key
from strangers import STRANGE, expect_all_run, listening_ports

GARBAGE = list(STRANGE.values())
# The members of a job must get in at once while it gathers: below what a port lets in.
GATHER_RATE = 1000
WAVE = 2000
LEAST = 100  # connections that a besieged job must have had
GROWTH_KIB = 1024  # of memory after the first wave; a TLS connection takes some 20


def start_recorder():
    try:
        return Recorder()
    except PermissionError:
        print("no right to read raw packets: no genuine connection is replayed")
        return None


def targets(cluster, processes, streams):
    """Every listening port, and the genuine streams to it; to all data ports those of any."""
    data = [stream for port, group in streams.items() if port != cluster.port for stream in group]
    return [(address, streams.get(cluster.port) if address[1] == cluster.port else data)
            for address in listening_ports(processes)]


def besiege_until_end(cluster, processes, streams, siege):
    """From the first moment on, at whatever ports are there, for as long as all run."""
    def over():
        return not all(process.running() for process in processes)

    while not over():
        ports = targets(cluster, processes, streams)
        if ports:
            siege.wave(ports, 500, over)
    siege.close()


def same_bits(cluster, channel, ports_wanted):
    """A job left alone, whose connections are recorded, and the same one besieged."""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    job = [*TINY, "--steps", 400]
    options = {"server_options": ("--channel", channel), "worker_options": ("--channel", channel)}
    recorder = start_recorder()
    try:
        servers, workers = cluster.start_job(*job, **options)
        cluster.wait_steps(3)
        ports = listening_ports(servers + workers)
        expect_equal(len(ports), ports_wanted, f"ports that listen, {ports}, their count")
        cluster.finish_job()
    finally:
        streams = recorder.stop() if recorder else {}
    alone = cluster.model_bytes()
    expect(recorder is None or streams[cluster.port], "no connection to the coordinator recorded")
    cluster.run_dir += "-besieged"
    siege = Siege(GARBAGE, GATHER_RATE)
    servers, workers = cluster.start_job(*job, **options)
    thread = threading.Thread(target=besiege_until_end,
                              args=(cluster, servers + workers, streams, siege))
    thread.start()
    try:
        for process in servers + workers:
            process.wait_exit(0)
    finally:
        for process in servers + workers:
            process.popen.kill()
        thread.join()
    expect(siege.count >= LEAST, f"only {siege.count} strangers came")
    expect_equal(cluster.steps(), 400, "steps of the job")
    expect(cluster.model_bytes() == alone, "the weights differ from those of the job left alone")


def tls_same_bits(cluster):
    """sync over --channel tls with a key, besieged at five ports from its start to its end"""
    same_bits(cluster, "tls", 5)


def shm_same_bits(cluster):
    """the same over shared memory: the coordinator's port alone"""
    same_bits(cluster, "shm", 1)


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def rss_kib(process):
    """None under the address sanitizer, which keeps what was freed (and looks for leaks itself)."""
    with open(f"/proc/{process.pid}/maps", encoding="ascii", errors="replace") as file:
        if "libasan" in file.read():
            return None
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def nothing_is_left(cluster):
    """three waves of 2000, as fast as they go, at a job over tls: its steps go on, and then it has
    the descriptors that it had, and memory as after the first wave"""
    cluster.key_options = ["--key-file", make_key(cluster, "job.key")]
    recorder = start_recorder()
    try:
        servers, workers = cluster.start_job(
            *TINY, "--steps", 1000000000, server_options=("--channel", "tls"),
            worker_options=("--channel", "tls"))
        cluster.wait_steps(100)
    finally:
        streams = recorder.stop() if recorder else {}
    processes = servers + workers
    before = [descriptors(process) for process in processes]
    ports = targets(cluster, processes, streams)
    memory = []
    for _ in range(3):
        siege = Siege(GARBAGE)
        siege.wave(ports, WAVE)
        cluster.wait_steps(cluster.steps() + 20)
        siege.close()
        for process, count in zip(processes, before):
            wait_until(lambda process=process, count=count: descriptors(process) <= count,
                       PATIENCE_S, f"{process.name} closes what strangers opened")
        expect_all_run(processes)
        memory.append([rss_kib(process) for process in processes])
    for process, *sizes in zip(processes, *memory):
        expect(sizes[0] is None or sizes[-1] - sizes[0] <= GROWTH_KIB,
               f"{process.name}: KiB of memory after each wave: {sizes}")
        warned = process.lines("warn")
        expect(len(warned) <= 30, f"{process.name} has {len(warned)} lines about strangers")
    servers[0].signal(signal.SIGINT)
    servers[0].wait_exit(130)
    for process in processes[1:]:
        process.wait_exit(69)


if __name__ == "__main__":
    main(__doc__, [tls_same_bits, shm_same_bits, nothing_is_left])
