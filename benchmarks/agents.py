"""Recurrent layers of agents, many short sequences with resets, in milliseconds: `python -m benchmarks.agents`.

A row is a layer: sequences x steps, inputs -> units, without gradients and as a training step (forward, gradients of input and
parameters), by events with a cold L2. Beside ours, with and without resets of one step in a hundred, are cuDNN without resets
at torch's defaults with TF32 allowed, and TorchRL's Triton kernels with resets and TF32. In brackets: the share of that time
that ours with resets takes. Errors are those of y against float64, for the first 64 sequences, relative in the 2-norm. First
the PPO update of CleanRL's `ppo_atari_lstm.py` at its sizes, with the loop over steps and with one call, by the host's clock.

All kernels are compiled first, in as many processes as there are cores: TorchRL's have some dozen candidates each, which would
take minutes one by one. `--compile` compiles them and stops, and `--compiled` finds them there; `--only GRU` leaves out others.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch

import minrnn_gen.torch
from benchmarks.harness.turns import line_of, milliseconds

RESETS = 0.01


class Layer(NamedTuple):
    """A layer of torch.nn, the sequences and steps that it runs over, and whether TorchRL's kernels run too."""

    kind: str
    sequences: int
    steps: int
    inputs: int
    units: int
    dtype: str
    with_torchrl: bool = False


LAYERS = (
    Layer("LSTM", 2048, 256, 64, 128, "float32", with_torchrl=True),
    Layer("LSTM", 2048, 256, 64, 128, "bfloat16"),
    Layer("GRU", 1024, 128, 64, 256, "float32", with_torchrl=True),
    Layer("LSTM", 1024, 128, 64, 64, "float32"),
    Layer("GRU", 4096, 64, 128, 128, "float32", with_torchrl=True),
    Layer("LSTM", 256, 512, 128, 256, "float32"),
)
TORCHRL = "torchrl.modules.tensordict_module._rnn_triton"
# Of ppo_atari_lstm.py: environments, steps of a rollout, minibatches, epochs.
ENVIRONMENTS, ROLLOUT, MINIBATCHES, EPOCHS = 8, 128, 4, 4
# Sequences of a call whose kernels TorchRL compiles for any number that 16 divides, and parts of its candidates.
COMPILED_SEQUENCES, PARTS = 64, 6


def _by_triton(kind: str, layer: Any, marks: Any) -> Callable[[Any], Any]:
    """Return TorchRL's kernel on the weights of torch's layer, with states of zeros at marks."""
    call = getattr(importlib.import_module(TORCHRL), f"{kind.lower()}_triton")
    weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
    states = [torch.zeros(*marks.shape, layer.hidden_size, device="cuda", dtype=torch.float32)] * (2 if kind == "LSTM" else 1)
    compute = torch.bfloat16 if layer.weight_ih_l0.dtype is torch.bfloat16 else torch.float32

    def run(x: Any) -> Any:
        return call(x.float(), *states, *(weight.float() for weight in weights), marks, compute, input_precision="tf32")[0]

    return run


