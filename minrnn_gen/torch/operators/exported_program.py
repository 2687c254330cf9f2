"""`export_operators`: the recurrences of an exported program as operators of a library in C++, for AOTInductor."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minrnn_gen.build.store import digest
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.export.folder import plain_name, prefixed_name
from minrnn_gen.export.operators import ExportedOperator, OperatorLayer, write_operators
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, recipe_for_inference
from minrnn_gen.torch.operators import kernel_operator, stack_operator
from minrnn_gen.torch.operators.calls import arithmetic_dtype
from minrnn_gen.torch.operators.dispatch import exported

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_SEQUENCES = ("resets", "lengths", "cu_seqlens")
_OF_EVERY_CELL = ("R", "weight", "bias", "recurrent_bias")
# The operators that this process has defined, or given results without values, by namespace and name.
_LIBRARIES: dict[str, Any] = {}
_DEFINED: set[tuple[str, str]] = set()
# The operators whose ONNX translations were requested.
_TRANSLATED: set[Any] = set()


def export_operators(program: ExportedProgram, folder: str | os.PathLike[str], *, name: str) -> ExportedProgram:
    """Write a library in C++ with the recurrences of a program, for the CPU, and return the program with its operators.

    In `folder`: rnn_NAME.cpp for the stable interface of torch 2.10 or later, rnn_NAME_onnx.c for ONNX Runtime, CMakeLists.txt,
    which builds a library of each, and a folder of each kernel, as `Kernel.export` writes it. `name`: small letters, digits and
    underscores; rnn_NAME is the library and the namespace of its operators, or NAME where it begins with rnn_. `program` is
    unchanged; the returned program computes the same, without gradients, here and wherever the library is loaded.
    torch._inductor.aoti_compile_and_package takes it, and torch.onnx.export with `onnx_translations`. Only the forward is
    exported. Raises BadInput for a program without recurrences, with their gradients or on another device, and for a spec that
    cannot be exported for the CPU.
    """
    check_program(program)
    library = prefixed_name(name, name)
    _check_parts(program)
    graph = _copied(program.graph)
    calls = [call for call in map(_call_of, graph.nodes) if call is not None]
    if not calls:
        raise BadInput("program has no recurrence of minrnn_gen; export a module with layers of minrnn_gen.torch")
    kernels: dict[str, str] = {}
    operators: dict[str, ExportedOperator] = {}
    for call in calls:
        operator = _operator_of(library, call, kernels)
        operators[operator.name] = operator
        _replace(graph, call, operator, _defined(library, operator, call.recipes))
    for recipe, kernel_name in kernels.items():
        kernel_by(recipe).export(Path(folder) / kernel_name, name=kernel_name, partial=True)
    write_operators(folder, library, tuple(operators.values()))
    return _with_graph(program, graph)


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy whose nodes keep their names, to which signatures refer; a plain copy renames `input`."""
    copied = copy.deepcopy(graph)
    for node, original in zip(copied.nodes, graph.nodes, strict=True):
        node.name = original.name
    return copied


