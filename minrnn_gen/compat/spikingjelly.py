"""The neurons of SpikingJelly over whole sequences, `IFNode`, `LIFNode`, `ParametricLIFNode`, and its surrogate functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from minrnn_gen.compat.neurons import Spikes, cell, number, run
from minrnn_gen.compat.spikingjelly_surrogate import (
    S2NN,
    ATan,
    DeterministicPass,
    Erf,
    LeakyKReLU,
    LogTailedReLU,
    NonzeroSignLogAbs,
    PiecewiseExp,
    PiecewiseLeakyReLU,
    PiecewiseQuadratic,
    QPseudoSpike,
    Rect,
    Sigmoid,
    SoftSign,
    SuperSpike,
    surrogate_of,
)
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.torch.tensors import check_tensor

__all__ = [
    "S2NN",
    "ATan",
    "DeterministicPass",
    "Erf",
    "IFNode",
    "LIFNode",
    "LeakyKReLU",
    "LogTailedReLU",
    "NonzeroSignLogAbs",
    "ParametricLIFNode",
    "PiecewiseExp",
    "PiecewiseLeakyReLU",
    "PiecewiseQuadratic",
    "QPseudoSpike",
    "Rect",
    "Sigmoid",
    "SoftSign",
    "SuperSpike",
    "reset_net",
]

# The surrogate function that the library takes where none is given.
_SIGMOID = Sigmoid()


class _Node(torch.nn.Module):
    """Neurons that charge, fire where v_threshold is reached, and reset; v is kept from call to call."""

    def __init__(
        self,
        v_threshold: float,
        v_reset: float | None,
        surrogate_function: Any,
        detach_reset: bool,
        step_mode: str,
        store_v_seq: bool,
    ) -> None:
        super().__init__()
        number(v_threshold, "v_threshold")
        if v_reset is not None:
            number(v_reset, "v_reset")
        surrogate_of(surrogate_function)
        if step_mode not in ("s", "m"):
            raise BadInput(f"step_mode is {shown(step_mode)}; 's' or 'm' is expected")
        self.v_threshold, self.v_reset, self.detach_reset = v_threshold, v_reset, detach_reset
        self.surrogate_function = surrogate_function
        self.step_mode, self.store_v_seq = step_mode, store_v_seq
        self.reset()

    def reset(self) -> None:
        """Forget the last call: v is v_reset again, or 0 where that is None."""
        self.v: Any = 0.0 if self.v_reset is None else self.v_reset
        self.v_seq: Any = None

    def detach(self) -> None:
        """Cut the graph of autograd between the last call and the next one."""
        self.v, self.v_seq = (value.detach() if isinstance(value, torch.Tensor) else value for value in (self.v, self.v_seq))

    def forward(self, x: Any) -> Any:
        """Return the spikes, 0 or 1 and shaped like x: [T, B, ...] in step_mode 'm', one step [B, ...] in 's'.

        v is then the membrane after the last step, in float32, or float64 for a float64 x; with `store_v_seq`, v_seq has it
        after every step, without gradients. Raises BadInput for tensors that do not fit.
        """
        done = self._run(x, self.v, self.store_v_seq)
        self.v = done.final["v"]
        if done.every is not None:
            earlier = [self.v_seq] if self.step_mode == "s" and self.v_seq is not None else []
            self.v_seq = torch.cat([*earlier, done.every["v"]])
        return done.spikes if self.step_mode == "m" else done.spikes.squeeze(0)

    def functional_forward(self, inputs: tuple[Any], states: tuple[Any]) -> tuple[tuple[Any], tuple[Any]]:
        """Return ((spikes,), (v,)) of inputs (x,) from states (v,), and keep nothing; shapes and errors are those of a call."""
        done = self._run(*inputs, *states)
        return (done.spikes if self.step_mode == "m" else done.spikes.squeeze(0),), (done.final["v"],)

    def materialize_states(self, inputs: tuple[Any], states: tuple[Any], step_mode: str) -> tuple[Any]:
        """Return (v,) as a tensor shaped like one step of inputs (x,), where x is a sequence, step_mode 'm', or a step."""
        (x,), (v,) = inputs, states
        steps = x if step_mode == "m" else x.unsqueeze(0)
        start = self._start(steps, v)
        return (steps.new_zeros(steps.shape[1:], dtype=_wide(steps)) if start is None else start,)

    def named_memories(self) -> Iterator[tuple[str, Any]]:
        """Yield ("v", v), the state that is kept from call to call."""
        yield from self._memories.items()

    def memories(self) -> Iterator[Any]:
        """Yield v, the state that is kept from call to call."""
        yield from self._memories.values()

    def extra_repr(self) -> str:
        """Return the arguments that the neurons were made with."""
        return (
            f"v_threshold={self.v_threshold}, v_reset={self.v_reset}, detach_reset={self.detach_reset}, "
            f"step_mode={self.step_mode}"
        )

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        if isinstance(self.v, torch.Tensor):
            self.v = function(self.v)
        return super()._apply(function, recurse)

    @property
    def store_v_seq(self) -> bool:
        """Whether a call keeps v after every step as v_seq; set to False, it forgets v_seq."""
        return self._stores

    @store_v_seq.setter
    def store_v_seq(self, stores: bool) -> None:
        self._stores = stores
        if not stores:
            self.v_seq = None

    @property
    def _memories(self) -> dict[str, Any]:
        return {"v": self.v}

    def _run(self, x: Any, v: Any, every: bool = False) -> Spikes:
        check_tensor(x, "x")
        steps = x if self.step_mode == "m" else x.unsqueeze(0)
        done: Spikes = run(self._cell(), steps, {"v": self._start(steps, v)}, self._vectors(), every)
        return done

    def _start(self, steps: Any, v: Any) -> Any:
        """Return v before the first step: a tensor, the reset value where its shape has changed, or None for zeros."""
        if isinstance(v, torch.Tensor) and v.shape == steps.shape[1:]:
            return v.to(steps.device)
        value = v if isinstance(v, float) else self.v_reset or 0.0
        return torch.full(steps.shape[1:], value, dtype=_wide(steps), device=steps.device) if value else None

    def _vectors(self) -> dict[str, Any]:
        return {}

    def _charge(self) -> str:
        """Return the expression of the membrane after its input."""
        raise NotImplementedError

    def _over_rest(self) -> str:
        """Return the expression of the membrane minus its reset value."""
        return f"(v[t-1] - {number(self.v_reset, 'v_reset')})" if self.v_reset else "v[t-1]"

    def _cell(self) -> str:
        reset = number(self.v_reset, "v_reset") if self.v_reset is not None else ""
        threshold = number(self.v_threshold, "v_threshold")
        spent = "detach(s)" if self.detach_reset else "s"
        equations = (
            f"u = {self._charge()}",
            f"over = u - {threshold}",
            f"s = {surrogate_of(self.surrogate_function).spike('>=')}",
            f"spent = {spent}",
            f"v[t] = (1 - spent) * u + spent * {reset}" if reset else f"v[t] = u - spent * {threshold}",
        )
        return cell("spikes", ["x"], ["v"], equations, output="s", parameters=[*self._vectors()])


class IFNode(_Node):
    """`neuron.IFNode` of SpikingJelly: the membrane integrates its input, v + x."""

    def __init__(
        self,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: Any = _SIGMOID,
        detach_reset: bool = False,
        step_mode: str = "s",
        store_v_seq: bool = False,
    ) -> None:
        super().__init__(v_threshold, v_reset, surrogate_function, detach_reset, step_mode, store_v_seq)

    def _charge(self) -> str:
        return "v[t-1] + W.x"


class LIFNode(_Node):
    """`neuron.LIFNode` of SpikingJelly: the membrane leaks to its reset by the time constant tau, with or without its input."""

    def __init__(
        self,
        tau: float = 2.0,
        decay_input: bool = True,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: Any = _SIGMOID,
        detach_reset: bool = False,
        step_mode: str = "s",
        store_v_seq: bool = False,
    ) -> None:
        _check_above_one(tau, "tau")
        super().__init__(v_threshold, v_reset, surrogate_function, detach_reset, step_mode, store_v_seq)
        self.tau, self.decay_input = tau, decay_input

    def extra_repr(self) -> str:
        """Return the arguments that the neurons were made with."""
        return f"{super().extra_repr()}, tau={self.tau}"

    def _charge(self) -> str:
        tau = number(self.tau, "tau")
        if self.decay_input:
            return f"v[t-1] + (W.x - {self._over_rest()}) / {tau}"
        return f"v[t-1] - {self._over_rest()} / {tau} + W.x"


class ParametricLIFNode(_Node):
    """`neuron.ParametricLIFNode` of SpikingJelly, whose 1 / tau is sigmoid(w), learned: Fang et al., arXiv 2007.05785."""

    def __init__(
        self,
        init_tau: float = 2.0,
        decay_input: bool = True,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: Any = _SIGMOID,
        detach_reset: bool = False,
        step_mode: str = "s",
        store_v_seq: bool = False,
    ) -> None:
        _check_above_one(init_tau, "init_tau")
        super().__init__(v_threshold, v_reset, surrogate_function, detach_reset, step_mode, store_v_seq)
        self.decay_input = decay_input
        self.w = torch.nn.Parameter(torch.as_tensor(-math.log(init_tau - 1.0)))

    def extra_repr(self) -> str:
        """Return the arguments that the neurons were made with."""
        return f"{super().extra_repr()}, tau={1 / self.w.detach().sigmoid()}"

    def _vectors(self) -> dict[str, Any]:
        return {"w": self.w}

    def _charge(self) -> str:
        if self.decay_input:
            return f"v[t-1] + (W.x - {self._over_rest()}) * sigmoid(w)"
        return f"v[t-1] - {self._over_rest()} * sigmoid(w) + W.x"


def reset_net(net: torch.nn.Module) -> None:
    """Reset every module of a network that has a state, as `functional.reset_net` of SpikingJelly does."""
    for module in net.modules():
        if callable(getattr(module, "reset", None)):
            module.reset()


def _wide(x: Any) -> Any:
    """Return the dtype of v for inputs x."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _check_above_one(tau: float, name: str) -> None:
    number(tau, name)
    if tau <= 1:
        raise BadInput(f"{name} is {tau}; more than 1 is expected")
