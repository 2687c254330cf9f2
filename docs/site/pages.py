"""Text of the site's pages: links led to where the site has their targets, and the reference made from names and schemas."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any, NamedTuple

from parameters import table_of

from minrnn_gen.cli.schema import Kind, schema_of

AT_THE_TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


class Topic(NamedTuple):
    """A page of the reference: its title, the package, what it says first, and the public names whose docstrings fill it."""

    title: str
    package: str
    first_words: str
    names: tuple[str, ...]


_TORCH, _COMPAT = "minrnn_gen.torch", "minrnn_gen.compat"
_MIGRATION = "[Coming from another library](../migration.md) shows these modules in use."
# Pages by the names of their files; exceptions below their base are on the page of the Python interface.
API = {
    "minrnn_gen": Topic(
        "minrnn_gen",
        "minrnn_gen",
        "[The Python interface](../python.md) shows these names in use.",
        ("compile", "Kernel", "Spec", "scan", "scan_backward", "MinrnnError"),
    ),
    "torch-layers": Topic(
        "minrnn_gen.torch: layers",
        _TORCH,
        "Layers of a built-in cell take the keywords of `RNN`, and have its methods. [PyTorch](../torch.md) shows them in use.",
        (
            "RNN",
            "MinGRU",
            "MinGRULog",
            "MinGRUTanh",
            "MinLSTM",
            "MinLSTMLog",
            "HGRN",
            "QRNN",
            "RGLRU",
            "IndRNN",
            "Elman",
            "GRU",
            "LSTM",
            "SLSTM",
            "PeepholeLSTM",
            "LIF",
            "RecurrentLIF",
            "SelectiveScan",
            "nn",
            "replace",
        ),
    ),
    "torch-functions": Topic(
        "minrnn_gen.torch: functions",
        _TORCH,
        "Functions with gradients. [PyTorch](../torch.md#the-recurrence-of-a-kernel) shows them in use.",
        ("recurrence", "scan", "lfilter", "sosfilt", "gae", "vtrace", "lambda_returns"),
    ),
    "torch-groups": Topic(
        "minrnn_gen.torch: several GPUs and export",
        _TORCH,
        "[Several GPUs](../how-to/several-gpus.md) and [AOTInductor](../how-to/aot-inductor.md) show these names in use.",
        ("HeadGroup", "SequenceGroup", "tune_sequence_group", "sum_gradients", "export_operators", "onnx_translations"),
    ),
    "jax": Topic(
        "minrnn_gen.jax",
        "minrnn_gen.jax",
        "[JAX](../jax.md) shows these names in use.",
        ("RNN", "recurrence", "scan", "lfilter", "sosfilt", "gae", "vtrace", "lambda_returns", "step"),
    ),
    "compat-functions": Topic(
        "minrnn_gen.compat: functions of other libraries",
        _COMPAT,
        _MIGRATION,
        (
            "flashrnn",
            "mamba_ssm",
            "flashinfer",
            "spikingjelly",
            "snntorch",
            "accelerated_scan",
            "fla",
            "numpy_cells",
            "torchaudio",
        ),
    ),
    "compat-drop-ins": Topic(
        "minrnn_gen.compat: drop-ins",
        _COMPAT,
        "[Drop-ins](../how-to/drop-ins.md) shows these modules in use.",
        ("xlstm", "recurrent_gemma", "transformers_mamba", "transformers_slots", "mingru_pytorch", "torchrl"),
    ),
}
# Members that an entry shows in addition to its own.
INHERITED = {"minrnn_gen.torch.RNN": "[step, explain]"}
FILES = {Kind.SPEC: "a spec", Kind.CELL: "a cell file", Kind.GPU: "a GPU profile"}


def anchor_of(heading: str, _separator: str = "-") -> str:
    """Return a heading's anchor: small letters, hyphens for blanks, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def source_of(page: str) -> str:
    """Return where the Markdown of `page` lies, from the top of the checkout."""
    at_the_top = {published: name for name, published in AT_THE_TOP.items()}
    return at_the_top.get(page, f"docs/{page}")


def published_name(source: str) -> str:
    """Return what the site calls the file `source`, a path from the top of the checkout."""
    if source in AT_THE_TOP:
        return AT_THE_TOP[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    # A file without an ending would be offered as a download rather than shown.
    return f"files/{source}" if "." in posixpath.basename(source) else f"files/{source}.txt"


def with_links(markdown: str, source: str, page: str) -> str:
    """Return `markdown` of the file `source` with relative links as the site needs them on `page`."""

    def led(link: re.Match[str]) -> str:
        target, mark, anchor = link[1].partition("#")
        if not target or re.match(r"[a-z]+:", target) or target.startswith("/"):
            return link[1]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        return posixpath.relpath(published_name(path), posixpath.dirname(page) or ".") + mark + anchor

    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in FENCE.split(markdown))


def api_page(topic: Topic) -> str:
    """Return a page of public names, which docstrings fill, each with the table of its parameters."""
    entries = [f"# {topic.title}", topic.first_words]
    for name in topic.names:
        path = f"{topic.package}.{name}"
        inherited = INHERITED.get(path, "[__init__]" if topic.package == _TORCH else "false")
        entries.append(f"::: {path}\n    options:\n      inherited_members: {inherited}")
        if table := table_of(topic.package, name):
            entries.append(f"**Parameters of `{name}`**\n\n{table}")
    return "\n\n".join(entries) + "\n"


def schema_page(kind: Kind) -> str:
    """Return the page of a file's keys, with a link to its JSON schema."""
    schema = schema_of(kind)
    lines = [
        f"# Schema of {FILES[kind]}",
        "",
        f"The JSON schema is [{kind}.json](../schemas/{kind}.json); `minrnn-gen schema {kind}` prints it.",
    ]
    named = {name: part for name, part in schema.get("$defs", {}).items() if "properties" in part}
    for title, part in [("Keys", schema), *sorted(named.items())]:
        lines += ["", f"## {title}", "", "| key | allowed | default | meaning |", "|---|---|---|---|"]
        required = part.get("required", [])
        for key, value in part.get("properties", {}).items():
            default = "needed" if key in required else f"`{json.dumps(value.get('default'))}`"
            meaning = " ".join(str(value.get("description", "")).split())
            lines.append(" | ".join((f"| `{key}`", escaped(allowed(value, schema)), default, escaped(meaning))) + " |")
    return "\n".join(lines) + "\n"


def allowed(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return in words what a schema allows for one key."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        target = schema["$defs"][name]
        return name if "properties" in target else allowed(target, schema)
    if "enum" in value:
        return ", ".join(str(word) for word in value["enum"])
    if "const" in value:
        return str(value["const"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in value:
            return " or ".join(dict.fromkeys(allowed(part, schema) for part in value[several]))
    kind = str(value.get("type", "anything"))
    if kind == "array" and isinstance(value.get("items"), dict):
        return f"list of {allowed(value['items'], schema)}"
    bounds = [
        f"{sign} {value[name]}"
        for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if name in value
    ]
    return " ".join([kind, " and ".join(bounds)]).strip()


def escaped(text: str) -> str:
    """Return `text` for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
