"""Real processes of a job for the end-to-end tests: start, wait with a deadline, read their logs.

A test is a list of functions case(cluster), whose docstrings say what they prove; main() prints
these, runs the cases, and exits with 1 if one failed, after all that its processes have printed.
Cluster hands out ports and folders, and ends in the end what a case has left running. Nothing here
or in the cases asserts on speed: only on deadlines that Rubato promises, plus SLACK_S.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from array import array
from concurrent.futures import ThreadPoolExecutor

SLACK_S = 3.0  # what a loaded machine with two cores may add to a promised deadline
PATIENCE_S = 90.0  # for what has no promised deadline: then something hangs

# A model and a job so small that a step takes about a millisecond, in some 30 blocks.
TINY = ["--model", "gpt2:1x16x2", "--seq-len", "16", "--batch", "2", "--block-values", "300"]
TINY_JOB = TINY + ["--steps", "5"]

# What the user's shell says must not change a test.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RUBATO_")}
ENVIRONMENT["OMP_WAIT_POLICY"] = "passive"

# The same cases over another channel, with a key: what TEST_CHANNEL names, where no flag says more.
TEST_CHANNEL = os.environ.get("TEST_CHANNEL", "")

ports_lock = threading.Lock()
ports_given = set()


class Failure(Exception):
    """An expectation that was not met."""


def expect(condition, message):
    if not condition:
        raise Failure(message)


def expect_equal(actual, wanted, what):
    expect(actual == wanted, f"{what} is {actual!r}, expected {wanted!r}")


def expect_pushes(ms, during):
    """Of a step's phases: its first block was handed over during backward, or when that was done.
    All on the worker's own clock, of which 9 digits are told."""
    computed = ms["forward"] + ms["forward_wait"] + ms["backward"]
    expect((ms["first_push"] < computed * (1 - 1e-8)) == during, f"the first push in {ms}")
    expect(ms["forward"] * (1 - 1e-8) < ms["first_push"] <= ms["last_push"], f"pushes in {ms}")


