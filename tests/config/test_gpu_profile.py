"""GPU profiles: the shipped files, and what is said about files and names that are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.documentation import ROOT, code, table

from minrnn_gen.config.documents import Document, validated
from minrnn_gen.config.gpu_bounds import BOUNDS, COMPUTE_CAPABILITIES
from minrnn_gen.config.gpu_profile import (
    DEFAULT_GPU,
    GpuProfile,
    load_profile,
    profile_bytes,
    profile_for_device,
    profile_names,
    shipped_name,
)
from minrnn_gen.config.spec import load_spec
from minrnn_gen.config.validation import number_text
from minrnn_gen.errors import BadInput

NAMES = profile_names()
Broken = Callable[[str, str], str]


def one_sentence(error: BadInput) -> str:
    message = str(error)
    assert "\n" not in message
    assert "Traceback" not in message
    assert "pydantic" not in message
    return message


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    """Return a function that writes the default profile with `pattern` replaced, loads it, and gives the error's text."""

    def load(pattern: str, replacement: str) -> str:
        text, count = re.subn(pattern, replacement, profile_bytes(DEFAULT_GPU).decode(), flags=re.MULTILINE)
        assert count == 1
        path = tmp_path / "broken.yaml"
        path.write_text(text)
        with pytest.raises(BadInput) as caught:
            load_profile(str(path))
        message = one_sentence(caught.value)
        assert "broken.yaml" in message
        return message

    return load