@dataclass(frozen=True)
class _Call:
    """A call of layers in a graph, from the first one up: its nodes by the names of arrays in C, None where there is none."""

    node: torch.fx.Node
    recipes: tuple[str, ...]
    is_stack: bool
    all_states: bool
    x: torch.fx.Node
    sequences: Mapping[str, Any]
    layers: tuple[Mapping[str, Any], ...]
    state: Sequence[torch.fx.Node]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of the layers."""
        return [kernel_by(recipe) for recipe in self.recipes]


def _check_parts(program: ExportedProgram) -> None:
    """Refuse recurrences that lie where no operator is replaced: in branches, and under settings of a part of a module."""
    for part in program.graph_module.modules():
        if part is not program.graph_module and isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if _is_ours(node):
                    raise BadInput(
                        "program has a recurrence in a branch or a loop, or in a part under torch.no_grad or autocast; put "
                        "those settings around torch.export.export, and branches outside of the program"
                    )


def _is_ours(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "minrnn_gen"


def _call_of(node: torch.fx.Node) -> _Call | None:
    """Return a node's call of our operators, None for other nodes; raises BadInput for a call that cannot be exported."""
    if not _is_ours(node):
        return None
    arguments = _named_arguments(node)
    if node.target is stack_operator.OPERATOR:
        assert not arguments["masks"]
        recipes, is_stack = tuple(arguments["recipes"]), True
        names, parameters = _array_names(kernel_by(recipes[0])), arguments["parameters"]
        firsts = range(0, len(parameters), len(names))
        layers = [dict(zip(names, parameters[first : first + len(names)], strict=True)) for first in firsts]
    elif node.target is kernel_operator.OPERATOR:
        recipes, is_stack = (arguments["recipe"],), False
        beside = (*(arguments[name] for name in _OF_EVERY_CELL), *arguments["parameters"], *arguments["shared"])
        kernel = kernel_by(recipes[0])
        layers = [dict(zip((*_array_names(kernel), *_stream_names(kernel)), beside, strict=True))]
    else:
        raise BadInput(f"program has {node.target}, which is not exported; allowed: layers and minrnn_gen.torch.recurrence")
    x = arguments["x"]
    if x.meta["val"].device.type != "cpu":
        raise BadInput(f"program is on {x.meta['val'].device}; export the module on the CPU")
    sequences = {name: arguments[name] for name in _SEQUENCES}
    return _Call(node, recipes, is_stack, arguments.get("all_states", False), x, sequences, tuple(layers), arguments["state"])


def _named_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments of a call of an operator by the names that its schema has."""
    arguments = node.target._schema.arguments
    passed: dict[str, Any] = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | node.kwargs
    return {argument.name: argument.default_value for argument in arguments} | passed


def _array_names(kernel: Kernel) -> tuple[str, ...]:
    """Return the arrays of a layer other than x and states, in the order of the operators here."""
    return (*_OF_EVERY_CELL, *(f"parameter_{name}" for name in kernel.parameters))


def _stream_names(kernel: Kernel) -> tuple[str, ...]:
    """Return the arrays of a layer that are its inputs S.* and X.*."""
    return (*(f"shared_{name}" for name in kernel.shared), *(f"input_{name}" for name in kernel.inputs))


def _operator_of(library: str, call: _Call, kernels: dict[str, str]) -> ExportedOperator:
    """Return the operator of a call for a `library`, to whose `kernels`, recipes and names in C, it adds its own."""
    layers = []
    for recipe, kernel, nodes in zip(call.recipes, call.kernels, call.layers, strict=True):
        kernel_name = kernels.setdefault(recipe_for_inference(recipe), f"{library[:30]}_kernel{len(kernels)}")
        arrays = tuple(array for array, node in nodes.items() if node is not None)
        layers.append(OperatorLayer(kernel_name, kernel.interface, arrays))
    sequences = tuple(name for name, node in call.sequences.items() if node is not None)
    unnamed = ExportedOperator("", tuple(layers), sequences, bool(call.state), call.is_stack, call.all_states)
    # A library serves a program only if it has exactly its layers.
    of_what = "\n".join((unnamed.schema, str(call.is_stack), *map(recipe_for_inference, call.recipes)))
    model = plain_name(call.kernels[0].builder.cell_source.name)
    return replace(unnamed, name=f"{model}_{digest(of_what)[:8]}")


def _nodes_of(graph: torch.fx.Graph, call: _Call, operator: ExportedOperator) -> tuple[torch.fx.Node, ...]:
    """Return the nodes of an operator's inputs, cast to what the kernels in C take."""
    real = arithmetic_dtype(call.kernels[0])
    integers = dict.fromkeys(("lengths", "cu_seqlens"), torch.int64)
    nodes = []
    with graph.inserting_before(call.node):
        for tensor in operator.inputs:
            if tensor.array == "x":
                node = call.x
            elif tensor.array in _SEQUENCES:
                node = call.sequences[tensor.array]
            elif tensor.layer is None:
                node = call.state[operator.interface.states.index(tensor.array.removeprefix("initial_"))]
            else:
                node = call.layers[tensor.layer][tensor.array]
            dtype = integers.get(tensor.array, real if tensor.dtype == operator.real else None)
            if dtype is not None and node.meta["val"].dtype is not dtype:
                value = node.meta["val"].to(dtype)
                node = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
                node.meta["val"] = value
            nodes.append(node)
    return tuple(nodes)


