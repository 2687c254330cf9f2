"""Measurements of the local GPU that replace assumptions of its profile: a profile in a separate file, next to the cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from minrnn_gen.build.output_files import write_output
from minrnn_gen.build.store import cache_folder
from minrnn_gen.build.trust import make_private_folder
from minrnn_gen.config import documents
from minrnn_gen.config.gpu_profile import MEASURED, GpuProfile, profile_bytes, read_profile
from minrnn_gen.errors import BadInput

LOG = logging.getLogger("minrnn_gen")


def calibration_path(gpu: str) -> Path:
    """Return the file of a GPU's measurements, by the name of its profile."""
    return cache_folder() / "calibration" / f"{gpu}.yaml"


def calibrated(profile: GpuProfile) -> GpuProfile:
    """Return the profile with local measurements in place of its assumptions; the profile itself without measurements.

    Only measured numbers are taken from the file: limits are the profile's. A damaged file is reported and left alone.
    """
    path = calibration_path(profile.name)
    if not path.is_file():
        return profile
    try:
        measured = read_profile(profile_bytes(str(path)), str(path))
        if measured.name != profile.name:
            raise BadInput(f"{path}: is of {measured.name}, not of {profile.name}; run 'minrnn-gen calibrate' again")
        rates = {field: value for field in MEASURED if (value := getattr(measured, field)) is not None}
        return with_rates(profile, rates, {field: measured.sources[field] for field in rates})
    except BadInput as damaged:
        LOG.warning("%s; going on with what the profile assumes", damaged)
        return profile


def with_rates(profile: GpuProfile, rates: Mapping[str, float], sources: Mapping[str, str]) -> GpuProfile:
    """Return the profile with these measured numbers and the source of each; raises BadInput for impossible numbers."""
    values = profile.model_dump(exclude={"sources"}, exclude_none=True) | dict(rates)
    values["sources"] = {**profile.sources, **sources}
    values["device_names"] = list(profile.device_names)
    return documents.validated(documents.Document(f"calibration of {profile.name}", values), GpuProfile)


def profile_text(profile: GpuProfile) -> str:
    """Return the profile as YAML, like the shipped profiles; raises BadInput for text that no file can hold."""
    values = profile.model_dump(exclude={"sources"}, exclude_none=True)
    lines = [f"{field}: {documents.scalar_text(value, field)}" for field, value in values.items() if field != "device_names"]
    names = ["device_names:", *(f"  - {documents.scalar_text(name, 'device_names')}" for name in profile.device_names)]
    sources = [f"  {field}: {documents.scalar_text(source, f'sources.{field}')}" for field, source in profile.sources.items()]
    return "\n".join([*lines, *names, "sources:", *sources, ""])


def write_calibration(profile: GpuProfile, path: Path) -> None:
    """Write the profile to the file `path`, atomically; raises BadInput where that fails."""
    try:
        make_private_folder(path.parent)
        write_output(path, profile_text(profile).encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); give a path that can with --out") from None
