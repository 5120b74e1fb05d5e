"""Named calls of `quant_matmul` and of its kin for tests and benchmarks alike.

`CASES` are of one matrix, `STACKED_CASES` of several with rows of their own; `PRODUCT_CASES` are
products whose rows are of the matrix's own type.
"""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["quick", "slow", "bench"]
WHOLE_ROW = 1 << 20  # a group that is longer than any row


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: rows of x and a packed matrix [outputs, columns].

    codes: "int4" (packed), "int8" or "fp8". group: columns under one scale. scales: their dtype.
    counts: of a stack, how many of its rows each matrix wants; empty for one matrix.
    tier: "quick" and "slow" can be simulated on a CPU; "bench" needs a GPU.
    """

    name: str
    codes: Literal["int4", "int8", "fp8"]
    rows: int
    outputs: int
    columns: int
    group: int
    addend: Literal["none", "zeros", "offsets"] = "none"
    scales: str = "bfloat16"
    out_group: int = 1
    counts: tuple[int, ...] = ()
    tier: Tier = "quick"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCase:
    """One product of rows with a matrix [outputs, columns], both of one type.

    kind: "bf16" for `plain_matmul_parts`, otherwise what `coded_matmul_parts` multiplies.
    group: columns, of rows and matrix, under one scale. out_group: outputs likewise. scales: dtype
    of the matrix's. tier: as of `Case`.
    """

    name: str
    kind: Literal["bf16", "int8", "fp8"]
    rows: int
    outputs: int
    columns: int
    group: int = WHOLE_ROW
    out_group: int = 1
    scales: str = "float32"
    tier: Tier = "quick"


# Codes and groups.
_MEASURED: tuple[tuple[Literal["int4", "int8"], int], ...] = (("int4", 128), ("int8", WHOLE_ROW))

_ADDENDS: tuple[tuple[Literal["zeros", "offsets"], int], ...] = (("zeros", 128), ("offsets", 32))


def _small(name: str, codes: Literal["int4", "int8"], group: int, **options) -> Case:
    given = {"rows": 3, "outputs": 64, "columns": max(256, min(group, 512)), **options}
    return Case(name=name, codes=codes, group=group, **given)


_MATRICES = {  # of an 8B Llama: (outputs, columns)
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate": (14336, 4096),
    "down": (4096, 14336),
}

CASES = (
    # Every group size, symmetric; a whole row under one scale; groups longer than a step.
    _small("int4 in groups of 128", "int4", 128),
    _small("int4 in groups of 64", "int4", 64, tier="slow"),
    _small("int4 in groups of 32", "int4", 32),
    _small("int4 in groups of 16", "int4", 16),
    _small("int4 per channel", "int4", WHOLE_ROW),
    _small("int4 in groups of 512", "int4", 512, tier="slow", columns=1024, scales="float16"),
    _small("int8 per channel", "int8", WHOLE_ROW, scales="float32"),
    _small("int8 in groups of 128", "int8", 128),
    _small("int8 in groups of 32", "int8", 32, tier="slow"),
    # Zero points and offsets.
    _small("int4 with zeros", "int4", 128, addend="zeros", scales="float16"),
    _small("int4 with zeros in groups of 32", "int4", 32, addend="zeros", tier="slow"),
    _small("int4 with zeros per channel", "int4", WHOLE_ROW, tier="slow", addend="zeros"),
    _small("int4 with offsets", "int4", 32, addend="offsets", scales="float16"),
    _small("int8 with zeros", "int8", 128, addend="zeros", tier="slow"),
    _small("int8 with offsets", "int8", 16, addend="offsets", columns=128),
    # Two warpgroups, splits, odd widths, tiles of rows.
    _small("two warpgroups", "int4", 64, outputs=128, columns=512),
    _small("splits", "int4", 128, columns=1024),
    _small("columns in steps of 64", "int8", WHOLE_ROW, columns=192),
    _small("one row", "int4", 64, rows=1),
    _small("several tiles of rows", "int4", 128, tier="slow", rows=130, columns=128),
    _small("scales of blocks", "int8", 128, outputs=128, out_group=128, tier="slow"),
    # What a GPU is measured with.
    *(
        Case(
            name=f"8b {name} {codes} g{group} {rows} rows",
            codes=codes,
            rows=rows,
            outputs=outputs,
            columns=columns,
            group=group,
            tier="bench",
        )
        for codes, group in _MEASURED
        for name, (outputs, columns) in _MATRICES.items()
        for rows in (1, 8, 16, 32, 64, 128)
    ),
    *(
        Case(
            name=f"8b gate int4 g{group} with {addend} 16 rows",
            codes="int4",
            rows=16,
            outputs=14336,
            columns=4096,
            group=group,
            addend=addend,
            tier="bench",
        )
        for addend, group in _ADDENDS
    ),
)


def _stacked(name: str, codes: Literal["int4", "int8"], group: int, **options) -> Case:
    given = {"rows": 20, "outputs": 64, "columns": 256, "counts": (3, 0, 20), **options}
    return Case(name=name, codes=codes, group=group, **given)


STACKED_CASES = (
    # A matrix of which a few rows are wanted, one of which none is, one of which all are.
    _stacked("int4 in groups of 128", "int4", 128),
    _stacked("int4 with zeros", "int4", 32, addend="zeros"),
    _stacked("int8 with offsets", "int8", 64, addend="offsets"),
    _stacked("int8 per channel", "int8", WHOLE_ROW, scales="float32", tier="slow"),
    _stacked("splits", "int4", 16, columns=1024, counts=(1, 2), tier="slow"),
    _stacked("several tiles of rows", "int4", 64, rows=140, counts=(0, 128, 129), tier="slow"),
    _stacked("scales of blocks", "int8", 128, outputs=128, out_group=128, tier="slow"),
    # What a GPU is measured with: experts of gpt-oss and Qwen3-30B-A3B in decode, of Mixtral.
    _stacked(
        "gpt-oss", "int8", 32, rows=16, outputs=2880, columns=2880, counts=(16,) * 32, tier="bench"
    ),
    _stacked(
        "qwen3", "int4", 128, rows=16, outputs=768, columns=2048, counts=(16,) * 128, tier="bench"
    ),
    _stacked(
        "mixtral",
        "int4",
        128,
        rows=64,
        outputs=14336,
        columns=4096,
        addend="zeros",
        counts=(64,) * 8,
        tier="bench",
    ),
)

_KINDS: tuple[Literal["bf16", "int8", "fp8"], ...] = ("bf16", "int8", "fp8")
_CODED = _KINDS[1:]
_MERGED = {"qkv": (6144, 4096), "gate and up": (28672, 4096)}  # of an 8B Llama, each one product


def _product(name: str, kind: Literal["bf16", "int8", "fp8"], **options) -> ProductCase:
    given = {"rows": 3, "outputs": 64, "columns": 256, **options}
    return ProductCase(name=f"{kind} {name}", kind=kind, **given)


PRODUCT_CASES = (
    _product("of one step", "bf16", rows=1, columns=64),
    _product("of two tiles of outputs in splits", "bf16", rows=20, outputs=128, columns=1024),
    _product("in splits of unequal lengths", "bf16", columns=1088),
    _product("of all rows of the widest tile", "bf16", rows=128, tier="slow"),
    _product("with a scale a row", "int8"),
    _product("with a scale a row", "fp8"),
    _product("in groups of 128", "int8", group=128, scales="bfloat16"),
    _product("in groups of 128", "fp8", group=128, scales="bfloat16", tier="slow"),
    _product("in groups of two steps", "int8", group=256, columns=640, tier="slow"),
    _product("in groups of two steps", "fp8", group=256, columns=640),
    _product("with scales of blocks", "int8", group=128, out_group=128, outputs=192, tier="slow"),
    _product("with scales of blocks", "fp8", group=128, out_group=128, outputs=192),
    *(
        _product(
            "with scales of small blocks in splits",
            kind,
            columns=1152,
            group=256,
            out_group=48,
            scales="float16",
            tier="slow",
        )
        for kind in _CODED
    ),
    *(
        _product("of two tiles of rows", kind, rows=70, group=128, outputs=128, tier="slow")
        for kind in _CODED
    ),
    # What a GPU is measured with: merged products, and blocks as DeepSeek's and Qwen's FP8.
    *(
        _product(
            f"8b {name} {rows} rows",
            kind,
            rows=rows,
            outputs=outputs,
            columns=columns,
            tier="bench",
        )
        for name, (outputs, columns) in _MERGED.items()
        for rows in (1, 16, 64, 128)
        for kind in _KINDS
    ),
    *(
        _product(
            f"8b {name} {rows} rows in blocks of 128",
            "fp8",
            rows=rows,
            outputs=outputs,
            columns=columns,
            group=128,
            out_group=128,
            tier="bench",
        )
        for name, (outputs, columns) in _MERGED.items()
        for rows in (1, 64)
    ),
)