def wait_until(condition, seconds, what):
    """The first true value of condition() within the time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        expect(time.monotonic() < deadline, f"not within {seconds:.1f} s: {what}")
        time.sleep(0.01)


def free_port():
    """A port that nobody has. Below the ports that the system hands out by itself, so that no data
    channel takes it before the coordinator does."""
    with ports_lock:
        while True:
            port = random.SystemRandom().randrange(20000, 32000)
            with socket.socket() as probe:
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError:
                    continue
            if port not in ports_given:
                ports_given.add(port)
                return port


class Process:
    """One program of a job; standard error and output go to files."""

    def __init__(self, name, folder, arguments, environment=None):
        self.name = name
        self.arguments = [str(argument) for argument in arguments]
        self.err_path = os.path.join(folder, name.replace(" ", "-") + ".err")
        self.out_path = os.path.join(folder, name.replace(" ", "-") + ".out")
        self.started = time.monotonic()
        with open(self.err_path, "wb") as err, open(self.out_path, "wb") as out:
            self.popen = subprocess.Popen(
                self.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                env=dict(ENVIRONMENT, **(environment or {})))

    @property
    def pid(self):
        return self.popen.pid

    def read(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def err(self):
        return self.read(self.err_path)

    def out(self):
        return self.read(self.out_path)

    def lines(self, level):
        """Texts of the log lines of this level."""
        pattern = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} " + level + " (.*)$", re.MULTILINE)
        return pattern.findall(self.err())

    def running(self):
        return self.popen.poll() is None

    def signal(self, number):
        self.popen.send_signal(number)

    def wait_line(self, pattern, seconds):
        """The line of standard error that the pattern matches, which must come within the time."""
        compiled = re.compile(pattern)

        def search():
            ended = not self.running()
            for line in self.err().splitlines():
                if compiled.search(line):
                    return line
            expect(not ended, f"{self.name} ended without a line that matches {pattern!r}")
            return None

        return wait_until(search, seconds, f"{self.name} prints {pattern!r}")

    def expect_line(self, pattern):
        """The line of standard error that the pattern matches, which is there by now."""
        for line in self.err().splitlines():
            if re.search(pattern, line):
                return line
        raise Failure(f"{self.name} has no line that matches {pattern!r}")

    def wait_exit(self, code, seconds=PATIENCE_S):
        """The process ends by itself within the time, with this code."""
        try:
            actual = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} has not ended within {seconds:.1f} s") from None
        expect_equal(actual, code, f"exit code of {self.name}")


class Cluster:
    """The processes, ports and files of one case."""

    def __init__(self, binaries, name):
        self.binaries = binaries
        self.folder = tempfile.mkdtemp(prefix=f"rubato-{name}-")
        self.processes = []
        self.port = free_port()
        self.data = self.write("data.txt", seeded_text(40000))
        self.run_dir = os.path.join(self.folder, "run")
        self.key_options = []
        self.environment = {}
        if TEST_CHANNEL:
            key = self.path("every.key")
            subprocess.run([self.program("rubato"), "keygen", key], check=True,
                           stderr=subprocess.DEVNULL)
            self.environment = {"RUBATO_CHANNEL": TEST_CHANNEL, "RUBATO_KEY_FILE": key}

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def program(self, name):
        return os.path.join(self.binaries, name)

    def start(self, name, arguments, environment=None):
        taken = [process.name for process in self.processes]
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name} again {number}", number + 1
        process = Process(unique, self.folder, arguments,
                          dict(self.environment, **(environment or {})))
        self.processes.append(process)
        return process

    def start_limited(self, name, limit, program, *options):
        """The same with a limit of the shell's `ulimit`, such as "-Sn 40"; the program is ours."""
        return self.start(name, ["/bin/bash", "-c", f'ulimit {limit}; exec "$@"', "bash",
                                 self.program(program), *options])

    def coordinator(self, *options, listen=None, servers=2, workers=2, environment=None):
        arguments = [self.program("rubato-server"), "--listen", listen or self.address,
                     "--servers", servers, "--workers", workers, *self.key_options, *options]
        return self.start("coordinator", arguments, environment)

    def server(self, *options, join=None, name="server", environment=None):
        arguments = [self.program("rubato-server"), "--join", join or self.address,
                     *self.key_options, *options]
        return self.start(name, arguments, environment)

    def worker(self, *options, join=None, name="worker", data=None, environment=None):
        """All share one run folder; --run-dir among the options counts instead."""
        arguments = [self.program("rubato-worker"), "--join", join or self.address,
                     "--data", data or self.data, "--threads", 1, "--eval-every", 0,
                     "--sample-tokens", 0, "--run-dir", self.run_dir, *self.key_options, *options]
        return self.start(name, arguments, environment)

    def start_job(self, *options, servers=2, workers=2, server_options=(), worker_options=()):
        """Everyone, the job's options given to the coordinator."""
        first = self.coordinator(*options, *server_options, servers=servers, workers=workers)
        others = [self.server(*server_options, name=f"server {i}") for i in range(1, servers)]
        trainers = [self.worker(*worker_options, name=f"worker {i}") for i in range(workers)]
        return [first] + others, trainers

    def finish_job(self, seconds=PATIENCE_S):
        """Everyone who was started ends with exit code 0."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.wait_exit(0, max(0.1, deadline - time.monotonic()))

    def steps(self):
        """How many steps worker 0 has reported."""
        try:
            with open(os.path.join(self.run_dir, "metrics.jsonl"), "rb") as file:
                return file.read().count(b'"rubato.step/1"')
        except FileNotFoundError:
            return 0

    def wait_steps(self, count, seconds=PATIENCE_S):
        wait_until(lambda: self.steps() >= count, seconds, f"step {count} of the job")

    def model_bytes(self):
        with open(os.path.join(self.run_dir, "model.safetensors"), "rb") as file:
            return file.read()

    def dump(self, file):
        for process in self.processes:
            code = process.popen.poll()
            state = "running" if code is None else f"exit {code}"
            print(f"---- {process.name} ({state}): {' '.join(process.arguments)}", file=file)
            for text in (process.err(), process.out()):
                for line in text.splitlines()[-60:]:
                    print(f"  {line}", file=file)

    def close(self, failed):
        for process in self.processes:
            if process.running():
                process.signal(signal.SIGKILL)
                process.popen.wait()
        if failed:
            self.dump(sys.stderr)
        shutil.rmtree(self.folder)


def seeded_text(count, seed=1):
    """Bytes with something to learn in them: words of a small vocabulary, the same each time."""
    source = random.Random(seed)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 8)))
             for _ in range(200)]
    text = bytearray()
    while len(text) < count:
        text += source.choice(words) + b" "
    return bytes(text[:count])


def read_metrics(path, schema="rubato.step/1"):
    """The lines of a metrics file that have this schema; each line must be a JSON object."""
    with open(path, encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["schema"] == schema]


def read_safetensors(content):
    """name -> (shape, values); the file must be whole, contiguous and finite."""
    (header_bytes,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + header_bytes])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        expect_equal(first, end, f"offset of {name}")
        expect_equal(entry["dtype"], "F32", f"dtype of {name}")
        values = array("f", content[8 + header_bytes + first:8 + header_bytes + last])
        count = 1
        for length in entry["shape"]:
            count *= length
        expect_equal(len(values), count, f"values of {name}")
        expect(all(abs(value) < 1e6 for value in values), f"{name} has values that are not finite")
        tensors[name] = (entry["shape"], values)
        end = last
    expect_equal(len(content), 8 + header_bytes + end, "bytes of the file")
    return tensors


def run_case(case, binaries):
    """Whether the case holds, and how long it took."""
    name = case.__name__
    began = time.monotonic()
    cluster = Cluster(binaries, name)
    failed = True
    try:
        case(cluster)
        failed = False
    except Failure as failure:
        print(f"FAILED {name}: {failure}", file=sys.stderr)
    except Exception:  # a mistake of the test's must not keep the processes running
        print(f"FAILED {name}:\n{traceback.format_exc()}", file=sys.stderr)
    finally:
        cluster.close(failed)
        sys.stderr.flush()
    print(f"{'FAILED' if failed else 'ok'} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return not failed


def main(description, cases, parallel=1):
    """Runs the cases, `parallel` at a time: most of the time of many is spent in waiting."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("bin", help="folder of rubato-server, rubato-worker and rubato")
    parser.add_argument("case", nargs="*", help="names of cases; all when none is given")
    arguments = parser.parse_args()
    chosen = [case for case in cases if not arguments.case or case.__name__ in arguments.case]
    if not chosen:
        parser.error("no such case; there are: " + " ".join(case.__name__ for case in cases))
    print(description.strip())
    for case in chosen:
        print(f"  {case.__name__}: {' '.join(case.__doc__.split())}")
    sys.stdout.flush()
    binaries = os.path.abspath(arguments.bin)
    with ThreadPoolExecutor(parallel) as pool:
        passed = list(pool.map(lambda case: run_case(case, binaries), chosen))
    print(f"{sum(passed)} of {len(passed)} cases hold")
    sys.exit(0 if all(passed) else 1)