def test_the_documented_gpus_are_shipped() -> None:
    assert set(NAMES) == {"h200", "h100", "a100", "l40s", "l4", "t4", "rtx3090", "rtx4090", "rtx5090", "b200"}
    assert DEFAULT_GPU in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_a_profile_of_its_name(name: str) -> None:
    assert load_profile(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_facts_that_hold_on_every_gpu_since_turing(name: str) -> None:
    profile = load_profile(name)
    assert profile.warp_threads == 32
    assert profile.registers_per_sm == 65536
    assert profile.registers_per_thread_max == 255
    assert profile.shared_bytes_per_sm % 1024 == 0
    # One block may have everything but what is reserved for it, on each of these architectures.
    assert profile.shared_bytes_per_block_max + profile.shared_bytes_reserved_per_block == profile.shared_bytes_per_sm
    assert profile.has_clusters == (profile.arch in ("sm_90", "sm_100", "sm_120"))
    assert profile.has_async_copy == profile.has_bf16_arithmetic == (profile.arch != "sm_75")
    assert 0.5 < profile.bandwidth_bytes_per_s / profile.memory_bandwidth_bytes_per_s < 1
    assert 200 < profile.memory_latency_ns < 500
    assert 1e9 < profile.sm_clock_hz < 3e9


@pytest.mark.parametrize("name", NAMES)
def test_littles_law(name: str) -> None:
    profile = load_profile(name)
    in_flight_bytes = profile.bytes_in_flight_per_sm * profile.sm_count
    assert in_flight_bytes / (profile.memory_latency_ns * 1e-9) == pytest.approx(profile.bandwidth_bytes_per_s, rel=1e-3)


def test_a_measured_bandwidth_goes_before_the_datasheet() -> None:
    assert load_profile("h200").bandwidth_bytes_per_s == 4.26e12


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_profile("t4").sm_count = 1


def test_a_path_gives_what_the_name_gives(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(profile_bytes("l4"))
    assert load_profile(str(path)) == load_profile("l4")
    assert profile_bytes(str(path)) == profile_bytes("l4")


def test_an_unknown_name_lists_the_names_and_the_nearest() -> None:
    with pytest.raises(BadInput) as caught:
        load_profile("rtx4099")
    message = one_sentence(caught.value)
    assert "'rtx4099'" in message
    assert "did you mean 'rtx4090'?" in message
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize("given", ["missing.yaml", "no/such/folder/x.yaml", "", "h200\0.yaml", "x" * 5000 + ".yaml", "h200\n"])
@pytest.mark.parametrize("read", [profile_bytes, load_profile])
def test_what_is_neither_a_name_nor_a_file(
    given: str, read: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        read(given)
    assert len(one_sentence(caught.value)) < 500


@pytest.mark.parametrize("read", [profile_bytes, load_profile])
def test_a_folder_and_a_device_are_no_profiles(read: Callable[[str], object], tmp_path: Path) -> None:
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (folder, Path("/dev/zero"), pipe):
        with pytest.raises(BadInput):
            read(str(path))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: \xe9\ncompute_capability: '9.0'\n")
    with pytest.raises(BadInput) as caught:
        load_profile(str(path))
    assert "UTF-8" in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("pattern", "replacement", "key"),
    [
        (r"^sm_count: .*\n", "", "sm_count"),
        (r"^sm_count: ", "sm_cuont: ", "sm_cuont"),
        (r"^sm_count: .*", "sm_count: 0", "sm_count"),
        (r"^sm_count: .*", "sm_count: many", "sm_count"),
        (r"^sm_count: .*", "sm_count: 132.5", "sm_count"),
        (r"^memory_latency_ns: .*", "memory_latency_ns: -1", "memory_latency_ns"),
        (r'^compute_capability: "9.0"', "compute_capability: 9.0", "in quotes"),
        (r'^compute_capability: "9.0"', "compute_capability: sm_90", "compute_capability"),
        (r"^name: .*", "name: '*/ int'", "name"),
        (r"^  - NVIDIA H200", "  - 1", "device_names"),
        (r"^device_names:\n.*", "device_names: []", "device_names"),
        (r"^  sm_count: .*\n", "", "sm_count has no source"),
        (r"^  sm_count: .*", "  sm_count: ' '", "sm_count has no source"),
        (r"^  l2_bytes: ", "  l2_bites: x\n  l2_bytes: ", "did you mean 'l2_bytes'?"),
        (
            r"^copy_bandwidth_bytes_per_s: .*\n",
            "",
            "copy_bandwidth_bytes_per_s is missing, but sources says where it comes from",
        ),
        (r"^launch_us: .*\n", "", "launch_us is missing, but sources says where it comes from; give the number"),
        (r"^memory_bandwidth_bytes_per_s: .*", "memory_bandwidth_bytes_per_s: 4.8e+15", "from 2e+10 to 1e+14 bytes per second"),
        (
            r"^memory_bandwidth_bytes_per_s: .*",
            "memory_bandwidth_bytes_per_s: 4800",
            "(4800 GB/s would be 4.8e+12 bytes per sec",
        ),
        (r"^shared_bytes_per_block_max: .*", "shared_bytes_per_block_max: 227", "(227 KiB would be 232,448 bytes); allowed"),
        (
            r"^shared_bytes_reserved_per_block: .*",
            "shared_bytes_reserved_per_block: 1",
            "no multiple of shared_unit_bytes, 128",
        ),
        (r'^compute_capability: "9.0"', 'compute_capability: "15.0"', "'15.0' is given, which no GPU has; allowed: 7.5, 8.0"),
        (r"^copy_bandwidth_bytes_per_s: .*", "copy_bandwidth_bytes_per_s: 5.0e+12", "memory_bandwidth_bytes_per_s"),
        (r"^shared_bytes_per_block_max: .*", "shared_bytes_per_block_max: 233472", "shared_bytes_per_sm"),
        (r"^max_threads_per_block: .*", "max_threads_per_block: 4096", "max_threads_per_sm"),
        (r"^max_threads_per_sm: .*", "max_threads_per_sm: 2047", "no multiple of warp_threads, 32"),
        (r"^registers_per_block_max: .*", "registers_per_block_max: 131072", "registers_per_sm"),
        (r"^cluster_size_portable_max: .*", "cluster_size_portable_max: 32", "cluster_size_max"),
        (r'^compute_capability: "9.0"', 'compute_capability: "8.0"', "clusters need compute capability 9.0"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_and_key(broken: Broken, pattern: str, replacement: str, key: str) -> None:
    assert key in broken(pattern, replacement)


@pytest.mark.parametrize("field", [field for field in BOUNDS if field != "shared_bytes_reserved_per_block"])
@pytest.mark.parametrize("factor", [1000, 1 / 1000])
def test_a_number_a_thousand_times_off_is_refused_with_its_unit(field: str, factor: float) -> None:
    for name in NAMES:
        shipped = load_profile(name).model_dump(mode="json", exclude_none=True)
        if field in shipped:
            number = type(shipped[field])(shipped[field] * factor)
            with pytest.raises(BadInput) as caught:
                validated(Document("mine.yaml", {**shipped, field: number}), GpuProfile)
            assert re.match(rf"mine.yaml: {field}: .* given.*; allowed: .* {BOUNDS[field].unit} \(", one_sentence(caught.value))


def test_every_number_has_bounds_a_unit_and_a_reason() -> None:
    """As the page of profiles has them: the table's rows are the fields."""
    schema = GpuProfile.model_json_schema()["properties"]
    numbers = set().union(*(load_profile(name)._numbers() for name in NAMES)) - {"warp_threads"}
    assert numbers == set(BOUNDS)
    rows = {
        code(row[0])[0]: row[1:]
        for row in table(ROOT / "docs/gpu-profiles.md", "number", "unit", "least", "greatest", "reason")
    }
    bounds = {
        field: (bound.unit, number_text(bound.least), number_text(bound.most), bound.reason) for field, bound in BOUNDS.items()
    }
    assert rows == bounds
    for field, bound in BOUNDS.items():
        (number,) = (branch for branch in schema[field].get("anyOf", [schema[field]]) if branch.get("type") != "null")
        assert (number["unit"], number["reason"], number["maximum"]) == (bound.unit, bound.reason, bound.most)


def test_every_architecture_that_nvrtc_compiles_for_is_known() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    known = {int(capability.replace(".", "")) for capability in COMPUTE_CAPABILITIES}
    assert {arch for arch in nvrtc.getSupportedArchs() if arch >= 75} <= known
    assert {profile.compute_capability for profile in map(load_profile, NAMES)} <= set(COMPUTE_CAPABILITIES)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = profile_bytes("h200").decode().replace("sm_count: 132", "sm_count: 0").replace("l2_bytes: 62914560", "l2_bytes: 60")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_profile(str(path))
    message = one_sentence(caught.value)
    assert "sm_count: 0 is given; allowed" in message and "; also line " in message and "60 MiB would be 62,914,560" in message


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_is_called_as_people_and_the_driver_call_it(name: str) -> None:
    profile = load_profile(name)
    called = [name.upper(), name.replace("rtx", "RTX "), *profile.device_names, *map(str.lower, profile.device_names)]
    called += [device_name.removeprefix("NVIDIA ").removeprefix("GeForce ") for device_name in profile.device_names]
    for spelling in called:
        assert shipped_name(spelling) == name
        assert load_profile(spelling) == profile
        assert load_spec({"model": "min_gru", "hidden_size": 8, "gpu": spelling}).gpu == name


@pytest.mark.parametrize("spelling", ["NVIDIA", "", "h 200.yaml", "x/h200", "H20", "RTX", "h200\n", "NVIDIA GeForce"])
def test_what_names_no_gpu_is_taken_for_none(spelling: str) -> None:
    assert shipped_name(spelling) is None


def test_each_device_name_belongs_to_one_profile_and_finds_it() -> None:
    owners: dict[str, GpuProfile] = {}
    for profile in map(load_profile, NAMES):
        for device_name in profile.device_names:
            assert device_name not in owners
            owners[device_name] = profile
    for device_name, profile in owners.items():
        assert profile_for_device(device_name, profile.compute_capability) == profile


@pytest.mark.parametrize(
    ("device_name", "compute_capability"),
    [
        ("NVIDIA H200", "10.0"),
        ("NVIDIA H20", "9.0"),
        ("NVIDIA H200 NVL", "9.0"),
        ("NVIDIA", "9.0"),
        ("", "9.0"),
        ("h200", "9.0"),
    ],
)
def test_a_device_of_another_name_or_capability_has_no_profile(device_name: str, compute_capability: str) -> None:
    assert profile_for_device(device_name, compute_capability) is None


def test_importing_it_loads_no_gpu_library() -> None:
    heavy = ["cupy", "numpy", "torch", "sympy", "jinja2", "constraint"]
    code = f"import sys, minrnn_gen.config.gpu_profile; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
