#!/usr/bin/env python3
"""What strangers at a job's ports cost it: its steps a second while it is besieged, over those of
the same job left alone, in turns of one run.

A job with a key, of one server and one worker, first over --channel tls (three ports: control, and
a data port of each), then over shared memory (the control port); `--channels ucx` is the third. In turns of --seconds each:
  alone     nobody knocks
  decoy     the same strangers knock at a port of this script's, which accepts and closes: what they
            take from the machine, whoever they knock at
  besieged  tests/e2e/besiegers.py: garbage, port scans, resets, genuine hellos cut short, genuine
            connections replayed, and connections that stay; --rate connections a second in all
Each ratio is the median over the turns; the processor time of both processes a step says the same
where other programs keep the cores busy. The goal: besieged / alone > 0.95. The defaults make 10^5
connections to the job. Replays need the right to read raw packets; without it they are left out.
"""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/e2e"))
from besiegers import Recorder, Siege  # noqa: E402, the folder must be known first
from strangers import STRANGE, listening_ports  # noqa: E402

GOAL = 0.95
MODEL = ["--model", "gpt2:2x64x2", "--seq-len", "64", "--batch", "4", "--block-values", "20000"]
START_S = 60
ARMS = ("alone", "decoy", "besieged")


def fail(text):
    sys.exit(f"strangers.py: {text}")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs")
    parser.add_argument("--channels", default="tls,shm")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each arm of a turn")
    parser.add_argument("--rate", type=float, default=1000, help="connections a second")
    return parser.parse_args()


class Decoy:
    """A port where whatever comes is accepted, read once, and closed, by a process of its own."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(256)
        self.address = self.listener.getsockname()
        self.pid = os.fork()
        if self.pid == 0:
            while True:
                peer, _ = self.listener.accept()
                try:
                    peer.setblocking(False)
                    peer.recv(4096)
                except OSError:
                    pass
                peer.close()

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.listener.close()


class Job:
    """One server and one worker, training without end."""

    def __init__(self, chosen, channel):
        self.folder = tempfile.mkdtemp(prefix="rubato-strangers-")
        self.metrics = os.path.join(self.folder, "metrics.jsonl")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        key, data = (os.path.join(self.folder, name) for name in ("job.key", "data.txt"))
        subprocess.run([f"{chosen.bin}/rubato", "keygen", key], check=True,
                       stdout=subprocess.DEVNULL)
        with open(data, "w", encoding="ascii") as file:
            file.write("the quick brown fox jumps over the lazy dog\n" * 2000)
        both = ["--key-file", key, "--channel", channel]
        address = f"127.0.0.1:{self.port}"
        commands = [[f"{chosen.bin}/rubato-server", "--listen", address, "--steps", "1000000000",
                     *MODEL, *both],
                    [f"{chosen.bin}/rubato-worker", "--join", address, "--data", data, "--threads",
                     "1", "--eval-every", "0", "--run-dir", self.folder, *both]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
        environment["OMP_WAIT_POLICY"] = "passive"
        self.log = os.path.join(self.folder, "log.txt")
        with open(self.log, "wb") as log:
            self.processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log,
                                               stdout=subprocess.DEVNULL, env=environment)
                              for command in commands]
        self.at, self.count = 0, 0

    def steps(self):
        """So far; reads only what is new."""
        if os.path.exists(self.metrics):
            with open(self.metrics, "rb") as file:
                file.seek(self.at)
                new = file.read()
            self.at += len(new)
            self.count += new.count(b'"rubato.step/1"')
        return self.count

    def expect_running(self):
        if any(process.poll() is not None for process in self.processes):
            with open(self.log, encoding="utf-8", errors="replace") as file:
                fail(f"the job has ended:\n{file.read()[-3000:]}")

    def await_steps(self, count):
        deadline = time.monotonic() + START_S
        while self.steps() < count:
            self.expect_running()
            if time.monotonic() > deadline:
                fail("the job does not start")
            time.sleep(0.05)

    def cpu_seconds(self):
        ticks = 0
        for process in self.processes:
            with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def attack(ports, chosen, seed):
    """A process that besieges for --seconds; its pid and the pipe on which it tells its count."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        siege = Siege(list(STRANGE.values()), chosen.rate, seed)
        ends = time.monotonic() + chosen.seconds
        siege.wave(ports, 10**9, lambda: time.monotonic() >= ends)
        siege.close()
        os.write(into, str(siege.count).encode())
        os._exit(0)
    os.close(into)
    return pid, out


def window(job, chosen, ports, seed):
    """(steps a second, connections, CPU seconds of the strangers, of the job a step)."""
    attacker = attack(ports, chosen, seed) if ports else None
    began, first, cpu = time.monotonic(), job.steps(), job.cpu_seconds()
    time.sleep(chosen.seconds)
    lasted, made = time.monotonic() - began, job.steps() - first
    cpu = (job.cpu_seconds() - cpu) / max(made, 1)
    job.expect_running()
    if attacker is None:
        return made / lasted, 0, 0.0, cpu
    with os.fdopen(attacker[1], "rb") as pipe:
        count = int(pipe.read())
    used = os.wait4(attacker[0], 0)[2]
    return made / lasted, count, used.ru_utime + used.ru_stime, cpu


def start_recorder():
    try:
        return Recorder()
    except PermissionError:
        print("strangers.py: no right to read raw packets: nothing is replayed", file=sys.stderr)
        return None


def measure(chosen, channel, decoy):
    """Arm -> its windows, in turns."""
    recorder = start_recorder()
    job = Job(chosen, channel)
    try:
        job.await_steps(20)
        streams = recorder.stop() if recorder else {}
        recorder = None
        ports = [(address, streams.get(address[1])) for address in listening_ports(job.processes)]
        every = [stream for group in streams.values() for stream in group]
        targets = {"alone": [], "decoy": [(decoy.address, every)], "besieged": ports}
        windows = {arm: [] for arm in ARMS}
        for turn in range(chosen.turns):
            for arm in ARMS:
                windows[arm].append(window(job, chosen, targets[arm], turn))
        return len(ports), windows
    finally:
        if recorder:
            recorder.stop()
        job.close()


def main():
    chosen = options()
    if not os.access(f"{chosen.bin}/rubato-server", os.X_OK):
        fail(f"no program {chosen.bin}/rubato-server: build it, or name its folder by --bin")
    decoy = Decoy()
    missed = False
    print(f"{chosen.turns} turns of {chosen.seconds:g} s an arm, {chosen.rate:g} connections/s")
    print(f"{'channel':<8} {'ports':>5} {'arm':<9} {'steps/s':>8} {'of alone':>9} "
          f"{'CPU ms/step':>11} {'connections':>11} {'their CPU':>9}")
    try:
        for channel in chosen.channels.split(","):
            ports, windows = measure(chosen, channel, decoy)
            for arm, rows in windows.items():
                rates, counts, used, cpu = zip(*rows)
                ratio = statistics.median(mine / alone[0] for mine, alone
                                          in zip(rates, windows["alone"]))
                lasted = chosen.seconds * chosen.turns
                verdict = ""
                if arm == "besieged":
                    verdict = "met" if ratio > GOAL else "MISSED"
                    missed = missed or ratio <= GOAL
                print(f"{channel:<8} {ports:5} {arm:<9} {statistics.median(rates):8.1f} "
                      f"{ratio:9.3f} {statistics.median(cpu) * 1e3:11.2f} {sum(counts):11} "
                      f"{sum(used) / lasted:9.2f}  {verdict}", flush=True)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    finally:
        decoy.close()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
