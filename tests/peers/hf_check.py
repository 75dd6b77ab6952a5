#!/usr/bin/env python3
"""Models in and out of transformers, with the real one as the oracle.

  hf_check.py BIN_FOLDER [CASE...]

In: a model that transformers made at random and saved (f32, bf16, f16; one file, several; without
the head) is loaded by --model and --init, and its loss, of the first step and of validation, must
be that of transformers on the same batch. Out: a model trained from it, or from our own first
weights, must load in transformers with no missing and no unexpected key, and with the same loss; so
must what `rubato export` makes of it, read by both. What we do not compute must be refused.
The data is one batch long, so that whatever the order of its windows, the batch is the same.
The environment is that of scripts/setup --peers; ends with 77 where it is not installed.
"""
import copy
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

AutoModel = transformers.AutoModelForCausalLM
BATCH, LENGTH, POSITIONS, VOCAB = 4, 48, 64, 256
TOLERANCE = 1e-3  # nats
TOKENS = bytes((i * i + 7 * i) % 251 for i in range(BATCH * LENGTH + 1))


def gpt2_config():
    return transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=64, n_layer=3, n_head=4,
        bos_token_id=None, eos_token_id=None)


def llama_config(key_heads, tied, **more):
    return transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=POSITIONS, hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=key_heads, intermediate_size=160,
        rope_theta=5000.0, rms_norm_eps=1e-6, tie_word_embeddings=tied, bos_token_id=None,
        eos_token_id=None, **more)


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


def train(binaries, folder, *more):
    """-> the loss of the first step, the last validation loss."""
    data = folder.parent / "data.txt"
    data.write_bytes(TOKENS)
    output = run([binaries / "rubato", "launch", "--bin", binaries, "--data", data, "--val-data",
                  data, "--seq-len", LENGTH, "--batch", BATCH, "--push", "none", "--pull", "none",
                  "--run-dir", folder, "--progress", "off", "--sample-tokens", 0, "--threads", 1,
                  "--compute", "f32", *more])
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    return losses[0], float(re.search(r"result: val_loss=([0-9.]+)", output).group(1))


def compare(what, ours, theirs, tolerance=TOLERANCE):
    print(f"{what}: rubato {ours:.6f}, transformers {theirs:.6f}")
    if not abs(ours - theirs) <= tolerance:
        sys.exit(f"{what}: they differ by {abs(ours - theirs):.6f}")


def load_here(binaries, what, source, theirs):
    """Our loss of the files in `source`: that of the first step, and of validation."""
    first, last = train(binaries, source.with_name(f"{source.name}-run"), "--model", source,
                        "--init", source, "--steps", 1, "--lr", 0)
    compare(f"{what}: step 1", first, theirs)
    compare(f"{what}: validation", last, theirs)


def load_there(folder):
    """What transformers computes, in f32, from our files, which must have every tensor."""
    model, info = AutoModel.from_pretrained(folder, torch_dtype=torch.float32,
                                            output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info[key]:
            sys.exit(f"{folder}: {key}: {info[key]}")
    return loss_of(model.eval())


def check_in(binaries, name, model, folder, **save):
    source = folder / name
    model.save_pretrained(source, **save)
    if (source / "model.safetensors.index.json").exists() != ("max_shard_size" in save):
        sys.exit(f"{name}: not the files that this case is about: {os.listdir(source)}")
    theirs = AutoModel.from_pretrained(source, torch_dtype=torch.float32).eval()
    load_here(binaries, name, source, loss_of(theirs))


def check_out(binaries, name, folder, *options):
    trained = folder / f"{name}-trained"
    _, last = train(binaries, trained, *options, "--steps", 8, "--warmup", 1, "--lr", 0.003)
    compare(f"{name}: trained", last, load_there(trained))
    for dtype, shard, rounding in (("f32", "100k", 0), ("bf16", "2g", 0.05), ("f16", "60k", 0.01)):
        target = folder / f"{name}-{dtype}"
        run([binaries / "rubato", "export", "--run", trained, "--to", target, "--dtype", dtype,
             "--shard-size", shard])
        theirs = load_there(target)
        compare(f"{name}: export {dtype}", last, theirs, TOLERANCE + rounding)
        load_here(binaries, f"{name}: export {dtype}, loaded", target, theirs)


def check_family(binaries, name, config, folder):
    torch.manual_seed(3)
    model = scramble(AutoModel.from_config(config))
    check_in(binaries, name, model, folder)
    check_in(binaries, f"{name}-sharded", model, folder, max_shard_size="100KB")
    if config.tie_word_embeddings:
        check_in(binaries, f"{name}-base", model.base_model, folder)
    check_in(binaries, f"{name}-file-bf16", copy.deepcopy(model).to(torch.bfloat16), folder)
    check_in(binaries, f"{name}-file-f16", model.to(torch.float16), folder,
             max_shard_size="100KB")
    source = folder / name
    check_out(binaries, name, folder, "--model", source, "--init", source)


def check_ours(binaries, model, folder):
    """First weights of our own, and a config.json that we wrote without one to start from."""
    name = re.sub(r"\W", "-", model)
    check_out(binaries, name, folder, "--model", model, "--vocab", VOCAB)


def check_refused(binaries, key, value, folder):
    """A config.json that asks for what we do not compute: exit 2, and the line names the key."""
    source = folder / "refused"
    AutoModel.from_config(llama_config(2, False, **{key: value})).save_pretrained(source)
    done = subprocess.run([binaries / "rubato", "plan", "--model", source], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 2 or not re.search(rf"error .*config.json: {key} is", done.stdout):
        sys.exit(f"{key}: ended with {done.returncode}:\n{done.stdout}")
    print(f"{key}: refused")


def cases(binaries, folder):
    families = {"gpt2": gpt2_config(), "llama": llama_config(4, False),
                "llama-grouped": llama_config(2, False), "llama-tied": llama_config(1, True)}
    yield from ((name, lambda name=name, config=config: check_family(
        binaries, name, config, folder)) for name, config in families.items())
    for model in ("gpt2:2x64x4", "llama:2x64x4x2"):
        yield model, lambda model=model: check_ours(binaries, model, folder)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    refused = {"rope_scaling": scaling, "attention_bias": True, "mlp_bias": True, "head_dim": 32}
    yield from ((key, lambda key=key, value=value: check_refused(binaries, key, value, folder))
                for key, value in refused.items())


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for name, check in cases(binaries, pathlib.Path(folder)):
            if name in sys.argv[2:] or len(sys.argv) == 2:
                check()
    print("hf_check: good")


if __name__ == "__main__":
    main()
