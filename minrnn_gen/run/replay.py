"""Runs on a GPU, noted down as they are done, and done again for every call of the same form without looking at it closer.

What a run does depends on nothing but the form of its arrays: so the next one allocates, multiplies and launches what the first
did, at other addresses. Runs of calls without a form, or on arrays of unknown origin, are not noted down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

from minrnn_gen.call.address import Address, Gap, address_of, is_known
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import Form, Reading
from minrnn_gen.gpu import cublas, graph, memory, stream
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.device import Place, Placed
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.run.scan_launch import Launch

# Forms in use at once, which differ in batch and time above all; a tape takes a few KiB, and one that is lost is made again.
TAPES_HELD = 512
# A byte with all bits ones.
ALL_ONES = 255


class Launcher(Protocol):
    """A loaded kernel."""

    def launch(self, like: Placed, blocks: int, threads: int, arguments: Sequence[Any], /) -> None: ...


class Steps:
    """What one run does to a GPU: each method does it, and notes it down. All that a later run has to do goes this way."""

    def __init__(self, like: Array, reading: Reading | None) -> None:
        """Begin a run beside `like`; the arrays of `reading` have their numbers in the arrays that the run works on."""
        self._like = like
        self._form = None if reading is None else reading.form
        self._arrays: list[Any] = [] if reading is None else [*reading.arrays]
        self._addresses: list[int] = [] if reading is None else [*reading.addresses]
        self._given = len(self._arrays)
        self._allocations: list[Allocation] = []
        self._scratch: list[int] = []
        self._repeats: list[_Repeat] = []
        self._is_repeatable = reading is not None

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Allocate an array; uninitialised without `fill`, see `memory.Allocation`."""
        array = memory.new_array(self._like, shape, dtype, fill=fill)
        numbered = array.numbered(len(self._arrays))
        self._arrays.append(array.owner)
        self._addresses.append(array.pointer)
        self._allocations.append(Allocation(shape, array.strides, array.owner.dtype, fill))
        return numbered

    def workspace(self, size_bytes: int) -> Array | None:
        """Allocate bytes, all bits ones, for the launches of this run alone; None for no bytes."""
        if not size_bytes:
            return None
        self._scratch.append(len(self._arrays))
        return self.new_array((size_bytes,), "uint8", fill=ALL_ONES)

    def launch(self, loaded: Launcher, launch: Launch, threads: int) -> None:
        """Launch a kernel."""
        arguments = [int(one) if isinstance(one, (Address, Gap)) else one for one in launch.arguments]
        loaded.launch(self._like, launch.blocks, threads, arguments)
        moving = tuple((place, one) for place, one in enumerate(launch.arguments) if isinstance(one, (Address, Gap)))
        self._note(_Launch(loaded, launch.blocks, threads, arguments, moving), [one for _, one in moving])

    def multiply(self, product: Product) -> None:
        """Multiply by cuBLAS on the current stream."""
        cublas.multiply(self._like.device, stream.current_stream(self._like), product)
        pointers = tuple(address_of(one.pointer) for one in (product.left, product.right, product.result))
        self._note(_Product(product, pointers), pointers)

    def copy_heads_first(self, R: Array, packed: Array) -> None:
        """Copy a contiguous R [gates, heads, D, D] to `packed`, [heads, gates, D, D]."""
        graph.copy_heads_first(self._like.device, stream.current_stream(self._like), R, R.pointer, packed.pointer)
        pointers = (R.address, packed.address)
        self._note(_Copy(R, pointers), pointers)

    def forget(self) -> None:
        """Say that this run does what is not noted down: it will not be played again."""
        self._is_repeatable = False

    def played(self, results: Sequence[Array | None], notes: Any) -> Played | None:
        """Return the run, which is over, as one that can be played again, or None where it cannot.

        `results` are found among the arrays of a run again; `notes`, of frozen dataclasses and tuples, say what they look like.
        """
        numbers = tuple(None if one is None else one.address.number for one in results)
        found = all(one is None or number is not None for one, number in zip(results, numbers, strict=True))
        aligned = not any(address % WIDEST_COPY_BYTES for address in self._addresses[self._given :])
        if self._form is None or not (self._is_repeatable and found and aligned):
            return None
        tape = Tape(
            form=self._form,
            place=Place(self._like.library, self._like.device),
            allocations=tuple(self._allocations),
            scratch=tuple(self._scratch),
            repeats=tuple(self._repeats),
            results=numbers,
            notes=_without_owners(notes),
        )
        return tape.ended(self._arrays, self._addresses)

    def _note(self, repeat: _Repeat, pointers: Sequence[Address | Gap]) -> None:
        self._is_repeatable = self._is_repeatable and all(map(is_known, pointers))
        self._repeats.append(repeat)


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """A run to be done again for calls of one form, any number of times and by several threads at once.

    It holds the kernels that it launches, and none of the arrays that it was made with.
    """

    form: Form
    place: Place
    allocations: tuple[Allocation, ...]
    scratch: tuple[int, ...]
    repeats: tuple[_Repeat, ...]
    results: tuple[int | None, ...]
    notes: Any

    def play(self, reading: Reading) -> Played | None:
        """Do the run again; None, before anything is launched, where an allocation is not aligned as its form says."""
        like, arrays, addresses = reading.arrays[0], [*reading.arrays], [*reading.addresses]
        for allocation in self.allocations:
            array, address = memory.allocate(like, self.place, allocation)
            if address % WIDEST_COPY_BYTES:
                return None
            arrays.append(array)
            addresses.append(address)
        for repeat in self.repeats:
            repeat.again(self.place, addresses)
        return self.ended(arrays, addresses)

    def ended(self, arrays: list[Any], addresses: list[int]) -> Played:
        """Return a run that is over, without the memory that only its launches needed."""
        for number in self.scratch:
            arrays[number] = None
        return Played(self, arrays, addresses)