def _replace(graph: torch.fx.Graph, call: _Call, operator: ExportedOperator, target: Any) -> None:
    """Call `target` in place of a call; refused where a backward reads what the call saves for it."""
    count = len(operator.results)
    results = list(call.node.users)
    if any(result.args[1] >= count and result.users for result in results):
        raise BadInput("program has gradients of a recurrence, which are not exported; export the module's forward alone")
    nodes = _nodes_of(graph, call, operator)
    with graph.inserting_before(call.node):
        replacing = graph.call_function(target, nodes)
    replacing.meta = {**call.node.meta, "val": tuple(call.node.meta["val"][:count])}
    for result in results:
        if result.args[1] < count:
            result.replace_input_with(call.node, replacing)
        else:
            graph.erase_node(result)
    graph.erase_node(call.node)


def _defined(namespace: str, operator: ExportedOperator, recipes: tuple[str, ...]) -> Any:
    """Return torch's operator, defined here unless a loaded library has it; until then the operators here compute it."""
    key = (namespace, operator.name)
    if key not in _DEFINED:
        library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
        run = _Run("::".join(key), operator, recipes)
        if not hasattr(getattr(torch.ops, namespace), operator.name):
            library.define(operator.schema, tags=(torch.Tag.pt2_compliant_tag,))
            library.impl(operator.name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::{operator.name}", run, lib=library)
        _DEFINED.add(key)
    return getattr(getattr(torch.ops, namespace), operator.name).default


def check_program(program: Any) -> None:
    """Raise BadInput for anything but a program of torch.export."""
    from torch.export import ExportedProgram  # which takes 0.2 s

    if not isinstance(program, ExportedProgram):
        raise BadInput(f"program is {kind_of(program)}; the result of torch.export.export is expected")


def is_exported(node: torch.fx.Node) -> bool:
    """Say whether a node calls an operator that was exported by this process."""
    return isinstance(node.target, torch._ops.OpOverload) and (*node.target.name().split("::"),) in _DEFINED


def expect_onnx(targets: Iterable[Any]) -> None:
    """Allow these operators in ONNX files, now that the exporter gets their translations; others are refused."""
    _TRANSLATED.update(target.name() for target in targets)


@dataclass(frozen=True)
class _Run:
    """Computes an exported operator, with and without values, by the operators here."""

    name: str
    operator: ExportedOperator
    recipes: tuple[str, ...]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        with exported(self.name in _TRANSLATED), torch.no_grad():
            return tuple(self._results(tensors))

    def _results(self, tensors: Sequence[Any]) -> Sequence[Any]:
        operator = self.operator
        named = dict(zip((tensor.name for tensor in operator.inputs), tensors, strict=True))
        x, sequences = named["x"], [named.get(name) for name in _SEQUENCES]
        of_layers = [
            [named.get(f"{array}_{layer}") for array in _array_names(kernel_by(recipe))]
            for layer, recipe in enumerate(self.recipes)
        ]
        state = [named.get(f"initial_{name}") for name in operator.interface.states]
        if operator.is_stack:
            parameters = [tensor for tensors in of_layers for tensor in tensors]
            return stack_operator.infer(self.recipes, len(state), (x, *sequences, *parameters, *state))
        R, weight, bias, recurrent_bias, *parameters = of_layers[0]
        shared = [named.get(f"{array}_0") for array in _stream_names(kernel_by(self.recipes[0]))]
        call = (x, R, weight, bias, recurrent_bias, *sequences, *parameters, *state, *shared)
        return kernel_operator.infer(self.recipes[0], call, operator.all_states)


def _with_graph(program: ExportedProgram, graph: torch.fx.Graph) -> ExportedProgram:
    """Return a program with another graph, whose inputs and results are the same."""
    return type(program)(
        root=program.graph_module,
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
