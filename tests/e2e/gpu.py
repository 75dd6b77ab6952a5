#!/usr/bin/env python3
"""Workers with --device cuda in real jobs on the GPUs of this machine: those cases of device.py and
node.py that need nothing of the stand-in of tests/cuda_on_cpu, and what NVIDIA's driver tells.

usage: gpu.py BIN COUNT [CASE...]     the cases of one GPU or of two; exit code 77, a skip, where
                                      there are fewer
"""
import ctypes
import os
import re
import subprocess
import sys

import node
from cluster import expect, expect_equal, main
from device import (EXACT, MODELS, in_bf16_with_a_cpu, metrics_of, on_two_devices, run,
                    trains_as_the_cpu)

node.ONE, node.TWO = ["--device", "cuda:1"], ["--device", "cuda:0,1"]


def gpu_count(binaries):
    """How many a worker says that there are, when it is given one that is not there."""
    done = subprocess.run([os.path.join(binaries, "rubato-worker"), "--join", "127.0.0.1:9",
                           "--data", __file__, "--device", "cuda:9999"],
                          stderr=subprocess.PIPE, text=True, check=False)
    found = re.search(r"there is no cuda:9999: this machine has (\d+)", done.stderr)
    if found is None:
        print(done.stderr.strip())
    return int(found[1]) if found else 0


def watched(cluster):
    """where the driver's library (NVML) is, the metrics tell the memory that is used on the GPU, no
    less than what the worker takes, its utilisation and its temperature"""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        there = True
    except OSError:
        there = False
    run(cluster, "cuda:0", "--model", MODELS[0], "--steps", 2, *EXACT)
    for line in metrics_of(cluster.path("run0")):
        expect_equal("device_memory_used" in line, there, "what NVML tells is there")
        if there:
            expect(line["device_memory_used"] >= line["device_bytes"], f"memory in {line}")
            expect(-1 <= line["device_utilisation"] <= 100, f"utilisation in {line}")
            expect(-1 <= line["device_celsius"] < 150, f"temperature in {line}")


CASES = {"1": [trains_as_the_cpu, in_bf16_with_a_cpu, watched],
         "2": [on_two_devices, node.as_two_workers]}

if __name__ == "__main__":
    count = sys.argv.pop(2) if len(sys.argv) > 2 else ""
    if count not in CASES:
        sys.exit(__doc__)
    if gpu_count(sys.argv[1]) < int(count):
        print(f"skipped: there are not {count} GPUs")
        sys.exit(77)
    main(__doc__, CASES[count])
