"""HOST. How much each part of a model is hurt by rounding, as a record and as a file that grows.

Knows names and numbers; measures nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from jaxinfer.errors import CapacityError, ConfigError

Part = Literal["layer", "matrix"]
PARTS = ("layer", "matrix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """name: of what was rounded, as `protect` takes it. num_elements: of its matrices. kl_mean,
    kl_max: KL(float ‖ rounded) over the judged tokens, in nats. top1_agreement: share of them with
    the same likeliest token. nats: minus the mean log-probability of a token."""

    name: str
    num_elements: int
    kl_mean: float
    kl_max: float
    top1_agreement: float
    nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """rows: as measured, in the model's order. fingerprint: of everything that decides them."""

    model: str
    bits: int
    group_size: int | None
    part: str
    fingerprint: str
    rows: tuple[Sensitivity, ...]

    def worst_first(self) -> list[Sensitivity]:
        """By falling KL; of equals the earlier first."""
        return sorted(self.rows, key=lambda row: -row.kl_mean)

    def worst(self, count: int) -> tuple[str, ...]:
        """Names of the `count` most sensitive parts, the worst first.

        Raises:
            ConfigError: there are not so many.
        """
        if not 0 <= count <= len(self.rows):
            raise ConfigError(
                f"protect={count}: {self.model} has {len(self.rows)} parts (each a {self.part}); "
                "choose at most that many"
            )
        return tuple(row.name for row in self.worst_first()[:count])

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class RankingFile:
    """A ranking that is written after every row; without a path it is only kept in memory.

    Args:
        path: JSON; what it holds already is taken over if it is of the same ranking.
        ranking: without rows: what is going to be measured.

    Raises:
        ConfigError: a file that holds something else.
    """

    def __init__(self, path: Path | None, ranking: Ranking) -> None:
        self.path, self.ranking = path, ranking
        if path is not None and path.exists():
            found = read_ranking(path)
            if found.fingerprint != ranking.fingerprint:
                raise ConfigError(
                    f"{path} holds a ranking of another model, text or scheme ({found.model}, "
                    f"{found.bits} bits, by {found.part}); name another file, or delete it"
                )
            self.ranking = replace(ranking, rows=found.rows)

    def add(self, row: Sensitivity) -> None:
        """One more row.

        Raises:
            CapacityError: the file cannot be written; the one before is still there.
        """
        self.ranking = replace(self.ranking, rows=(*self.ranking.rows, row))
        if self.path is None:
            return
        unfinished = self.path.with_name(self.path.name + ".part")
        try:
            unfinished.write_text(json.dumps(self.ranking.as_json(), indent=1), encoding="utf-8")
            unfinished.replace(self.path)
        except OSError as error:
            raise CapacityError(
                f"{self.path}: cannot be written ({error}); make room, or name another file"
            ) from error


def read_ranking(path: Path) -> Ranking:
    """The ranking that a file holds.

    Raises:
        ConfigError: it holds none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(_record(Sensitivity, row) for row in found["rows"])
        return _record(Ranking, {**found, "rows": rows})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: not a ranking that --sensitivity wrote ({error}); name another file"
        ) from error


def _record(kind: Any, values: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    if set(values) != known:
        raise ValueError(f"has {', '.join(sorted(values))} in the place of {', '.join(known)}")
    return kind(**values)
