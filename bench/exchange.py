#!/usr/bin/env python3
"""The data plane beside raw peers, in one run: `rubato bench exchange` against ucx_perftest and
memcpy.

Everything is measured in turns, one after the other, so that what else the machine does meets all
alike; of the turns the medians count. ucx_perftest (Debian: ucx-utils) has tcp on the loopback
interface, with and without error handling at its ends (-e), as ours has, and posix with cma; where
it is missing its rows and the ratios against it are left out. It spins, and so do ours (--poll
busy); rows that are called sleeping wait as jobs do (--poll sleep), and as ZeroMQ and ps-lite do.
So rates are compared where both spin, and processor time where both sleep. "own tcp" is --channel
tls --wire plain. Over shm our receiver reads each payload for its checksum (--checksum), since
nothing is copied. CPU seconds per GB count both processes, user and system.

ZeroMQ is what dmlc ps-lite is built on (bench/zeromq.c); its row is left out where libzmq3-dev was
missing when the bench programs were built. --ps-lite takes ps-lite itself into the turns: the
program of bench/pslite.cc, whose first lines say how to build it. The goal of processor time is
then 0.9 of what ps-lite needs in these turns, too; without it, it is derived in other ways.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

GB = 1e9
# Of dmlc ps-lite over ZeroMQ and TCP, measured earlier on a quiet machine
# (docs/BENCHMARKS.md): CPU s/GB of a push of 4 MiB, and over that of ucx_perftest tcp then, two
# spinning cores at 4.7 GB/s.
PS_LITE_CPU = 0.45
PS_LITE_OF_PERFTEST = PS_LITE_CPU / (2 / 4.7)
PORT = 29741
# Of ours under way to a shard, so that both ends are busy and the bytes stay in the caches;
# ucx_perftest has 32 messages, ZeroMQ and ps-lite 64.
UNDER_WAY_BYTES, UNDER_WAY_LEAST = 8 * 2**20, 4
ZEROMQ = "bench_zeromq"
SLEEPING = "push, sleeping"
CHANNELS = {"ucx": ("ucx",), "own tcp": ("tls", "--wire", "plain"), "shm": ("shm", "--checksum")}


def fail(text):
    sys.exit(f"exchange.py: {text}")


def size_of(text):
    match = re.fullmatch(r"(\d+)(|k|m|ki|mi)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}': allowed are sizes such as 1mi or 4mi")
    factor = {"": 1, "k": 10**3, "m": 10**6, "ki": 2**10, "mi": 2**20}[match[2]]
    return int(match[1]) * factor


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the rubato program")
    parser.add_argument("--bytes", default="1mi,4mi", help="sizes of a message")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn of ours")
    parser.add_argument("--ps-lite", metavar="PROGRAM", help="bench_pslite, of bench/pslite.cc")
    parser.add_argument("--json", help="also write the medians here")
    chosen = parser.parse_args()
    try:
        chosen.sizes = [size_of(text) for text in chosen.bytes.split(",")]
    except argparse.ArgumentTypeError as error:
        fail(f"--bytes: {error}")
    if chosen.turns < 1:
        fail(f"--turns {chosen.turns}: allowed is 1 and more")
    if chosen.ps_lite and not os.access(chosen.ps_lite, os.X_OK):
        fail(f"--ps-lite {chosen.ps_lite}: no such program; bench/pslite.cc says how to build it")
    return chosen


def rubato(chosen, size, direction, poll, *channel):
    """One turn of ours -> (GB/s, CPU s/GB)."""
    depth = max(UNDER_WAY_LEAST, UNDER_WAY_BYTES // size)
    with tempfile.NamedTemporaryFile("r") as rows:
        command = [f"{chosen.bin}/rubato", "bench", "exchange", "--channel", *channel,
                   "--direction", direction, "--bytes", str(size), "--depth", str(depth),
                   "--seconds", str(chosen.seconds), "--poll", poll, "--json", rows.name]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=chosen.seconds + 120)
        if done.returncode != 0:
            fail(f"`{' '.join(command)}` ended with {done.returncode}")
        row = json.loads(rows.read())
        return row["gb_s"], row["cpu_s_gb"]


def cpu_of(process):
    """Waits for it; seconds, user and system."""
    _, state, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(state)
    return used.ru_utime + used.ru_stime


def wait_for_listener():
    mark = re.compile(rf":{PORT:04X} [0-9A-F]+:0000 0A ")
    for _ in range(200):
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table, encoding="ascii") as file:
                if mark.search(file.read()):
                    return
        time.sleep(0.05)
    fail(f"ucx_perftest does not listen at port {PORT} after 10 s")


def perftest(transports, devices, size, seconds, *options):
    """One turn of ucx_perftest's active messages, one direction -> (GB/s, CPU s/GB)."""
    environment = dict(os.environ, UCX_TLS=transports, UCX_NET_DEVICES=devices,
                       UCX_WARN_UNUSED_ENV_VARS="n")
    count = max(20, int(seconds * 2e9 / size))
    limit = ["timeout", str(int(seconds * 20) + 60)]
    server = subprocess.Popen([*limit, "ucx_perftest", "-p", str(PORT)], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_listener()  # the client does not try again
    client = subprocess.Popen(
        [*limit, "ucx_perftest", "127.0.0.1", "-p", str(PORT), "-t", "ucp_am_bw", "-s", str(size),
         "-n", str(count), "-w", "10", *options], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    output = client.stdout.read()
    cpu = cpu_of(client)
    if client.returncode != 0:
        os.kill(server.pid, signal.SIGKILL)
    cpu += cpu_of(server)
    final = [line.split() for line in output.splitlines() if line.startswith("Final:")]
    if client.returncode != 0 or not final:
        fail(f"ucx_perftest over {transports} failed:\n{output[-500:]}")
    return float(final[0][6]) * 2**20 / GB, cpu / (count * size / GB)


def pushes(program, chosen, size):
    """One turn of ps-lite or ZeroMQ over TCP, one direction -> (GB/s, CPU s/GB)."""
    command = [os.path.abspath(program), str(size), str(chosen.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=chosen.seconds + 120)
    if done.returncode != 0:
        fail(f"`{' '.join(command)}` ended with {done.returncode}")
    row = json.loads(done.stdout)
    return row["gb_s"], row["cpu_s_gb"]


def memcpy(size):
    """Between two buffers of this size, over and over -> (GB/s, CPU s/GB)."""
    source, target = ctypes.create_string_buffer(b"x" * size, size), ctypes.create_string_buffer(
        size)
    count = max(1, int(1e9 / size))
    ctypes.memmove(target, source, size)
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        ctypes.memmove(target, source, size)
    gb = count * size / GB
    return gb / (time.perf_counter() - start), (time.process_time() - cpu) / gb


def measure(chosen, size, has_perftest, has_zeromq):
    """Medians of the turns: name -> (GB/s, CPU s/GB)."""
    kinds = {"memcpy": lambda: memcpy(size)}
    if has_perftest:
        kinds["ucx_perftest tcp"] = lambda: perftest("tcp", "lo", size, chosen.seconds)
        kinds["ucx_perftest tcp -e"] = lambda: perftest("tcp", "lo", size, chosen.seconds, "-e")
        kinds["ucx_perftest posix,cma"] = lambda: perftest("posix,cma", "all", size,
                                                           chosen.seconds)
    if has_zeromq:
        kinds["ZeroMQ push"] = lambda: pushes(f"{chosen.bin}/{ZEROMQ}", chosen, size)
    if chosen.ps_lite:
        kinds["ps-lite push"] = lambda: pushes(chosen.ps_lite, chosen, size)
    for name, channel in CHANNELS.items():
        for row, *how in (("push", "push", "busy"), ("both", "both", "busy"),
                          (SLEEPING, "push", "sleep")):
            kinds[f"{name} {row}"] = (
                lambda channel=channel, how=how: rubato(chosen, size, *how, *channel))
    turns = {name: [] for name in kinds}
    for _ in range(chosen.turns):
        for name, run in kinds.items():
            turns[name].append(run())
    return {name: tuple(statistics.median(column) for column in zip(*rows))
            for name, rows in turns.items()}


def goals(medians):
    """(what, value, goal, is it met?) of one size; shm may only be read where perftest is."""
    rows = []

    def at_least(what, ours, peer, least):
        if peer in medians:
            value = medians[ours][0] / medians[peer][0]
            rows.append((what, value, f">= {least}", value >= least))

    def at_most(what, ours, most):
        value = medians[ours][1]
        rows.append((what, value, f"<= {most:.3g}", value <= most))

    def goal_of_cpu(ours):
        row = f"{ours} {SLEEPING}"
        at_most(f"{row}, CPU s/GB (0.9 of 0.45)", row, 0.9 * PS_LITE_CPU)
        if "ps-lite push" in medians:
            at_most(f"{row}, CPU s/GB (0.9 of ps-lite's)", row, 0.9 * medians["ps-lite push"][1])
            return
        if "ucx_perftest tcp" in medians:
            at_most(f"{row}, CPU s/GB (the same, by perftest)", row,
                    0.9 * PS_LITE_OF_PERFTEST * medians["ucx_perftest tcp"][1])
        if "ZeroMQ push" in medians:
            at_most(f"{row}, CPU s/GB (0.9 of ZeroMQ's)", row, 0.9 * medians["ZeroMQ push"][1])

    for ours in ("ucx", "own tcp"):
        for peer in ("ucx_perftest tcp", "ucx_perftest tcp -e"):
            at_least(f"{ours} push / {peer}", f"{ours} push", peer, 0.9)
            at_least(f"{ours} both, sum / {peer}", f"{ours} both", peer, 0.8)
        goal_of_cpu(ours)
    at_least("shm push / ucx_perftest posix,cma", "shm push", "ucx_perftest posix,cma", 1.5)
    at_most(f"shm {SLEEPING}, CPU s/GB", f"shm {SLEEPING}", 0.1)
    return rows


def main():
    chosen = options()
    if not os.access(f"{chosen.bin}/rubato", os.X_OK):
        fail(f"no program {chosen.bin}/rubato: build it, or name its folder by --bin")
    has_perftest = shutil.which("ucx_perftest") is not None
    if not has_perftest:
        print("exchange.py: no ucx_perftest (apt install ucx-utils): its rows are left out",
              file=sys.stderr)
    has_zeromq = os.access(f"{chosen.bin}/{ZEROMQ}", os.X_OK)
    if not has_zeromq:
        print(f"exchange.py: no program {chosen.bin}/{ZEROMQ} (apt install libzmq3-dev, build "
              "again): its row is left out", file=sys.stderr)
    results = {size: measure(chosen, size, has_perftest, has_zeromq) for size in chosen.sizes}
    print(f"medians of {chosen.turns} turns; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} "
          "cores")
    print(f"{'bytes':>9}  {'what':<24} {'GB/s':>8} {'CPU s/GB':>9}")
    for size, medians in results.items():
        for name, (rate, cpu) in medians.items():
            print(f"{size:9}  {name:<24} {rate:8.2f} {cpu:9.3f}")
    print(f"{'bytes':>9}  {'against the goals':<51} {'value':>8} {'goal':>8}")
    for size, medians in results.items():
        for what, value, goal, met in goals(medians):
            print(f"{size:9}  {what:<51} {value:8.3f} {goal:>8}  {'met' if met else 'MISSED'}")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({str(size): medians for size, medians in results.items()}, file, indent=1)


if __name__ == "__main__":
    main()
