"""Spiking neurons over a sequence beside SpikingJelly's and snnTorch's, in milliseconds: `python -m benchmarks.spiking`.

Multi-step LIF neurons beside a copy of as many bytes and SpikingJelly's node with each backend that it has, forward and with
gradients, by events with a cold L2; then a layer of recurrent LIF neurons beside snnTorch's loop over the steps, by the host's
clock, and the first call of each, with nothing compiled. In brackets: the share of that time that ours takes.
SpikingJelly 0.0.0.0.14 has the backend of CuPy, its later versions have not; it names `numpy.int`, which NumPy dropped and
which is put back for it here.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch

from benchmarks.harness.turns import line_of, milliseconds
from minrnn_gen.compat import snntorch as ours_of_snntorch
from minrnn_gen.compat import spikingjelly as ours_of_spikingjelly

STEPS, NEURONS = 64, 1 << 20
# Of the recurrent layer: sequences, steps, neurons.
RECURRENT = (64, 256, 512)


def _absent(name: str, error: Exception) -> None:
    print(f"{name}: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)


def _nodes() -> dict[str, Callable[[Any], Any]]:
    """Return {name: the function from inputs to spikes} of ours and of each backend of SpikingJelly that runs here."""
    node = ours_of_spikingjelly.LIFNode(tau=2.0, step_mode="m", surrogate_function=ours_of_spikingjelly.Sigmoid())

    def run(node: Any, reset: Callable[[Any], None], x: Any) -> Any:
        reset(node)
        return node(x)

    runs: dict[str, Callable[[Any], Any]] = {"minrnn_gen": partial(run, node, ours_of_spikingjelly.reset_net)}
    for backend in ("", "cupy", "torch"):  # later versions choose for themselves
        name = f"spikingjelly {backend}".strip()
        try:
            neuron, functional, surrogate = (
                importlib.import_module(f"spikingjelly.activation_based.{module}")
                for module in ("neuron", "functional", "surrogate")
            )
            chosen = {"backend": backend} if backend else {}
            theirs = neuron.LIFNode(tau=2.0, step_mode="m", surrogate_function=surrogate.Sigmoid(), **chosen).cuda()
            run(theirs, functional.reset_net, torch.randn(4, 128, device="cuda"))
            runs[name] = partial(run, theirs, functional.reset_net)
        except Exception as error:  # of a library that is absent, or that has no such backend
            _absent(name, error)
    return runs


def measure_nodes() -> None:
    """Print the rows of the multi-step neurons."""
    x = torch.randn(STEPS, NEURONS, device="cuda")
    ds, target = torch.randn_like(x), torch.empty_like(x)
    began = time.perf_counter()
    runs = _nodes()
    runs["minrnn_gen"](x)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    with torch.no_grad():
        spikes = {name: run(x) for name, run in runs.items()}
        differing = {name: float((found != spikes["minrnn_gen"]).float().mean()) for name, found in spikes.items()}
        assert all(set(found.unique().tolist()) <= {0.0, 1.0} for found in spikes.values())
        del spikes
        forward: dict[str, Callable[[], Any]] = {
            "copy": lambda: target.copy_(x),
            **{name: partial(run, x) for name, run in runs.items()},
        }
        print(line_of(f"LIF {STEPS} x {NEURONS:,} fp32, forward", milliseconds(forward)), flush=True)
    leaf = x.requires_grad_()

    def train(run: Callable[[Any], Any]) -> None:
        leaf.grad = None
        run(leaf).backward(ds)

    trained = {name: partial(train, run) for name, run in runs.items()}
    gradients = {}
    for name, step in trained.items():
        step()
        gradients[name] = leaf.grad.double()
    norm = gradients["minrnn_gen"].norm()
    apart = {name: float((found - gradients["minrnn_gen"]).norm() / norm) for name, found in gradients.items()}
    del gradients
    print(line_of("  with gradients", milliseconds(trained)), flush=True)
    print(f"  spikes that differ {differing}, gradients {apart}; first call, not compiled before, {first:.2f} s", flush=True)


def measure_recurrent() -> None:
    """Print the rows of the recurrent layer."""
    batch, steps, neurons = RECURRENT
    try:
        theirs_of_snntorch = importlib.import_module("snntorch")
    except ImportError as error:
        _absent("snntorch", error)
        return
    settings = {"beta": 0.9, "linear_features": neurons}
    ours, theirs = (library.RLeaky(**settings).cuda() for library in (ours_of_snntorch, theirs_of_snntorch))
    ours.load_state_dict(theirs.state_dict(), strict=False)
    x = (0.5 * torch.randn(steps, batch, neurons, device="cuda")).requires_grad_()
    ds = torch.randn(steps, batch, neurons, device="cuda")

    def ours_from_zeros() -> Any:
        ours.reset_mem()
        return ours(x)[0]

    def loop() -> Any:
        spikes, membrane = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        every = []
        for x_t in x:
            spikes, membrane = theirs(x_t, spikes, membrane)
            every.append(spikes)
        return torch.stack(every)

    began = time.perf_counter()
    found = ours_from_zeros()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    differing = float((found != loop()).float().mean())

    def train(run: Callable[[], Any]) -> None:
        x.grad = None
        run().backward(ds)

    runs = {"minrnn_gen": ours_from_zeros, "snntorch": loop}
    title = f"recurrent LIF {batch} x {steps} x {neurons} fp32"
    with torch.no_grad():
        print(line_of(f"{title}, forward", milliseconds(runs, on_host=True)), flush=True)
    trained = {name: partial(train, run) for name, run in runs.items()}
    print(line_of("  with gradients", milliseconds(trained, on_host=True)), flush=True)
    print(f"  spikes that differ {differing:.1e}; first call, not compiled before, {first:.2f} s", flush=True)


if __name__ == "__main__":
    vars(numpy)["int"] = int
    measure_nodes()
    measure_recurrent()
