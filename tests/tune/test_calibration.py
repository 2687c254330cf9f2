"""Measurements go into a file, come out of it, and decide; limits stay the profile's."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minrnn_gen.config.gpu_bounds import BOUNDS
from minrnn_gen.config.gpu_profile import MEASURED, GpuProfile, load_profile, profile_names
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import calibrated, calibration_path, profile_text, with_rates, write_calibration
from minrnn_gen.plan.gpu_rates import scales_of
from minrnn_gen.tune import calibrate as calibrate_module
from minrnn_gen.tune.calibrate import calibrate

RATES = st.fixed_dictionaries({field: st.floats(BOUNDS[field].least, min(BOUNDS[field].most, 3e11)) for field in MEASURED})
SOURCE = "measured: on a GPU, #1: with \"quotes\" and 'others'"


def measured(profile: GpuProfile, **rates: float) -> GpuProfile:
    return with_rates(profile, rates, dict.fromkeys(rates, SOURCE))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))


@given(st.sampled_from(profile_names()), RATES)
def test_a_profile_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, rates: dict[str, Any]
) -> None:
    profile = measured(load_profile(name), **rates)
    path = tmp_path_factory.mktemp("profiles") / "profile.yaml"
    path.write_text(profile_text(profile), encoding="utf-8")
    assert load_profile(str(path)) == profile and profile.assumed == ()


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1).filter(str.strip))
@example("two \U0001f600")
def test_texts_of_a_profile_are_written_as_they_are(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Words of YAML such as null, quotes, and characters of every plane."""
    profile = with_rates(load_profile("h200"), {"launch_us": 3.0}, {"launch_us": text})
    profile = profile.model_copy(update={"device_names": ("null", "true", "1e3", "'# \"\\: -")})
    path = tmp_path_factory.mktemp("profiles") / "profile.yaml"
    write_calibration(profile, path)
    assert load_profile(str(path)) == profile
    assert "\\ud" not in path.read_text(encoding="utf-8") or "\\ud" in text


def test_only_what_was_measured_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    h200, path = load_profile("h200"), calibration_path("h200")
    assert calibrated(h200) is h200
    other = measured(h200.model_copy(update={"sm_count": 7, "l2_bytes": 2**20}), launch_us=3.0, memory_latency_ns=500.0)
    write_calibration(other, path)
    found = calibrated(h200)
    assert (found.launch_us, found.memory_latency_ns, found.sm_count) == (3.0, 500.0, 132)
    assert found.sources["launch_us"] == SOURCE and "launch_us" not in found.assumed
    for damage in ("", "launch_us: [", profile_text(load_profile("t4")), profile_text(h200).replace("hz: ", "hz: -")):
        path.write_text(damage, encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert calibrated(h200) == h200
        assert "going on with what the profile assumes" in caplog.text
        caplog.clear()


def test_rates_that_cannot_be_are_refused() -> None:
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="launch_us"):
            measured(load_profile("h200"), launch_us=rate)
    with pytest.raises(BadInput, match="copy_bandwidth"):
        measured(load_profile("h200"), copy_bandwidth_bytes_per_s=1e15)


def test_models_scale_by_what_was_measured_on_both_gpus_else_by_clock_and_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h200, a100 = load_profile("h200"), load_profile("a100")
    assert set(vars(scales_of(h200)).values()) == {1.0}
    assert scales_of(measured(h200, grid_exchange_ns=2 * h200.grid_exchange_ns)).grid == 2.0  # type: ignore[operator]
    slower = h200.sm_clock_hz / a100.sm_clock_hz
    assert scales_of(a100).block == scales_of(a100).transcendental == slower
    assert scales_of(a100).product == 2 * slower
    from minrnn_gen.plan import gpu_rates as rates

    fitted = measured(h200, block_exchange_ns=20.0, products_per_sm_cycle=1000.0)
    monkeypatch.setattr(rates, "load_profile", lambda _: fitted)
    rates._scales.cache_clear()
    its = scales_of(measured(a100, block_exchange_ns=50.0, products_per_sm_cycle=800.0))
    # Of one alone nothing is said about the other.
    assert its.block == 2.5 and its.product == pytest.approx(slower * 1000 / 800) and its.grid == slower
    rates._scales.cache_clear()


def test_explain_says_what_is_assumed() -> None:
    import minrnn_gen

    text = minrnn_gen.compile({"model": "min_gru", "hidden_size": 32, "gpu": "l4", "training": False}).explain()
    assert "not measured on this GPU: copy_bandwidth_bytes_per_s, launch_us" in text and "minrnn-gen calibrate" in text
    assert "cluster_exchange_ns" not in text


class Live:
    """A GPU that is none."""

    name = "NVIDIA H200"
    profile = load_profile("h200")


def child(program: str) -> tuple[str, ...]:
    return sys.executable, "-c", program


def test_calibrate_takes_what_a_child_says_and_is_never_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "live_device", lambda: None)
    with pytest.raises(ToolchainMissing, match="calibrating measures a GPU"):
        calibrate()
    monkeypatch.setattr(device, "live_device", Live)
    answer = {"rates": {"launch_us": 2.0, "grid_exchange_ns": 700.0}, "sm_clock_hz": 1.9e9}
    profile = calibrate(child(f"print('''{json.dumps(answer)}''')"))
    assert profile.launch_us == 2.0 and profile.grid_exchange_ns == 700.0
    assert all(word in profile.sources["launch_us"] for word in ("NVIDIA H200", "1.9 GHz", "calibrate"))
    for program, says in (
        ("import sys; sys.exit('out of memory')", "status 1: out of memory"),
        ("print('nonsense')", "gave no numbers"),
        ("print('{}')", "gave no numbers"),
    ):
        with pytest.raises(ToolchainMissing, match=says):
            calibrate(child(program))
    monkeypatch.setattr(calibrate_module, "SECONDS_MOST", 0.5)
    with pytest.raises(ToolchainMissing, match="did not end within"):
        calibrate(child("import time; time.sleep(60)"))
