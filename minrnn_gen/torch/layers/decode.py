"""Layers step by step and in words: single steps by the kernels of decoding, and why each layer runs its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from minrnn_gen.build.altered_cells import refuse_projected
from minrnn_gen.build.explain import explain
from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.ahead import build_plain, sizes_from
from minrnn_gen.torch.dtypes import STATES, STORAGE
from minrnn_gen.torch.layers import checks
from minrnn_gen.torch.layers.altering import altered_layer, marks_of
from minrnn_gen.torch.layers.beside import beside_each_other
from minrnn_gen.torch.layers.cache import LayerCache
from minrnn_gen.torch.layers.channel_inputs import inputs_of_layers
from minrnn_gen.torch.layers.projected import embedding_of
from minrnn_gen.torch.layers.stack import LayerStack
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.dispatch import refuse_others
from minrnn_gen.torch.operators.stack_operator import together
from minrnn_gen.torch.operators.step_operator import forward_on_pool, places_of_draft, step_on_pool
from minrnn_gen.torch.sequence_group.cells import ways_in_words
from minrnn_gen.torch.sequence_group.group import member_of
from minrnn_gen.torch.tensors import check_tensor, integers_in

Pass = Literal["forward", "backward", "step"]
PASSES: tuple[Pass, ...] = get_args(Pass)


class DecodingStack(LayerStack):
    """Layers that can be called a step at a time, and explained."""

    def step(
        self,
        x_t: Any,
        state: Any = None,
        *,
        resets: Any = None,
        inputs: Any = None,
        cache: LayerCache | None = None,
        slots: Any = None,
        into_slots: Any = None,
        pad_slot: int = PAD_SLOT,
    ) -> tuple[Any, Any]:
        """Return (y_t, state) of one step more, without gradients and dropout: decoding, token by token.

        x_t: [B, I], or [I] without a batch; y_t [B, H]. `state` is as `hx` of a call and as its second result, so that a call
        over a prompt may come first; zeros where None. inputs: as of a call, each [B, H], or [H] without a batch.
        cache: what `cache` returned, instead of `state`: sequence b reads slot slots[b] and writes into_slots[b], the same by
        default, in place, and the cache is returned; slots int32 or int64 [B], `pad_slot` those of padding, whose y is 0. Such
        steps run under torch.compile too.
        Cells with a kernel of decoding run it, others a forward of one step. Raises BadInput for layers in both directions,
        which no single step has, for resets, and for arguments that do not fit.
        """
        refuse_others()
        if cache is not None:
            return self._step_on_cache(x_t, state, resets, inputs, cache, (slots, into_slots, pad_slot))
        if slots is not None or into_slots is not None:
            raise BadInput("slots were given without a cache; give what layer.cache returns too, or leave them out")
        if resets is not None:
            raise BadInput("resets was given to step, which has one step; to restart a sequence, set its state to zeros")
        self._check_steps()
        check_tensor(x_t, "x_t")
        if x_t.dim() not in (1, 2) or x_t.shape[-1] != self.input_size:
            raise BadInput(
                f"x_t has shape {list(x_t.shape)}, but input_size is {self.input_size}; [batch, {self.input_size}] is "
                f"expected, or [{self.input_size}] without a batch"
            )
        batched = x_t.dim() == 2
        x = x_t if batched else x_t.unsqueeze(0)
        of_layers = inputs_of_layers(inputs, self._made, x_t.shape[:-1], (self.hidden_size,))
        if not batched:
            of_layers = tuple(tuple(values.unsqueeze(0) for values in of_layer) for of_layer in of_layers)
        with torch.no_grad():
            initial = () if state is None else self._states(state, x.shape[0], batched)
            embedding = embedding_of(self._made)
            y, final = self._steps(x.detach(), initial if embedding is None else embedding.of_states(initial), of_layers)
            if embedding is not None:
                y, final = embedding.y_of_step(y), [*embedding.final(final)]
        states = tuple(final) if batched else tuple(last.squeeze(1) for last in final)
        return y if batched else y.squeeze(0), states[0] if len(states) == 1 else states

    def verify_draft(
        self,
        x: Any,
        *,
        cache: LayerCache,
        slots: Any,
        accepted: Any = None,
        pad_slot: int = PAD_SLOT,
        lengths: Any = None,
        inputs: Any = None,
    ) -> tuple[Any, LayerCache]:
        """Return (y, cache) of drafted steps, which may be taken back, from and into slots of a cache, without gradients.

        x: [B, k, I] (without batch_first [k, B, I]), and y alike. accepted: int32 or int64 [B], how many steps of each slot's
        last draft are kept, by default none. The next call or `cache.commit`, which must precede any other use of the slot,
        accepts steps of this draft. lengths: int64 [B], the steps of each sequence; y is 0 beyond. Other arguments, y and
        states are as of single steps. Raises BadInput for a cache of another layer or with a shorter draft, and for arguments
        that do not fit.
        """
        refuse_others()
        self._check_cached(cache, slots)
        check_tensor(x, "x")
        axis = 1 if self.batch_first else 0
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            wanted = ("batch, steps" if axis else "steps, batch") + f", {self.input_size}"
            raise BadInput(f"x has shape {list(x.shape)}; [{wanted}] is expected")
        time = x.shape[axis]
        if not 0 < time <= cache.draft:
            raise BadInput(f"x has {time} steps, but a draft of the cache has 1 to {cache.draft}; make it with more")
        of_layers = inputs_of_layers(inputs, self._made, x.shape[:-1], (self.hidden_size,))
        with torch.no_grad():
            x, precision, casts = self._in_precision(x.detach())
            steps, rows = x.unbind(axis), (slots, accepted, lengths)
            for layer, (recipe, own) in enumerate(zip(self._recipes(precision), cache.layers, strict=True)):
                places = places_of_draft(recipe, own.drafts, cache.draft + 1, rows, pad_slot, time)
                pool = [*own.places.values()]
                beside = [[values.select(axis, t).contiguous() for values in of_layers[layer]] for t in range(time)]
                calls = [self._call_of_step(step, layer, casts, pool, beside[t]) for t, step in enumerate(steps)]
                steps = [
                    step_on_pool(recipe, count, len(pool), tensors, places[0][t], places[1][t], PAD_SLOT)
                    for t, (count, tensors) in enumerate(calls)
                ]
        embedding = embedding_of(self._made)
        return torch.stack([*steps] if embedding is None else [embedding.y_of_step(y) for y in steps], axis), cache

    def cache(
        self, slots: int, draft: int = 0, *, dtype: torch.dtype | None = None, state_dtype: torch.dtype | None = None
    ) -> LayerCache:
        """Return a pool of zero states for `step`, one slot for each request.

        dtype: dtype of the inputs of steps, by default the weights'. state_dtype: dtype of the states in slots, float32
        (float64 for float64) by default, or `dtype`. draft: the steps of the longest draft that `verify_draft` will run, whose
        states the cache keeps. A state of projected units has zeros beyond its own. Raises BadInput for other values, and for
        layers in both directions.
        """
        self._check_cache()
        precision, first = self._precision_of(dtype), next(iter(self._parameters.values()))
        return LayerCache(self._recipes(precision), slots, state_dtype or STATES[precision], first.device, draft)

    def explain(
        self,
        which: Pass = "forward",
        *,
        batch: int | None = None,
        time: int | None = None,
        dtype: torch.dtype | None = None,
        sequence_group: Any = None,
    ) -> str:
        """Explain in words the choice of a pass's kernels, per layer, duplicates omitted.

        which: "forward", "backward" or "step". batch and time: of a call, by default the typical sizes. dtype: the inputs', by
        default the weights'. sequence_group: as of a call; a line says how states pass between its ranks. Where layers, or both
        directions of a layer, run concurrently, a line says how. Plans for the GPU here, else for the default GPU. Raises
        BadInput for other values.
        """
        if which not in PASSES:
            raise BadInput(f"which is {shown(which)}; one of {', '.join(PASSES)} is expected")
        sections: dict[str, list[int]] = {}
        for layer, recipe in enumerate(self._recipes(self._precision_of(dtype))):
            sections.setdefault(recipe, []).append(layer)
        texts = [
            f"{_named(layers)} of {self.num_layers}\n\n{_explained(recipe, which, batch, time, sequence_group)}"
            for recipe, layers in sections.items()
        ]
        if which != "step" and sequence_group is None:
            sizes = _sizes(recipe, batch, time)
            if beside := beside_each_other(self._recipes(self._precision_of(dtype)), which, sizes.batch, sizes.time):
                texts.insert(0, f"all layers at once: {beside.in_words}")
        return "\n\n".join(texts)

    def _check_cache(self) -> None:
        if self.bidirectional:
            raise BadInput("a cache is of one direction, but the layer is bidirectional; call the layer on whole sequences")

    def _check_cached(self, cache: Any, slots: Any) -> None:
        self._check_cache()
        if not isinstance(cache, LayerCache):
            raise BadInput(f"cache is {kind_of(cache)}; what layer.cache returns is expected")
        if slots is None:
            raise BadInput("a cache was given without slots; give the slot of each sequence, int32 or int64 [batch]")
        if len(cache.layers) != self.num_layers:
            raise BadInput(f"cache is of {len(cache.layers)} layers; one of {self.num_layers} is expected")

    def _step_on_cache(
        self, x_t: Any, state: Any, resets: Any, inputs: Any, cache: Any, rows: tuple[Any, Any, int]
    ) -> tuple[Any, LayerCache]:
        """Return y of one step of all layers on slots, and the cache."""
        self._check_cached(cache, rows[0])
        if state is not None or resets is not None:
            raise BadInput(
                "a cache was given with state or resets; sequences start from the states in their slots, so leave them out"
            )
        check_tensor(x_t, "x_t")
        if x_t.dim() != 2 or x_t.shape[-1] != self.input_size:
            raise BadInput(f"x_t has shape {list(x_t.shape)}; [batch, {self.input_size}] is expected")
        of_layers = inputs_of_layers(inputs, self._made, x_t.shape[:-1], (self.hidden_size,))
        states = [*cache.states.values()]
        with torch.no_grad():
            x, precision, casts = self._in_precision(x_t.detach())
            checks.check_state_dtypes(states, self._made.states, (STATES[precision], STORAGE[precision]))
            for layer, recipe in enumerate(self._recipes(precision)):
                own, tensors = self._call_of_step(x, layer, casts, [state[layer] for state in states], of_layers[layer])
                x = step_on_pool(recipe, own, len(states), tensors, *rows)
        embedding = embedding_of(self._made)
        return x if embedding is None else embedding.y_of_step(x), cache

    def _call_on_cache(
        self,
        input: Any,
        marked: tuple[Any, Any, Any],
        ends: tuple[Any, Any],
        inputs: Any,
        cache: Any,
        rows: tuple[Any, Any, Any, int],
        others: Mapping[str, Any],
    ) -> tuple[Any, LayerCache]:
        """Return the output of all layers over time on slots, and the cache.

        `marked`: resets, reset states and holds; `ends`: lengths and cu_seqlens; `rows`: slots, into_slots, has_state and
        pad_slot; `others`: arguments that such a call refuses.
        """
        refuse_others()
        self._check_cached(cache, rows[0])
        if self._made.projected is not None:
            refuse_projected(self._made.name, *marked[1:])
        for name, value in others.items():
            if value is not None:
                raise BadInput(f"a cache was given with {name}; sequences are whole and start from their slots, leave it out")
        check_tensor(input, "input")
        if input.dim() != 3 or input.shape[-1] != self.input_size:
            axes = "batch, time" if self.batch_first else "time, batch"
            raise BadInput(f"input has shape {list(input.shape)}; [{axes}, {self.input_size}] is expected")
        lengths, cu_seqlens = integers_in(ends[0], "lengths"), integers_in(ends[1], "cu_seqlens")
        count = input.shape[0 if self.batch_first else 1] if cu_seqlens is None else cu_seqlens.numel() - 1
        resets, altering = marks_of(self._made, input, count, self.hidden_size, marked, self.batch_first)
        of_layers = inputs_of_layers(inputs, self._made, input.shape[:-1], (self.hidden_size,))
        with torch.no_grad():
            x, precision, casts = self._in_precision(input.detach())
            pools = [[*own.states.values()] for own in cache.layers]
            checks.check_state_dtypes(pools[0], self._made.states, (STATES[precision], STORAGE[precision]))
            for layer, (recipe, pool) in enumerate(zip(self._recipes(precision), pools, strict=True)):
                own, tensors = self._call_of_step(x, layer, casts, pool, of_layers[layer], (resets, lengths, cu_seqlens))
                if altering[0] or altering[1] is not None:
                    marks, hidden = (resets, cu_seqlens), self.hidden_size
                    recipe, added = altered_layer(self._made, recipe, layer, x, marks, altering, self._input_axes, hidden)
                    tensors += added
                x = forward_on_pool(recipe, own, len(pool), tensors, rows)
        embedding = embedding_of(self._made)
        return x if embedding is None else embedding.y(x), cache

    def _check_steps(self) -> None:
        if self.bidirectional:
            raise BadInput("step needs one direction, but the layer is bidirectional; call the layer on whole sequences")
        if torch.compiler.is_compiling():
            raise BadInput("step was asked for within torch.compile; call it outside, its kernels are compiled already")

    def _steps(self, x: Any, initial: Sequence[Any], inputs: Sequence[Sequence[Any]]) -> tuple[Any, list[Any]]:
        """Run one step of all layers, each on the output of the layer below."""
        dtype = x.dtype
        x, precision, casts = self._in_precision(x)
        if initial:
            allowed = (STATES[precision], x.dtype, dtype)
            checks.check_state_dtypes(initial, self._made.states, allowed)
            initial = [state.to(STATES[precision]) for state in initial]
        final: list[Any] = []
        for layer, recipe in enumerate(self._recipes(precision)):
            states = [state[layer] for state in initial] or [None] * len(self._made.states)
            _, tensors = self._call_of_step(x, layer, casts, states, inputs[layer])
            x, *last = calls.step(kernel_by(recipe), tensors)
            final.append(last)
        return x, [together(layers, False) for layers in zip(*final, strict=True)]

    def _call_of_step(
        self,
        x: Any,
        layer: int,
        casts: bool,
        states: Sequence[Any],
        inputs: Sequence[Any],
        sequences: tuple[Any, Any, Any] = (None, None, None),
    ) -> tuple[int, tuple[Any, ...]]:
        """Return how many parameters of its cell a layer has, and the tensors of its step or call in the order of slots."""
        R, weight, bias, recurrent_bias, *own = (
            parameter if parameter is None else parameter.detach() for parameter in self._beside(x, layer, casts)
        )
        shared = self._shared_of(x, layer, casts)
        beside = [values.detach().to(x.dtype) if casts else values.detach() for values in inputs]
        return len(own), (x, R, weight, bias, recurrent_bias, *sequences, *own, *states, *shared, *beside)


def _named(layers: Sequence[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(map(str, layers))}"


def _sizes(recipe: str, batch: int | None, time: int | None) -> Sizes:
    hinted = kernel_by(recipe).builder.hinted_sizes
    (sizes,) = sizes_from([(hinted.batch if batch is None else batch, hinted.time if time is None else time)])
    return sizes


def _explained(recipe: str, which: Pass, batch: int | None, time: int | None, sequence_group: Any) -> str:
    kernel, sizes = kernel_by(recipe), _sizes(recipe, batch, time)
    builder = kernel.builder
    built = build_plain(builder, which, sizes)
    text = explain(built, memory_bytes=builder.target.profile.memory_bytes)
    if sequence_group is None:
        beside = None if which == "step" else kernel.executor.gpu.directions_beside(which, sizes)
        return f"{beside.in_words}\n\n{text}" if beside else text
    return f"{ways_in_words(kernel, sizes.batch, sizes.time, member_of(sequence_group))}\n\n{text}"
