#!/usr/bin/env python3
"""scripts/gpu-check without a GPU: whole, in small sizes, with the programs of a build on the
stand-in for CUDA that LD_LIBRARY_PATH names; and with programs that fail, hang or are killed, which
must come to the exit code that its --help promises, and be named.

usage: test_gpu_check.py BUILD

nvidia-smi, compute-sanitizer, nvcc and cmake are scripts in PATH. The folder that is given as
--build holds a list of tests for ctest, and BUILD's programs or scripts in their place.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/gpu-check")
LIMIT_S = 240

NVIDIA_SMI = """#!/bin/sh
case "$*" in
-L) printf 'GPU 0: Stand-in (UUID: 0)\\nGPU 1: Stand-in (UUID: 1)\\n' ;;
*=compute_cap*) printf '%s\\n' ${CARDS:-9.0 9.0} ;;
*--query*) echo '0, Stand-in, 580.65, 1024 MiB' ;;
*) echo '| NVIDIA-SMI 580.65   Driver Version: 580.65   CUDA Version: 13.0  |' ;;
esac
"""
# Options, each with a value, then a program, which it runs: where that ends in $FINDS, the exit
# code is $CODE, and where it ends in $HANGS, it does not end.
SANITIZER = """#!/bin/sh
echo "$*" >>"$CALLS"
while [ "${1#--}" != "$1" ]; do shift 2; done
case $* in
*"${FINDS:-nothing}") exit ${CODE:-9} ;;
*"${HANGS:-nothing}") echo $$ >"$CALLS.pid"; exec sleep 100 ;;
esac
exec "$@"
"""
NVCC = """#!/bin/sh
case $1 in
--version) echo 'Cuda compilation tools, release 12.4, V12.4.99' ;;
--list-gpu-code) printf '%s\\n' $KNOWN ;;
esac
"""
CMAKE = """#!/bin/sh
echo "$*" >>"$CALLS"
"""
# The first call asks whether there is the device, and has no --json. What hangs or is killed has
# written a row before.
KERNELS = """#!/bin/sh
case $* in *--json*) ;; *) exit ${NO_DEVICE:-0} ;; esac
[ -n "$KERNELS" ] || exit 0
while [ "$1" != --json ]; do shift; done
echo '{"bench": "kernels", "device": "x", "operation": "copy", "gb_s": 1, "of_copy": 1}' >>"$2"
[ $KERNELS != killed ] || kill -9 $$
echo $$ >"$CALLS.pid"
exec sleep 100
"""
# The last argument is the file of the figures.
COMPUTE = """#!/bin/sh
for last; do :; done
printf '%s' "$FIGURE" >>"$last"
"""
RUBATO = """#!/bin/sh
while [ "$1" != --run-dir ]; do shift; done
mkdir -p "$2"
for loss in 5 4 3 2 ${LAST:-1}; do
    echo "{\\"schema\\": \\"rubato.step/1\\", \\"ms\\": {\\"forward\\": 1}, \\"loss\\": $loss}"
done >"$2/metrics.jsonl"
"""


def expect(condition, what):
    if not condition:
        sys.exit(f"test_gpu_check.py: {what}")


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def folders(root, programs):
    """Tools, and a --build whose bin/ is a link, or has the scripts of a dictionary."""
    for name in ("tools", "build"):
        os.mkdir(os.path.join(root, name))
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", SANITIZER)):
        write(os.path.join(root, "tools", name), text)
    if isinstance(programs, str):
        os.symlink(programs, os.path.join(root, "build/bin"))
        return
    os.mkdir(os.path.join(root, "build/bin"))
    for name, text in programs.items():
        write(os.path.join(root, "build/bin", name), text)


def list_tests(root, tests):
    """(name, command, labels)... as ctest's own file."""
    lines = []
    for name, command, labels in tests:
        words = " ".join(f"[==[{word}]==]" for word in command)
        lines.append(f"add_test({name} {words})\nset_tests_properties({name} PROPERTIES "
                     f"LABELS \"{labels}\" SKIP_RETURN_CODE 77)\n")
    write(os.path.join(root, "build/CTestTestfile.cmake"), "".join(lines))


