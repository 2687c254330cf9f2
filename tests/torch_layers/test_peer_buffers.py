"""Buffers between GPUs: opened by all ranks or by none, and what an exchange asks of their kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support.host_of_ranks import Silent  # noqa: E402

from minrnn_gen.build.rank_exchange import buffer_bytes, rank_exchange_on  # noqa: E402
from minrnn_gen.errors import ToolchainMissing  # noqa: E402
from minrnn_gen.gpu import peer_memory  # noqa: E402
from minrnn_gen.torch.sequence_group import exchange, peer_buffers, peers  # noqa: E402
from minrnn_gen.torch.sequence_group.group import Member  # noqa: E402
from minrnn_gen.torch.sequence_group.peer_buffers import PeerBuffers  # noqa: E402

GPU, HANDLE, OWN, OPENED = torch.device("cuda", 1), b"\x01" * 64, 0x10000, 0x20000
KERNEL = SimpleNamespace(
    builder=SimpleNamespace(store=None, target=SimpleNamespace(profile=SimpleNamespace(compute_capability="9.0")))
)


class Said:
    """Answers of all ranks: this one's, and of the others what `other` makes of it."""

    def __init__(self, size: int, other: Callable[[Any], Any]) -> None:
        self.size, self.other, self.own = size, other, list[Any]()

    def __call__(self, text: str, _device: Any, _member: Any) -> list[str]:
        self.own.append(json.loads(text))
        return [text, *[json.dumps(self.other(self.own[-1]))] * (self.size - 1)]


def _met(monkeypatch: pytest.MonkeyPatch, said: Said, **functions: Any) -> PeerBuffers | None:
    """Return the buffers of a group after its ranks met."""
    group = Silent(0, said.size)
    monkeypatch.setattr(peers, "exchanged", said)
    monkeypatch.setattr(peers, "rank_exchange_cubin", lambda *_: b"")
    monkeypatch.setattr(peers, "LoadedKernel", lambda *_: SimpleNamespace(function=lambda _: None))
    shared = {"allocate_shared": lambda *_: (OWN, HANDLE), "open_shared": lambda *_: OPENED, "addresses_on": lambda _, at: at}
    for name, function in (shared | functions).items():
        monkeypatch.setattr(peers if hasattr(peers, name) else peer_memory, name, function)
    peers.meet(Member(group, 0, said.size, graphs=True), KERNEL, GPU)  # type: ignore[arg-type]
    assert peer_buffers.has_met(group)
    return peer_buffers.peer_buffers_of(group)


def _refuses(*_: Any) -> Any:
    raise RuntimeError("cudaErrorInvalidValue")


def _lacks(*_: Any) -> Any:
    raise ToolchainMissing("without NVRTC")


def test_ranks_on_gpus_of_one_machine_open_the_buffers_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _met(monkeypatch, Said(3, lambda own: own))
    assert found is not None and (found.rank, found.size, found.addresses) == (0, 3, [OWN, OPENED, OPENED])


@pytest.mark.parametrize(
    ("other", "functions"),
    [
        (lambda own: ["elsewhere", own[1]] if isinstance(own, list) else own, {}),
        (lambda own: own if isinstance(own, list) else False, {}),
        (lambda own: own, {"open_shared": _refuses}),
        (lambda own: own, {"allocate_shared": _refuses}),
        (lambda own: own, {"rank_exchange_cubin": _lacks}),
    ],
)
def test_exchanges_go_through_the_backend_where_one_rank_cannot_open_a_buffer(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[Any], Any], functions: dict[str, Any]
) -> None:
    """Another machine, another rank that refuses, or this one: all ranks learn of it, in the same two messages."""
    said = Said(2, other)
    assert _met(monkeypatch, said, **functions) is None and len(said.own) == 2


def test_a_buffer_has_room_for_the_messages_of_all_ranks() -> None:
    assert buffer_bytes(rank_exchange_on("sm_90"), 4) == 4 * (128 + 8 * (1 << 20))


class Noted:
    """A kernel that notes its arguments."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def launch_on(self, _device: Any, _stream: Any, blocks: int, threads: int, arguments: Any) -> None:
        self.launched.append((blocks, threads, *arguments))


def test_an_exchange_is_one_launch_and_a_message_that_does_not_fit_is_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, group = Noted(), Silent(1, 3)
    addresses = SimpleNamespace(data=SimpleNamespace(ptr=7))
    buffers = PeerBuffers(kernel, 64, 32, torch.device("cpu"), 1, 3, addresses, 5)  # type: ignore[arg-type]
    monkeypatch.setattr(PeerBuffers, "take_turn", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    peer_buffers.keep(group, buffers)
    member, own = Member(group, 1, 3, graphs=True), torch.ones(2, 4)
    monkeypatch.setattr(exchange, "is_on_gpu", lambda _: True)
    gathered = exchange.all_gather(own, member)
    final = exchange.broadcast(own, 2, member)
    assert kernel.launched == [
        (3, 64, 7, own.data_ptr(), gathered.data_ptr(), 8, 1, 3, 0b101, 0b101, 1, 5),
        (3, 64, 7, 0, final.data_ptr(), 8, 1, 3, 0, 0b100, 0, 5),
    ]
    assert gathered.shape == (3, 2, 4) and not group.asked
    exchange.all_gather(torch.ones(9), member)
    exchange.all_gather(own, Member(group, 1, 3))
    assert group.asked == ["gather", "gather"] and len(kernel.launched) == 2
