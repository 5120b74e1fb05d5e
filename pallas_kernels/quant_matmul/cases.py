"""Named calls of `quant_matmul` for tests and benchmarks alike."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: rows of x and a packed matrix [outputs, columns].

    codes: "int4" (packed), "int8" or "fp8". group: columns under one scale. scales: their dtype.
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
    tier: Literal["quick", "slow", "bench"] = "quick"


# Codes and groups.
_MEASURED: tuple[tuple[Literal["int4", "int8"], int], ...] = (("int4", 128), ("int8", 1 << 20))

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
    _small("int4 per channel", "int4", 1 << 20),
    _small("int4 in groups of 512", "int4", 512, tier="slow", columns=1024, scales="float16"),
    _small("int8 per channel", "int8", 1 << 20, scales="float32"),
    _small("int8 in groups of 128", "int8", 128),
    _small("int8 in groups of 32", "int8", 32, tier="slow"),
    # Zero points and offsets.
    _small("int4 with zeros", "int4", 128, addend="zeros", scales="float16"),
    _small("int4 with zeros in groups of 32", "int4", 32, addend="zeros", tier="slow"),
    _small("int4 with zeros per channel", "int4", 1 << 20, tier="slow", addend="zeros"),
    _small("int4 with offsets", "int4", 32, addend="offsets", scales="float16"),
    _small("int8 with zeros", "int8", 128, addend="zeros", tier="slow"),
    _small("int8 with offsets", "int8", 16, addend="offsets", columns=128),
    # Two warpgroups, splits, odd widths, tiles of rows.
    _small("two warpgroups", "int4", 64, outputs=128, columns=512),
    _small("splits", "int4", 128, columns=1024),
    _small("columns in steps of 64", "int8", 1 << 20, columns=192),
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