def _made(layer: Layer) -> tuple[Any, Any, Any, Any]:
    """Return torch's layer, ours with the same weights, their input, and the marks of resets."""
    dtype = getattr(torch, layer.dtype)
    torch.manual_seed(0)
    theirs = getattr(torch.nn, layer.kind)(layer.inputs, layer.units, batch_first=True, device="cuda", dtype=dtype)
    ours = getattr(minrnn_gen.torch, layer.kind)(layer.inputs, layer.units, device="cuda", dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(layer.sequences, layer.steps, layer.inputs, device="cuda").to(dtype).requires_grad_()
    return theirs, ours, x, torch.rand(layer.sequences, layer.steps, device="cuda") < RESETS


def _compile_ours(layer: Layer) -> None:
    """Compile our kernels for a layer, with resets and without."""
    _allow_tf32()
    _, ours, x, marks = _made(layer)
    for resets in (marks, None):
        with torch.no_grad():
            ours(x, resets=resets)
        ours(x, resets=resets)[0].sum().backward()


def _compile_theirs(layer: Layer, part: int) -> None:
    """Compile every PARTS-th of the candidates among which TorchRL's kernels choose."""
    _allow_tf32()
    kernels = importlib.import_module(TORCHRL)
    for kernel in vars(kernels).values():
        if isinstance(kernel, kernels.triton.runtime.Autotuner):
            kernel.configs = kernel.configs[part::PARTS] or kernel.configs[:1]
    theirs, _, x, marks = _made(layer._replace(sequences=COMPILED_SEQUENCES))
    _by_triton(layer.kind, theirs, marks)(x).sum().backward()


def compile_ahead(layers: Sequence[Layer], with_update: bool) -> None:
    """Compile the kernels of all rows, concurrently; a failure is reported where the row is measured."""
    processes = min(len(os.sched_getaffinity(0)), len(layers) * PARTS)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures: list[Future[None]] = [pool.submit(measure_update, False)] if with_update else []
        for layer in layers:
            futures.append(pool.submit(_compile_ours, layer))
            if layer.with_torchrl:
                futures += (pool.submit(_compile_theirs, layer, part) for part in range(PARTS))
        for future in futures:
            if error := future.exception():
                print(f"compiling ahead: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)


def _allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def measure(layer: Layer) -> None:
    """Print the rows of a layer."""
    kind, batch, steps, inputs, units, dtype_name, with_torchrl = layer
    theirs, ours, x, marks = _made(layer)
    runs: dict[str, Callable[[Any], Any]] = {
        "minrnn_gen": lambda x: ours(x, resets=marks)[0],
        "without resets": lambda x: ours(x)[0],
        "cudnn, without resets": lambda x: theirs(x)[0],
    }
    try:
        if with_torchrl:
            runs["torchrl.triton"] = _by_triton(kind, theirs, marks)
            runs["torchrl.triton"](x).float().sum().backward()
    except Exception as error:  # of a library that is absent, or that does not take the problem
        runs.pop("torchrl.triton", None)
        print(f"torchrl.triton: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    some = slice(0, 64)
    exact = getattr(torch.nn, kind)(inputs, units, batch_first=True, dtype=torch.float64, device="cuda")
    exact.load_state_dict({name: value.double() for name, value in theirs.state_dict().items()})
    expected = _by_loop(exact, x[some].detach().double(), marks[some])
    dy = torch.randn(batch, steps, units, device="cuda").to(x.dtype)

    def train(run: Callable[[Any], Any]) -> None:
        for leaf in (x, *theirs.parameters(), *ours.parameters()):
            leaf.grad = None
        y = run(x)
        y.backward(dy.to(y.dtype))

    title = f"{kind} {batch} x {steps}, {inputs} -> {units}, {dtype_name}"
    with torch.no_grad():
        errors = {
            name: float((run(x)[some].double() - expected).norm() / expected.norm())
            for name, run in runs.items()
            if "without" not in name
        }
        forward = {name: partial(run, x) for name, run in runs.items()}
        print(line_of(title, milliseconds(forward)), flush=True)
    trained = {name: partial(train, run) for name, run in runs.items()}
    for step in trained.values():
        step()
    print(line_of("  step", milliseconds(trained)), flush=True)
    print("  errors:", ", ".join(f"{name} {error:.1e}" for name, error in errors.items()), flush=True)


def _by_loop(layer: Any, x: Any, marks: Any) -> Any:
    """Return the output of torch's layer, one step after the other, whose states are 0 at marks."""
    state, every = None, []
    with torch.no_grad():
        for t in range(x.shape[1]):
            if state is not None:
                keep = (~marks[:, t])[None, :, None].to(x.dtype)
                state = tuple(one * keep for one in state) if isinstance(state, tuple) else state * keep
            y_t, state = layer(x[:, t : t + 1], state)
            every.append(y_t)
    return torch.cat(every, 1)


class _Agent(torch.nn.Module):
    """The agent of ppo_atari_lstm.py, with a layer over time that is given."""

    def __init__(self, layer: Any, steps_by_loop: bool) -> None:
        super().__init__()
        nn = torch.nn
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
        )
        self.lstm, self.actor, self.critic = layer, nn.Linear(128, 6), nn.Linear(128, 1)
        self._by_loop = steps_by_loop

    def forward(self, frames: Any, state: Any, done: Any) -> tuple[Any, Any]:
        """Return (logits, value) of frames [T·B, 1, 84, 84], from states [1, B, 128]; done [T·B]."""
        hidden = self.network(frames / 255.0)
        rows = state[0].shape[1]
        hidden, done = hidden.reshape(-1, rows, 512), done.reshape(-1, rows)
        if self._by_loop:
            every = []
            for h_t, done_t in zip(hidden, done, strict=True):
                kept = (1.0 - done_t)[None, :, None]
                y_t, state = self.lstm(h_t[None], (kept * state[0], kept * state[1]))
                every.append(y_t)
            found = torch.cat(every)
        else:
            found, _ = self.lstm(hidden, state, resets=done.bool())
        features = found.flatten(0, 1)
        return self.actor(features), self.critic(features)


def _update(agent: _Agent, optimizer: Any, rollout: dict[str, Any]) -> None:
    """The update of ppo_atari_lstm.py: all epochs and minibatches."""
    per = ENVIRONMENTS // MINIBATCHES
    for _ in range(EPOCHS):
        order = torch.randperm(ENVIRONMENTS, device="cuda")
        for first in range(0, ENVIRONMENTS, per):
            rows = order[first : first + per]
            batch = {name: value[:, rows].flatten(0, 1) for name, value in rollout.items() if name not in ("h", "c")}
            state = (rollout["h"][:, rows], rollout["c"][:, rows])
            logits, value = agent(batch["frames"], state, batch["done"])
            chosen = torch.distributions.Categorical(logits=logits)
            ratio = (chosen.log_prob(batch["actions"]) - batch["log_probs"]).exp()
            advantage = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
            policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1)).mean()
            loss = policy - 0.01 * chosen.entropy().mean() + 0.25 * (value.view(-1) - batch["returns"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def measure_update(is_timed: bool = True) -> None:
    """Print the row of the PPO update; where not `is_timed`, the update only runs."""
    shape = (ROLLOUT, ENVIRONMENTS)
    rollout = {
        "frames": torch.randint(0, 256, (*shape, 1, 84, 84), device="cuda").float(),
        "done": (torch.rand(shape, device="cuda") < RESETS).float(),
        "actions": torch.randint(0, 6, shape, device="cuda"),
        **{name: torch.randn(shape, device="cuda") for name in ("log_probs", "advantages", "returns")},
        **{name: torch.zeros(1, ENVIRONMENTS, 128, device="cuda") for name in ("h", "c")},
    }
    rollout["log_probs"] = -rollout["log_probs"].abs()
    agents = {
        "minrnn_gen": _Agent(minrnn_gen.torch.LSTM(512, 128, batch_first=False), steps_by_loop=False).cuda(),
        "torch.nn in a loop": _Agent(torch.nn.LSTM(512, 128), steps_by_loop=True).cuda(),
    }
    agents["minrnn_gen"].load_state_dict(agents["torch.nn in a loop"].state_dict())
    runs = {
        name: partial(_update, one, torch.optim.Adam(one.parameters(), 2.5e-4, eps=1e-5), rollout)
        for name, one in agents.items()
    }
    for run in runs.values():
        run()
    if is_timed:
        print(line_of("update of ppo_atari_lstm.py", milliseconds(runs, on_host=True)), flush=True)


if __name__ == "__main__":
    _allow_tf32()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents")
    parser.add_argument("--compile", action="store_true", help="compile all kernels and stop")
    parser.add_argument("--compiled", action="store_true", help="compile nothing ahead: a run with --compile did")
    parser.add_argument(
        "--only", choices=sorted({layer.kind for layer in LAYERS}), help="layers of this kind, without the update"
    )
    options = parser.parse_args()
    asked = [layer for layer in LAYERS if options.only in (None, layer.kind)]
    if not options.compiled:
        compile_ahead(asked, with_update=options.only is None)
    if not options.compile:
        if options.only is None:
            measure_update()
        for layer in asked:
            measure(layer)
