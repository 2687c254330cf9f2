"""Names that a cell may have and a C++ text must not: keywords, macros, names of CUDA, and the templates' own identifiers."""

from __future__ import annotations

import keyword
import re
from functools import cache

from minrnn_gen.cell.functions import FREE_NAMES, FUNCTIONS
from minrnn_gen.config.package_files import package_folder


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# ISO/IEC 14882:2020, [lex.key] and [lex.digraph].
KEYWORDS = words(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept
    not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq final override import module"""
)
# Of the compilers and of the standard headers that they may read before the text.
MACROS = words(
    """NULL INFINITY NAN EOF BUFSIZ INT_MAX INT8_MAX UINT32_MAX DBL_MAX FLT_EPSILON CHAR_BIT RAND_MAX HUGE_VAL M_PI M_E assert
    errno stdin stdout stderr linux unix offsetof va_arg setjmp CUDART_INF_F CUDART_VERSION I complex max min major
    minor"""
)
CUDA_NAMES = words(
    """threadIdx blockIdx blockDim gridDim warpSize dim3 float2 float4 int2 uint4 double2 half half2 bfloat16 nv_bfloat16 int8_t
    uint32_t uint64_t size_t int64 fmaf fmaxf expf tanhf rsqrt clock64 printf malloc free memcpy atomicAdd atomicCAS
    surfaceReference cudaError cooperative_groups std cuda nv global device shared host constant"""
)
# Words of the language itself, which it refuses as names.
_LANGUAGE = frozenset({"W", "R", "t", *FUNCTIONS}) - FREE_NAMES


@cache
def template_texts() -> dict[str, str]:
    """Return the text of every template by its name."""
    folder = package_folder("templates")
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.j2"))}


def without_comments(text: str) -> str:
    """Return CUDA text without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


@cache
def template_identifiers() -> tuple[str, ...]:
    """Return every identifier of the templates' own text."""
    # What an expression is a part of is no identifier of the template's own.
    codes = (re.sub(r"\{%.*?%\}|\w*\{\{.*?\}\}\w*|\{#.*?#\}", " ", text) for text in template_texts().values())
    return tuple(sorted({word for code in codes for word in re.findall(r"\b[A-Za-z_]\w*", without_comments(code))}))


@cache
def odd_names() -> tuple[str, ...]:
    """Return all of them that the language takes for names."""
    names = dict.fromkeys((*KEYWORDS, *MACROS, *CUDA_NAMES, *template_identifiers()))
    refused = _LANGUAGE.union(keyword.kwlist)  # the language is read by Python's parser
    return tuple(name for name in names if name not in refused and re.fullmatch(r"[A-Za-z]\w{0,63}", name))
