"""Two processes that train one layer: the gradients are those of one process with both halves of the batch."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import within

pytest.importorskip("torch.distributed")

_WORKER = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import minrnn_gen.torch as wing
from support.uncompiled_kernels import nothing_compiled

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
with nothing_compiled():
    torch.manual_seed(rank)  # DistributedDataParallel gives everybody the parameters of rank 0
    layer = torch.nn.ModuleList([wing.LSTM(4, 6, 2, bidirectional=True), wing.RGLRU(12, 5)])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layer

        def forward(self, x):
            for one in self.layers:
                x, _ = one(x)
            return x

    model = Model()
    parallel = DistributedDataParallel(model)
    whole = torch.randn(4, 7, 4, generator=torch.Generator().manual_seed(9))
    for _ in range(2):  # the second time by the buckets of the first
        model.zero_grad()
        parallel(whole[2 * rank : 2 * rank + 2]).square().sum().backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    model(whole).square().sum().backward()
for name, one in model.named_parameters():
    torch.testing.assert_close(2 * found[name], one.grad, rtol=0, atol=1e-5)  # the mean of both
dist.destroy_process_group()
"""


@pytest.mark.matrix_full
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("gloo finds no address of this machine")
    command = [sys.executable, "-c", _WORKER]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=within(60))[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(said)
