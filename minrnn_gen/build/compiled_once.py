"""Texts that are equal below their header, compiled once: the kernels differ only in their description."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from minrnn_gen.build.nvrtc import CompiledSource

# More than an export of one pass, with all that its calls may have, shares texts over.
_KEPT_MOST = 64
# The lines of comments at the top, which say for what the kernel is.
_HEADER = re.compile(r"(?:[ \t]*//[^\n]*\n|[ \t]*\n)*")

Compile = Callable[[], CompiledSource]


class CompiledOnce:
    """The last compilations, by text and further keys; several threads compile a text once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Hashable, str], Future[CompiledSource]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str, how: Hashable, compile_it: Compile) -> CompiledSource:
        """Return `compile_it`'s result for `text`, or its earlier result for a text with another header; raises its errors.

        `how`: the other inputs that the result depends on.
        """
        key = how, text[_HEADER.match(text).end() :]  # type: ignore[union-attr]
        with self._lock:
            known = self._kept.get(key)
            made: Future[CompiledSource] = known or self._kept.setdefault(key, Future())
            while len(self._kept) > _KEPT_MOST:
                self._kept.popitem(last=False)
        if known:
            return known.result()
        try:
            made.set_result(compile_it())
        except BaseException as failed:
            with self._lock:
                self._kept.pop(key, None)
            made.set_exception(failed)
            raise
        return made.result()
