"""Answers of each front for each class of cells on slots of a pool: single steps, calls over time, and drafts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.call_corpus import PlannedKernels
from support.fake_device import as_if_on_a_device, executor_on
from support.fronts import (
    HIDDEN,
    INPUTS,
    SIZES,
    Front,
    NotThere,
    Row,
    a_cell,
    export_for_cpus,
    export_for_gpus,
    library_of,
    mapped,
)

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.pool import PoolArguments

SLOTS, READ, INTO = 4, np.array((3, 1)), np.array((0, 2))


def on_slots(row: Row, given: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a call on slots of a pool of zeros."""
    return {**given, "state": row.kernel.cache(SLOTS).states, "slots": READ, "into_slots": INTO, **others}


def of_steps(row: Row) -> None:
    """Refuse what has no single steps: a scan of given coefficients, and reset states, which change the steps of a call."""
    a_cell(row)
    if row.is_altered:
        raise NotThere


def drafted(row: Row) -> dict[str, Any]:
    """Return the arrays of a draft."""
    return {name: array for name, array in row.inputs.forward.items() if name != "state"}


def steps(row: Row, _: Path) -> None:
    of_steps(row)
    row.kernel.step(**on_slots(row, row.inputs.step))


def over_time(row: Row, _: Path) -> None:
    a_cell(row)
    row.kernel(**on_slots(row, row.inputs.forward, has_state=np.array((True, False))))


def drafts(row: Row, _: Path) -> None:
    """A draft, one that follows some of its steps, and the end of both."""
    of_steps(row)
    cache = row.kernel.cache(SLOTS, SIZES.time)
    for accepted in (None, np.array((2, 0))):
        row.kernel.verify_draft(**drafted(row), cache=cache, slots=READ, accepted=accepted)
    cache.commit(READ, np.array((0, 3)))


def _layer(row: Row) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a layer of the class, and the inputs X.* of its step and of its call."""
    torch, front = library_of("torch")
    layer, names = front.RNN(row.kernel.spec.model, INPUTS, HIDDEN, **row.options), row.kernel.inputs
    one, many = ({"inputs": {name: torch.zeros(*shape) for name in names}} for shape in ((2, HIDDEN), (*SIZES, HIDDEN)))
    return layer, one if names else {}, many if names else {}


def layer_steps(row: Row, _: Path) -> None:
    of_steps(row)
    torch, _front = library_of("torch")
    layer, inputs, _many = _layer(row)
    layer.step(torch.zeros(2, INPUTS), cache=layer.cache(SLOTS), slots=torch.from_numpy(READ), **inputs)


def layer_over_time(row: Row, _: Path) -> None:
    a_cell(row)
    torch, _front = library_of("torch")
    layer, _one, inputs = _layer(row)
    if row.is_altered:
        marks = torch.from_numpy(row.inputs.forward["resets"])
        states = tuple(torch.ones(1, 2, HIDDEN) for _ in row.kernel.states)
        inputs = {"resets": marks, "holds": ~marks, "reset_states": states}
    layer(torch.zeros(*SIZES, INPUTS), cache=layer.cache(SLOTS), slots=torch.from_numpy(READ), **inputs)


def layer_drafts(row: Row, _: Path) -> None:
    of_steps(row)
    torch, _front = library_of("torch")
    layer, _one, inputs = _layer(row)
    layer.verify_draft(torch.zeros(*SIZES, INPUTS), cache=layer.cache(SLOTS, 3), slots=torch.from_numpy(READ), **inputs)


def jax_steps(row: Row, _: Path) -> None:
    of_steps(row)
    jax, front = library_of("jax")
    given = mapped(on_slots(row, row.inputs.step), jax.numpy.asarray)
    jax.eval_shape(functools.partial(front.step, row.kernel.spec), **given)


def jax_over_time(row: Row, _: Path) -> None:
    a_cell(row)
    jax, front = library_of("jax")
    given = mapped(on_slots(row, row.inputs.forward, has_state=np.array((True, False))), jax.numpy.asarray)
    jax.eval_shape(functools.partial(front.recurrence, row.kernel.spec), **given)


def jax_drafts(row: Row, _: Path) -> None:
    of_steps(row)
    jax, front = library_of("jax")
    cache = front.cache(row.kernel.spec, SLOTS, SIZES.time)
    given = mapped({**drafted(row), "slots": READ, "accepted": np.array((0, 1))}, jax.numpy.asarray)
    jax.eval_shape(functools.partial(front.verify_draft, row.kernel.spec), cache=cache, **given)


def prepared(row: Row, _: Path) -> None:
    """Kernels of calls, and of steps and drafts where there are any, on slots, compiled ahead."""
    a_cell(row)
    row.kernel.prepare([SIZES], slots=True, **row.asked)
    assert {"slots", "drafts"} <= {key.kernel_pass for key in row.served.kernel.plans}


def in_c(row: Row, folder: Path, ask: Callable[[Row, Path], None]) -> None:
    """An export, by one of its fronts, that has steps on slots, and drafts."""
    of_steps(row)
    ask(row, folder)
    header = (folder / "rnn_cell.h").read_text()
    if "rnn_cell_step_on_slots" not in header or "rnn_cell_verify_draft" not in header:
        raise NotThere


def captured(row: Row, _: Path) -> None:
    """Record a call over time on slots, and a step: what is replayed reads nothing back, so that a graph takes it."""
    a_cell(row)
    torch, _front = library_of("torch")
    kernel, inputs = row.served.kernel, row.served.inputs
    executor = executor_on(kernel, PlannedKernels(kernel.builder, SIZES))

    def on_device(given: dict[str, Any]) -> CallArguments:
        states = kernel.cache(SLOTS).states
        tensors = mapped({"x": given.get("x", given.get("x_t")), **given, "state": states}, torch.from_numpy)
        return CallArguments(**{name: tensors.get(name) for name in CallArguments._fields})

    pool = PoolArguments(*map(torch.from_numpy, (READ, INTO)))
    with as_if_on_a_device(kernel, executor=executor), pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrnn_gen.gpu.cublas.multiply", lambda *_: None)
        patch.setattr("minrnn_gen.run.executor.is_on_cpu", lambda _: False)
        executor.forward_on_pool(on_device(inputs.forward), pool)
        assert len(executor.gpu.forwards) == 1
        assert row.is_altered or executor.record_step(on_device(inputs.step), pool) is not None


FRONTS: dict[str, Front] = {
    "kernel `step`": Front(steps),
    "kernel call": Front(over_time),
    "kernel `verify_draft`": Front(drafts),
    "layer `step`": Front(layer_steps, "torch"),
    "layer call": Front(layer_over_time, "torch"),
    "layer `verify_draft`": Front(layer_drafts, "torch"),
    "`jax.step`": Front(jax_steps, "jax"),
    "`jax.recurrence`": Front(jax_over_time, "jax"),
    "`jax.verify_draft`": Front(jax_drafts, "jax"),
    "steps on slots and drafts in C for CPUs": Front(functools.partial(in_c, ask=export_for_cpus), is_slow=True),
    "steps on slots and drafts in C for GPUs": Front(functools.partial(in_c, ask=export_for_gpus), is_slow=True),
    "`prepare(slots=True)`": Front(prepared),
    "slots in CUDA graphs": Front(captured, "torch"),
}
_OF_STEPS = (steps, drafts, layer_steps, layer_drafts, jax_steps, jax_drafts)
# The columns of steps, which calls over time have none of.
OF_STEPS = tuple(name for name, front in FRONTS.items() if front.ask in _OF_STEPS or name.startswith("steps on slots"))
OF_CALLS = tuple(FRONTS)[:9]
