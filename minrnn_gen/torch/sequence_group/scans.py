"""The raw scan over the pieces of a group: each from zero, gathered and folded, and corrected as far as coefficients count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.raw_scan.arguments import check_scan
from minrnn_gen.raw_scan.scan import scan as run_scan
from minrnn_gen.raw_scan.scan import scan_backward as run_scan_backward
from minrnn_gen.torch.dispatch import is_plain, records
from minrnn_gen.torch.recorded import RecurrenceFunction, Tensors, gradients_once
from minrnn_gen.torch.sequence_group.agreement import agree, device_of
from minrnn_gen.torch.sequence_group.cost import (
    CORRECT_PASSES,
    JOIN_PASSES_OF_SCAN,
    SUMMARY_PASSES_OF_SCAN,
    choices,
    counts_up_to,
    piece_seconds,
)
from minrnn_gen.torch.sequence_group.exchange import all_gather, broadcast, sum_in_order
from minrnn_gen.torch.sequence_group.fold import corrected_parts, fold, is_rounding
from minrnn_gen.torch.sequence_group.group import Member, Way
from minrnn_gen.torch.sequence_group.scan_pipeline import PipelineOfScan, axis_of_groups
from minrnn_gen.torch.tensors import autocasts, check_tensor


@torch.compiler.disable  # type: ignore[untyped-decorator]
def scan_pieces(a: Any, b: Any, h0: Any, member: Member, *, log_a: bool, reverse: bool, axis: int) -> tuple[Any, Any]:
    """Return (y, final): y of this rank's piece, and the final state of the whole, the same bits on every rank.

    Recorded on every rank where a tensor of any rank requires grad. Raises BadInput on every rank for what does not fit.
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
    allowed: dict[Way, float] = {
        "correct": CORRECT_PASSES, "summary": SUMMARY_PASSES_OF_SCAN, "pipeline": JOIN_PASSES_OF_SCAN,
    }  # fmt: skip
    # All ranks choose by the same numbers: the mean piece, of three words a value.
    values = math.prod(state_shape) * agreement.time / member.size
    seconds = piece_seconds(3 * values * a.element_size(), 0)
    state_bytes = math.prod(state_shape) * a.element_size()
    choice = choices(
        member.size, counts_up_to(groups, member.micro_batches), seconds, state_bytes, allowed, member.way, member.micro_batches
    )[0]
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
    """A scan on this rank's piece; `corrects` only as far as coefficients count, and else all of it.

    Its tensors are a, b, h0, which counts at the first piece alone, and the anchor of its record. Results: y and the final
    state of the whole; then what only the backward needs: the state that enters the piece, and the products of all pieces.
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
        position, size = self.member.position(self.reverse), self.member.size
        entering = h0 if position == 0 else None
        y, end = self._scan(a, b, entering)
        product = self._product(a, end)
        gathered = all_gather(torch.stack((product, end)), self.member)
        in_order = [gathered[self.member.rank_at(place, self.reverse)] for place in range(size)]
        if position:
            entering = fold(in_order[:position])
            end = self._correct(a, b, y, entering, product, end)
        last = self.member.rank_at(size - 1, self.reverse)
        final = broadcast(end, last, self.member)
        return (y, final, entering, torch.stack([products for products, _ in in_order]))

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        a, _, h0, _ = tensors
        y, entering, products = results
        dy, dfinal = gradients
        dy = torch.zeros_like(y) if dy is None else dy
        position, size = self.member.position(self.reverse), self.member.size
        dfinal = sum_in_order(torch.zeros_like(products[0]) if dfinal is None else dfinal, self.member)
        is_end = position == size - 1
        da, db, dinitial = run_scan_backward(a, y, dy, entering, dfinal if is_end else None, **self._options)
        gathered = all_gather(dinitial, self.member)
        if not is_end:
            behind = [self.member.rank_at(place, self.reverse) for place in range(position + 1, size)]
            dfinal = fold([(products[position + 1 + place].conj(), gathered[rank]) for place, rank in enumerate(behind)][::-1])
            product = products[position].conj()
            dinitial = self._correct_back((a, y, dy, entering), (da, db), dfinal, product, dinitial)
        if h0 is not None and position:
            dinitial = torch.zeros_like(h0)
        return (da, db, None if h0 is None else dinitial, None)

    def _correct(self, a: Any, b: Any, y: Any, entering: Any, product: Any, end: Any) -> Any:
        """Scan the head of the piece with the state that enters it, into y; return the end state of the piece."""
        for steps in self._parts(a.shape[self.axis]):
            head_a, head_b = (self._head(tensor, steps) for tensor in (a, b))
            corrected, state = self._scan(head_a, head_b, entering)
            self._head(y, steps).copy_(corrected)
            if steps == a.shape[self.axis]:
                return state
            if is_rounding(self._product(head_a, end) * entering, state):
                break
        return fold(((None, entering), (product, end)))

    def _correct_back(self, call: Tensors, gradients: Tensors, dfinal: Any, product: Any, dinitial: Any) -> Any:
        """Run the backward of the piece's tail with the gradient of its end state; return that of the state that enters."""
        a, y, dy, entering = call
        time = a.shape[self.axis]
        for steps in self._parts(time):
            tail_a, tail_y, tail_dy = (self._tail(tensor, steps) for tensor in (a, y, dy))
            before = entering if steps == time else self._state_before(y, steps).to(dfinal.dtype)
            *corrected, state = run_scan_backward(tail_a, tail_y, tail_dy, before, dfinal, **self._options)
            for whole, part in zip(gradients, corrected, strict=True):
                self._tail(whole, steps).copy_(part)
            if steps == time:
                return state
            if is_rounding(self._product(tail_a, dfinal) * dfinal, state):
                break
        return fold(((None, dfinal), (product, dinitial)))

    @property
    def _options(self) -> dict[str, Any]:
        return {"log_a": self.log_a, "reverse": self.reverse, "axis": self.axis}

    def _scan(self, a: Any, b: Any, h0: Any) -> tuple[Any, Any]:
        return run_scan(a, b, h0, **self._options)

    def _product(self, a: Any, like: Any) -> Any:
        """Return the product of the coefficients, in the dtype of states; of many it is taken in float64."""
        wide = torch.complex128 if a.is_complex() else torch.float64
        product = a.sum(self.axis, dtype=wide).exp() if self.log_a else a.prod(self.axis, dtype=wide)
        return product.to(like.dtype)

    def _parts(self, time: int) -> Iterator[int]:
        """Yield how many steps are corrected, more every time, at last all of them."""
        if self.corrects:
            yield from corrected_parts(time)
        yield time

    def _head(self, tensor: Any, steps: int) -> Any:
        begin = tensor.shape[self.axis] - steps if self.reverse else 0
        return tensor.narrow(self.axis, begin, steps)

    def _tail(self, tensor: Any, steps: int) -> Any:
        begin = 0 if self.reverse else tensor.shape[self.axis] - steps
        return tensor.narrow(self.axis, begin, steps)

    def _state_before(self, y: Any, steps: int) -> Any:
        """Return the state that enters the last steps."""
        return y.select(self.axis, steps if self.reverse else y.shape[self.axis] - steps - 1)


def _check(tensors: Tensors, log_a: bool, reverse: bool, axis: int) -> None:
    for name, tensor in zip(("a", "b", "h0"), tensors, strict=True):
        if tensor is not None:
            check_tensor(tensor, name)
    a, b, h0 = (tensor.detach() if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors)
    if not is_plain(tensors):
        raise BadInput("sequence_group was given with tensors that are no plain ones of torch in memory; give such ones")
    check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis)
