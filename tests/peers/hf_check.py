#!/usr/bin/env python3
"""Models in and out of transformers, with the real one as the oracle.

  hf_check.py BIN_FOLDER

For each family: a model that transformers made at random and saved (one file; several; bf16;
without the head) is loaded by --model and --init, and the loss of the first step must be that of
transformers on the same batch. A model trained from it must load in transformers with no missing
and no unexpected key, and with the same validation loss; so must what `rubato export` makes of it.
The data is one batch long, so that whatever the order of its windows, the batch is the same.
Ends with 77 where torch or transformers are not installed.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BATCH, LENGTH, POSITIONS, VOCAB = 4, 48, 64, 256
TOLERANCE = 1e-3  # nats
TOKENS = bytes((i * i + 7 * i) % 251 for i in range(BATCH * LENGTH + 1))


def gpt2_config():
    return transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=64, n_layer=3, n_head=4,
        bos_token_id=None, eos_token_id=None)


def llama_config(tied):
    return transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=POSITIONS, hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=160, rope_theta=5000.0,
        rms_norm_eps=1e-6, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None)


def scramble(model):
    """Biases and gains that are not 0 and 1, so that one in the wrong place shows."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def loss_of(model):
    rows = torch.tensor([list(TOKENS[i * LENGTH:i * LENGTH + LENGTH + 1]) for i in range(BATCH)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCAB), rows[:, 1:].reshape(-1)).item()


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def train(binaries, model, folder, *more):
    """-> the loss of the first step, the last validation loss."""
    data = folder.parent / "data.txt"
    data.write_bytes(TOKENS)
    output = run([binaries / "rubato", "launch", "--bin", binaries, "--data", data, "--val-data",
                  data, "--model", model, "--init", model, "--seq-len", LENGTH, "--batch", BATCH,
                  "--push", "none", "--pull", "none", "--run-dir", folder, "--progress", "off",
                  "--sample-tokens", 0, "--threads", 1, "--compute", "f32", *more])
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    return losses[0], float(re.search(r"result: val_loss=([0-9.]+)", output).group(1))


def compare(what, ours, theirs, tolerance=TOLERANCE):
    print(f"{what}: rubato {ours:.6f}, transformers {theirs:.6f}")
    if not abs(ours - theirs) <= tolerance:
        sys.exit(f"{what}: they differ by {abs(ours - theirs):.6f}")


def load(folder, kind):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info[key]:
            sys.exit(f"{folder}: {key}: {info[key]}")
    return model.eval()


def check_in(binaries, name, model, folder, **save):
    source = folder / name
    model.save_pretrained(source, **save)
    kept = load_like(model, source)
    first, last = train(binaries, source, folder / f"{name}-run", "--steps", 1, "--lr", 0)
    compare(f"{name}: step 1", first, kept)
    compare(f"{name}: validation", last, kept)


def load_like(model, source):
    """What transformers itself computes from the saved files, in f32."""
    kind = transformers.AutoModelForCausalLM
    return loss_of(kind.from_pretrained(source, torch_dtype=torch.float32).eval())


def check_out(binaries, name, folder):
    source, trained = folder / name, folder / f"{name}-trained"
    kind = transformers.AutoModelForCausalLM
    _, last = train(binaries, source, trained, "--steps", 8, "--warmup", 1, "--lr", 0.003)
    compare(f"{name}: trained", last, loss_of(load(trained, kind)))
    for dtype, shard, tolerance in (("f32", "100k", TOLERANCE), ("bf16", "2g", 0.05),
                                    ("f16", "60k", 0.01)):
        target = folder / f"{name}-{dtype}"
        run([binaries / "rubato", "export", "--run", trained, "--to", target, "--dtype", dtype,
             "--shard-size", shard])
        compare(f"{name}: export {dtype}", last, loss_of(load(target, kind).float()), tolerance)


def check_family(binaries, name, config, folder):
    kind = transformers.AutoModelForCausalLM
    torch.manual_seed(3)
    model = scramble(kind.from_config(config))
    check_in(binaries, name, model, folder)
    check_in(binaries, f"{name}-sharded", model, folder, max_shard_size="100KB")
    if config.tie_word_embeddings:
        check_in(binaries, f"{name}-base", model.base_model, folder)
    check_in(binaries, f"{name}-half", model.to(torch.bfloat16), folder)
    check_out(binaries, name, folder)


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    families = {"gpt2": gpt2_config(), "llama": llama_config(False),
                "llama-tied": llama_config(True)}
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[2:] or families:
            check_family(binaries, name, families[name], pathlib.Path(folder))
    print("hf_check: good")


if __name__ == "__main__":
    main()
