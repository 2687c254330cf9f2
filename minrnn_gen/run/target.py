"""The GPU that a spec is compiled for, and its form in a pickle."""

from __future__ import annotations

from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import DEFAULT_GPU, GpuProfile, load_profile, profile_bytes
from minrnn_gen.config.spec import Spec

NamedProfile = tuple[str, bytes] | None
"""The profile that a spec names, as text and as the bytes of its file; None where the GPU is the one at hand."""


def target_of(spec: Spec) -> Target:
    """Return the GPU to compile for: the spec's, the live one, or the default."""
    asked = spec.gpu_asked
    if asked is not None:
        profile = load_profile(asked, lambda message: spec.error("gpu", message), spec.folder)
        return Target(profile, profile_bytes(asked), "spec")
    from minrnn_gen.gpu import device  # only where no GPU is named

    live = device.live_device()
    if live is not None:
        return Target(live.profile, live.profile.model_dump_json().encode(), "device")
    return Target(load_profile(DEFAULT_GPU), profile_bytes(DEFAULT_GPU), "default")


def profile_named_by(target: Target) -> NamedProfile:
    """Return the profile of a GPU that a spec names."""
    return (target.profile.model_dump_json(), target.profile_bytes) if target.origin == "spec" else None


def target_again(spec: Spec, profile: NamedProfile) -> Target:
    """Return the GPU from the result of `profile_named_by`; where that names no GPU, `target_of`'s."""
    if profile is None:
        return target_of(spec)
    text, file_bytes = profile
    return Target(GpuProfile.model_validate_json(text), file_bytes, "spec")
