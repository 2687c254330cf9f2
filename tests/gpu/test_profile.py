"""The profile of the GPU at hand says what the driver says."""

from __future__ import annotations

import pytest

from minrnn_gen.config.gpu_profile import profile_from_attributes, profile_mismatches
from minrnn_gen.gpu import device

pytestmark = pytest.mark.gpu


def test_the_shipped_profile_agrees_with_the_device_in_every_field() -> None:
    live = device.live_device()
    assert live is not None
    assert profile_mismatches(live.profile, live.name, live.compute_capability, live.attributes) == []


def test_a_profile_made_from_the_device_alone_agrees_too() -> None:
    live = device.live_device()
    assert live is not None
    made = profile_from_attributes(live.name, live.compute_capability, live.attributes)
    assert profile_mismatches(made, live.name, live.compute_capability, live.attributes) == []
    assert made.arch == live.profile.arch
