"""`minrnn-gen cache`: the folder of compiled kernels, its contents, and how to clear it."""

from __future__ import annotations

from pathlib import Path

import typer

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import command_line, console, new_table, print_json, size_text
from minrnn_gen.errors import BadInput

# Keys of an entry's manifest that distinguish kernels.
_IDENTITY = ("model", "pass", "hidden_size", "precision", "arch", "gpu")
# Enough to distinguish any two entries, as with commits.
_DIGEST_SHOWN = 12

app = command_line("The cache of compiled kernels: path, list, clear.")


@app.command()
def path(as_json: AsJson = False) -> None:
    """Print the cache's folder (MINRNN_CACHE_DIR chooses another)."""
    folder = str(_folder())
    if as_json:
        print_json({"path": folder})
    else:
        typer.echo(folder)


@app.command("list")
def list_entries(as_json: AsJson = False) -> None:
    """List the compiled kernels in the cache."""
    from minrnn_gen.build.store import Store

    store = Store(_folder())
    entries = [
        {
            "digest": entry.key,
            **{key: entry.manifest.get(key, "") for key in _IDENTITY},
            "files": [str(entry.folder / name) for name in sorted(entry.files)] if entry.folder else [],
            "size_bytes": entry.size_bytes,
        }
        for entry in store.entries()
    ]
    size_bytes = store.size_bytes()
    if as_json:
        print_json({"path": str(store.folder), "size_bytes": size_bytes, "entries": entries})
        return
    table = new_table("digest", *(key.replace("_", " ") for key in _IDENTITY), "size", right=("size",))
    for entry in entries:
        identity = [str(entry[key]) for key in _IDENTITY]
        table.add_row(entry["digest"][:_DIGEST_SHOWN], *identity, size_text(entry["size_bytes"]))
    screen = console()
    if entries:
        screen.print(table)
    screen.print(f"{_counted(len(entries))}, {size_text(size_bytes)} in {store.folder}", soft_wrap=True)


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Remove every compiled kernel from the cache; they are rebuilt on demand."""
    from minrnn_gen.build.store import Store

    store = Store(_folder())
    before_bytes = store.size_bytes()
    count = store.clear()
    freed_bytes = max(0, before_bytes - store.size_bytes())
    if as_json:
        print_json({"path": str(store.folder), "removed": count, "freed_bytes": freed_bytes})
    else:
        typer.echo(f"removed {_counted(count)}, {size_text(freed_bytes)}, from {store.folder}")


def _folder() -> Path:
    """Return the cache's folder; raises BadInput where there is none."""
    from minrnn_gen.build.store import NO_FOLDER, WHY_NO_FOLDER, cache_folder

    folder = cache_folder()
    if folder == NO_FOLDER:
        raise BadInput(f"the cache is off, because {WHY_NO_FOLDER}; set MINRNN_CACHE_DIR to a folder")
    return folder


def _counted(count: int) -> str:
    return f"{count} kernel" if count == 1 else f"{count} kernels"