def start(root, *flags, given=("--no-setup", "--no-build", "--small"), **environment):
    calls = os.path.join(root, "calls")
    for path in (calls, calls + ".pid"):
        if os.path.exists(path):
            os.remove(path)
    words = ["--build", os.path.join(root, "build"), "--out", os.path.join(root, "out"),
             "--python", sys.executable, *given, *flags]
    path = os.path.join(root, "tools") + ":" + os.environ["PATH"]
    # Where this test runs beside a shell, SIGINT is ignored, and then no shell can trap it.
    return subprocess.Popen([SCRIPT, *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                            env={**os.environ, "PATH": path, "CALLS": calls, "CUDA_HOME": "",
                                 **environment})


def check(root, code, *flags, **environment):
    """Runs the script -> what it printed."""
    with start(root, *flags, **environment) as script:
        said, _ = script.communicate(timeout=LIMIT_S)
    expect(script.returncode == code,
           f"{flags} {environment}: exit code {script.returncode}, expected {code}:\n{said}")
    return said


def interrupt(root, number, **hangs):
    """A signal ends the script, and what of it hangs."""
    path = os.path.join(root, "calls.pid")
    with start(root, **hangs) as script:
        deadline = time.monotonic() + LIMIT_S
        while not (os.path.exists(path) and read(path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        script.send_signal(number)
        said, _ = script.communicate(timeout=60)
    expect(script.returncode == 128 + number, f"{number}: exit code {script.returncode}:\n{said}")
    expect(not os.path.exists(f"/proc/{read(path).strip()}"), f"{hangs} is left by {number}")


def expect_lines(text, *patterns):
    for pattern in patterns:
        expect(re.search(f"^{pattern}$", text, re.MULTILINE), f"no line {pattern!r} in:\n{text}")


def whole(build):
    """The table, what it says of itself, and what the sanitizer is given."""
    with tempfile.TemporaryDirectory() as root:
        binaries = os.path.join(build, "bin")
        folders(root, binaries)
        program = os.path.join(binaries, "test_cuda_nvml_plain")
        job = os.path.join(os.path.dirname(SCRIPT), "../tests/e2e/gpu.py")
        list_tests(root, [("one", [program], "gpu"), ("skips", ["/bin/sh", "-c", "exit 77"], "gpu"),
                          ("job", [sys.executable, job, binaries, "1", "watched"], "gpu;e2e"),
                          ("other", ["false"], "cuda_on_cpu")])
        said = check(root, 0)
        expect_lines(said, "=== tests: ok, .*", "=== kernels: ok, .*", "=== train 1x32x2: ok, .*",
                     "=== exchange: ok, .*", "=== memcheck: ok, .*", "=== racecheck: ok, .*",
                     "=== beside PyTorch 1x32x2: left out: .* has no torch for CUDA",
                     "left out: beside PyTorch 1x32x2")
        report = read(root, "out/report.txt")
        expect_lines(report, r"date: \d{4}-\d\d-\d\d \d\d:\d\d UTC", "commit: .+",
                     "card, driver, memory: 0, Stand-in, 580.65, 1024 MiB",
                     r"CUDA of the driver: 13\.0", "CUDA toolkit: .+", "measured: cuda:0, small .*",
                     r"largest product, bf16 +[0-9.e+-]+ +1\.00", r"copy .*1\.00",
                     r"gpt2:1x32x2 +\d+ +[0-9.]+ .*", "exchange with a server, median ms .*",
                     r"loss of its first and last step: \d\.\d{3}, \d\.\d{3}")
        expect(report.startswith("date: "), "report.txt does not begin with the date")
        expect(said.rstrip().split("\n\n")[-2] in report, "report.txt is not what was printed")
        kinds = {json.loads(line)["bench"] for line in read(root, "out/figures.jsonl").splitlines()}
        expect(kinds >= {"kernels", "compute", "exchange"}, f"figures of {kinds}")
        wanted = [f"--tool {tool} --error-exitcode 9{more} {command}"
                  for tool, more in (("memcheck", " --report-api-errors no"), ("racecheck", ""))
                  for command in (program, "/bin/sh -c exit 77")]
        expect(read(root, "calls").splitlines() == wanted, f"sanitized: {read(root, 'calls')}")


def failures(root):
    """A part that fails is named and keeps none from running."""
    tests = [("good", ["sh", "-c", "exit 0"], "gpu"), ("bad", ["sh", "-c", "true bad"], "gpu"),
             ("skips", ["sh", "-c", "exit 77"], "gpu")]
    list_tests(root, tests)
    expect_lines(check(root, 0), "=== memcheck: ok, .*")
    said = check(root, 1, FINDS="bad")
    expect_lines(said, "=== memcheck: FAILED with exit code 9, .*", "FAILED: memcheck",
                 r" +FAILED: .*bad.* \(9\)",
                 "=== racecheck: FAILED with exit code 9, .*", "=== tests: ok, .*")
    expect(len(read(root, "calls").splitlines()) == 6, "not all programs were sanitized")
    expect_lines(check(root, 1, LAST="6"), "=== exchange: FAILED .*", ".* learned nothing: .*")
    expect_lines(check(root, 1, FIGURE="no JSON\n"), "=== train 1x32x2: ok, .*", "FAILED: report")
    said = check(root, 1, FINDS="bad", CODE="124")  # as timeout says it
    expect_lines(said, "=== memcheck: FAILED .*", r" +FAILED: .*bad.* \(not done in 60 s\)")
    said = check(root, 1, KERNELS="killed")
    expect_lines(said, "=== kernels: FAILED with exit code 137, .*", "=== exchange: ok, .*",
                 "copy +1 +1.00")
    said = check(root, 0, "--limit", "12", KERNELS="hang")
    expect_lines(said, "=== kernels: left out, --limit 12 was over after .*", "left out: kernels",
                 "=== exchange: left out, --limit 12 is over", "left out: racecheck",
                 "copy +1 +1.00")
    said = check(root, 0, "--limit", "20", HANGS="bad")
    expect_lines(said, "=== memcheck: left out: . programs passed; no time for .*bad.*")
    interrupt(root, signal.SIGINT, KERNELS="hang")
    interrupt(root, signal.SIGTERM, HANGS="bad")
    expect_lines(check(root, 1, "--limit", "0"), "FAILED: nothing has run")
    list_tests(root, tests[2:])
    expect_lines(check(root, 1), "=== tests: FAILED .*", " +FAILED: all tests were skipped",
                 "=== memcheck: FAILED .*", " +FAILED: no test program ran")
    list_tests(root, [])
    expect_lines(check(root, 1), "=== tests: FAILED .*", " +FAILED: ctest does not tell the tests")


def devices(root):
    """Tests see the device that is asked for first; without a GPU the check skips, but with one
    that does not work it fails."""
    for device, given, seen in (("cuda:1", {}, "1,0"),
                                ("cuda:2", {"CUDA_VISIBLE_DEVICES": "GPU-a,b,3"}, "3,GPU-a,b")):
        list_tests(root, [("sees", ["sh", "-c", f"test $CUDA_VISIBLE_DEVICES = {seen}"], "gpu")])
        check(root, 0, "--device", device, **given)
    expect_lines(check(root, 1, NO_DEVICE="1"), ".* does not run on cuda:0")
    expect_lines(check(root, 77, CARDS="7.0 7.5"),
                 ".*: needs compute capability 8.0; the cards have 7.0, 7.5")
    write(os.path.join(root, "tools/nvidia-smi"), "#!/bin/sh\nexit 9\n")
    expect_lines(check(root, 77, NO_DEVICE="1"), ".* there is no GPU to run on")
    write(os.path.join(root, "tools/nvidia-smi"), NVIDIA_SMI)
    for flags in (("--device", "cuda"), ("--limit", "x"), ("--fast",), ("--out",)):
        expect_lines(check(root, 2, *flags), "scripts/gpu-check: .*" + flags[-1] + ".*")


def builds(root):
    """What is built is for the cards that are there, where nvcc knows them."""
    list_tests(root, [("good", ["sh", "-c", "exit 0"], "gpu")])
    write(os.path.join(root, "tools/nvcc"), NVCC)
    write(os.path.join(root, "tools/cmake"), CMAKE)
    for cards, known, option in (("9.0 9.0", "sm_80 sm_90", "-DCMAKE_CUDA_ARCHITECTURES=90-real"),
                                 ("7.5 9.0", "sm_90", "-DCMAKE_CUDA_ARCHITECTURES=90-real"),
                                 ("9.0", "sm_80", "-U CMAKE_CUDA_ARCHITECTURES")):
        said = check(root, 0, given=("--no-setup", "--small"), CARDS=cards, KNOWN=known)
        expect_lines(said, "=== build: ok, .*", "=== tests: ok, .*",
                     "CUDA toolkit: .* release 12.4, .*")
        configure, build = read(root, "calls").splitlines()[:2]
        expect(f"-DRUBATO_CUDA=ON {option} " in configure + " ", f"configured by {configure}")
        expect(build.endswith("--target gpu_check"), f"built by {build}")
    write(os.path.join(root, "tools/cmake"), "#!/bin/sh\nsleep 3\n")  # configures, then builds
    said = check(root, 1, "--limit", "10", given=("--no-setup",))
    expect_lines(said, "=== build: ok, .*", "left out: tests", "FAILED: nothing has run")
    write(os.path.join(root, "tools/cmake"), "#!/bin/sh\nexit 3\n")
    expect_lines(check(root, 1, given=("--no-setup",)), "=== build: FAILED with exit code 3, .*")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as root:
        folders(root, {"bench_kernels": KERNELS, "bench_compute": COMPUTE, "rubato": RUBATO})
        failures(root)
        devices(root)
        builds(root)
    whole(os.path.abspath(sys.argv[1]))
    print("gpu-check: a whole run on the stand-in, failures, devices and builds are as promised")


if __name__ == "__main__":
    main()
