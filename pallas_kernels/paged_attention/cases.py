"""Named calls of `paged_attention` for tests and benchmarks alike."""

from dataclasses import dataclass
from typing import Any, Literal

PageKind = Literal["floats", "int8", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: rows with their starts and lengths, the head layout, and the options.

    tier: "quick" and "slow" can be simulated on a CPU; "bench" needs a GPU.
    table_columns: at least so many pages a row can hold (more than the rows use).
    split_tokens: above 0, positions of one program of the decode kernel.
    keys, values: what their pages hold. has_sinks: every query head has a sink.
    """

    name: str
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    num_queries: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_tokens: int
    tier: Literal["quick", "slow", "bench"] = "quick"
    window: int = 0
    softcap: float = 0.0
    table_columns: int = 0
    split_tokens: int = 0
    keys: PageKind = "floats"
    values: PageKind = "floats"
    has_sinks: bool = False


def _decode(name: str, starts: tuple[int, ...], *, num_queries: int = 1, **options) -> Case:
    defaults = {"num_heads": 4, "num_kv_heads": 1, "head_dim": 64, "page_tokens": 64}
    lengths = options.pop("lengths", (num_queries,) * len(starts))
    given = {**defaults, **options}
    return Case(name=name, starts=starts, lengths=lengths, num_queries=num_queries, **given)


def _prefill(name: str, starts: tuple[int, ...], lengths: tuple[int, ...], **options) -> Case:
    defaults = {"num_queries": 64, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64}
    given = {**defaults, "page_tokens": 64, **options}
    return Case(name=name, starts=starts, lengths=lengths, **given)


INT8: dict[str, Any] = {"keys": "int8", "values": "int8"}
FP8: dict[str, Any] = {"keys": "fp8", "values": "fp8"}
KEYS_ONLY: dict[str, Any] = {"keys": "int8"}

CASES = (
    # Decode: ends inside a page and at its edge, empty rows, groups, page sizes, splits.
    _decode("decode", (0, 63, 64, 129)),
    _decode("decode with an empty row", (5, 70), lengths=(1, 0)),
    _decode("decode of one head", (70,), num_heads=1),
    _decode("decode of pages of 16", (17, 99), page_tokens=16),
    _decode("decode of pages of 256", (90, 300), page_tokens=256),
    _decode("decode in splits", (100, 300), split_tokens=128, table_columns=6),
    _decode("decode under a window", (300,), window=70, page_tokens=16),
    _decode("decode under a window in splits", (300, 20), window=150, split_tokens=128),
    _decode("decode with a softcap", (130,), softcap=5.0, num_heads=2),
    _decode("decode of heads of 128", (130,), head_dim=128, num_heads=8, num_kv_heads=2),
    _decode("verify", (0, 126), num_queries=5, lengths=(5, 3), num_heads=6, num_kv_heads=2),
    _decode("verify under a window", (190,), num_queries=4, window=70, page_tokens=16),
    _decode("decode of heads of 256", (70,), head_dim=256, num_heads=2, tier="slow"),
    _decode(
        "decode of heads of 256 in splits",
        (200,),
        head_dim=256,
        num_heads=2,
        tier="slow",
        split_tokens=128,
    ),
    # Prefill: the first chunk and a later one, padding, odd groups, windows over given-up pages.
    _prefill("prefill", (0,), (64,)),
    _prefill("prefill of a later chunk", (140,), (20,), page_tokens=16),
    _prefill("prefill of an odd group", (0,), (100,), num_queries=128, num_heads=3, tier="slow"),
    _prefill("prefill with an empty row", (64, 0), (64, 0), tier="slow"),
    _prefill("prefill under a window", (200,), (60,), window=70, page_tokens=16, tier="slow"),
    _prefill("prefill with a softcap", (64,), (64,), softcap=5.0, tier="slow"),
    _prefill("prefill of heads of 128", (64,), (64,), head_dim=128, tier="slow"),
    _prefill("prefill of heads of 256", (64,), (64,), head_dim=256, tier="slow"),
    _prefill("verify of many heads", (99,), (5,), num_queries=5, num_heads=16, tier="slow"),
    # Pages of codes: every kind, in every kernel and head size.
    _decode("decode of int8 pages in splits", (100,), split_tokens=64, table_columns=2, **INT8),
    _decode("decode of fp8 pages of 16", (40,), page_tokens=16, **FP8),
    _decode("verify of int8 keys only", (130,), num_queries=4, window=70, **KEYS_ONLY),
    _prefill("prefill of int8 pages", (64,), (64,), **INT8),
    _decode("decode of int8 pages", (5, 70), lengths=(1, 0), tier="slow", **INT8),
    _decode("decode of int8 heads of 128", (130,), head_dim=128, tier="slow", **INT8),
    _decode("verify of fp8 pages", (126,), num_queries=5, softcap=5.0, tier="slow", **FP8),
    _prefill("prefill of fp8 pages", (140,), (20,), page_tokens=16, window=70, tier="slow", **FP8),
    _prefill("prefill of int8 keys only", (64,), (40,), tier="slow", **KEYS_ONLY),
    _prefill("prefill of int8 pages of 128", (140,), (64,), page_tokens=128, tier="slow", **INT8),
    _prefill("prefill of int8 heads of 128", (64,), (64,), head_dim=128, tier="slow", **INT8),
    _prefill(
        "prefill of int8 heads of 256", (64,), (64,), head_dim=256, window=70, tier="slow", **INT8
    ),
    _prefill("prefill of fp8 heads of 256", (64,), (64,), head_dim=256, tier="slow", **FP8),
    _decode("decode of int8 heads of 256", (200,), head_dim=256, tier="slow", **INT8),
    _decode("decode of fp8 heads of 256", (200,), head_dim=256, tier="slow", **FP8),
    # Sinks: heads that share a tile, the end of splits, codes, tiles of a head each.
    _decode("decode with sinks", (5, 130), lengths=(1, 1), has_sinks=True),
    _decode("decode with sinks in splits", (300, 0), split_tokens=128, has_sinks=True),
    _prefill("prefill with sinks", (64,), (64,), window=70, page_tokens=16, has_sinks=True),
    _decode("verify with sinks", (126,), num_queries=5, window=70, tier="slow", has_sinks=True),
    _decode("decode with sinks of heads of 256", (70,), head_dim=256, tier="slow", has_sinks=True),
    _decode("decode with sinks over int8 pages", (100,), tier="slow", has_sinks=True, **INT8),
    _prefill("prefill with sinks over fp8 pages", (0,), (64,), tier="slow", has_sinks=True, **FP8),
    # What a GPU is measured with.
    *(
        _decode(
            f"8b decode of {rows} rows at {context}",
            (context - 1,) * rows,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            page_tokens=128,
            table_columns=64,
            tier="bench",
        )
        for rows, context in ((1, 8192), (8, 2048), (64, 1024), (64, 8192))
    ),
    *(
        _decode(
            f"8b decode of {rows} rows at {context}, {name}",
            (context - 1,) * rows,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            page_tokens=128,
            table_columns=64,
            tier="bench",
            **kinds,
        )
        for rows, context in ((64, 1024), (64, 8192))
        for name, kinds in (("int8", INT8), ("fp8", FP8), ("int8 keys only", KEYS_ONLY))
    ),
    *(
        _prefill(
            f"8b prefill of {context}",
            tuple(range(0, context, 128)),
            (128,) * (context // 128),
            num_queries=128,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            page_tokens=128,
            tier="bench",
        )
        for context in (512, 1024, 2048, 4096, 8192, 16384)
    ),
)
