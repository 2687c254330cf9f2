"""Signals during native calls: Ctrl-C ends one, a handler that returns lets it go on, and threads serve the next call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from support.patience import within

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.run.cpu.interrupts import interpreter

pytestmark = pytest.mark.skipif(bool(why_no_native_code()), reason=f"no native code: {why_no_native_code()}")

START = """
import os, signal, sys, threading, time
import numpy as np
import minrnn_gen

# Where a shell started the tests in the background it had them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
kernel = minrnn_gen.compile({"model": MODEL, "hidden_size": HIDDEN, "gpu": "h200"})
interface, random = kernel.interface, np.random.default_rng(0)
step = random.standard_normal(interface.shape(interface.x_axes, 1, 1)).astype(np.float32)
R = {"R": (0.01 * random.standard_normal(interface.R_shape)).astype(np.float32)} if interface.recurrent_gates else {}

def call(batch, time_steps, **others):
    x = np.broadcast_to(step, interface.shape(interface.x_axes, batch, time_steps))
    return kernel.forward(x, **R, **others)

def interrupt_after(seconds):
    def interrupt():
        global sent
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(seconds, interrupt).start()

def interrupted(function, *given, **named):
    expected = call(3, 4)[0]
    interrupt_after(0.5)
    try:
        function(*given, **named)
    except KeyboardInterrupt:
        taken = time.monotonic() - sent
    assert taken < SECONDS_MOST, taken
    assert np.array_equal(call(3, 4)[0], expected)
"""
# Each takes half a minute, on two idle cores.
DENSE = "interrupted(call, 1, 60_000)"
UNEVEN = "interrupted(call, 2, 60_000, lengths=np.array([1, 60_000]))"
BACKWARD = "y, _, saved = call(1, 20_000); interrupted(kernel.backward, saved, y)"
SCAN = "interrupted(call, 1, 1_000_000)"


def run(text: str, model: str, hidden: int, threads: int = 2) -> None:
    """Run a program with a kernel; it has to end well."""
    start = START.replace("MODEL", repr(model)).replace("HIDDEN", str(hidden)).replace("SECONDS_MOST", str(within(2.5)))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MINRNN_CPU": "native"}
    command = [sys.executable, "-c", start + text]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=within(300), check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    ("text", "model", "hidden", "threads"),
    [
        pytest.param(DENSE, "lstm", 1024, 2, id="units shared"),
        pytest.param(UNEVEN, "lstm", 1024, 2, id="uneven rows", marks=pytest.mark.matrix_full),
        pytest.param(DENSE, "lstm", 1024, 1, id="one thread", marks=pytest.mark.matrix_full),
        pytest.param("import torch\n" + DENSE, "lstm", 1024, 2, id="threads of torch", marks=pytest.mark.matrix_full),
        pytest.param(BACKWARD, "lstm", 1024, 2, id="backward", marks=pytest.mark.matrix_full),
    ],
)
def test_an_interrupt_ends_a_long_call(text: str, model: str, hidden: int, threads: int) -> None:
    """Within seconds, by KeyboardInterrupt, and the next call is right."""
    if "torch" in text:
        pytest.importorskip("torch")
    run(text, model, hidden, threads)


def test_a_handler_that_returns_lets_the_call_go_on() -> None:
    """It runs while the call does, whose results are whole."""
    run(
        """
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(time.monotonic()))
expected = call(1, 8_000)[0]
interrupt_after(0.2)
found = call(1, 8_000)[0]
ended = time.monotonic()
assert seen and seen[0] < ended and np.array_equal(found, expected)
""",
        "lstm",
        512,
    )


def test_only_the_main_thread_looks_at_signals() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(interpreter()))
    thread.start()
    thread.join()
    release, acquire, pending = interpreter()
    assert release and acquire and pending
    assert found == [(release, acquire, 0)]
