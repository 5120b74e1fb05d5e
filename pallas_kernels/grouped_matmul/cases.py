"""Named calls of `grouped_matmul` for tests and benchmarks alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """rows [X, C, inputs] with matrices [X, outputs, inputs].

    counts: wanted rows of each group, repeated to X. is_small: quick to simulate on a CPU.
    """

    name: str
    groups: int
    rows: int
    inputs: int
    outputs: int
    counts: tuple[int, ...]
    is_small: bool = False


CASES = (
    Case(
        name="empty and full",
        groups=3,
        rows=64,
        inputs=128,
        outputs=128,
        counts=(0, 64, 1),
        is_small=True,
    ),
    Case(
        name="two tiles", groups=2, rows=128, inputs=64, outputs=256, counts=(65, 3), is_small=True
    ),
    Case(
        name="a long row", groups=2, rows=64, inputs=640, outputs=128, counts=(7, 64), is_small=True
    ),
    Case(
        name="outputs by 96",
        groups=2,
        rows=64,
        inputs=64,
        outputs=288,
        counts=(9, 0),
        is_small=True,
    ),  # fmt: skip
    Case(name="30b-a3b decode", groups=128, rows=64, inputs=2048, outputs=768, counts=(4, 0, 9, 3)),
    Case(name="30b-a3b prefill", groups=128, rows=128, inputs=768, outputs=2048, counts=(32, 70)),
    Case(name="gpt-oss decode", groups=32, rows=64, inputs=2880, outputs=2880, counts=(8, 0, 16)),
    Case(name="mixtral decode", groups=8, rows=64, inputs=4096, outputs=14336, counts=(16,)),
)
