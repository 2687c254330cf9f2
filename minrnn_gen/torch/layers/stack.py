"""Calls of stacked layers: the common part of `minrnn_gen.torch.RNN` and the classes of `minrnn_gen.torch.nn`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence

from minrnn_gen.build.altered_cells import refuse_projected
from minrnn_gen.build.at_once import Watch, unwatched
from minrnn_gen.errors import BadInput
from minrnn_gen.layers.architecture import VECTORS_FROM, Architecture
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.precision import why_unsupported
from minrnn_gen.run.ahead import sizes_from
from minrnn_gen.torch.dtypes import PRECISIONS, STATES, STORAGE
from minrnn_gen.torch.layers import checks
from minrnn_gen.torch.layers.altering import altered_layer, marks_of
from minrnn_gen.torch.layers.beside import beside_each_other
from minrnn_gen.torch.layers.channel_inputs import inputs_of_layers
from minrnn_gen.torch.layers.dropout import draw_masks, dropped
from minrnn_gen.torch.layers.fp32_precision import Setting, multiplies_in_tf32
from minrnn_gen.torch.layers.projected import embedding_of, parameters_of_kernels, projected
from minrnn_gen.torch.layers.shared_inputs import project_shared
from minrnn_gen.torch.operators.altered import altered
from minrnn_gen.torch.operators.dispatch import has_transforms, refuse_scripting, refuse_tracing
from minrnn_gen.torch.operators.recurrence import run, run_unrecorded
from minrnn_gen.torch.operators.stack_operator import of_layer, run_layers, together
from minrnn_gen.torch.sequence_group.ranks import Ranks
from minrnn_gen.torch.tensors import autocasts, check_tensor, integers_in, is_exporting

# The dtypes that autocast casts, and so the dtypes of initial states under it.
_CAST_BY_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


# A tensor, or a PackedSequence: the output has the input's type.
Sequences = TypeVar("Sequences")


class LayerStack:
    """Calls of layers of one architecture; mixed into a module that has the parameters and the attributes below."""

    if TYPE_CHECKING:  # torch.nn.Module's call has no types

        def __call__(self, input: Sequences, hx: Any = None, **keywords: Any) -> tuple[Sequences, Any]:
            """Return (output, h_n)."""

    _made: Architecture
    _parameters: dict[str, Any]
    input_size: int
    hidden_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    bidirectional: bool
    training: bool
    precision: str | None = None
    # Whether final states are returned in the dtype of the output, outside autocast.
    _has_narrow_states: ClassVar[bool] = False

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states, in the order in which they are given and returned."""
        return self._made.states

    def prepare(
        self,
        sizes: Iterable[Sequence[int]],
        *,
        dtype: torch.dtype | None = None,
        watch: Watch = unwatched,
        resets: bool = False,
        reset_states: bool = False,
        holds: bool = False,
        slots: bool = False,
    ) -> None:
        """Compile ahead, in parallel, the kernels of calls with these sizes, pairs (batch, time), gradients included.

        dtype: the inputs', or autocast's; by default the weights'. `resets`, `reset_states` and `holds`: whether calls have
        them; `slots`: compile steps on a cache too. `watch(done, of)` is called as the kernels of a layer are ready. Raises
        BadInput for a dtype without kernels and for invalid sizes.
        """
        recipes, wanted = self._recipes(self._precision_of(dtype)), sizes_from(sizes)
        is_altered = reset_states or holds
        for recipe in recipes:
            own = altered(recipe, reset_states, holds)[0] if is_altered else recipe
            kernel_by(own).prepare(wanted, watch, resets=resets or reset_states, slots=slots)
        for batch, time in () if is_altered else wanted:
            for beside in (
                beside_each_other(recipes, "forward", batch, time),
                beside_each_other(recipes, "backward", batch, time),
            ):
                if beside:
                    beside.prepare(bool(self.dropout), watch)

    def _precision_of(self, dtype: torch.dtype | None) -> str:
        """Return the precision of calls with inputs of `dtype`, by default that of the weights; refused where there is none."""
        dtype = dtype or next(iter(self._parameters.values())).dtype
        precision = self.precision or PRECISIONS.get(dtype)
        if precision is None or precision not in self._made.recipes:
            allowed = ", ".join(str(STORAGE[name]) for name in self._made.recipes)
            raise BadInput(f"dtype is {dtype}; one of {allowed} is expected{why_unsupported(dtype)}")
        return precision

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which asks every module for this."""
        refuse_scripting()

    def _slow_forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse torch.jit's tracer before it passes arguments of its own; torch calls this in no other case."""
        refuse_tracing()
        return super()._slow_forward(*arguments, **keywords)  # type: ignore[misc]

    def _call(
        self,
        input: Any,
        hx: Any,
        resets: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        sequence_group: Any = None,
        head_group: Any = None,
        inputs: Any = None,
        reset_states: Any = None,
        holds: Any = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the output and all states after the last step; docs/torch.md has the arguments."""
        refuse_tracing()
        sequences = (resets, lengths, cu_seqlens)
        if self._made.projected is not None:
            refuse_projected(self._made.name, reset_states, holds)
        if sequence_group is None and head_group is None:
            return self._call_of(input, hx, sequences, None, inputs, (reset_states, holds))
        groups = (sequence_group, head_group)
        return self._call_over_ranks(input, hx, sequences, groups, inputs, (reset_states, holds))  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _call_over_ranks(
        self, input: Any, hx: Any, sequences: tuple[Any, Any, Any], groups: Any, inputs: Any, altering: tuple[Any, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Call on this rank's piece of time, of heads, or both; within torch.compile the graph breaks here."""
        ranks = Ranks.of(*groups)
        with ranks.refused_everywhere(input):
            if ranks.heads is not None and not ranks.heads.gathers:
                raise BadInput(
                    "head_group has gathers=False, but a layer takes and returns all channels; leave it out, or call recurrence"
                )
            return self._call_of(input, hx, sequences, ranks, inputs, altering)

    def _call_of(
        self,
        input: Any,
        hx: Any,
        sequences: tuple[Any, Any, Any],
        ranks: Ranks | None,
        inputs: Any,
        altering: tuple[Any, Any] = (None, None),
    ) -> tuple[Any, tuple[Any, ...]]:
        (resets, lengths, cu_seqlens), (reset_states, holds) = sequences, altering
        if isinstance(input, PackedSequence):
            if reset_states is not None or holds is not None:
                raise BadInput(
                    "a PackedSequence was given with reset_states or holds; give padded sequences and their lengths, or joined "
                    "ones and cu_seqlens"
                )
            if ranks is not None:
                raise BadInput(
                    "a PackedSequence was given with a group of ranks; give padded sequences and their lengths, or joined "
                    "ones and cu_seqlens"
                )
            if self._made.inputs or inputs is not None:
                raise BadInput(
                    "a PackedSequence was given to a layer with inputs; give padded sequences and their lengths, or joined "
                    "ones and cu_seqlens"
                )
            return self._forward_packed(input, hx, resets, lengths, cu_seqlens)
        check_tensor(input, "input")
        if lengths is not None or cu_seqlens is not None:
            lengths, cu_seqlens = integers_in(lengths, "lengths"), integers_in(cu_seqlens, "cu_seqlens")
        batched = input.dim() == 3
        if not batched or input.shape[-1] != self.input_size:
            checks.check_input(input, self.input_size)
        batch_axis = 0 if self.batch_first else 1
        x = input if batched else input.unsqueeze(batch_axis)
        per_step = ((2,) if self.bidirectional else ()) + (self.hidden_size,)
        of_layers = inputs_of_layers(inputs, self._made, input.shape[:-1], per_step)
        if not batched:
            of_layers = tuple(tuple(values.unsqueeze(batch_axis) for values in of_layer) for of_layer in of_layers)
        count = x.shape[batch_axis] if cu_seqlens is None else cu_seqlens.numel() - 1
        states = () if hx is None else self._states(hx, count, batched)
        marked = (resets, reset_states, holds)
        resets, altering = marks_of(self._made, input, count, self.hidden_size, marked, self.batch_first, batched)
        y, final = self._run(x, states, (resets, lengths, cu_seqlens), ranks, of_layers, altering)
        if not batched:
            y, final = y.squeeze(batch_axis), [state.squeeze(1) for state in final]
        return y, tuple(final)

    def _forward_packed(self, input: Any, hx: Any, resets: Any, lengths: Any, cu_seqlens: Any) -> tuple[Any, tuple[Any, ...]]:
        """Run sequences of several lengths side by side, in the order in which they are packed."""
        checks.check_packed(input, self.input_size, resets, lengths, cu_seqlens)
        data, batch_sizes, order, back = input
        x, step_counts = torch.nn.utils.rnn.pad_packed_sequence(PackedSequence(data, batch_sizes), self.batch_first)
        states = () if hx is None else self._states(hx, int(batch_sizes[0]), batched=True)
        if order is not None:
            states = [state.index_select(1, order) for state in states]
        y, final = self._run(x, states, (None, step_counts, None))
        packed = torch.nn.utils.rnn.pack_padded_sequence(y, step_counts, self.batch_first)
        if back is not None:
            final = [state.index_select(1, back) for state in final]
        output = PackedSequence(packed.data, batch_sizes, order, back)
        return output, tuple(final)

    def _states(self, hx: Any, sequences: int, batched: bool) -> Sequence[Any]:
        """Return the initial states, checked and with a batch axis."""
        states = checks.states_in(hx, self.states)
        if not states:
            return ()
        runs = self.num_layers * (2 if self.bidirectional else 1)
        axes = (runs, sequences) if batched else (runs,)
        checks.check_states(states, {name: (*axes, *values) for name, values in self._made.values.items()}, batched)
        return states if batched else [state.unsqueeze(1) for state in states]

    def _run(
        self,
        x: Any,
        states: Sequence[Any],
        sequences: tuple[Any, Any, Any],
        ranks: Ranks | None = None,
        inputs: Sequence[Sequence[Any]] | None = None,
        altering: tuple[Sequence[Any], Any] = ((), None),
    ) -> tuple[Any, Sequence[Any]]:
        """Run all layers; return the last one's output, and each state of all layers."""
        made, embedding, others = self._made, embedding_of(self._made), (sequences, ranks, inputs, altering)
        if embedding is None:
            return self._run_layers(made, x, states, *others)
        if made.folded and not states and ranks is None and not (self.training and self.dropout and self.num_layers > 1):
            y, final = self._run_layers(made.folded, x, states, *others)
            return projected(made.folded, y, final, self._named)
        y, final = self._run_layers(made, x, embedding.of_states(states), *others)
        return embedding.y(y), embedding.final(final)

    def _run_layers(
        self,
        made: Architecture,
        x: Any,
        states: Sequence[Any],
        sequences: tuple[Any, Any, Any],
        ranks: Ranks | None,
        inputs: Sequence[Sequence[Any]] | None,
        altering: tuple[Sequence[Any], Any],
    ) -> tuple[Any, Sequence[Any]]:
        """Run all layers of an architecture by kernels, on arrays as these take them."""
        given_dtype = x.dtype
        x, precision, casts = self._in_precision(x)
        taken_as = _CAST_BY_AUTOCAST if casts and self.precision is None else (STATES[precision], x.dtype, given_dtype)
        if states:
            checks.check_state_dtypes(states, made.states, taken_as)
            states = [state.to(STATES[precision]) for state in states]
        beginnings, is_altered = altering[0], len(altering[0]) > 0 or altering[1] is not None
        if beginnings:
            checks.check_state_dtypes(beginnings, made.states, taken_as, "reset_states")
        parameters = [self._beside(x, layer, casts, made) for layer in range(self.num_layers)]
        recipes = self._recipes(precision, made)
        dropout = float(self.dropout) if self.training and self.num_layers > 1 else 0.0
        masks = draw_masks(x, self.hidden_size * (2 if self.bidirectional else 1), self.num_layers - 1, dropout)
        # A program that is exported has layers for inference as one operator, and no others. Inputs are torch's own.
        is_one_node = self.num_layers > 1 and ranks is None and not made.shared and not made.inputs and not is_altered
        is_one_node = is_one_node and not has_transforms() and not (masks and is_exporting())
        if is_one_node and _reaches_down((x, *parameters[0], *states)):
            initial = states or (None,) * len(made.states)
            of_all = (parameter for of_layer in parameters for parameter in of_layer)
            x, *last = run_layers(recipes, len(made.states), (x, *sequences, *of_all, *initial, *masks), dropout)
            return x, last
        final: list[Any] = []
        for layer, (recipe, (R, weight, bias, recurrent_bias, *own)) in enumerate(zip(recipes, parameters, strict=True)):
            of_states = (of_layer(state, layer, self.bidirectional) for state in states)
            initial = tuple(of_states) or (None,) * len(made.states)
            shared = self._shared_of(x, layer, casts, ranks)
            beside = [values.to(x.dtype) if casts else values for values in (inputs[layer] if inputs else ())]
            if is_altered:
                marks, hidden = (sequences[0], sequences[2]), self.hidden_size
                recipe, added = altered_layer(made, recipe, layer, x, marks, altering, self._input_axes, hidden, ranks)
                beside += added
            tensors = (x, R, weight, bias, recurrent_bias, *sequences, *own, *initial, *shared, *beside)
            if ranks is None:
                is_alone = self.num_layers == 1 and self._has_narrow_states and not casts
                if is_alone and (results := run_unrecorded(recipe, tensors)):
                    return results[0], results[1:]
                x, *last = run(recipe, len(made.states), len(own), tensors)
            else:
                x, *last = ranks.run(kernel_by(recipe), tensors)
            final.append(last)
            if layer < len(masks):
                x = dropped(x, masks[layer], dropout)
        if self.num_layers == 1:
            return x, last if self.bidirectional else [state.unsqueeze(0) for state in last]
        return x, [together(layers, self.bidirectional) for layers in zip(*final, strict=True)]

    @property
    def _input_axes(self) -> str:
        """The axes of an input X.* of a layer."""
        return ("bt" if self.batch_first else "tb") + ("dh" if self.bidirectional else "h")

    def _recipes(self, precision: str, made: Architecture | None = None) -> tuple[str, ...]:
        """Return the recipes of all layers; in fp32 their products follow torch's current settings."""
        made = made or self._made
        in_tf32 = precision == "fp32" and made.tf32_recipes and multiplies_in_tf32(self._fp32_setting)
        return made.tf32_recipes if in_tf32 else made.recipes[precision]

    @property
    def _fp32_setting(self) -> Setting:
        """Torch's setting for fp32 products: "rnn" for recurrent layers, "matmul" for all others."""
        return "rnn" if self._made.recurrent_gates else "matmul"

    def _beside(self, x: Any, layer: int, casts: bool, made: Architecture | None = None) -> list[Any]:
        """Return the parameters of a layer, as `_parameters_of`, in dtypes that kernels take with x; refuses others."""
        parameters = self._parameters_of(layer, made or self._made)
        if not casts:
            checks.check_beside(parameters[1], self._made.names[layer][0].weight_ih, x)
            return parameters
        R, weight, *vectors = parameters
        R = None if R is None else R.to(x.dtype)
        return [R, weight.to(x.dtype), *(_vector_beside(vector, x) for vector in vectors)]

    def _in_precision(self, x: Any) -> tuple[Any, str, bool]:
        """Return x as the kernels take it, their precision, and whether weights are cast to it."""
        is_cast = autocasts(x) and x.dtype.is_floating_point and x.dtype is not torch.float64
        if self.precision is not None:
            dtype = STORAGE[self.precision]
            if x.dtype is not dtype and not is_cast:
                why = why_unsupported(x.dtype)
                raise BadInput(
                    f"input has dtype {x.dtype}, but the layer has precision {self.precision}; {dtype} is expected{why}"
                )
            return x.to(dtype), self.precision, True
        if is_cast:
            dtype = self._autocast_dtype(x)
            return x.to(dtype), PRECISIONS[dtype], True
        precision = PRECISIONS.get(x.dtype)
        if precision is None or precision not in self._made.recipes:
            allowed = ", ".join(str(STORAGE[name]) for name in self._made.recipes)
            raise BadInput(f"input has dtype {x.dtype}; one of {allowed} is expected{why_unsupported(x.dtype)}")
        return x, precision, False

    def _autocast_dtype(self, x: Any) -> torch.dtype:
        """Return the dtype to which autocast casts the operands of products."""
        return torch.get_autocast_dtype(x.device.type)

    def _parameters_of(self, layer: int, made: Architecture) -> list[Any]:
        """Return R, weight, bias and recurrent bias of a layer, None for what it lacks, and its own vectors."""
        directed = [parameters_of_kernels(made, names, layer, self._named) for names in made.names[layer]]
        if len(directed) == 1:
            return directed[0]
        # Vectors of the cell have an axis of directions; of all others the rows of both lie one after the other.
        return [
            None if arrays[0] is None else _of_directions(arrays, torch.stack if place >= VECTORS_FROM else torch.cat)
            for place, arrays in enumerate(zip(*directed, strict=True))
        ]

    def _shared_of(self, x: Any, layer: int, casts: bool, ranks: Ranks | None = None) -> tuple[Any, ...]:
        """Return a layer's inputs S.*, projected from x, empty for cells without; refuses a weight that does not fit."""
        made = self._made
        if not made.shared:
            return ()
        directed = [self._named(names.of_shared()) for names in made.names[layer]]
        for names, (weight, _) in zip(made.names[layer], directed, strict=True):
            name = str(names.weight_shared)
            checks.check_weight(weight, name, made.shapes[name], x, casts)
        pairs = zip(*directed, strict=True)
        weight, bias = (None if arrays[0] is None else _of_directions(arrays, torch.cat) for arrays in pairs)
        if ranks is not None:
            weight, bias = (array if array is None else ranks.counted_once(array) for array in (weight, bias))
        return project_shared(x, weight, bias, made.shared_shape, self.bidirectional)

    def _named(self, names: Sequence[str | None]) -> list[Any]:
        """Return the parameters of these names; a replaced parameter is read as an attribute of the module."""
        registered = self._parameters
        return [None if name is None else registered[name] if name in registered else getattr(self, name) for name in names]


def _reaches_down(first: Sequence[Any]) -> bool:
    """Say whether a backward goes through all layers, or there is no backward; `first`: the tensors of the first layer."""
    return not torch.is_grad_enabled() or any(tensor is not None and tensor.requires_grad for tensor in first)


def _of_directions(arrays: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
    """Return the array of one direction, or the arrays of both, joined."""
    return arrays[0] if len(arrays) == 1 else join(arrays)


def _vector_beside(vector: Any, x: Any) -> Any:
    """Return a bias or a vector in a dtype that kernels take with x: float32, or that of x itself."""
    return vector if vector is None or vector.dtype in (torch.float32, x.dtype) else vector.to(x.dtype)
