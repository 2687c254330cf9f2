"""The agreement of all ranks on a call: one exchange of their arguments, and one error on all of them where these differ.

Tensors in host memory are agreed on in every call. With CUDA tensors a look at the answer would wait for the stream: there only
the first call of a form (its shapes, dtypes and settings) exchanges it.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.torch.sequence_group.exchange import all_gather
from minrnn_gen.torch.sequence_group.group import Member

# The most characters of one rank's form and message; a longer spec or message is hashed or cut before.
MESSAGE_BYTES = 2048
_ERROR_CHARACTERS = 400

_AGREED: weakref.WeakKeyDictionary[Any, dict[str, Agreement]] = weakref.WeakKeyDictionary()


class RefusedEverywhere(BadInput):
    """Bad input that every rank of a group raises."""


@dataclass(frozen=True)
class Agreement:
    """Facts about a call that all ranks know.

    `times`: the steps of each rank's piece; `records`: whether any rank records gradients; `seconds`: {groups of a piece: the
    slowest rank's predicted time of a pass over one group}.
    """

    times: tuple[int, ...]
    records: bool
    seconds: Mapping[int, float]

    def begin(self, rank: int) -> int:
        """Return how many steps lie before the piece of a rank."""
        return sum(self.times[:rank])

    @property
    def time(self) -> int:
        """The steps of all pieces."""
        return sum(self.times)


def agree(
    member: Member,
    device: torch.device,
    form: Mapping[str, Any],
    *,
    time: int,
    records: bool,
    refusal: BadInput | None,
    seconds: Mapping[int, float] = MappingProxyType({}),
) -> Agreement:
    """Return what all ranks agree on. `form`: values that must be equal on all; `refusal`: why this rank refuses its call.

    `seconds`: this rank's predicted times, in the form of `Agreement`.

    Raises BadInput on every rank where a rank refuses, naming it, and where forms differ, naming rank and difference.
    """
    on_gpu = device.type != "cpu"
    said = {
        "form": dict(form),
        "time": time,
        "records": records,
        "refusal": str(refusal or "")[:_ERROR_CHARACTERS],
        "seconds": [*seconds.items()],
    }
    text = json.dumps(said, ensure_ascii=True, sort_keys=True)
    if on_gpu:
        agreed = _AGREED.setdefault(member.process_group, {})
        if text in agreed:
            return agreed[text]
        if refusal is not None and agreed:
            raise RefusedEverywhere(str(refusal))  # other ranks may know their form, and then do not exchange it
    everyone = compared(member, device, said, refusal)
    agreement = Agreement(
        tuple(answer["time"] for answer in everyone),
        any(answer["records"] for answer in everyone),
        {count: max(dict(answer["seconds"])[count] for answer in everyone) for count in seconds},
    )
    if on_gpu:
        _AGREED[member.process_group][text] = agreement
    return agreement


def compared(member: Member, device: torch.device, said: Mapping[str, Any], refusal: BadInput | None) -> list[dict[str, Any]]:
    """Return what all ranks say, exchanged again; `said` has a "form" and a "refusal". Raises as `agree` does."""
    text = json.dumps(said, ensure_ascii=True, sort_keys=True)
    everyone = [json.loads(answer) for answer in exchanged(text, device, member)]
    if refusal is not None:
        raise RefusedEverywhere(str(refusal)) from refusal
    for rank, answer in enumerate(everyone):
        if answer["refusal"]:
            raise RefusedEverywhere(f"rank {rank} of the sequence group refuses the call: {answer['refusal']}")
    for rank, answer in enumerate(everyone):
        _check_equal(rank, answer["form"], everyone[0]["form"])
    return everyone


def refuse(member: Member | None, tensor: Any, refusal: BadInput) -> None:
    """Raise this rank's refusal on every rank of its group, if any, where there is no form to agree on yet."""
    if member is not None:
        agree(member, device_of(tensor), {}, time=0, records=False, refusal=refusal)


def device_of(tensor: Any) -> torch.device:
    """Return the device of the exchange: the tensor's, or the CPU without a tensor that has values."""
    return tensor.device if isinstance(tensor, torch.Tensor) and not tensor.is_meta else torch.device("cpu")


def exchanged(text: str, device: torch.device, member: Member) -> list[str]:
    """Return the ASCII texts of all ranks, of `MESSAGE_BYTES` at most; the host waits for them."""
    encoded = text.encode("ascii")
    assert len(encoded) <= MESSAGE_BYTES
    with torch._C._DisableFuncTorch():  # a transform, which a rank refuses here, would take the message for an input of its own
        message = torch.frombuffer(bytearray(encoded.ljust(MESSAGE_BYTES)), dtype=torch.uint8).to(device)
        return [bytes(answer.cpu().tolist()).decode("ascii") for answer in all_gather(message, member)]


def _check_equal(rank: int, form: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    for key in {**first, **form}:
        if form.get(key) != first.get(key):
            raise RefusedEverywhere(
                f"rank {rank} of the sequence group has {key} {form.get(key)}, but rank 0 has {first.get(key)}; call all ranks "
                f"with the same"
            )
