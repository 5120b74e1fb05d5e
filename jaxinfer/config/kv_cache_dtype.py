"""HOST. What keys and values are kept as in pages, by the name that the user gives, and its bytes.

Two kinds are codes with scales: "int8" has a scale for each token of each head, "fp8" (e4m3) a
fixed one for each head. Knows names and sizes, no array.
"""

from typing import Literal

KvCacheDtype = Literal["auto", "bfloat16", "float32", "int8", "fp8", "int8_key_only"]
KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = (
    "auto",
    "bfloat16",
    "float32",
    "int8",
    "fp8",
    "int8_key_only",
)
_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}
_SCALE_BYTES = {"int8": 2}  # a token and head; the fixed scales of fp8 are a few bytes a layer
# The integers that hold the bits where a CPU would widen a scatter of the floats themselves.
_BITS = {"bfloat16": "uint16", "fp8": "uint8"}
_ARRAYS = {"fp8": "float8_e4m3fn"}


def page_kinds(kv_dtype: str, activation_dtype: str) -> tuple[str, str]:
    """What keys and what values are kept as: "float32", "bfloat16", "int8" or "fp8".

    Args:
        kv_dtype: a name of `KV_CACHE_DTYPES` but "auto".
        activation_dtype: what values keep where only the keys are quantized.
    """
    return ("int8", activation_dtype) if kv_dtype == "int8_key_only" else (kv_dtype, kv_dtype)


def token_bytes(kind: str, head_dim: int) -> int:
    """Bytes of one token of one head, its scale included."""
    return head_dim * _VALUE_BYTES[kind] + _SCALE_BYTES.get(kind, 0)


def array_dtype(kind: str, *, as_bits: bool) -> str:
    """The dtype of the array that holds a kind's numbers or codes.

    Args:
        as_bits: floats of 16 or 8 bits as unsigned integers.
    """
    return (as_bits and _BITS.get(kind)) or _ARRAYS.get(kind, kind)
