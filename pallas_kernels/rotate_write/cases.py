"""Named calls of `rotate_write` for tests and benchmarks alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """So many tokens of new heads; parts: in which their product comes.

    is_small: quick to simulate on a CPU.
    """

    name: str
    num_tokens: int
    num_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int = 64
    parts: int = 1
    has_norms: bool = False
    page_tokens: int = 16
    is_small: bool = True


CASES = (
    Case(name="one token", num_tokens=1),
    Case(name="parts", num_tokens=3, parts=3, head_dim=128),
    Case(name="norms", num_tokens=2, num_heads=16, has_norms=True, head_dim=128),
    Case(name="wide heads", num_tokens=2, head_dim=256, has_norms=True, parts=2),
    Case(name="few heads", num_tokens=2, num_heads=4, num_kv_heads=2, has_norms=True, parts=4),
    Case(name="two programs a token", num_tokens=2, num_heads=64, num_kv_heads=8, parts=2),
    Case(name="all rows of the layout", num_tokens=1, num_heads=48, parts=2),
    Case(name="more parts than fit", num_tokens=2, head_dim=256, has_norms=True, parts=6),
    Case(name="8b decode", num_tokens=64, num_heads=32, head_dim=128, parts=3, is_small=False),
    Case(
        name="qwen3 8b decode",
        num_tokens=64,
        num_heads=32,
        head_dim=128,
        parts=3,
        has_norms=True,
        is_small=False,
    ),
    Case(
        name="gemma3 4b decode",
        num_tokens=64,
        num_kv_heads=4,
        head_dim=256,
        parts=4,
        has_norms=True,
        is_small=False,
    ),
    Case(
        name="gemma3 12b decode",
        num_tokens=64,
        num_heads=16,
        head_dim=256,
        parts=3,
        has_norms=True,
        is_small=False,
    ),
    Case(
        name="qwen3 32b decode",
        num_tokens=64,
        num_heads=64,
        head_dim=128,
        parts=2,
        has_norms=True,
        is_small=False,
    ),
    Case(name="8b prefill", num_tokens=512, num_heads=32, head_dim=128, is_small=False),
)
