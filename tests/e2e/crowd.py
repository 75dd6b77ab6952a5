#!/usr/bin/env python3
"""256 workers and one server, all real processes of this machine, over UCX: they connect, train a
tiny model, and end well; the server counts every worker's every report. The lease is long, since
hundreds of processes that start at once keep a small machine's cores from one another for seconds.
"""
import os
import re

from cluster import expect, expect_equal, main, seeded_text

WORKERS, STEPS = 256, 2
PATIENCE_S = 360  # 35 s where others used half of two cores
FILES = 1024  # what systems allow a process; the server must do with it, or raise its own limit


def crowd(cluster):
    """256 workers on one server within 1024 files a process; 2 reports of each are counted."""
    text = cluster.path("text")
    with open(text, "wb") as file:
        file.write(seeded_text(20000))
    launch = cluster.start_limited(
        "launch", f"-Sn {FILES}", "rubato", "launch", "--servers", 1, "--workers", WORKERS,
        "--threads", 1, "--channel", "ucx", "--lease", 120, "--data", text, "--model",
        "gpt2:1x16x2", "--seq-len", 16, "--batch", 2, "--block-values", 4096, "--steps", STEPS,
        "--run-dir", cluster.path("run"), "--sample-tokens", 0, "--eval-every", 0,
        "--eval-batches", 1)
    launch.wait_exit(0, PATIENCE_S)
    logged = launch.err() + launch.out()
    counted = re.findall(r"worker (\d+) .*: (\d+) reports counted, 0 dropped", logged)
    expect_equal(sorted(int(rank) for rank, _ in counted), list(range(WORKERS)), "workers counted")
    expect(all(int(reports) == STEPS for _, reports in counted), f"{STEPS} reports of each")
    expect(os.path.exists(cluster.path("run/model.safetensors")), "the trained model is there")


if __name__ == "__main__":
    main(__doc__, [crowd])
