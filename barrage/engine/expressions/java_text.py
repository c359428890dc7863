"""Upper case, lower case and equality without case as Java has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable


def java_upper(text: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Full case mapping: the sharp s becomes two letters, a ligature falls apart."""
    return _mapped(text, pc.ascii_upper, str.upper)


def java_lower(text: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    return _mapped(text, pc.ascii_lower, str.lower)


def _mapped(
    text: pa.Array | pa.Scalar, ascii_kernel: Callable[..., pa.Array], full: Callable[[str], str]
) -> pa.Array | pa.Scalar:
    """ASCII by a kernel. Arrow only maps one character to one, so every distinct value with other
    characters is mapped by Python, once."""
    if isinstance(text, pa.Scalar):
        value = text.as_py()
        return pa.scalar(None if value is None else full(value), pa.string())
    is_ascii = pc.fill_null(pc.string_is_ascii(text), True)
    if pc.all(is_ascii).as_py() is not False:
        return ascii_kernel(text)
    codes = text.dictionary_encode()
    mapped = [None if value is None else full(value) for value in codes.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(
        codes.indices, pa.array(mapped, pa.string())
    ).dictionary_decode()


def ignoring_case(text: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Equal texts exactly where ``equalsIgnoreCase`` says so: characters are mapped one by one, up
    and down again."""
    return pc.utf8_lower(pc.utf8_upper(text))
