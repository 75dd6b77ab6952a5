#!/usr/bin/env python3
"""`rubato sample` and `rubato plan`: texts of a model whose distribution is known (all weights are
zero but the last norm's bias and the token embeddings, so that the logits are chosen here), and a
plan's figures against closed forms."""
import json
import os
import re
import shutil
import struct

from cluster import PATIENCE_S, expect, expect_equal, main

CHANNELS = 4
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden",
                         "tokenizer.json")


def tool(cluster, code, *words):
    process = cluster.start(f"tool {len(cluster.processes)}", [cluster.program("rubato"), *words])
    process.wait_exit(code, PATIENCE_S)
    return process


def write_model(cluster, vocab, logits):
    """A folder with a GPT-2 of one layer; logits: token -> logit, for all others it is 0."""
    C = CHANNELS
    embeddings = [0.0] * (vocab * C)
    for token, logit in logits.items():
        embeddings[token * C] = logit
    layer = {"ln_1.weight": [C], "ln_1.bias": [C], "attn.c_attn.weight": [C, 3 * C],
             "attn.c_attn.bias": [3 * C], "attn.c_proj.weight": [C, C], "attn.c_proj.bias": [C],
             "ln_2.weight": [C], "ln_2.bias": [C], "mlp.c_fc.weight": [C, 4 * C],
             "mlp.c_fc.bias": [4 * C], "mlp.c_proj.weight": [4 * C, C], "mlp.c_proj.bias": [C]}
    shapes = {"transformer.wte.weight": [vocab, C], "transformer.wpe.weight": [32, C],
              "transformer.ln_f.weight": [C], "transformer.ln_f.bias": [C]}
    shapes.update({f"transformer.h.0.{name}": shape for name, shape in layer.items()})
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [0.0] * count
        if name.endswith("wte.weight"):
            values = embeddings
        elif name.endswith("ln_f.bias"):
            values[0] = 1.0
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *values)
    text = json.dumps(header).encode()
    folder = cluster.path("model")
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1,
                   "n_embd": C, "n_head": 1, "n_positions": 32, "vocab_size": vocab,
                   "activation_function": "gelu_new"}, file)
    return folder


def bytes_model(cluster):
    """with bytes: at temperature 0 or --top-k 1 the likeliest byte comes, beyond the model's
    positions too; with --top-k 2 both of two and no other; the seed decides"""
    folder = write_model(cluster, 256, {ord("x"): 3.0, ord("y"): 2.9})

    def sample(*words):
        return tool(cluster, 0, "sample", "--model", folder, "--prompt", "ab", *words).out()

    expect_equal(sample("--tokens", "50", "--temperature", "0"), "ab" + "x" * 50 + "\n", "greedy")
    expect_equal(sample("--tokens", "5", "--top-k", "1"), "abxxxxx\n", "the text of top-k 1")
    expect_equal(sample("--tokens", "0"), "ab\n", "the text without tokens")
    both = sample("--tokens", "30", "--top-k", "2", "--seed", "3")
    expect_equal(set(both[2:-1]), {"x", "y"}, "the letters of top-k 2")
    expect_equal(sample("--tokens", "30", "--top-k", "2", "--seed", "3"), both, "the text again")
    other = sample("--tokens", "30", "--top-k", "2", "--seed", "4")
    expect(other != both, "another seed, the same text")


def tokenizer_model(cluster):
    """with a tokenizer, the folder's own or --tokenizer, tokens are its words"""
    with open(TOKENIZER, encoding="utf-8") as file:
        vocab = json.load(file)["model"]["vocab"]
    word, token = next((w, t) for w, t in vocab.items() if t > 256 and w.isascii() and w.isalpha())
    folder = write_model(cluster, 601, {token: 5.0})
    words = ["sample", "--model", folder, "--prompt", "Hello", "--tokens", "3", "--temperature",
             "0"]
    tool(cluster, 2, *words).expect_line("needs its tokenizer")
    expected = "Hello" + 3 * word + "\n"
    expect_equal(tool(cluster, 0, *words, "--tokenizer", TOKENIZER).out(), expected, "the text")
    shutil.copy(TOKENIZER, os.path.join(folder, "tokenizer.json"))
    expect_equal(tool(cluster, 0, *words).out(), expected, "the text")


def sample_refuses(cluster):
    """no --model is 2; a folder without a model is 66; a broken file is 65"""
    tool(cluster, 2, "sample").expect_line("give --model FOLDER")
    tool(cluster, 66, "sample", "--model", cluster.path("nothing"))
    folder = write_model(cluster, 256, {})
    path = os.path.join(folder, "model.safetensors")
    os.truncate(path, os.path.getsize(path) - 4)
    tool(cluster, 65, "sample", "--model", folder)


def plan_figures(cluster):
    """a plan of GPT-2 1.5B: its parameters, shards, memory and traffic are what they must be"""
    L, C, V, T = 48, 1600, 50257, 1024
    values = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
    text = tool(cluster, 0, "plan", "--model", "gpt2:1.5B", "--servers", "4", "--shards", "2",
                "--workers", "8", "--batch", "4", "--accumulate", "3", "--seq-len", str(T),
                "--push", "int8", "--optimizer", "adamw").out()
    expect(f"values  {values} in " in text, f"no {values} values in:\n{text}")
    expect("shards  8, " in text, "not 8 shards")
    expect(f"{3 * 4 * T} a step and worker, {8 * 3 * 4 * T} of all workers" in text, "tokens")
    mib = 4 * values / 2**20
    rows = [[float(x) for x in re.findall(r"[0-9.]+", line)[1:]]
            for line in text.splitlines() if re.match(r"server \d", line)]
    expect_equal(len(rows), 4, "servers")
    for _, weights, moments, total, *_ in rows:
        expect(abs(weights - mib / 4) < 0.01 * mib, f"weights of a server: {weights}")
        expect(abs(moments - 2 * weights) < 0.11 and total == weights, "moments and sum")
    ratio = re.search(r"f32 over wire +([0-9.]+)x +([0-9.]+)x", text)
    expect(abs(float(ratio.group(1)) - 4 / (1 + 2 / 128)) < 0.01, f"push {ratio.group(1)}")
    expect_equal(ratio.group(2), "2.00", "ratio of pulls in bf16")
    tool(cluster, 2, "plan", "--model", "gpt2:huge").expect_line("--model gpt2:huge")


if __name__ == "__main__":
    main(__doc__, [bytes_model, tokenizer_model, sample_refuses, plan_figures], parallel=2)
