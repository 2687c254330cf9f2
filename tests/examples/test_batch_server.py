"""The batch server says what its larger model says alone, whatever comes and goes, is shared or drafted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import batch_server  # noqa: E402, the folder is the conftest's


@pytest.mark.matrix_full
def test_tokens_are_those_without_batching(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch_server.main(["--device", "cpu", "--steps", "1", "--tokens", "36"]) == 0
    assert "as without batching: yes" in capsys.readouterr().out


def test_requests_that_come_and_go_are_answered_as_alone() -> None:
    torch.manual_seed(0)
    large, small, prefix = batch_server.ByteModel("lstm", 8, 2), batch_server.ByteModel("min_gru", 8, 1), b"a common prefix "
    requests = [
        batch_server.Request((prefix if number % 2 else b"") + b"ab"[: 1 + number % 2], number + 1) for number in range(5)
    ]
    server = batch_server.Server(large, small, prefix)
    server.serve(requests)
    assert [request.told for request in requests] == [large.alone(request.prompt, request.count) for request in requests]
    assert not any(server.rows)


def test_a_draft_of_the_larger_model_itself_is_accepted() -> None:
    torch.manual_seed(0)
    model = batch_server.ByteModel("min_gru", 8, 1)
    request = batch_server.Request(b"ab", 9)
    batch_server.Server(model, model).serve([request])
    assert request.told == model.alone(b"ab", 9)
    assert request.rounds == -(-(len(request.prompt) + request.count - 1) // batch_server.WINDOW)
