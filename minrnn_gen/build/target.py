"""The GPU that kernels are built for."""

from __future__ import annotations

from dataclasses import dataclass, field

from minrnn_gen.config.gpu_profile import GpuProfile, load_profile, profile_bytes


@dataclass(frozen=True)
class Target:
    """The GPU to compile for; `origin` says who chose it: "spec", "device" (the live GPU) or "default"."""

    profile: GpuProfile
    profile_bytes: bytes = field(repr=False)
    origin: str

    def share(self, count: int) -> Target:
        """Return one of `count` equal shares of the SMs as a GPU of its own, itself where that is all of them."""
        profile = self.profile.share(count)
        return self if count == 1 else Target(profile, profile.model_dump_json().encode(), self.origin)

    @classmethod
    def named(cls, profile: str) -> Target:
        """Return the GPU of a profile, by name or path; raises BadInput where there is none."""
        return cls(load_profile(profile), profile_bytes(profile), "spec")
