"""Arguments that have to be arrays of JAX: converted without a cast, described by their shapes, read where they have values."""

from __future__ import annotations

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.sequences import listed_integers
from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.precision import why_unsupported
from minrnn_gen.raw_scan.map_arguments import CARRIED

# Of NumPy's kinds: objects, texts, bytes, and times.
_KINDS_NOT_IN_JAX = "OUSmM"
# The device of an array without values here, which is neither host memory nor one of CUDA.
_NO_DEVICE = -1


def is_traced(value: Any) -> bool:
    """Say whether a value is a tracer: known when the program runs, not now."""
    return isinstance(value, jax.core.Tracer)


def as_array(value: Any, name: str) -> Any:
    """Return an array of JAX; refuses anything else, and arrays that JAX would cast, such as float64 without x64."""
    if isinstance(value, jax.Array):
        if not all(isinstance(size, int) for size in value.shape):
            raise BadInput(
                f"{name} has shape [{', '.join(map(str, value.shape))}], whose sizes are symbols, but a program has calls of "
                "given sizes; export one for each size that is called"
            )
        return value
    if not isinstance(value, numpy.ndarray | numpy.generic) or isinstance(value, numpy.ma.MaskedArray):
        raise BadInput(f"{name} is {kind_of(value)}; a JAX or NumPy array is expected")
    if value.dtype.kind in _KINDS_NOT_IN_JAX:
        raise BadInput(f"{name} has dtype {value.dtype}, which JAX does not have; numbers are expected")
    if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype and value.dtype.kind != "i":
        raise BadInput(
            f"{name} has dtype {value.dtype}, which JAX casts while its x64 mode is off; cast it yourself, or call "
            f"jax.config.update('jax_enable_x64', True)"
        )
    return jnp.asarray(value)


def as_integers(value: Any, name: str) -> Any:
    """Return lengths or boundaries as int32, those in a list too; None stays None."""
    if value is None:
        return None
    if isinstance(value, list | tuple) and any(map(is_traced, value)):
        raise BadInput(f"{name} is {kind_of(value)} with a tracer in it; make it an array, by jax.numpy.stack")
    array = jnp.asarray(listed_integers(value, name)) if isinstance(value, list | tuple) else as_array(value, name)
    if array.dtype not in (jnp.int32, jnp.int64):
        raise BadInput(f"{name} has dtype {array.dtype}; int32 or int64 is expected and nothing is cast silently")
    return array.astype(jnp.int32)


def check_real(array: Any, name: str, *shapes: tuple[int, ...]) -> None:
    """Refuse an array that is not of real numbers that kernels compute with, or of none of these shapes."""
    if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize == 1:
        why = why_unsupported(array.dtype)
        raise BadInput(f"{name} has dtype {array.dtype}; float64, float32, float16 or bfloat16 is expected{why}")
    if shapes and array.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise BadInput(f"{name} has shape {list(array.shape)}; {expected} is expected")


def carried_dtype() -> Any:
    """Return float64, or float32 without JAX's x64 mode."""
    return jnp.dtype(jax.dtypes.canonicalize_dtype(CARRIED))


def described(value: Any, name: str) -> Array:
    """Describe an array of JAX: without gaps, and without an address."""
    shape = tuple(value.shape)
    return Array(name, "numpy", value, 0, shape, contiguous_strides(shape), value.dtype.name, _NO_DEVICE)


def values_of(array: Array) -> Any:
    """Return the values of a described array, None where they are not known yet."""
    return None if is_traced(array.owner) else numpy.asarray(array.owner)


def check_key(key: Any, name: str) -> None:
    """Refuse anything but a key of JAX's random numbers."""
    if not isinstance(key, jax.Array | numpy.ndarray):
        raise BadInput(f"{name} is {kind_of(key)}; a key is expected, such as jax.random.key(0)")
    is_key = jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and not key.ndim
    if not is_key and (key.dtype != jnp.uint32 or key.ndim != 1):
        raise BadInput(
            f"{name} has shape {list(key.shape)} and dtype {key.dtype}; a key is expected, such as jax.random.key(0); "
            "jax.random.split and jax.vmap make several"
        )


def check_static(value: Any, name: str) -> None:
    """Refuse a tracer for a value that the computation depends on."""
    if is_traced(value):
        raise BadInput(f"{name} is a tracer, but decides what is computed; make it static, for jax.jit by static_argnames")


def check_numbers(num_layers: Any, dropout: Any, forget_bias: Any) -> None:
    """Refuse invalid numbers of layers, probabilities and biases."""
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or num_layers < 1:
        raise BadInput(f"num_layers is {shown(num_layers)}; an integer from 1 on is expected")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadInput(f"dropout is {shown(dropout)}; a probability, 0 to 1, is expected")
    if forget_bias is not None and (isinstance(forget_bias, bool) or not isinstance(forget_bias, Real)):
        raise BadInput(f"forget_bias is {shown(forget_bias)}; a number is expected")
