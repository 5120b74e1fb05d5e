"""Names of what pages hold, their bytes and arrays."""

from typing import get_args

import pytest

from jaxinfer.config.kv_cache_dtype import (
    KV_CACHE_DTYPES,
    KvCacheDtype,
    array_dtype,
    page_kinds,
    token_bytes,
)


def test_the_names_are_those_of_the_type() -> None:
    assert get_args(KvCacheDtype) == KV_CACHE_DTYPES


@pytest.mark.parametrize(
    ("name", "activation", "kinds"),
    [
        ("bfloat16", "float32", ("bfloat16", "bfloat16")),
        ("int8", "bfloat16", ("int8", "int8")),
        ("fp8", "bfloat16", ("fp8", "fp8")),
        ("int8_key_only", "bfloat16", ("int8", "bfloat16")),
        ("int8_key_only", "float32", ("int8", "float32")),
    ],
)
def test_what_keys_and_values_are_kept_as(
    name: str, activation: str, kinds: tuple[str, str]
) -> None:
    assert page_kinds(name, activation) == kinds


@pytest.mark.parametrize(
    ("kind", "count"), [("float32", 256), ("bfloat16", 128), ("int8", 66), ("fp8", 64)]
)
def test_bytes_of_a_token_and_head_of_64(kind: str, count: int) -> None:
    assert token_bytes(kind, 64) == count


@pytest.mark.parametrize(
    ("kind", "as_bits", "dtype"),
    [
        ("bfloat16", True, "uint16"),
        ("bfloat16", False, "bfloat16"),
        ("fp8", True, "uint8"),
        ("fp8", False, "float8_e4m3fn"),
        ("int8", True, "int8"),
        ("float32", True, "float32"),
    ],
)
def test_arrays(kind: str, as_bits: bool, dtype: str) -> None:
    assert array_dtype(kind, as_bits=as_bits) == dtype
