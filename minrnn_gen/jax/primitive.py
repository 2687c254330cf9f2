"""The primitive of a request in programs of JAX: its results, its lowering, its batching, and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from minrnn_gen.call.slots import BIAS, CU_SEQLENS, LENGTHS, RECURRENT_BIAS, R, X
from minrnn_gen.errors import BadInput
from minrnn_gen.jax import target
from minrnn_gen.jax.batched import batched
from minrnn_gen.jax.device import DeviceCall
from minrnn_gen.jax.full_maps import full_maps_on_device
from minrnn_gen.jax.host import by_slot
from minrnn_gen.jax.request import CallSite, Request, Shaped, digest_of
from minrnn_gen.jax.second import SecondDerivatives
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES, PASSED
from minrnn_gen.raw_scan.filters import gradients_of_coefficients
from minrnn_gen.raw_scan.map_arguments import CARRIED

_PRIMITIVE = Primitive("minrnn_gen")
_PRIMITIVE.multiple_results = True


def bind(request: Request, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a request, in a separate program unless one is being traced."""
    results: list[Any] = _PRIMITIVE.bind(*operands, request=request)
    return results


@partial(jax.jit, static_argnames="request")
def _run_alone(*operands: Any, request: Request) -> list[Any]:
    return bind(request, operands)


def _abstract(*operands: Any, request: Request) -> list[Any]:
    results = request.results([Shaped.of(operand) for operand in operands])
    return [jax.core.ShapedArray(result.shape, jnp.dtype(result.dtype)) for result in results]


def _lower_on_host(*operands: Any, request: Request) -> Sequence[Any]:
    target.serve_by_c("cpu")
    site = CallSite(request, tuple(map(Shaped.of, operands)))
    return _call(site, request.results(site.operands), operands)


def _lower_on_device(*operands: Any, request: Request) -> Sequence[Any]:
    if request.kind in FILTER_PASSES:
        return _filter_on_device(request, operands, PASSED[request.kind])
    if request.form == "full":
        like = request.results([*map(Shaped.of, operands)])
        with jax.enable_x64(True):
            scanned = full_maps_on_device(bind, request, [operand.astype(CARRIED) for operand in operands])
            return [result.astype(shape.dtype) for result, shape in zip(scanned, like, strict=True)]
    site = CallSite(request, tuple(map(Shaped.of, operands)))
    call = target.prepare(site)
    if request.recipe:
        wide = {request.slots.index(slot) for slot in (LENGTHS, CU_SEQLENS) if request.present[slot]}
        operands = tuple(_as_int64(operand) if index in wide else operand for index, operand in enumerate(operands))
    casts = (operands[cast.operand].astype(cast.dtype) for cast in call.casts)
    results = _call_on_device(site, call, (*operands, *casts))
    return _gradients(request, call, operands, results) if call.backward else results


