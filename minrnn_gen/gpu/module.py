"""Modules of the driver: cubins loaded on first use on each device, and launched."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.device import Placed
from minrnn_gen.gpu.driver import NO_CONTEXT, PORTABLE_CLUSTER_BLOCKS, SUCCESS, allow_large_clusters, launch


@dataclass
class LoadedKernel:
    """A kernel of one cubin, loaded on first use on each device; `launch` may be called from any thread.

    CuPy keeps a module until the process ends. Launches are asynchronous. Where `is_cooperative`, the driver refuses
    grids that are not resident as a whole, so that blocks may wait for each other.
    """

    cubin: bytes
    entry: str
    arch: str
    dynamic_shared_bytes: int
    cluster_blocks: int = 1
    is_cooperative: bool = False
    _functions: dict[int, Any] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def launch(self, like: Placed, blocks: int, threads: int, arguments: Sequence[Any], /) -> None:
        """Launch on the device of `like`, on the current stream of its library there.

        `arguments` are ints (pointers, 0 for null, and 64-bit sizes) or NumPy scalars.
        """
        assert like.device is not None
        self.launch_on(like.device, gpu_stream.current_stream(like), blocks, threads, arguments)

    def launch_on(self, device: int, stream: int, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        """Launch on a stream of `device`; raises CuPy's exception where the driver refuses."""
        pointer = self.function(device).ptr
        configuration = (blocks, threads, self.dynamic_shared_bytes, stream, self.is_cooperative)
        with gpu_device.on_device(device):
            status = launch(pointer, configuration, arguments)
            if status == NO_CONTEXT:
                gpu_device.make_context()
                status = launch(pointer, configuration, arguments)
        if status != SUCCESS:
            gpu_device.refuse(status)

    def resident_blocks(self, device: int | None, threads: int) -> int:
        """Return how many blocks of so many threads `device` holds at once."""
        assert device is not None
        driver, runtime = gpu_device.cupy_module().cuda.driver, gpu_device.cupy_module().cuda.runtime
        function = self.function(device)
        with gpu_device.on_device(device):
            per_sm = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, self.dynamic_shared_bytes)
        return int(per_sm * runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))

    def function(self, device: int) -> Any:
        """Return the function on `device`, loaded there on first use."""
        return self._functions.get(device) or self._load(device)

    def is_loaded(self, device: int | None) -> bool:
        """Say whether the function is loaded on `device`."""
        return device in self._functions

    def _load(self, device: int) -> Any:
        cupy = gpu_device.cupy_module()
        with self._lock, cupy.cuda.Device(device):
            capability = cupy.cuda.Device(device).compute_capability
            if not _runs_on(self.arch, capability):
                raise BadInput(
                    f"the kernel was compiled for {self.arch} but the arrays are on a GPU of sm_{capability}; "
                    f"compile it without 'gpu' on this machine, or with a profile of sm_{capability}"
                )
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{self.entry}.cubin"
                path.write_bytes(self.cubin)
                kernel = cupy.RawModule(path=str(path)).get_function(self.entry)
            if self.dynamic_shared_bytes:
                kernel.max_dynamic_shared_size_bytes = self.dynamic_shared_bytes
            if self.cluster_blocks > PORTABLE_CLUSTER_BLOCKS:
                allow_large_clusters(kernel.kernel.ptr)
            self._functions[device] = kernel.kernel
            return kernel.kernel


def _runs_on(arch: str, capability: str) -> bool:
    """Whether a kernel compiled for `arch`, as "sm_90" or "sm_90a", runs on a GPU of `capability`, as "90"."""
    compiled_for = arch.removeprefix("sm_")
    if not compiled_for[-1].isdigit():  # with instructions of one architecture alone
        return compiled_for[:-1] == capability
    return capability[:-1] == compiled_for[:-1] and int(capability[-1]) >= int(compiled_for[-1])
