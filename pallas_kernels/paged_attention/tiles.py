"""Tile sizes of the `mosaic` implementation: what may be chosen, and what is chosen by default.

Defaults are data (`tiles.json` beside this file), by shape class: the step and the head size. Knows
sizes, not the kernels.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources

BLOCK_ROWS = 64  # query rows of one warpgroup: the rows of one wgmma
MAX_SPLITS = 32  # partial results of one row; beyond, each split gets longer
HEAD_DIMS = (64, 128, 256)
MAX_COLUMNS = 128  # of the output, in the registers of one warpgroup


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiles:
    """Sizes of the decode kernel.

    block_keys: keys of one step of the pipeline; 64 or 128.
    stages: steps in flight, at least 2; each holds a key and a value block.
    split_tokens: positions of one program; a multiple of block_keys. Fixed, since it decides the
        order of additions.
    code_stages: steps whose codes are copied ahead, where pages hold codes; else 0.
    """

    block_keys: int
    stages: int
    split_tokens: int
    code_stages: int = 0

    def __post_init__(self) -> None:
        _check_pipeline(self)
        if self.split_tokens < 1 or self.split_tokens % self.block_keys:
            raise ValueError(
                f"split_tokens={self.split_tokens} must be a multiple of block_keys="
                f"{self.block_keys}"
            )

    def split_for(self, positions: int) -> int:
        """Positions of one program where a row can hold `positions`: at most MAX_SPLITS programs.

        Example: 8192 positions and split_tokens 1024 → 1024; 131072 → 4096.
        """
        least = -(-positions // MAX_SPLITS)
        return max(self.split_tokens, -(-least // self.block_keys) * self.block_keys)

    def shared_bytes(self, head_dim: int) -> int:
        """Shared memory of one block: the query rows, and the pipeline, whose place the result
        takes at the end. Barriers (a few dozen bytes) are left out."""
        rows = BLOCK_ROWS * head_dim * 2
        return rows + _pipeline_bytes(self, head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiles:
    """Sizes of the prefill kernel.

    block_keys: keys of one step of the pipeline; 64 or 128.
    stages: steps in flight, at least 2.
    code_stages: steps whose codes are copied ahead, where pages hold codes; else 0.
    """

    block_keys: int
    stages: int
    code_stages: int = 0

    def __post_init__(self) -> None:
        _check_pipeline(self)

    def shared_bytes(self, head_dim: int) -> int:
        """Shared memory of one block: query rows, the pipeline, and the output of two warpgroups.
        Barriers (a few dozen bytes) are left out."""
        columns = min(head_dim, MAX_COLUMNS)
        rows = 2 * columns // head_dim * BLOCK_ROWS * head_dim * 2
        out = 2 * BLOCK_ROWS * columns * 2
        return rows + _pipeline_bytes(self, head_dim) + out


def is_decode(num_queries: int, num_heads: int, num_kv_heads: int) -> bool:
    """Whether a call goes to the decode kernel: the query rows of a kv head fit in one tile."""
    return num_queries * (num_heads // num_kv_heads) <= BLOCK_ROWS


def decode_tiles(head_dim: int, *, has_codes: bool = False) -> DecodeTiles:
    """The default sizes of a decode step."""
    step = "decode of codes" if has_codes else "decode"
    return DecodeTiles(**_defaults()[step][str(head_dim)])


def prefill_tiles(head_dim: int, *, is_plain: bool, has_codes: bool = False) -> PrefillTiles:
    """The default sizes of a prefill step; plain is one without window and softcap."""
    step = "prefill" if is_plain else "prefill with window or softcap"
    step = "prefill of codes" if has_codes else step
    return PrefillTiles(**_defaults()[step][str(head_dim)])


def decode_choices(
    head_dim: int, shared_bytes: int, *, is_plain: bool, has_codes: bool = False
) -> list[DecodeTiles]:
    """Every choice worth a measurement that fits into the shared memory of a block."""
    choices = [
        DecodeTiles(block_keys=keys, stages=stages, split_tokens=1024, code_stages=code_stages)
        for keys, stages, code_stages in _pipelines(head_dim, is_plain, has_codes)
    ]
    return [one for one in choices if one.shared_bytes(head_dim) <= shared_bytes]


def prefill_choices(
    head_dim: int, shared_bytes: int, *, is_plain: bool, has_codes: bool = False
) -> list[PrefillTiles]:
    """Every choice worth a measurement that fits into the shared memory of a block."""
    choices = [
        PrefillTiles(block_keys=keys, stages=stages, code_stages=code_stages)
        for keys, stages, code_stages in _pipelines(head_dim, is_plain, has_codes)
    ]
    return [one for one in choices if one.shared_bytes(head_dim) <= shared_bytes]


def _pipelines(head_dim: int, is_plain: bool, has_codes: bool) -> list[tuple[int, int, int]]:
    """(block_keys, stages, code_stages): codes need two widened blocks, and go ahead themselves."""
    if not has_codes:
        keys = _key_choices(head_dim, is_plain)
        return [(one, stages, 0) for one in keys for stages in (2, 3, 4)]
    keys = (64, 128) if head_dim < 128 else (64,)  # computing leaves registers to the widening
    return [(one, 2, code_stages) for one in keys for code_stages in (1, 2, 3)]


def _key_choices(head_dim: int, is_plain: bool) -> tuple[int, ...]:
    """What the registers of a warpgroup hold: masks of windows and softcaps take some."""
    return (64, 128) if head_dim < 128 or (head_dim == 128 and is_plain) else (64,)


def _check_pipeline(tiles: DecodeTiles | PrefillTiles) -> None:
    if tiles.block_keys not in (64, 128):
        raise ValueError(f"block_keys={tiles.block_keys} must be 64 or 128")
    if tiles.stages < 2:
        raise ValueError(
            f"stages={tiles.stages} must be at least 2: one is filled while one is read"
        )
    if tiles.code_stages < 0:
        raise ValueError(f"code_stages={tiles.code_stages} must be at least 0")


def _pipeline_bytes(tiles: DecodeTiles | PrefillTiles, head_dim: int) -> int:
    """Blocks of keys and values, and int8 codes of both with their scales, each in whole KiB."""
    keys = 2 * tiles.block_keys
    blocks = tiles.stages * keys * head_dim * 2
    if not tiles.code_stages:
        return blocks
    scales = (tiles.code_stages * keys * 2, tiles.stages * keys * 4)
    whole = sum(-(-size // 1024) * 1024 for size in scales)
    return blocks + tiles.code_stages * keys * head_dim + whole


@functools.cache
def _defaults() -> dict[str, dict[str, dict[str, int]]]:
    folder = resources.files("pallas_kernels.paged_attention")
    return json.loads(folder.joinpath("tiles.json").read_text("utf-8"))