def _filter_on_device(request: Request, operands: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Return the results of a filter; a program has float64 without JAX's x64 mode too."""
    like = request.results([*map(Shaped.of, operands)])
    with jax.enable_x64(True):
        named = dict(zip(names, by_slot(request, operands), strict=True))
        b, a = (named[name].astype(CARRIED) for name in "ba")
        first = a[:, :1]
        named |= {"b": b / first, "a": a / first}
        named |= {name: named[name].astype(CARRIED) for name in ("zi", "dzf") if named.get(name) is not None}
        passed = [array for array in named.values() if array is not None]
        site = CallSite(request, tuple(map(Shaped.of, passed)))
        results = _call_on_device(site, target.prepare(site), passed)
        if request.kind == "filter_backward":
            dx, by_b, by_a, dzi = results
            db, da, by_first = gradients_of_coefficients(by_b, by_a, b, a)
            results = dx, db, da.at[:, 0].set(by_first), dzi
        return [result.astype(shape.dtype) for result, shape in zip(results, like, strict=True)]


def _call_on_device(site: CallSite, call: DeviceCall, operands: Sequence[Any]) -> Sequence[Any]:
    workspace = [Shaped((call.workspace_bytes,), "uint8")] if call.workspace_bytes else []
    return _call(site, (*call.results, *workspace), operands)[: len(call.results)]


def _call(site: CallSite, results: Sequence[Shaped], operands: Sequence[Any]) -> Sequence[Any]:
    text = site.text()
    attributes = {target.DIGEST_ATTRIBUTE: numpy.int64(digest_of(text)), target.TEXT_ATTRIBUTE: text}
    like = [jax.ShapeDtypeStruct(result.shape, jnp.dtype(result.dtype)) for result in results]
    written: Sequence[Any] = jax.ffi.ffi_call(target.TARGET, like, input_output_aliases=site.request.aliases)(
        *operands, **attributes
    )
    return written


def _as_int64(integers: Any) -> Any:
    """Return non-negative int32 as the memory of int64, low words first: without x64 JAX has no other way to make it."""
    return jnp.stack([integers, jnp.zeros_like(integers)], axis=-1)


def _gradients(request: Request, call: DeviceCall, operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return the gradients of a request's operands from a trace's partial sums."""
    assert call.backward is not None
    raw, interface = call.backward.mapped(results.__getitem__), request.interface
    # Few values are left to add. R has its heads before its gates.
    sums = None if raw.sums is None else raw.sums.sum((1, 3))
    dR = None if raw.R is None else raw.R.swapaxes(1, 2)
    gates = len(interface.gates)
    behind_gates = gates + len(interface.recurrent_gates)
    slots, of_cell = list(request.slots), interface.slots
    parameters = dict(zip(interface.parameters, _slots_in(of_cell.parameters), strict=True))
    by_slot = {X: raw.x, R: dR, **dict(zip(_slots_in(of_cell.states), raw.initial, strict=True))}
    if sums is not None:
        by_slot |= {BIAS: sums[:, :gates], RECURRENT_BIAS: sums[:, gates:behind_gates]}
        by_slot |= {parameters[name]: sums[:, row] for row, name in enumerate(interface.summed_parameters, behind_gates)}
    by_slot |= {parameters[name]: raw.vectors[i].sum(1) for i, name in enumerate(interface.vector_parameters)}
    by_slot |= {slot: parts.sum(0) for slot, parts in zip(_slots_in(of_cell.shared), raw.shared, strict=True)}
    by_slot |= dict(zip(_slots_in(of_cell.inputs), raw.inputs, strict=True))
    gradients = []
    for slot in request.gradient_slots:
        gradient = by_slot[slot]
        like = operands[slots.index(slot)]
        assert gradient is not None
        gradients.append(gradient.reshape(like.shape).astype(like.dtype))
    return gradients


def _slots_in(run: slice) -> range:
    return range(run.start, run.stop)


def _refuse_on_pool(request: Request, what: str) -> None:
    if request.kind == "step_on_pool":
        raise BadInput(
            f"a step on slots was asked for under {what}, which it lacks; call it outside, its batch is x_t's first axis"
        )


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, request: Request) -> Any:
    _refuse_on_pool(request, "a gradient")
    return _DERIVATIVES.jvp(primals, tangents, request=request)


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, request: Request) -> tuple[list[Any], list[int]]:
    _refuse_on_pool(request, "vmap")
    results = batched(bind, request, operands, axes)
    return results, [0] * len(results)


_PRIMITIVE.def_impl(_run_alone)
_PRIMITIVE.def_abstract_eval(_abstract)
mlir.register_lowering(_PRIMITIVE, mlir.lower_fun(_lower_on_host), platform="cpu")
mlir.register_lowering(_PRIMITIVE, mlir.lower_fun(_lower_on_device), platform="cuda")
batching.primitive_batchers[_PRIMITIVE] = _batch
_DERIVATIVES = SecondDerivatives(bind)
ad.primitive_jvps[_PRIMITIVE] = _jvp
