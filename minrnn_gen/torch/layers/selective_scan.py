"""Mamba's selective scan as a module: the projections that make steps, inputs and outputs, and the recurrence."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, ClassVar

import torch

from minrnn_gen.build.recipe import cell_source_of, recipe_of
from minrnn_gen.config.spec import SIZE_LIMIT, STATE_SIZE_LIMIT, spec_of_arguments
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.layers.initial import GATE_STARTS, VECTOR_STARTS
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.layers import checks
from minrnn_gen.torch.layers.initial import begin
from minrnn_gen.torch.layers.set_later import Settled
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.operators.recurrence import run
from minrnn_gen.torch.sequence_group.ranks import Ranks
from minrnn_gen.torch.tensors import autocasts, check_devices, check_shape

# Channels for each of the numbers that make the steps.
CHANNELS_PER_RANK = 16


class SelectiveScan(Settled, torch.nn.Module):
    """y, state = scan(x, z=None, state=None): h[t] = exp(-exp(a) Δ) h[t-1] + Δ x B, y = (Σ C h + d x) · silu(z).

    x, z and y [batch, T, channels], state [batch, channels, state_size]. Two linear maps without bias make Δ, B and C from x; Δ
    passes through `rank` numbers and has a bias. Parameters: in_weight [rank + 2 · groups · state_size, channels], step_weight
    [channels, rank], step_bias [channels], a [channels, state_size] and d [channels]. Under autocast x is cast. Sizes cannot be
    set after construction.
    """

    _fixed: ClassVar[frozenset[str]] = frozenset(("channels", "state_size", "rank", "groups"))

    def __init__(
        self,
        channels: int,
        state_size: int = 16,
        *,
        rank: int | None = None,
        groups: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the parameters as the paper does; raises BadInput for sizes that no spec has."""
        super().__init__()
        rank = -(-channels // CHANNELS_PER_RANK) if rank is None and isinstance(channels, int) else rank
        for name, size, most in (
            ("channels", channels, SIZE_LIMIT),
            ("state_size", state_size, STATE_SIZE_LIMIT),
            ("rank", rank, SIZE_LIMIT),
            ("groups", groups, SIZE_LIMIT),
        ):
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
                raise BadInput(f"{name} is {shown(size)}; an integer from 1 to {most} is expected")
        if channels % groups:
            raise BadInput(f"groups is {groups}; a divisor of channels, {channels}, is expected")
        checks.check_made(device, dtype)
        self.channels, self.state_size, self.groups = channels, state_size, groups
        self.rank = rank
        made = {"device": device, "dtype": dtype}
        self.in_weight = torch.nn.Parameter(torch.empty(self.rank + 2 * groups * state_size, channels, **made))
        self.step_weight = torch.nn.Parameter(torch.empty(channels, self.rank, **made))
        self.step_bias = torch.nn.Parameter(torch.empty(channels, **made))
        self.a = torch.nn.Parameter(torch.empty(channels, state_size, **made))
        self.d = torch.nn.Parameter(torch.empty(channels, **made))
        self.reset_parameters()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def reset_parameters(self) -> None:
        """Draw new weights and steps; a starts at the logarithms of 1 to state_size, d at 1."""
        torch.nn.init.kaiming_uniform_(self.in_weight, a=math.sqrt(5))
        torch.nn.init.uniform_(self.step_weight, -(self.rank**-0.5), self.rank**-0.5)
        begin(self.step_bias, GATE_STARTS["selective", "dt"])
        begin(self.a, VECTOR_STARTS["selective", "a"])
        begin(self.d, VECTOR_STARTS["selective", "d"])

    def forward(self, x: Any, z: Any = None, state: Any = None, *, sequence_group: Any = None) -> tuple[Any, Any]:
        """Return y and the state after the last step, zeros before the first where `state` is None.

        sequence_group: a process group over whose ranks time is split (docs/how-to/several-gpus.md).
        """
        if sequence_group is None:
            self._check(x, z, state)
        else:
            self._check_on_all_ranks(x, z, state, sequence_group)
        small, b, c = torch.nn.functional.linear(x, self.in_weight).split(
            [self.rank, *2 * [self.groups * self.state_size]], dim=-1
        )
        step = torch.nn.functional.linear(small, self.step_weight)
        stacked = [step, x.to(step.dtype), *([] if z is None else [z.to(step.dtype)])]
        bias = torch.stack([self.step_bias, *(torch.zeros_like(self.step_bias) for _ in stacked[1:])])
        recipe = _recipe(*self._sizes(), PRECISIONS[step.dtype], z is not None)
        by_group = (*x.shape[:2], self.groups, self.state_size)
        wide = STATES[PRECISIONS[step.dtype]]
        gates, bias, a, d = torch.stack(stacked, 2), bias.to(wide), self.a.to(wide), self.d.to(wide)
        b, c = b.reshape(by_group), c.reshape(by_group)
        if sequence_group is None:
            no_sequences = (None, None, None)
            tensors = (gates, None, None, bias, None, *no_sequences, a, d, state, b, c)
            y, final = run(recipe, 1, 2, tensors)
            return y, final
        y, states = recurrence(
            kernel_by(recipe),
            gates,
            bias=bias,
            parameters={"a": a, "d": d},
            shared={"b": b, "c": c},
            state=None if state is None else {"h": state},
            sequence_group=sequence_group,
        )
        return y, states["h"]

    def _sizes(self) -> tuple[int, int, int]:
        """Return channels, state_size and groups, of the parameters' shapes.

        A compiler of torch 2.6 has symbols for the integers of a module.
        """
        (channels, state_size), (rows, _), (_, rank) = self.a.shape, self.in_weight.shape, self.step_weight.shape
        return channels, state_size, (rows - rank) // (2 * state_size)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_on_all_ranks(self, x: Any, z: Any, state: Any, sequence_group: Any) -> None:
        with Ranks.of(sequence_group, None).refused_everywhere(x):
            self._check(x, z, state)

    def _check(self, x: Any, z: Any, state: Any) -> None:
        """Refuse arguments that do not fit, by their names in this call."""
        check_shape(x, "x", ("batch", "time", self.channels))
        weight = self.in_weight
        if x.dtype is not weight.dtype and (not autocasts(x) or torch.float64 in (x.dtype, weight.dtype)):
            advice = checks.dtype_advice(weight, x, "x")
            raise BadInput(f"x has dtype {x.dtype}, but parameter in_weight has {weight.dtype}; {advice}")
        checks.check_device_beside(weight, "in_weight", x, "x")
        if z is not None:
            check_shape(z, "z", tuple(x.shape))
            if torch.promote_types(z.dtype, x.dtype) is not x.dtype and not autocasts(x):
                raise BadInput(f"z has dtype {z.dtype}, but x has {x.dtype}, to which z would be rounded; cast one of them")
        if state is not None:
            check_shape(state, "state", (x.shape[0], self.channels, self.state_size))
            if state.dtype is not (wide := STATES[PRECISIONS[x.dtype]]):
                raise BadInput(f"state has dtype {state.dtype}; {wide} is expected")
        check_devices({"x": x, "z": z, "state": state})

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.channels}, {self.state_size}, rank={self.rank}, groups={self.groups}"


def _spec(channels: int, state_size: int, groups: int, precision: str, has_z: bool) -> dict[str, Any]:
    ungated: dict[str, Any] = {
        "name": "selective_ungated",
        "gates": ["dt", "x"],
        "states": {"h": "n"},
        "shared": ["b", "c"],
        "parameters": {"a": "n", "d": 1},
        "equations": "dt = softplus(W.dt)\nh[t] = exp(-exp(a) * dt) * h[t-1] + dt * W.x * S.b",
        "output": "sum(S.c * h[t]) + d * W.x",
    }
    sizes = {"hidden_size": channels, "state_size": state_size, "groups": groups, "precision": precision}
    return {"model": "selective" if has_z else ungated, **sizes}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _recipe(channels: int, state_size: int, groups: int, precision: str, has_z: bool) -> str:
    """Return the recipe of a scan's kernel: text, a constant to compilers, which do not trace into its construction."""
    return _made_recipe(channels, state_size, groups, precision, has_z)


@cache
def _made_recipe(*sizes: Any) -> str:
    spec = spec_of_arguments(_spec(*sizes), "SelectiveScan")
    return recipe_of(spec, cell_source_of(spec))
