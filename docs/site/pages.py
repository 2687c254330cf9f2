"""Text of the site's pages: links led to where the site has their targets, and the reference made from names and schemas."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from minrnn_gen.cli.schema import Kind, schema_of

ROOT = Path(__file__).resolve().parents[2]
AT_THE_TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)

# The public names whose docstrings are the reference; exceptions beside their base are on the page of the Python interface.
API = {
    "minrnn_gen": ("compile", "Kernel", "Spec", "scan", "scan_backward", "MinrnnError"),
    "minrnn_gen.torch": (
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
        "recurrence",
        "scan",
        "lfilter",
        "sosfilt",
        "gae",
        "vtrace",
        "lambda_returns",
        "replace",
        "HeadGroup",
        "SequenceGroup",
        "sum_gradients",
        "export_operators",
        "onnx_translations",
    ),
    "minrnn_gen.jax": ("RNN", "recurrence", "scan", "lfilter", "sosfilt", "gae", "vtrace", "lambda_returns", "step"),
    "minrnn_gen.compat": (
        "flashrnn",
        "mamba_ssm",
        "spikingjelly",
        "snntorch",
        "accelerated_scan",
        "fla",
        "numpy_cells",
        "xlstm",
        "recurrent_gemma",
        "transformers_mamba",
        "mingru_pytorch",
        "torchrl",
        "torchaudio",
    ),
}
# What a page says first, and what an entry shows beside its own members.
FIRST_WORDS = {
    "minrnn_gen.torch": (
        "Layers of a built-in cell take the keywords of `RNN`, and have its methods. [PyTorch](../torch.md) shows them in use."
    ),
    "minrnn_gen": "[The Python interface](../python.md) shows these names in use.",
    "minrnn_gen.jax": "[JAX](../jax.md) shows these names in use.",
    "minrnn_gen.compat": "[Coming from another library](../migration.md) shows these modules in use.",
}
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


def api_page(package: str, names: tuple[str, ...]) -> str:
    """Return the page of a package's public names, which docstrings fill."""
    entries = [f"# {package}", FIRST_WORDS[package]]
    for name in names:
        path = f"{package}.{name}"
        inherited = INHERITED.get(path, "[__init__]" if package == "minrnn_gen.torch" else "false")
        entries.append(f"::: {path}\n    options:\n      inherited_members: {inherited}")
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
