"""Kernels as pickles and copies: text goes into a file, and what is loaded computes the same, in another process too."""

from __future__ import annotations

import copy
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.patience import within
from support.uncompiled_kernels import compiled_again, nothing_compiled

import minrnn_gen
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import BadInput

LEAKY = {"name": "leaky", "equations": "h[t] = keep * h[t-1] + (1 - keep) * tanh(W.h)", "parameters": ["keep"]}
SPEC: dict[str, Any] = {"model": "min_gru", "hidden_size": 8, "precision": "fp32"}


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Any:
    with nothing_compiled():
        yield


def tuned(_: Path) -> Any:
    from minrnn_gen.api import builder_for
    from minrnn_gen.config.spec import load_spec
    from minrnn_gen.kernel import kernel_from
    from minrnn_gen.run.target import target_of
    from minrnn_gen.tune.lookup import Winners

    spec = load_spec(SPEC)
    builder = builder_for(spec, target_of(spec))
    won = minrnn_gen.compile(spec).built
    return kernel_from(type(builder)(spec, builder.target, builder.store, preferred=Winners(won)))


def with_files(folder: Path) -> Any:
    """A kernel of a cell and a GPU in files, which are gone when it is loaded."""
    profile, cell = folder / "mine.yaml", folder / "leaky.yaml"
    profile.write_text((package_folder("gpu_profiles") / "h100.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    cell.write_text('name: leaky\nequations: "h[t] = 0.5 * h[t-1] + tanh(W.h)"\n', encoding="utf-8")
    kernel = minrnn_gen.compile({**SPEC, "model": str(cell), "gpu": str(profile)})
    profile.unlink()
    cell.unlink()
    return kernel


def exported(folder: Path) -> Any:
    kernel = minrnn_gen.compile(SPEC)
    kernel.export(folder / "exported")
    return kernel


KERNELS = {
    "plain": lambda _: minrnn_gen.compile(SPEC),
    "for a GPU": lambda _: minrnn_gen.compile(SPEC, gpu="a100", batch=3, time=9),
    "a cell written in": lambda _: minrnn_gen.compile({**SPEC, "model": LEAKY}),
    "of files": with_files,
    "dense": lambda _: minrnn_gen.compile({**SPEC, "model": "lstm", "heads": 2, "direction": "bidirectional"}),
    "of n values": lambda _: minrnn_gen.compile({**SPEC, "model": "selective", "state_size": 4}),
    "tuned": tuned,
    "exported": exported,
}


def call(kernel: Any) -> list[Any]:
    """Return what a kernel computes of numbers that depend on nothing else."""
    generator, interface = numpy.random.default_rng(0), kernel.interface

    def drawn(shape: tuple[int, ...]) -> Any:
        return generator.standard_normal(shape).astype(numpy.float32)

    arguments: dict[str, Any] = {"parameters": {name: drawn(interface.shape_of_parameter(name)) for name in kernel.parameters}}
    if interface.recurrent_gates:
        arguments["R"] = drawn(interface.R_shape)
    if kernel.shared:
        arguments["shared"] = {name: drawn((2, 5, interface.groups, interface.state_size)) for name in kernel.shared}
    y, state = kernel(drawn(interface.shape(interface.x_axes, 2, 5)), **arguments)
    return [y, *state.values()]


_READER = """
import pickle, sys
sys.path.insert(0, "tests")
from support.uncompiled_kernels import nothing_compiled
import numpy, test_pickles
with nothing_compiled():
    for kernel, expected in pickle.load(open(sys.argv[1], "rb")):
        for one, other in zip(test_pickles.call(kernel), expected, strict=True):
            assert numpy.array_equal(one, other), kernel
"""


def test_what_is_loaded_computes_the_same(tmp_path: Path) -> None:
    pairs = []
    for name, make in KERNELS.items():
        folder = tmp_path / name
        folder.mkdir()
        kernel = make(folder)
        expected = call(kernel)
        text = pickle.dumps(kernel)
        again = pickle.loads(text)
        assert type(again) is type(kernel) and again.recipe == kernel.recipe and repr(again) == repr(kernel), name
        assert again.plan == kernel.plan, name
        assert again.source.split("constexpr", 1)[1] == kernel.source.split("constexpr", 1)[1], name  # above are names of files
        for one, other in zip(call(again), expected, strict=True):
            assert numpy.array_equal(one, other), name
        assert copy.copy(kernel) is kernel and copy.deepcopy({"kernel": [kernel]})["kernel"][0] is kernel
        assert name == "tuned" or pickle.dumps(again) == text, name  # whose history is not opened by what just won
        pairs.append((kernel, expected))
    file = tmp_path / "kernels.pickle"
    file.write_bytes(pickle.dumps(pairs))
    subprocess.run([sys.executable, "-c", _READER, str(file)], check=True, cwd=Path(__file__).parents[1], timeout=within(300))


def test_a_pickle_names_plain_functions_and_has_no_code() -> None:
    kernel = minrnn_gen.compile(SPEC, gpu="h100")
    text = pickle.dumps(kernel, protocol=2)
    named = {argument for opcode, argument, _ in pickletools.genops(text) if opcode.name in ("GLOBAL", "STACK_GLOBAL")}
    assert named == {"minrnn_gen.kernel _from_recipe", "minrnn_gen.api _remembered", "_codecs encode"}
    assert len(text) < 20_000


@pytest.mark.skipif(pytest.importorskip("shutil").which("c++") is None, reason="no C++ compiler")
def test_an_interpreted_kernel_is_one_again() -> None:
    with compiled_again():
        kernel = minrnn_gen.compile({**SPEC, "gpu": "h100"}, device="interpret", allow_long=True)
        again = pickle.loads(pickle.dumps(kernel))
        assert type(again) is type(kernel) and again._allow_long
        for one, other in zip(call(again), call(kernel), strict=True):
            assert numpy.array_equal(one, other)


@pytest.mark.parametrize("name", ["spec", "plan", "interface", "resources", "built", "plans", "recipe", "gates"])
def test_what_a_kernel_shows_may_be_kept_too(name: str) -> None:
    shown = getattr(minrnn_gen.compile(SPEC, gpu="h100"), name)
    assert copy.deepcopy(shown) == shown and pickle.loads(pickle.dumps(shown)) == shown


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda function: function.__name__)
def test_what_a_forward_saved_says_that_it_stays(copied: Any) -> None:
    kernel = minrnn_gen.compile(SPEC, gpu="h100")
    y, _, saved = kernel.forward(numpy.ones((1, 3, 2, 8), "f"))
    with pytest.raises(BadInput, match=r"^saved holds the arrays .* and run the forward again$"):
        copied({"saved": [saved]} if copied is copy.deepcopy else saved)
    assert kernel.backward(saved, numpy.ones_like(y))["x"].any()
