#!/usr/bin/env python3
"""Models in and out: --model and --init with a folder, and `rubato export`, whose files are read
here by a reader of its own, numbers rounded by Python's."""
import json
import os
import re
import struct

from cluster import PATIENCE_S, expect, expect_equal, main

SHAPE = ["--seq-len", "16", "--batch", "2", "--block-values", "300", "--push", "none", "--pull",
         "none"]


def train(cluster, model, run, *worker_options, steps=3):
    """One worker, one server; worker 0's processes."""
    first = cluster.coordinator("--model", model, "--steps", steps, *SHAPE, servers=1, workers=1)
    worker = cluster.worker("--run-dir", run, *worker_options, name=f"worker {len(run)}")
    return first, worker


def train_well(cluster, model, run, *worker_options, steps=3):
    """-> the validation loss at the end."""
    for process in (processes := train(cluster, model, run, *worker_options, steps=steps)):
        process.wait_exit(0)
    return re.search(r"result: val_loss=([0-9.]+)", processes[1].out()).group(1)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def export(cluster, code, *options):
    process = cluster.start(f"export {len(cluster.processes)}",
                            [cluster.program("rubato"), "export", *options])
    process.wait_exit(code, PATIENCE_S)
    return process


def rounded(dtype, value):
    """The bits of an f32, as bfloat16 or as half, rounded to nearest, ties to even."""
    if dtype == "F16":
        return struct.pack("<e", value)
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def tensors(blob):
    """name -> dtype, shape, raw bytes."""
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + size])
    header.pop("__metadata__")
    return {name: (entry["dtype"], entry["shape"],
                   blob[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def goes_on_from_a_run(cluster):
    """a second run with --model and --init of the first one's folder and no learning ends with the
    first one's weights, to the bit; so it does from a sharded export of them, for both families"""
    for model in ("gpt2:1x16x2", "llama:1x16x2"):
        family = model.split(":")[0]
        first, again, out, third = (cluster.path(f"{family}{n}") for n in range(4))
        loss = train_well(cluster, model, first)
        expect_equal(train_well(cluster, first, again, "--init", first, "--lr", 0), loss, "loss")
        weights = content(os.path.join(first, "model.safetensors"))
        expect(content(os.path.join(again, "model.safetensors")) == weights, "the bits differ")
        expect_equal(content(os.path.join(again, "config.json")),
                     content(os.path.join(first, "config.json")), "config.json")
        export(cluster, 0, "--run", again, "--to", out, "--shard-size", "4k")
        expect(len(os.listdir(out)) > 4, "the export is not in several files")
        index = os.path.join(out, "model.safetensors.index.json")
        train_well(cluster, os.path.join(out, "config.json"), third, "--init", index, "--lr", 0)
        expect(content(os.path.join(third, "model.safetensors")) == weights, "the bits differ")


def export_rounds(cluster):
    """the numbers of an export in f32, bf16 and f16 are the run's, rounded to nearest; config.json
    says which type; a folder that has a model is left alone (73)"""
    run = cluster.path("run")
    train_well(cluster, "gpt2:1x16x2", run)
    source = tensors(content(os.path.join(run, "model.safetensors")))
    config = json.loads(content(os.path.join(run, "config.json")))
    for dtype, name, torch in (("f32", "F32", "float32"), ("bf16", "BF16", "bfloat16"),
                               ("f16", "F16", "float16")):
        out = cluster.path(f"out-{dtype}")
        export(cluster, 0, "--run", run, "--to", out, "--dtype", dtype)
        written = tensors(content(os.path.join(out, "model.safetensors")))
        expect_equal(sorted(written), sorted(source), "names")
        for key, (kind, shape, raw) in written.items():
            values = [value for value, in struct.iter_unpack("<f", source[key][2])]
            wanted = source[key][2] if name == "F32" else b"".join(
                rounded(name, value) for value in values)
            expect_equal((kind, shape), (name, source[key][1]), key)
            expect(raw == wanted, f"{key} in {dtype}: other bits")
        expect_equal(json.loads(content(os.path.join(out, "config.json"))),
                     {**config, "torch_dtype": torch}, "config.json")
        process = export(cluster, 73, "--run", run, "--to", out)
        process.expect_line(r" error .*there already; give another folder")


def export_errors(cluster):
    """wrong flags are 2; a folder without a model or a config 66, a damaged one 65, one that cannot
    be written 73; each is one line"""
    run, empty = cluster.path("run"), cluster.path("empty")
    os.mkdir(empty)
    train_well(cluster, "gpt2:1x16x2", run)
    for code, options, line in (
            (2, ("--run", run), "give --to FOLDER"),
            (2, ("--run", run, "--model", run, "--to", empty), "give --to FOLDER and one of"),
            (2, ("--run", run, "--to", empty, "--dtype", "f8"), "f32, bf16, f16"),
            (66, ("--run", empty, "--to", cluster.path("out")), "has neither model.safetensors"),
            (73, ("--run", run, "--to", cluster.data), cluster.data)):
        process = export(cluster, code, *options)
        process.expect_line(" error .*" + re.escape(line))
        expect_equal(len(process.lines("error")), 1, "error lines")
    model = os.path.join(run, "model.safetensors")
    blob = content(model)
    cluster.write("run/model.safetensors", blob[:-1])
    export(cluster, 65, "--run", run, "--to", empty).expect_line(" error .*not all in the file")
    cluster.write("run/model.safetensors", blob)
    os.remove(os.path.join(run, "config.json"))
    export(cluster, 66, "--run", run, "--to", empty).expect_line(" error .*config.json")


def bad_inputs(cluster):
    """what is wrong with --model or --init ends the job: 66 for what cannot be read, 65 for bad
    content, 2 for options that do not go together; one error line says what"""
    run = cluster.path("first")
    train_well(cluster, "gpt2:1x16x2", run)
    small = cluster.path("small")
    os.mkdir(small)
    cluster.write("small/config.json", json.dumps({
        "model_type": "gpt2", "vocab_size": 100, "n_positions": 16, "n_embd": 16, "n_layer": 1,
        "n_head": 2}).encode())
    cluster.write("relu.json", json.dumps({
        "model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 1,
        "n_head": 2, "activation_function": "relu"}).encode())
    for code, model, options, line in (
            (66, "gpt2:1x16x2", ("--init", cluster.path("nobody")), "nobody"),
            (65, "gpt2:1x32x2", ("--init", run), "its shape is"),
            (65, "gpt2:2x16x2", ("--init", run), "12 tensors of the model are missing"),
            (65, "gpt2:1x16x2", ("--init", cluster.data), "longer than 16 MiB or than the file"),
            (66, cluster.path("nobody/config.json"), (), "nobody"),
            (65, cluster.path("relu.json"), (), 'activation_function is "relu"'),
            (65, small, (), "100"),
            (2, run, ("--seq-len", 17), "allowed: 1 to 16"),
            (2, run, ("--vocab", 300), "vocab_size 256")):
        before = len(cluster.processes)
        first = cluster.coordinator("--model", model, *(() if "--seq-len" in options else SHAPE),
                                    servers=1, workers=1)
        worker = cluster.worker(*options, "--run-dir", cluster.path(f"bad{before}"),
                                name=f"worker {before}")
        worker.wait_exit(code)
        first.wait_exit(69)
        expect_equal(len(worker.lines("error")), 1, f"error lines of {worker.name}")
        worker.expect_line(" error .*" + re.escape(line))


if __name__ == "__main__":
    main(__doc__, [goes_on_from_a_run, export_rounds, export_errors, bad_inputs])
