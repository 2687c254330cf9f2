"""Layers on the CPU, measured beside those of torch.nn while other processes compute."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.contenders import cpu_layers, cpu_scans
from minrnn_gen.build.cpu_kernel import why_no_native_code

pytestmark = pytest.mark.skipif(bool(why_no_native_code()), reason=f"no native code: {why_no_native_code()}")


def test_rows_say_how_many_other_processes_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a training step of each size; none without other processes."""
    monkeypatch.setattr(cpu_layers, "BUSY_SIZES", (("RNN", 1, 2, 8),))
    monkeypatch.setattr(cpu_layers, "BUSY_SECONDS", 0.01)
    assert list(cpu_layers.rows_beside_processes(0)) == []
    rows = list(cpu_layers.rows_beside_processes(2))
    assert [(row.kernel_pass, row.busy) for row in rows] == [("forward", 2), ("training", 2)]


def test_other_processes_end_with_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = cpu_layers.subprocess.Popen
    monkeypatch.setattr(cpu_layers.subprocess, "Popen", lambda *given: started.append(start(*given)) or started[-1])
    with pytest.raises(KeyboardInterrupt), cpu_layers.busy_processes(2):
        assert [process.poll() for process in started] == [None, None]
        raise KeyboardInterrupt
    assert all(process.poll() is not None for process in started)


def test_selective_scans_are_those_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a training step beside a loop in torch and beside NumPy, the same numbers."""
    for name, size in (("QUICK_TIME", 40), ("CHANNELS", 20), ("VALUES", 3)):
        monkeypatch.setattr(cpu_scans, name, size)
    monkeypatch.setattr(cpu_scans, "in_turn", lambda ours, theirs: (ours() or 1.0, theirs() or 1.0))
    rows = list(cpu_scans.rows_of_selective_scans(quick=True))
    assert [(row.kernel_pass, row.beside) for row in rows] == [
        (kernel_pass, beside) for kernel_pass in ("forward", "training") for beside in (cpu_scans.LOOP, cpu_scans.NUMPY)
    ]
    assert all((row.largest_difference or 0) < 1e-4 for row in rows)


def test_scans_in_log_space_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a training step, the same numbers."""
    monkeypatch.setattr(cpu_scans, "LOG_SIZES", ((2, 20, 12),))
    monkeypatch.setattr(cpu_scans, "in_turn", lambda ours, theirs: (ours() or 1.0, theirs() or 1.0))
    rows = list(cpu_scans.rows_of_log_scans(quick=True))
    assert [(row.kernel_pass, row.beside) for row in rows] == [("forward", cpu_scans.NUMPY), ("training", cpu_scans.NUMPY)]
    assert all((row.largest_difference or 0) < 1e-5 for row in rows)
