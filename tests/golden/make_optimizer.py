#!/usr/bin/env python3
"""Makes the golden values of tests/test_optimizer_golden.c with PyTorch.

Usage: make_optimizer.py [FOLDER]     (default: this script's own folder)
Needs: torch 2.5 or later (for Adafactor; on the CPU).

Writes optimizer_values.h: the weights after STEPS steps of each optimizer, computed in float64.
SGD, Nesterov, Adagrad, AdamW and Adafactor are torch.optim's; Lion, LAMB and Muon, which PyTorch
2.5 does not have, are their papers' formulas, written out below. Weights and gradients are given by
formulas, which the test repeats in C. Numbers such as rates are rounded to float32 first, since
the C code gets them so.
"""
import math
import os
import struct
import sys

sys.dont_write_bytecode = True

import torch

from make_gpt2 import mix

STEPS, GRAD_SCALE = 10, 0.5


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def unit(index):
    return (mix(index) >> 8) / 2.0**24 - 0.5


def make_weights(rows, cols):
    values = [unit(i) for i in range(rows * cols)]
    return torch.tensor(values, dtype=torch.float64).reshape(rows, cols)


def make_grad(step, rows, cols):
    """Rows and columns of unequal size, so that factored moments have something to factor."""
    values = [
        unit((step << 16) + i) * 2.0 ** (i % cols % 3 - i // cols % 4) for i in range(rows * cols)
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(rows, cols)


def run_torch(case, make):
    shape = (case["rows"], case["cols"])
    param = torch.nn.Parameter(make_weights(*shape).reshape(case.get("shape", shape)))
    optimizer = make([param], case)
    for step in range(1, STEPS + 1):
        param.grad = f32(GRAD_SCALE) * make_grad(step, *shape).reshape(param.shape)
        optimizer.step()
    return param.detach().reshape(-1)


def run_formula(case, step_fn):
    shape = (case["rows"], case["cols"])
    w = make_weights(*shape)
    state = {"m": torch.zeros_like(w), "v": torch.zeros_like(w)}
    for step in range(1, STEPS + 1):
        w = step_fn(case, w, state, f32(GRAD_SCALE) * make_grad(step, *shape), step)
    return w.reshape(-1)


def lion(case, w, state, g, step):
    c = case["beta1"] * state["m"] + (1 - case["beta1"]) * g
    state["m"] = case["beta2"] * state["m"] + (1 - case["beta2"]) * g
    return w - case["lr"] * (torch.sign(c) + case["decay"] * w)


def lamb(case, w, state, g, step):
    state["m"] = case["beta1"] * state["m"] + (1 - case["beta1"]) * g
    state["v"] = case["beta2"] * state["v"] + (1 - case["beta2"]) * g * g
    m_hat = state["m"] / (1 - case["beta1"] ** step)
    v_hat = state["v"] / (1 - case["beta2"] ** step)
    r = m_hat / (v_hat.sqrt() + case["eps"]) + case["decay"] * w
    return w - case["lr"] * w.norm() / r.norm() * r


def newton_schulz(g):
    """As in the author's program, in float64 rather than bfloat16."""
    a, b, c = f32(3.4445), f32(-4.7750), f32(2.0315)
    x = g / (g.norm() + 1e-7)
    if g.shape[0] > g.shape[1]:
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon(case, w, state, g, step):
    state["m"] = case["momentum"] * state["m"] + g
    step = newton_schulz(g + case["momentum"] * state["m"])
    step = 0.2 * math.sqrt(max(w.shape)) * step
    return w - case["lr"] * (step + case["decay"] * w)


def make_sgd(params, case):
    return torch.optim.SGD(params, lr=case["lr"], momentum=case["momentum"],
                           weight_decay=case["decay"], nesterov=case["kind"] == "NESTEROV")


def make_adagrad(params, case):
    return torch.optim.Adagrad(params, lr=case["lr"], weight_decay=case["decay"], eps=case["eps"])


def make_adamw(params, case):
    return torch.optim.AdamW(params, lr=case["lr"], betas=(case["beta1"], case["beta2"]),
                             eps=case["eps"], weight_decay=case["decay"])


def make_adafactor(params, case):
    """With eps2 = 1 and weights whose rms is below 1, PyTorch's rate is min(lr, 1 / sqrt(step))."""
    return torch.optim.Adafactor(params, lr=case["lr"], beta2_decay=-0.8, eps=(case["eps"], 1.0),
                                 d=1.0, weight_decay=case["decay"])


def cases():
    def case(name, kind, run, how, rows=8, cols=6, hidden=True, **more):
        row = {"name": name, "kind": kind, "rows": rows, "cols": cols, "hidden": hidden}
        row.update({"lr": 0.01, "decay": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8,
                    "momentum": 0.9})
        row.update(more)
        for key in ("lr", "decay", "beta1", "beta2", "eps", "momentum"):
            row[key] = f32(row[key])
        return row, run(row, how)

    yield case("sgd", "SGD", run_torch, make_sgd, lr=0.1, momentum=0.0)
    yield case("sgd, momentum", "SGD", run_torch, make_sgd, lr=0.05)
    yield case("nesterov", "NESTEROV", run_torch, make_sgd, lr=0.05)
    yield case("adagrad", "ADAGRAD", run_torch, make_adagrad, lr=0.05, eps=1e-10)
    yield case("adamw", "ADAMW", run_torch, make_adamw)
    yield case("lion", "LION", run_formula, lion, lr=0.003, beta1=0.5)
    yield case("lamb", "LAMB", run_formula, lamb)
    yield case("adafactor", "ADAFACTOR", run_torch, make_adafactor)
    yield case("adafactor, vector", "ADAFACTOR", run_torch, make_adafactor, rows=48, cols=1,
               shape=(48,))
    yield case("muon, tall", "MUON", run_formula, muon, momentum=0.95)
    yield case("muon, wide", "MUON", run_formula, muon, rows=6, cols=8, momentum=0.95)
    yield case("muon, not hidden", "MUON", run_torch, make_adamw, hidden=False)


def row_of(case, values):
    numbers = [f"{case[key]:.9e}F" for key in ("beta1", "beta2", "eps", "momentum", "lr", "decay")]
    piece = f'{case["rows"]}, {case["cols"]}, {str(case["hidden"]).lower()}'
    yield f'    {{"{case["name"]}", {{OPTIMIZER_{case["kind"]}, MOMENT_F32,'
    yield f'     {", ".join(numbers[:4])}, 0}},'
    yield f'     {", ".join(numbers[4:])}, {{{piece}}}, {{'
    for i in range(0, len(values), 5):
        yield "        " + ", ".join(f"{v:.9e}" for v in values[i : i + 5]) + ","
    yield "    }},"


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    versions = f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}"
    torch.set_num_threads(1)
    lines = [
        "/* optimizer_values.h - made by tests/golden/make_optimizer.py; do not edit.",
        f" * {versions}.",
        " */",
        "#ifndef RUBATO_TESTS_GOLDEN_OPTIMIZER_VALUES_H",
        "#define RUBATO_TESTS_GOLDEN_OPTIMIZER_VALUES_H",
        "",
        '#include "kernels/optimizer_state.h"',
        "",
        "/* clang-format off */",
        "",
        f"#define GOLDEN_OPTIMIZER_STEPS {STEPS}",
        f"#define GOLDEN_OPTIMIZER_GRAD_SCALE {GRAD_SCALE}F",
        "#define GOLDEN_OPTIMIZER_COUNT 48 /* values of a piece */",
        "",
        "struct golden_optimizer {",
        "    const char *name;",
        "    struct optimizer optimizer;",
        "    float lr, decay;",
        "    struct optimizer_piece piece;",
        "    double weights[GOLDEN_OPTIMIZER_COUNT]; /* after the last step, in float64 */",
        "};",
        "",
        "static const struct golden_optimizer golden_optimizers[] = {",
    ]
    for case, values in cases():
        lines += row_of(case, values.tolist())
    lines += ["};", "", "/* clang-format on */", "", "#endif"]
    with open(os.path.join(folder, "optimizer_values.h"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
