"""`minrnn-gen gpus`: the profiles, and the live device held against its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import console, new_table, print_json

if TYPE_CHECKING:
    from minrnn_gen.config.gpu_profile import GpuProfile
    from minrnn_gen.gpu.device import LiveDevice


def gpus(as_json: AsJson = False) -> None:
    """List the GPU profiles, and check the one of the GPU here."""
    from minrnn_gen.config.gpu_profile import DEFAULT_GPU, load_profile, profile_mismatches, profile_names
    from minrnn_gen.gpu import device as gpu_device

    live = gpu_device.live_device()
    profiles = [load_profile(name) for name in profile_names()]
    if live is not None and not live.profile_is_shipped:
        profiles.append(live.profile)
    mismatches = []
    if live is not None and live.profile_is_shipped:
        mismatches = profile_mismatches(live.profile, live.name, live.compute_capability, live.attributes)
    entries = [_entry(profile, live) for profile in profiles]
    if as_json:
        device = None
        if live is not None:
            device = {"name": live.name, "profile": live.profile.name, "mismatches": mismatches}
        print_json({"default": DEFAULT_GPU, "device": device, "gpus": entries})
    else:
        _print(entries, live, mismatches, DEFAULT_GPU)


def _entry(profile: GpuProfile, live: LiveDevice | None) -> dict[str, Any]:
    is_live = live is not None and live.profile.name == profile.name
    return {
        "name": profile.name,
        "arch": profile.arch,
        "device_names": list(profile.device_names),
        "sm_count": profile.sm_count,
        "shared_bytes_per_block_max": profile.shared_bytes_per_block_max,
        "memory_bytes": profile.memory_bytes,
        "bandwidth_bytes_per_s": profile.bandwidth_bytes_per_s,
        "bandwidth_source": "measured" if profile.copy_bandwidth_bytes_per_s else "estimated from the datasheet",
        "checked": profile.checked,
        "live": is_live,
        "shipped": not is_live or (live is not None and live.profile_is_shipped),
    }


def _print(entries: list[dict[str, Any]], live: LiveDevice | None, mismatches: list[str], default: str) -> None:
    from minrnn_gen.gpu.device import why_no_gpu

    numbers = ("SMs", "shared memory per block, KiB", "memory, GiB", "copy, GB/s")
    table = new_table("profile", "arch", *numbers, "", right=numbers)
    for entry in entries:
        notes = [
            "the GPU here" if entry["live"] else "",
            "" if entry["shipped"] else "from the driver's attributes",
            "" if entry["checked"] else "never run",
            "the default" if entry["name"] == default else "",
        ]
        source = "measured " if entry["bandwidth_source"] == "measured" else "estimated"
        table.add_row(
            entry["name"],
            entry["arch"],
            f"{entry['sm_count']}",
            f"{entry['shared_bytes_per_block_max'] // 1024}",
            f"{entry['memory_bytes'] / 2**30:.0f}",
            f"{entry['bandwidth_bytes_per_s'] / 1e9:,.0f} {source}",
            ", ".join(filter(None, notes)),
            style="bold" if entry["live"] else None,
        )
    screen = console()
    screen.print(table)
    screen.print()
    if live is None:
        screen.print(f"{why_no_gpu()}: without --gpu, kernels are compiled for {default}")
        return
    screen.print(f"the GPU here is {live.name} (compute capability {live.compute_capability})")
    for mismatch in mismatches:
        screen.print(f"mismatch: {mismatch}", soft_wrap=True)
    if any(entry["live"] and not entry["checked"] for entry in entries):
        screen.print("its profile was never run: minrnn-gen check-gpu checks it and writes a report")