class Played(NamedTuple):
    """A run that is on a tape: its arrays by number, first the given ones, then what it allocated, and where they start."""

    tape: Tape
    arrays: list[Any]
    addresses: list[int]

    @property
    def results(self) -> list[Any]:
        """The arrays that the run is there for."""
        return [None if number is None else self.arrays[number] for number in self.tape.results]

    def notes(self) -> Any:
        """Return the notes of the tape with the arrays of this run."""
        return _moved(self.tape.notes, self.arrays, self.addresses)


class Tapes:
    """The tapes of one kernel, by form; may be used from several threads, which at worst make a tape twice.

    A tape lives as long as this object, or until `TAPES_HELD` forms are there and another one comes; a run holds its own.
    """

    def __init__(self) -> None:
        self._tapes: dict[Form, Tape] = {}

    def play(self, reading: Reading | None) -> Played | None:
        """Run a call again, or return None where none of its form was noted down."""
        tape = self.find(reading)
        return None if tape is None or reading is None else tape.play(reading)

    def find(self, reading: Reading | None) -> Tape | None:
        """Return the tape of calls of this form, if there is one."""
        return None if reading is None else self._tapes.get(reading.form)

    def keep(self, played: Played | None) -> Played | None:
        """Keep the tape of a run for calls to come, and return the run."""
        if played is not None:
            if len(self._tapes) >= TAPES_HELD:
                self._tapes.clear()
            self._tapes[played.tape.form] = played.tape
        return played


class _Repeat(Protocol):
    def again(self, place: Place, addresses: list[int]) -> None:
        """Do it with arrays that start at other addresses."""


class _Launch:
    """A launch; `moving` are those of its arguments that depend on where arrays are, with their places."""

    __slots__ = ("_arguments", "_blocks", "_gaps", "_loaded", "_pointers", "_threads")

    def __init__(
        self,
        loaded: Launcher,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        moving: Sequence[tuple[int, Address | Gap]],
    ) -> None:
        self._loaded, self._blocks, self._threads, self._arguments = loaded, blocks, threads, [*arguments]
        self._pointers = [(place, one.number, one.offset_bytes) for place, one in moving if isinstance(one, Address)]
        self._gaps = [(place, one) for place, one in moving if isinstance(one, Gap)]

    def again(self, place: Place, addresses: list[int]) -> None:
        arguments = self._arguments.copy()
        for at, number, offset_bytes in self._pointers:
            arguments[at] = addresses[number] + offset_bytes  # type: ignore[index]  # only of known arrays
        for at, gap in self._gaps:
            arguments[at] = gap.among(addresses)
        self._loaded.launch(place, self._blocks, self._threads, arguments)


class _Product:
    """A product of matrices at `pointers`: left, right and result."""

    __slots__ = ("_pointers", "_product")

    def __init__(self, product: Product, pointers: Sequence[Address]) -> None:
        self._product, self._pointers = product, pointers

    def again(self, place: Place, addresses: list[int]) -> None:
        left, right, result = [one.among(addresses) for one in self._pointers]
        cublas.multiply(place.device, stream.current_stream(place), self._product, (left, right, result))


class _Copy:
    """A copy of an array that looks like `R` from one of `pointers` to the other."""

    __slots__ = ("_R", "_pointers")

    def __init__(self, R: Array, pointers: Sequence[Address]) -> None:
        self._R, self._pointers = replace(R, owner=None), pointers

    def again(self, place: Place, addresses: list[int]) -> None:
        source, target = [one.among(addresses) for one in self._pointers]
        graph.copy_heads_first(place.device, stream.current_stream(place), self._R, source, target)


def _without_owners(notes: Any) -> Any:
    """Return notes whose arrays are nowhere and hold no memory, to be given new ones by `_moved`."""
    if isinstance(notes, Array):
        return replace(notes, owner=None)
    return _mapped(_without_owners, notes)


def _moved(notes: Any, arrays: Sequence[Any], addresses: Sequence[int]) -> Any:
    """Return notes with their arrays, all of them numbered, among `arrays`, which start at `addresses`."""
    if isinstance(notes, Array):
        return notes.moved(arrays, addresses)
    return _mapped(lambda one: _moved(one, arrays, addresses), notes)


def _mapped(change: Callable[[Any], Any], notes: Any) -> Any:
    """Return a frozen dataclass or a tuple with all its parts changed, and anything else as it is, but without readings."""
    if isinstance(notes, Reading):
        return None
    if isinstance(notes, tuple):
        return tuple(change(one) for one in notes)
    if is_dataclass(notes) and not isinstance(notes, type):
        return replace(notes, **{each.name: change(getattr(notes, each.name)) for each in fields(notes)})
    return notes
