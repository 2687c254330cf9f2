"""Scans of n values and in log space on the CPU, against NumPy and a loop over time in torch, as transformers has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

import minrnn_gen
from benchmarks.contenders.cpu_layers import in_turn
from benchmarks.report.cpu_record import CpuRow
from minrnn_gen.torch.operators.functional import recurrence

# Batch, time, channels and n of a Mamba layer.
BATCH, TIME, CHANNELS, VALUES = 4, 1024, 512, 16
QUICK_TIME = 128
# Batch, time and channels of scans in log space.
LOG_SIZES = ((4, 512, 128), (8, 512, 512), (1, 8192, 256), (64, 256, 128))
LOG_GATES = 2
LOOP, NUMPY = "a loop in torch", "NumPy"
Tensors = Sequence[Any]


def rows_of_selective_scans(quick: bool) -> Iterator[CpuRow]:
    """Measure a selective scan and its gradients."""
    time = QUICK_TIME if quick else TIME
    torch.manual_seed(0)
    given = (
        torch.randn(BATCH, time, 3, CHANNELS),
        torch.log(torch.arange(1.0, VALUES + 1)).repeat(CHANNELS, 1),
        torch.ones(CHANNELS),
        torch.randn(BATCH, time, 1, VALUES),
        torch.randn(BATCH, time, 1, VALUES),
    )
    spec = {"model": "selective", "hidden_size": CHANNELS, "state_size": VALUES, "precision": "fp32"}
    ours, by_numpy = (_selective(_kernel(spec, cpu)) for cpu in ("", NUMPY.lower()))
    with torch.no_grad():
        error = float((ours(given) - selective_loop(given)).abs().max())
    for kernel_pass in ("forward", "training"):
        for beside, theirs in ((LOOP, selective_loop), (NUMPY, by_numpy)):
            ours_ms, theirs_ms = in_turn(_run_of(ours, given, kernel_pass), _run_of(theirs, given, kernel_pass))
            yield CpuRow(
                layer="selective", batch=BATCH, time=time, inputs=VALUES, hidden=CHANNELS, kernel_pass=kernel_pass,
                beside=beside, ours_ms=ours_ms, theirs_ms=theirs_ms, largest_difference=error,
            )  # fmt: skip


def rows_of_log_scans(quick: bool) -> Iterator[CpuRow]:
    """Measure scans in log space and their gradients."""
    torch.manual_seed(0)
    for batch, time, hidden in LOG_SIZES[:1] if quick else LOG_SIZES:
        spec = {"model": "min_gru_log", "scan_arithmetic": "log", "hidden_size": hidden, "precision": "fp32"}
        ours, by_numpy = (_gates_alone(_kernel(spec, cpu)) for cpu in ("", NUMPY.lower()))
        given = (torch.randn(batch, time, LOG_GATES, hidden),)
        with torch.no_grad():
            error = float((ours(given) - by_numpy(given)).abs().max())
        for kernel_pass in ("forward", "training"):
            ours_ms, theirs_ms = in_turn(_run_of(ours, given, kernel_pass), _run_of(by_numpy, given, kernel_pass))
            yield CpuRow(
                layer="min_gru_log", batch=batch, time=time, inputs=hidden, hidden=hidden, kernel_pass=kernel_pass,
                beside=NUMPY, ours_ms=ours_ms, theirs_ms=theirs_ms, largest_difference=error,
            )  # fmt: skip


def selective_loop(given: Tensors) -> Any:
    """Return y of a selective scan by the operations of `MambaMixer.slow_forward` of transformers.

    Its loop indexes coefficients at every step, and the gradient of that is as large as all of them, T times; here they are
    cut into steps once, which takes a fraction of the time.
    """
    x, a, d, b, c = given
    dt, u, z = (gate.transpose(1, 2) for gate in x.unbind(2))
    dt = torch.nn.functional.softplus(dt)
    coefficients = torch.exp(-torch.exp(a)[None, :, None, :] * dt[..., None])
    added = dt[..., None] * b[:, :, 0][:, None] * u[..., None]
    state, outputs = torch.zeros(x.shape[0], *a.shape), []
    for coefficient, term, of_step in zip(coefficients.unbind(2), added.unbind(2), c[:, :, 0].unbind(1), strict=True):
        state = coefficient * state + term
        outputs.append(torch.matmul(state, of_step[..., None])[..., 0])
    y = torch.stack(outputs, -1) + u * d[None, :, None]
    return (y * torch.nn.functional.silu(z)).transpose(1, 2)


def _kernel(spec: dict[str, Any], cpu: str) -> Any:
    """Return a kernel whose calls on host arrays run as MINRNN_CPU says."""
    before = os.environ.pop("MINRNN_CPU", None)
    try:
        os.environ |= {"MINRNN_CPU": cpu} if cpu else {}
        kernel = minrnn_gen.compile(spec)
        kernel.executor.cpu.native.kernels.why_not  # noqa: B018  # asked once
        return kernel
    finally:
        os.environ.pop("MINRNN_CPU", None)
        os.environ |= {} if before is None else {"MINRNN_CPU": before}


def _selective(kernel: Any) -> Callable[[Tensors], Any]:
    def run(given: Tensors) -> Any:
        x, a, d, b, c = given
        return recurrence(kernel, x, parameters={"a": a, "d": d}, shared={"b": b, "c": c})[0]

    return run


def _gates_alone(kernel: Any) -> Callable[[Tensors], Any]:
    return lambda given: recurrence(kernel, *given)[0]


def _run_of(
    function: Callable[[Tensors], Any], given: Tensors, kernel_pass: Literal["forward", "training"]
) -> Callable[[], None]:
    leaves = [tensor.detach().requires_grad_() for tensor in given]

    def forward() -> None:
        with torch.no_grad():
            function(given)

    def training() -> None:
        torch.autograd.grad(function(leaves).sum(), leaves)

    return forward if kernel_pass == "forward" else training
