#!/usr/bin/env python3
"""Makes the golden values of tests/test_llama_golden.c with PyTorch.

Usage: make_llama.py [FOLDER]     (default: this script's own folder)
       make_llama.py --check      compares with transformers' LlamaForCausalLM, writes nothing
Needs: torch (any 1.13 or later; on the CPU); --check also transformers.

Writes llama_gradients.f32 and llama_tied_gradients.f32 (the gradient of every tensor at step 0, of
the model with a head of its own and with a tied head, computed in float64, stored as little-endian
float32, in the model's order of tensors) and llama_values.h (losses, logits, and a training curve
in float32). The model is given by formulas, as GPT-2's is: batches, weights and rates are those of
make_gpt2.py, repeated in C in tests/golden_gpt2.h; the shape is in tests/golden_llama.h.
"""
import math
import os
import sys

sys.dont_write_bytecode = True

import torch
import torch.nn.functional as F

from make_gpt2 import BETAS, CLIP, DECAY, EPS, STEPS, array, learning_rate, make_batch, mix

LAYERS, CHANNELS, HEADS, KV_HEADS, INTERMEDIATE, VOCAB = 2, 32, 4, 2, 48, 61
POSITIONS, THETA, NORM_EPS = 20, 100.0, 1e-5
CURVE = (3e-3, 10, 0.1)  # peak rate, warm-up steps, floor of the cosine


def tensor_shapes(tied):
    C, KV, I = CHANNELS, CHANNELS // HEADS * KV_HEADS, INTERMEDIATE
    yield "model.embed_tokens.weight", (VOCAB, C)
    for layer in range(LAYERS):
        for name, shape in (
            ("input_layernorm.weight", (C,)),
            ("self_attn.q_proj.weight", (C, C)),
            ("self_attn.k_proj.weight", (KV, C)),
            ("self_attn.v_proj.weight", (KV, C)),
            ("self_attn.o_proj.weight", (C, C)),
            ("post_attention_layernorm.weight", (C,)),
            ("mlp.gate_proj.weight", (I, C)),
            ("mlp.up_proj.weight", (I, C)),
            ("mlp.down_proj.weight", (C, I)),
        ):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (C,)
    if not tied:
        yield "lm_head.weight", (VOCAB, C)


def make_weights(dtype, tied):
    weights = {}
    for index, (name, shape) in enumerate(tensor_shapes(tied)):
        unit = [(mix((index << 20) + i) >> 8) / 2.0**24 - 0.5 for i in range(math.prod(shape))]
        unit = torch.tensor(unit, dtype=torch.float32)  # exact: 24 bits
        values = unit * 0.25 if len(shape) == 2 else 1.0 + unit * 0.5
        weights[name] = values.reshape(shape).to(dtype).requires_grad_(True)
    return weights


def rms_norm(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * gain


def rotate(x):
    """x [B, heads, T, D]: channels i and i + D / 2 turn by t * theta^(-2i / D)."""
    D, T = x.shape[-1], x.shape[-2]
    frequencies = THETA ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def forward(w, tokens):
    B, T = tokens.shape
    D = CHANNELS // HEADS
    x = w["model.embed_tokens.weight"][tokens]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        y = rms_norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (
            (y @ w[p + f"self_attn.{part}_proj.weight"].T).reshape(B, T, -1, D).transpose(1, 2)
            for part in "qkv"
        )
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (rotate(k), v))
        scores = (rotate(q) @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~mask, -math.inf)
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, CHANNELS)
        x = x + y @ w[p + "self_attn.o_proj.weight"].T
        y = rms_norm(x, w[p + "post_attention_layernorm.weight"])
        gate, up = (y @ w[p + f"mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"])
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def loss_of(w, tokens, targets):
    return F.cross_entropy(forward(w, tokens).reshape(-1, VOCAB), targets.reshape(-1))


def train():
    w = make_weights(torch.float32, False)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in w.values() if p.dim() == 2], "weight_decay": DECAY},
            {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=CURVE[0],
        betas=BETAS,
        eps=EPS,
    )
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, *CURVE)
        optimizer.zero_grad()
        loss = loss_of(w, *make_batch(step))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        optimizer.step()
        losses.append(float(loss.detach()))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {min(norms):.3f}..{max(norms):.3f}")
    return losses


def gradients_of(tied):
    w = make_weights(torch.float64, tied)
    loss = loss_of(w, *make_batch(0))
    loss.backward()
    return w, float(loss.detach()), torch.cat([p.grad.flatten() for p in w.values()])


def check():
    import transformers

    for tied in (False, True):
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=CHANNELS,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=POSITIONS,
            rms_norm_eps=NORM_EPS,
            rope_theta=THETA,
            tie_word_embeddings=tied,
        )
        w, loss, gradients = gradients_of(tied)
        model = transformers.LlamaForCausalLM(config).double()
        state = {name: value.detach() for name, value in w.items()}
        left_out = model.load_state_dict(state, strict=False)
        assert not left_out.unexpected_keys and set(left_out.missing_keys) <= {"lm_head.weight"}
        model.tie_weights()
        tokens, targets = make_batch(0)
        theirs = F.cross_entropy(model(tokens).logits.reshape(-1, VOCAB), targets.reshape(-1))
        theirs.backward()
        named = dict(model.named_parameters())
        other = torch.cat([named[name].grad.flatten() for name in w])
        worst = float((other - gradients).abs().max() / gradients.abs().max())
        print(f"tied {tied}: loss {loss:.9f}, transformers {float(theirs):.9f}, grad {worst:.1e}")
        assert abs(loss - float(theirs)) < 1e-6 and worst < 1e-5


def main():
    if "--check" in sys.argv:
        check()
        return
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    versions = f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}"
    print(versions)
    torch.set_num_threads(1)
    text = [
        "/* llama_values.h - made by tests/golden/make_llama.py; do not edit.",
        f" * {versions}.",
        " */",
        "#ifndef RUBATO_TESTS_GOLDEN_LLAMA_VALUES_H",
        "#define RUBATO_TESTS_GOLDEN_LLAMA_VALUES_H",
        "",
        "/* clang-format off */",
        "",
        "/* Mean loss of batch 0 with the first weights, computed in float64. */",
    ]
    for tied in (False, True):
        name = "llama_tied" if tied else "llama"
        w, loss, gradients = gradients_of(tied)
        print(f"{len(gradients)} gradients, norm {float(gradients.norm()):.6f}")
        with open(os.path.join(folder, f"{name}_gradients.f32"), "wb") as file:
            file.write(gradients.to(torch.float32).numpy().astype("<f4").tobytes())
        text.append(f"#define GOLDEN_{name.upper()}_LOSS {loss:.17e}")
        if not tied:
            logits = forward(w, make_batch(0)[0])[0, -1].tolist()
    text.append("")
    text += array(
        "golden_llama_logits",
        "Logits after the first sequence of batch 0, computed in float64.",
        logits,
    )
    peak, warmup, floor = CURVE
    comment = f"Loss before each update; rate {peak}, warm-up {warmup}, then to {floor} of it."
    text += array("golden_llama_losses", comment, train())
    text.append("#endif")
    with open(os.path.join(folder, "llama_values.h"), "w") as file:
        file.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
