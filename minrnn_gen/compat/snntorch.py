"""The neurons of snnTorch over whole sequences: `Leaky`, `Synaptic`, `Alpha` and `RLeaky`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from minrnn_gen.compat import snntorch_surrogate as surrogate
from minrnn_gen.compat.neurons import cell, run
from minrnn_gen.compat.snntorch_surrogate import spike_grad_of
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.torch.tensors import check_real

__all__ = ["Alpha", "Leaky", "RLeaky", "Synaptic", "surrogate"]

_MECHANISMS = ("subtract", "zero", "none")


class _StateGiven(BadInput, TypeError):
    """A state is given to a layer that keeps its own; the library raises TypeError."""


# Layers that exist, for the class methods that reset them all.
_INSTANCES: weakref.WeakSet[Any] = weakref.WeakSet()


class _Neuron(torch.nn.Module):
    """Neurons that fire above a threshold, and are reset in the step after a spike; states are kept from call to call."""

    states: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        beta: Any,
        threshold: Any,
        spike_grad: Any,
        surrogate_disable: bool,
        init_hidden: bool,
        inhibition: bool,
        learn_beta: bool,
        learn_threshold: bool,
        reset_mechanism: str,
        state_quant: Any,
        output: bool,
        graded_spikes_factor: Any = 1.0,
        learn_graded_spikes_factor: bool = False,
        reset_delay: bool = True,
    ) -> None:
        super().__init__()
        if inhibition:
            raise BadInput(
                "inhibition is True, which no kernel supports: neurons would have to wait for each other; leave it False"
            )
        if state_quant:
            raise BadInput("state_quant is given, but no kernel here quantises states; leave it False")
        _check_mechanism(reset_mechanism)
        self._spike_grad = None if surrogate_disable else spike_grad_of(spike_grad or surrogate.atan())
        self.init_hidden, self.output, self.reset_delay = init_hidden, output, reset_delay
        self._reset_mechanism = reset_mechanism
        self._own("threshold", threshold, learn_threshold)
        self._own("graded_spikes_factor", graded_spikes_factor, learn_graded_spikes_factor)
        self.register_buffer("reset_mechanism_val", torch.as_tensor(_MECHANISMS.index(reset_mechanism)))
        self._own("beta", beta, learn_beta)
        for name in self.states:
            self.register_buffer(name, torch.zeros(0), persistent=False)
        _INSTANCES.add(self)

    @property
    def reset_mechanism(self) -> str:
        """Reset of the membrane after a spike: subtract, zero or none."""
        return self._reset_mechanism

    @reset_mechanism.setter
    def reset_mechanism(self, mechanism: str) -> None:
        _check_mechanism(mechanism)
        self._reset_mechanism = mechanism
        self.reset_mechanism_val = torch.as_tensor(_MECHANISMS.index(mechanism))

    @classmethod
    def reset_hidden(cls) -> None:
        """Set the states of all layers of this class to zeros."""
        for layer in _instances(cls):
            layer.reset_mem()

    @classmethod
    def detach_hidden(cls) -> None:
        """Cut the graph of autograd between the last and the next call of all layers of this class."""
        for layer in _instances(cls):
            for name in layer.states:
                setattr(layer, name, getattr(layer, name).detach())

    def reset_mem(self) -> Any:
        """Set the states to zeros and return them."""
        states = []
        for name in self.states:
            setattr(self, name, torch.zeros_like(getattr(self, name)))
            states.append(getattr(self, name))
        return states[0] if len(states) == 1 else tuple(states)

    def _own(self, name: str, value: Any, learns: bool) -> None:
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        if learns:
            setattr(self, name, torch.nn.Parameter(tensor))
        else:
            self.register_buffer(name, tensor)

    def _run(self, input_: Any, initial: Sequence[Any]) -> Any:
        """Run over a sequence from the initial states, or from those of the last call where their shape fits, else zeros."""
        check_real(input_, "input_")
        if self.init_hidden and any(state is not None for state in initial):
            raise _StateGiven(
                f"{self.states[0]} is given, but init_hidden=True keeps the states in the layer; give the input alone"
            )
        wide = torch.float64 if input_.dtype is torch.float64 else torch.float32
        for name, start in zip(self.states, initial, strict=True):
            if start is not None:
                check_real(start, name)
            kept = getattr(self, name) if start is None else start
            fits = kept.shape == input_.shape[1:]
            setattr(self, name, kept if fits else torch.zeros(input_.shape[1:], dtype=wide, device=input_.device))
        state = {name: getattr(self, name) for name in self.states}
        done = run(self._cell(), input_, state, self._vectors(), product=self._product(), called="input_")
        for name in self.states:
            setattr(self, name, done.final[name])
        spikes = done.spikes * self.graded_spikes_factor.to(done.spikes.dtype) if self._is_graded() else done.spikes
        states = tuple(getattr(self, name) for name in self.states if name != "spk")
        return spikes if self.init_hidden and not self.output else (spikes, *states)

    def _is_graded(self) -> bool:
        return False

    def _product(self) -> Any:
        return None

    def _vectors(self) -> dict[str, Any]:
        """Return the numbers of the equations; decays are bounded to 0 to 1 as in the library."""
        return {"beta": self.beta.clamp(0, 1), "threshold": self.threshold}

    def _equations(self) -> Sequence[str]:
        """Return the equations up to u, the membrane after the reset of the last spike, 1 in `fired`."""
        raise NotImplementedError

    def _cell(self) -> str:
        spike = "where(over > 0, 1, 0)" if self._spike_grad is None else self._spike_grad.spike(">")
        fired = [] if self._reset_mechanism == "none" else ["fired = where(mem[t-1] - threshold > 0, 1, 0)"]
        spikes = "spk[t]" if "spk" in self.states else "s"
        rest: tuple[str, ...]
        if self.reset_delay or self._reset_mechanism == "none":
            rest = ("mem[t] = u", "over = mem[t] - threshold", f"{spikes} = {spike}")
        else:
            spent = "threshold" if self._reset_mechanism == "subtract" else "u"
            rest = ("over = u - threshold", f"now = {spike}", f"mem[t] = u - (now - fired) * {spent}", f"{spikes} = now")
        equations = (*fired, *self._equations(), *rest)
        names = [*self._vectors()]
        return cell("spikes", ["x"], [*self.states], equations, output=spikes.removesuffix("[t]"), parameters=names)

    def _after_reset(self, membrane: str) -> str:
        """Return the expression `membrane` after the reset by the last spike."""
        mechanism = self._reset_mechanism
        return {"subtract": f"{membrane} - fired * threshold", "zero": f"(1 - fired) * ({membrane})", "none": membrane}[
            mechanism
        ]


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in _MECHANISMS:
        raise BadInput(f"reset_mechanism is {shown(mechanism)}; one of {', '.join(_MECHANISMS)} is expected")


def _instances(kind: type) -> list[Any]:
    return [layer for layer in _INSTANCES if isinstance(layer, kind)]


class Leaky(_Neuron):
    """`snntorch.Leaky`: mem[t] = beta mem[t-1] + input, minus the reset by a spike; it spikes above `threshold`."""

    states = ("mem",)

    def __init__(
        self,
        beta: Any,
        threshold: Any = 1.0,
        spike_grad: Any = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "subtract",
        state_quant: Any = False,
        output: bool = False,
        graded_spikes_factor: Any = 1.0,
        learn_graded_spikes_factor: bool = False,
        reset_delay: bool = True,
    ) -> None:
        super().__init__(
            *(beta, threshold, spike_grad, surrogate_disable, init_hidden, inhibition, learn_beta, learn_threshold),
            *(reset_mechanism, state_quant, output, graded_spikes_factor, learn_graded_spikes_factor, reset_delay),
        )
        self._grades = learn_graded_spikes_factor or isinstance(graded_spikes_factor, torch.Tensor) or graded_spikes_factor != 1

    init_leaky = _Neuron.reset_mem

    def forward(self, input_: Any, mem: Any = None) -> Any:
        """Return (spikes [T, B, ...], mem after the last step [B, ...]) of input_ [T, B, ...].

        mem: the membrane before the first step, by default the last call's if its shape fits, else zeros. It is float32, or
        float64 as the input is. With `init_hidden` and without `output`, the spikes alone. Raises BadInput for tensors that do
        not fit.
        """
        return self._run(input_, (mem,))

    def _is_graded(self) -> bool:
        return self._grades

    def _equations(self) -> Sequence[str]:
        mechanism = self._reset_mechanism
        kept = "(1 - fired) * mem[t-1]" if mechanism == "zero" else "mem[t-1]"
        return (f"u = beta * ({kept}) + W.x{' - fired * threshold' if mechanism == 'subtract' else ''}",)


class Synaptic(_Neuron):
    """`snntorch.Synaptic`: a current that leaks by `alpha` feeds a membrane that leaks by `beta`."""

    states = ("syn", "mem")

    def __init__(
        self,
        alpha: Any,
        beta: Any,
        threshold: Any = 1.0,
        spike_grad: Any = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_alpha: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "subtract",
        state_quant: Any = False,
        output: bool = False,
        reset_delay: bool = True,
    ) -> None:
        super().__init__(
            *(beta, threshold, spike_grad, surrogate_disable, init_hidden, inhibition, learn_beta, learn_threshold),
            *(reset_mechanism, state_quant, output),
            reset_delay=reset_delay,
        )
        self._own("alpha", alpha, learn_alpha)

    init_synaptic = _Neuron.reset_mem

    def forward(self, input_: Any, syn: Any = None, mem: Any = None) -> Any:
        """Return (spikes [T, B, ...], syn and mem after the last step [B, ...]), as `Leaky` does."""
        return self._run(input_, (syn, mem))

    def _vectors(self) -> dict[str, Any]:
        return {"alpha": self.alpha.clamp(0, 1), **super()._vectors()}

    def _equations(self) -> Sequence[str]:
        return ("syn[t] = alpha * syn[t-1] + W.x", f"u = {self._after_reset('beta * mem[t-1] + syn[t]')}")


class Alpha(_Neuron):
    """`snntorch.Alpha`: the difference of two currents, which leak by `alpha` and by `beta`, is the membrane."""

    states = ("syn_exc", "syn_inh", "mem")

    def __init__(
        self,
        alpha: Any,
        beta: Any,
        threshold: Any = 1.0,
        spike_grad: Any = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_alpha: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "zero",
        state_quant: Any = False,
        output: bool = False,
    ) -> None:
        super().__init__(
            *(beta, threshold, spike_grad, surrogate_disable, init_hidden, inhibition, learn_beta, learn_threshold),
            *(reset_mechanism, state_quant, output),
        )
        self._own("alpha", alpha, learn_alpha)
        with torch.no_grad():
            if bool((self.alpha <= self.beta).any()) or bool((self.beta >= 1).any()):
                raise BadInput(
                    "alpha has to be greater than beta, and beta less than 1: the membrane divides by their logarithms"
                )

    init_alpha = _Neuron.reset_mem

    def forward(self, input_: Any, syn_exc: Any = None, syn_inh: Any = None, mem: Any = None) -> Any:
        """Return (spikes [T, B, ...], syn_exc, syn_inh and mem after the last step [B, ...]), as `Leaky` does."""
        return self._run(input_, (syn_exc, syn_inh, mem))

    def _vectors(self) -> dict[str, Any]:
        vectors = {"alpha": self.alpha.clamp(0, 1), **super()._vectors()}
        of_alpha, of_beta = torch.log(vectors["alpha"]), torch.log(vectors["beta"])
        return {**vectors, "scale": of_alpha / (of_beta - of_alpha) + 1}

    def _equations(self) -> Sequence[str]:
        currents = ("e = alpha * syn_exc[t-1] + W.x", "i = beta * syn_inh[t-1] - W.x")
        after = {
            "subtract": ("e - fired * threshold", "(1 - fired) * i", "scale * (e + i) + fired * syn_inh[t-1]"),
            "zero": ("(1 - fired) * e", "(1 - fired) * i", "(1 - fired) * (scale * (e + i))"),
            "none": ("e", "i", "scale * (e + i)"),
        }[self._reset_mechanism]
        return (*currents, f"syn_exc[t] = {after[0]}", f"syn_inh[t] = {after[1]}", f"u = {after[2]}")


class RLeaky(_Neuron):
    """`snntorch.RLeaky`: `Leaky` whose spikes are an input of the next step, through `recurrent` or times V."""

    states = ("spk", "mem")

    def __init__(
        self,
        beta: Any,
        V: Any = 1.0,
        all_to_all: bool = True,
        linear_features: int | None = None,
        conv2d_channels: int | None = None,
        kernel_size: Any = None,
        threshold: Any = 1.0,
        spike_grad: Any = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        learn_recurrent: bool = True,
        reset_mechanism: str = "subtract",
        state_quant: Any = False,
        output: bool = False,
        reset_delay: bool = True,
    ) -> None:
        super().__init__(
            *(beta, threshold, spike_grad, surrogate_disable, init_hidden, inhibition, learn_beta, learn_threshold),
            *(reset_mechanism, state_quant, output),
            reset_delay=reset_delay,
        )
        if conv2d_channels or kernel_size:
            raise BadInput("conv2d_channels or kernel_size is given, but no kernel here convolves spikes; give linear_features")
        if all_to_all is not bool(linear_features):
            raise BadInput(
                f"all_to_all is {all_to_all} and linear_features {linear_features}; give the number of neurons for a product "
                f"with all of them, and all_to_all=False for each times V"
            )
        self.all_to_all, self.linear_features, self.learn_recurrent = all_to_all, linear_features, learn_recurrent
        if linear_features:
            self.recurrent: Any = torch.nn.Linear(linear_features, linear_features)
            self.recurrent.requires_grad_(learn_recurrent)
        else:
            self._own("V", V, learn_recurrent)
            # A learned V has a second name in a state_dict.
            self.recurrent = torch.nn.Module()
            self.recurrent.V = self.V

    init_rleaky = _Neuron.reset_mem

    def forward(self, input_: Any, spk: Any = None, mem: Any = None) -> Any:
        """Return (spikes [T, B, ...], mem after the last step [B, ...]), as `Leaky` does.

        spk: the spikes of the step before the first one, [B, ...]. With `linear_features` = F, input_ is [T, B, F].
        """
        check_real(input_, "input_")
        if self.linear_features and (input_.dim() != 3 or input_.shape[2] != self.linear_features):
            raise BadInput(f"input_ has shape {list(input_.shape)}; [time, batch, {self.linear_features}] is expected")
        return self._run(input_, (spk, mem))

    def _product(self) -> Any:
        return (self.recurrent.weight, self.recurrent.bias) if self.linear_features else None

    def _vectors(self) -> dict[str, Any]:
        return super()._vectors() if self.linear_features else {"v": self.V, **super()._vectors()}

    def _equations(self) -> Sequence[str]:
        again = "R.x" if self.linear_features else "v * spk[t-1]"
        return (f"u = {self._after_reset(f'beta * mem[t-1] + W.x + {again}')}",)
