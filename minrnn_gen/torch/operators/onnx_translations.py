"""`onnx_translations`: the table by which torch.onnx.export writes exported operators into an ONNX file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from minrnn_gen.errors import INSTALL_ONNX, BadInput, needing
from minrnn_gen.torch.operators.exported_program import check_program, expect_onnx, is_exported

_TYPES = {
    torch.float64: "tensor(double)",
    torch.float32: "tensor(float)",
    torch.float16: "tensor(float16)",
    torch.bfloat16: "tensor(bfloat16)",
    torch.int64: "tensor(int64)",
    torch.bool: "tensor(bool)",
}


def onnx_translations(program: Any) -> dict[Any, Callable[..., Any]]:
    """Return how torch.onnx.export translates the operators of a program that `export_operators` returned.

    Pass it as custom_translation_table. Each operator becomes an ONNX operator of the same name, in the library's name as
    domain; NAME_onnx.c computes it in ONNX Runtime. Needs onnx and onnxscript, as torch.onnx.export does. Raises BadInput for a
    program without such operators, ToolchainMissing where these packages are not installed.
    """
    check_program(program)
    nodes = [node for node in program.graph.nodes if is_exported(node)]
    if not nodes:
        raise BadInput("program has no exported operator; give the one that minrnn_gen.torch.export_operators returned")
    with needing("onnx", "an ONNX file", INSTALL_ONNX):
        import onnx.defs  # noqa: F401
    with needing("onnxscript", "an ONNX file", INSTALL_ONNX):
        import onnxscript.values  # noqa: F401
    translations = {node.target: _translation(node) for node in nodes}
    expect_onnx(translations)
    return translations


def _translation(node: Any) -> Callable[..., Any]:
    """Return the function of an operator's tensors that writes its node."""
    import onnx
    from onnxscript.values import Op, Opset

    namespace, _, name = node.target._schema.name.partition("::")
    names = [argument.name for argument in node.target._schema.arguments]
    results = node.meta["val"]
    schema = onnx.defs.OpSchema(
        name,
        namespace,
        1,
        inputs=[_parameter(name, source.meta["val"]) for name, source in zip(names, node.args, strict=True)],
        outputs=[_parameter(f"result_{place}", result) for place, result in enumerate(results)],
    )
    operator = Op(Opset(namespace, 1), name, schema)

    def translated(*tensors: Any) -> Any:
        return operator(*tensors, _outputs=len(results))

    # torch binds arguments by the names that the signature has.
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    translated.__signature__ = inspect.Signature([inspect.Parameter(name, positional) for name in names])  # type: ignore[attr-defined]
    return translated


def _parameter(name: str, value: torch.Tensor) -> Any:
    import onnx

    return onnx.defs.OpSchema.FormalParameter(name, _TYPES[value.dtype])
