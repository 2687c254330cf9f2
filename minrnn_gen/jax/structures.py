"""The structures of XLA's foreign function interface, as ctypes: `xla/ffi/api/c_api.h`, which jaxlib ships."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

# The version of JAX 0.8.1. XLA of later ones serves it: what 0.3 adds is not of these structures.
API_MAJOR, API_MINOR = 0, 2
METADATA_EXTENSION = 1
COMMAND_BUFFER_COMPATIBLE = 1
EXECUTE_STAGE = 3
STRING_ATTRIBUTE, SCALAR_ATTRIBUTE = 4, 3
INVALID_ARGUMENT, INTERNAL = 3, 13


class Extension(ctypes.Structure):
    """XLA_FFI_Extension_Base, without what follows it."""

    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class Version(ctypes.Structure):
    """XLA_FFI_Api_Version."""

    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class Metadata(ctypes.Structure):
    """XLA_FFI_Metadata up to its traits: a handler's description of itself."""

    _fields_ = (("struct_size", c_size_t), ("version", Version), ("traits", c_uint32))


class MetadataExtension(ctypes.Structure):
    """XLA_FFI_Metadata_Extension."""

    _fields_ = (("base", Extension), ("metadata", POINTER(Metadata)))


class Buffer(ctypes.Structure):
    """XLA_FFI_Buffer: an array, contiguous in the order of its axes."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class Buffers(ctypes.Structure):
    """XLA_FFI_Args, and XLA_FFI_Rets, which looks the same."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("buffers", POINTER(POINTER(Buffer))),
    )


class Text(ctypes.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("start", c_void_p), ("size", c_size_t))


class Scalar(ctypes.Structure):
    """XLA_FFI_Scalar of 64 bits."""

    _fields_ = (("dtype", c_int), ("value", POINTER(c_int64)))


class Attributes(ctypes.Structure):
    """XLA_FFI_Attrs, in the order of their names."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(Text))),
        ("values", POINTER(c_void_p)),
    )


class ErrorArguments(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


class StreamArguments(ctypes.Structure):
    """XLA_FFI_Stream_Get_Args."""

    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p))


CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(ErrorArguments))
GetStream = ctypes.CFUNCTYPE(c_void_p, POINTER(StreamArguments))


class Api(ctypes.Structure):
    """XLA_FFI_Api up to the functions that are called here."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("version", Version),
        ("internal", c_void_p),
        ("create_error", CreateError),
        ("error_message", c_void_p),
        ("destroy_error", c_void_p),
        ("register_handler", c_void_p),
        ("get_stream", GetStream),
    )


class CallFrame(ctypes.Structure):
    """XLA_FFI_CallFrame up to its attributes."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", POINTER(MetadataExtension)),
        ("api", POINTER(Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
    )


Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(CallFrame))
