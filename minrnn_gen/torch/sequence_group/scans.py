"""The raw scan over the pieces of a group: from zero, gathered and folded, then corrected as far as coefficients count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.raw_scan.arguments import check_scan
from minrnn_gen.raw_scan.scan import scan as run_scan
from minrnn_gen.raw_scan.scan import scan_backward as run_scan_backward
from minrnn_gen.torch.operators.dispatch import is_plain, records
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors, gradients_once
from minrnn_gen.torch.sequence_group.agreement import agree, device_of
from minrnn_gen.torch.sequence_group.cost import (
    JOIN_PASSES_OF_SCAN,
    PRODUCT_PASSES_OF_SCAN,
    choices,
    counts_up_to,
    gathering_passes,
    seconds_of_bytes,
)
from minrnn_gen.torch.sequence_group.exchange import all_gather_in_order, broadcast, sum_all, sum_in_order
from minrnn_gen.torch.sequence_group.fold import RunPart, correct_pieces, fold
from minrnn_gen.torch.sequence_group.group import Member, Way
from minrnn_gen.torch.sequence_group.scan_pipeline import PipelineOfScan, axis_of_groups, states_like
from minrnn_gen.torch.tensors import autocasts, check_tensor


@torch.compiler.disable  # type: ignore[untyped-decorator]
def scan_pieces(a: Any, b: Any, h0: Any, member: Member, *, log_a: bool, reverse: bool, axis: int) -> tuple[Any, Any]:
    """Return (y, final): y of this rank's piece, and the final state of the whole, the same bits on every rank.

    Recorded on every rank where a tensor of any rank requires grad. Raises BadInput on every rank for wrong arguments.
    """
    refusal, shape = None, [0]
    if all(isinstance(tensor, torch.Tensor) for tensor in (a, b)) and autocasts(a) and a.dtype is not b.dtype:
        wider = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(wider), b.to(wider)
    tensors = (a, b, h0)
    try:
        _check(tensors, log_a, reverse, axis)
        shape = list(a.shape)
    except BadInput as refused:
        refusal = refused
    form: dict[str, Any] = {}
    if refusal is None:
        axis %= a.dim()
        form = {
            "dtype": str(a.dtype).removeprefix("torch."),
            "shape beside time": shape[:axis] + shape[axis + 1 :],
            "axis": axis,
            "log_a": log_a,
            "reverse": reverse,
            "device": a.device.type,
            "way": member.way,
            "micro_batches": member.micro_batches,
        }
    time = 0 if refusal else shape[axis]
    agreement = agree(member, device_of(a), form, time=time, records=records(tensors), refusal=refusal)
    state_shape = form.get("shape beside time", [])
    group_axis, groups = axis_of_groups(tuple(state_shape))
    allowed: dict[Way, float] = {"pipeline": JOIN_PASSES_OF_SCAN}
    allowed |= gathering_passes(member.size, False, PRODUCT_PASSES_OF_SCAN)
    # All ranks choose by the same numbers: the mean piece, three words a value.
    values = math.prod(state_shape) * agreement.time / member.size
    seconds = seconds_of_bytes(3 * values * a.element_size(), counts_up_to(groups, member.micro_batches))
    state_bytes = math.prod(state_shape) * a.element_size()
    choice = choices(member.size, seconds, state_bytes, allowed, member.way, member.micro_batches, agreement.records)[0]
    piece: PieceOfScan | PipelineOfScan = PieceOfScan(member, choice.way == "correct", log_a, reverse, axis)
    if choice.way == "pipeline":
        piece = PipelineOfScan(member, choice.micro_batches, group_axis, log_a, reverse, axis)
    if not agreement.records:
        y, final, *_ = piece.forward((*tensors, None))
        return y, final
    anchor = None if records(tensors) else torch.zeros((), requires_grad=True)
    y, final = RecurrenceFunction.of(piece, (*tensors, anchor))
    return y, final


@dataclass(frozen=True, slots=True)
class PieceOfScan:
    """A scan on this rank's piece; `corrects`: run again only as far as coefficients count, else all of it.

    Its tensors are a, b, h0, which counts at the first piece alone, and the anchor of its record. Results: y and the final
    state of the whole; then the arrays that only the backward needs: the state that enters the piece, and the products of all
    pieces, if computed.
    """

    member: Member
    corrects: bool
    log_a: bool
    reverse: bool
    axis: int
    results_count: int = 2
    returned_count: int | None = 2

    def read_again(self, tensors: Tensors) -> Tensors:
        a, _, h0, _ = tensors
        return (a, None, h0, None)

    def forward(self, tensors: Tensors) -> Tensors:
        a, b, h0, _ = tensors
        position, time = self.member.position(self.reverse), a.shape[self.axis]
        entering = None if position else h0
        y, end = self._scan(a, b, entering)
        ends = self._gathered(end)
        enough, products = [False] * len(ends), None
        if position:
            entering = ends[position - 1]
        if self.corrects:
            head = self._head(a, b, y, entering) if position else None
            enough = correct_pieces(head, time, self.member, self.reverse, end)
        if not all(enough[1:-1]):
            products = self._products(a, end)
            entering = fold([*zip(products, ends, strict=True)][:position]) if position else entering
            enough = [False] * len(ends)
        if position and not enough[position]:
            y, end = self._scan(a, b, entering)
        last = self.member.rank_at(self.member.size - 1, self.reverse)
        final = ends[-1].clone() if enough[-1] else broadcast(end, last, self.member)
        return (y, final, entering, None if products is None else torch.stack(products))

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        a, _, h0, _ = tensors
        y, entering, products = results
        dy, dfinal = gradients
        dy = torch.zeros_like(y) if dy is None else dy
        position, size = self.member.position(self.reverse), self.member.size
        is_end = position == size - 1
        zeros = states_like(a, self.axis).zero_()
        dfinal = zeros if dfinal is None else dfinal
        run = partial(run_scan_backward, a, y, dy, entering, **self._options)
        if self.corrects:
            da, db, dinitial = run(dfinal=None)
            of_pieces = self._gathered(torch.stack((dinitial, dfinal)))
            dfinal = sum_all([own for _, own in of_pieces])
            arriving = [*(own for own, _ in of_pieces[1:]), dfinal]
            tail = self._tail((a, y, dy), (da, db), arriving[position])
            enough = correct_pieces(tail, a.shape[self.axis], self.member, self.reverse, zeros)
        else:
            dfinal, enough = sum_in_order(dfinal, self.member), [False] * size
        if not enough[-1]:
            if is_end or not self.corrects:
                da, db, dinitial = run(dfinal=dfinal if is_end else None)
            arriving = [*self._gathered(dinitial)[1:], dfinal]
        dstate = arriving[position]
        if not all(enough[1:]):
            products = self._products(a, zeros) if products is None else products
            behind = range(position + 1, size)
            folded = [(products[place].conj(), arriving[place - 1]) for place in reversed(behind)]
            dstate = fold(folded) if folded else dstate
            enough = [False] * (size - 1) + [True]
        if not enough[position]:
            da, db, dinitial = run(dfinal=dstate)
        if h0 is not None and position:
            dinitial = torch.zeros_like(h0)
        return (da, db, None if h0 is None else dinitial, None)

    def _head(self, a: Any, b: Any, y: Any, entering: Any) -> RunPart:
        """Return a function that scans a part of the piece from its begin on with the state that enters it, into y."""
        carried = [entering, torch.zeros_like(entering)]

        def run(begin: int, steps: int) -> tuple[Any, Any]:
            of_a, of_b, of_y = (self._part(tensor, begin, steps) for tensor in (a, b, y))
            values, carried[0] = self._scan(of_a, of_b, carried[0])
            of_y.copy_(values)
            _, carried[1] = self._scan(of_a, of_b, carried[1])
            return carried[0] - carried[1], carried[0]

        return run

    def _tail(self, call: Tensors, gradients: Tensors, dstate: Any) -> RunPart:
        """Return a function for the backward of a part of the piece from its end on with the gradient of its end state."""
        y, time = call[1], call[0].shape[self.axis]
        carried = [dstate, torch.zeros_like(dstate)]

        def run(begin: int, steps: int) -> tuple[Any, Any]:
            place = time - begin - steps
            of_a, of_y, of_dy, *of_gradients = (self._part(tensor, place, steps) for tensor in (*call, *gradients))
            before = self._part(y, place - 1, 1).squeeze(self.axis).to(dstate.dtype)
            *values, carried[0] = run_scan_backward(of_a, of_y, of_dy, before, carried[0], **self._options)
            for whole, part in zip(of_gradients, values, strict=True):
                whole.copy_(part)
            *_, carried[1] = run_scan_backward(of_a, of_y, of_dy, before, carried[1], **self._options)
            return carried[0] - carried[1], carried[0]

        return run

    def _gathered(self, own: Any) -> list[Any]:
        """Return the tensors of all ranks, in the order of the recurrence."""
        return all_gather_in_order(own, self.member, self.reverse)

    def _products(self, a: Any, like: Any) -> list[Any]:
        """Return the products of the coefficients of all pieces; the fold skips the first and the last piece."""
        position, size = self.member.position(self.reverse), self.member.size
        if size == 2:
            return [like, like]
        return self._gathered(self._product(a, like) if 0 < position < size - 1 else torch.zeros_like(like))

    @property
    def _options(self) -> dict[str, Any]:
        return {"log_a": self.log_a, "reverse": self.reverse, "axis": self.axis}

    def _scan(self, a: Any, b: Any, h0: Any) -> tuple[Any, Any]:
        return run_scan(a, b, h0, **self._options)

    def _product(self, a: Any, like: Any) -> Any:
        """Return the product of the coefficients, computed in float64, in the dtype of states."""
        wide = torch.complex128 if a.is_complex() else torch.float64
        product = a.sum(self.axis, dtype=wide).exp() if self.log_a else a.prod(self.axis, dtype=wide)
        return product.to(like.dtype)

    def _part(self, tensor: Any, begin: int, steps: int) -> Any:
        """Return some steps of an array, from `begin` on in the order of the recurrence."""
        return tensor.narrow(self.axis, tensor.shape[self.axis] - begin - steps if self.reverse else begin, steps)


def _check(tensors: Tensors, log_a: bool, reverse: bool, axis: int) -> None:
    for name, tensor in zip(("a", "b", "h0"), tensors, strict=True):
        if tensor is not None:
            check_tensor(tensor, name)
    a, b, h0 = (tensor.detach() if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors)
    if not is_plain(tensors):
        raise BadInput("sequence_group was given with tensors of a subclass or without memory; give plain dense tensors")
    check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis)
