"""JOINT. How good a model is on a text, and how far it is from another one.

One engine at a time: the other model runs first, and its logits wait in a temporary file.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.config.engine_config import engine_config
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.errors import ConfigError
from jaxinfer.llm import LLM
from jaxinfer.quantize.divergence import divergences, next_token_nats, same_best
from jaxinfer.quantize.forced_pass import greedy_runs, open_judged, passage_logits
from jaxinfer.quantize.logits_file import LogitsFile
from jaxinfer.quantize.passages import Passages, cut_passages
from jaxinfer.quantize.quality import AgainstRows, Evaluation, JudgedRows, num_alike, qualities
from jaxinfer.quantize.texts import held_out_text
from jaxinfer.text.tokenizer import Tokenizer

_Judged = TypeVar("_Judged")
DEFAULT_CONTEXTS = (256, 1024)
# What is judged: the other model has its own (or none), everything else is the same for both.
JUDGED_OPTIONS = ("quantization", "weights", "activations", "kv_cache_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two models, and how it is run."""

    name: str
    checkpoint: Checkpoint
    engine: Mapping[str, Any]


def evaluate_model(
    model: str | Path,
    *,
    against: str | Path | None = None,
    text: str | None = None,
    contexts: Sequence[int] | None = None,
    judged: int = 128,
    num_passages: int = 4,
    greedy_tokens: int = 32,
    engine: Mapping[str, Any] | None = None,
    against_engine: Mapping[str, Any] | None = None,
    scratch: str | Path | None = None,
    show_progress: bool = True,
) -> Evaluation:
    """Judges a model on a text, alone or against another.

    Args:
        model, against: as `LLM` takes them; `against` is what the model should be like.
        text: by default what ships with Python and makers do not calibrate with.
        contexts: lengths before which tokens are judged; by default 256 and 1,024, as far as the
            models go.
        judged: tokens before each length, of each passage.
        num_passages: passages of the longest context, spread over the text; at most.
        greedy_tokens: tokens of the greedy runs up to each length; 0 makes none.
        engine: fields of `EngineConfig`, for the model. The other one gets them too, but for
            `quantization`, `weights`, `activations` and `kv_cache_dtype`.
        against_engine: fields for the other model only.
        scratch: a folder for its logits (4 bytes a token of the vocabulary and judged token).
        show_progress: bars.

    Raises:
        ConfigError: settings, a text that is too short, models that cannot be compared.
        CapacityError: no room for the logits. JaxInferError: as `LLM`, or logits of NaN.
    """
    if greedy_tokens < 0:
        raise ConfigError(f"greedy_tokens={greedy_tokens} must be 0 or more")
    sides = _sides(model, against, dict(engine or {}), against_engine, show_progress)
    text = held_out_text() if text is None else text
    passages = cut_passages(
        _tokenizer(sides, text),
        text,
        contexts=_contexts(sides, contexts),
        judged=judged,
        num_passages=num_passages,
    )
    rows, agreed = _run(sides, passages, greedy_tokens, scratch, show_progress)
    each, overall = qualities(rows, passages, agreed)
    other = sides[1] if against is not None else None
    return Evaluation(
        model=sides[0].name,
        engine=dict(sides[0].engine),
        against=other.name if other else None,
        against_engine=dict(other.engine) if other else None,
        num_passages=len(passages.token_ids),
        judged=judged,
        greedy_tokens=greedy_tokens,
        contexts=each,
        overall=overall,
    )


def _sides(
    model: str | Path,
    against: str | Path | None,
    engine: Mapping[str, Any],
    against_engine: Mapping[str, Any] | None,
    show_progress: bool,
) -> list[_Side]:
    """The model, and the other one if there is one; headers are read, weights are not."""
    if against is None and against_engine:
        raise ConfigError(f"against_engine={dict(against_engine)} needs a model: set against")
    shared = {name: value for name, value in engine.items() if name not in JUDGED_OPTIONS}
    asked = [(model, engine), (against, shared | dict(against_engine or {}))]
    for _, options in asked:
        engine_config(**options)  # what is wrong is said before anything runs
    sides = [
        _Side(
            name=str(one),
            checkpoint=open_checkpoint(one, show_progress=show_progress),
            engine=options,
        )
        for one, options in asked
        if one is not None
    ]
    sizes = [side.checkpoint.config.vocab_size for side in sides]
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"{model} has a vocabulary of {sizes[0]:,}, {against} one of {sizes[1]:,}: their "
            "predictions cannot be compared; name models of the same vocabulary"
        )
    return sides


def _contexts(sides: Sequence[_Side], asked: Sequence[int] | None) -> tuple[int, ...]:
    limit = min(side.checkpoint.config.longest_context for side in sides)
    if asked is None:
        return tuple(one for one in DEFAULT_CONTEXTS if one <= limit) or (limit,)
    if asked and max(asked) > limit:
        raise ConfigError(
            f"contexts={list(asked)}: the models have {limit:,} positions; choose shorter ones"
        )
    return tuple(asked)


def _tokenizer(sides: Sequence[_Side], text: str) -> Tokenizer:
    """The model's, or the other's where it has none; two that differ on the text are refused."""
    found = [tokenizer_of(side.checkpoint) for side in sides]
    tokenizers = [one for one in found if one is not None]
    if not tokenizers:
        raise ConfigError(
            f"{sides[0].name} has no tokenizer, so a text cannot be judged; put the files of its "
            "tokenizer beside the weights"
        )
    if len({tuple(one.encode(text)) for one in tokenizers}) > 1:
        raise ConfigError(
            f"{sides[0].name} and {sides[1].name} make other tokens of the text: their predictions "
            "cannot be compared; name models of the same tokenizer"
        )
    return tokenizers[0]


def _run(
    sides: Sequence[_Side],
    passages: Passages,
    greedy_tokens: int,
    scratch: str | Path | None,
    show_progress: bool,
) -> tuple[JudgedRows, np.ndarray | None]:
    """What each judged row gave; of greedy runs the tokens that agree, [contexts, passages]."""
    model, *others = sides

    def judge(reference: Reference | None) -> Callable[[LLM], JudgedRows]:
        return lambda llm: judge_rows(
            llm, passages, model.name, reference, show_progress=show_progress
        )

    if not others:
        return _open(model, passages, 0, judge(None), show_progress)[0], None
    with tempfile.TemporaryDirectory(prefix="jaxinfer-", dir=scratch) as folder:
        file = Path(folder) / "logits"
        reference, their_runs = _open(
            others[0],
            passages,
            greedy_tokens,
            lambda llm: keep_reference(
                llm, passages, others[0].name, file, show_progress=show_progress
            ),
            show_progress,
        )
        rows, runs = _open(model, passages, greedy_tokens, judge(reference), show_progress)
        del reference  # the map is closed before its file goes away
    if not greedy_tokens:
        return rows, None
    alike = [num_alike(*pair) for pair in zip(runs, their_runs, strict=True)]
    return rows, np.array(alike).reshape(len(passages.contexts), -1)


def _open(
    side: _Side,
    passages: Passages,
    greedy_tokens: int,
    judge: Callable[[LLM], _Judged],
    show_progress: bool,
) -> tuple[_Judged, list[list[int]]]:
    """What `judge` makes of the opened model, and its greedy runs."""
    num_runs = len(passages.contexts) * len(passages.token_ids) if greedy_tokens else 0
    with open_judged(
        side.name, passages, side.engine, num_requests=num_runs, show_progress=show_progress
    ) as llm:
        judged = judge(llm)
        if not num_runs:
            return judged, []
        return judged, greedy_runs(llm, passages, greedy_tokens, show_progress=show_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the other model gave: logits [rows, V] f32, mapped from a file; nats [rows] f64."""

    logits: np.ndarray
    nats: np.ndarray


def keep_reference(
    llm: LLM, passages: Passages, name: str, file: Path, *, show_progress: bool = True
) -> Reference:
    """Runs a model over the passages and keeps its logits in `file`.

    Raises:
        CapacityError: no room there. JaxInferError: logits that are not finite.
    """
    targets, nats = passages.targets(), []
    store = LogitsFile(file, num_rows=passages.num_rows, vocab_size=llm.model_config.vocab_size)

    def seen() -> Iterator[np.ndarray]:
        first = 0
        for block in passage_logits(llm, passages, name, show_progress=show_progress):
            nats.append(next_token_nats(block, targets[first : first + len(block)]))
            first += len(block)
            yield block

    store.write(seen())
    return Reference(logits=store.rows(), nats=np.concatenate(nats))


def judge_rows(
    llm: LLM,
    passages: Passages,
    name: str,
    reference: Reference | None,
    *,
    show_progress: bool = True,
) -> JudgedRows:
    """Runs a model over the passages and compares it with the other one, where there is one.

    Raises:
        JaxInferError: logits that are not finite.
    """
    targets, first = passages.targets(), 0
    nats, kl, same = [], [], []
    for block in passage_logits(llm, passages, name, show_progress=show_progress):
        part = slice(first, first := first + len(block))
        nats.append(next_token_nats(block, targets[part]))
        if reference is not None:
            kl.append(divergences(reference.logits[part], block))
            same.append(same_best(reference.logits[part], block))
    if reference is None:
        return JudgedRows(nats=np.concatenate(nats))
    against = AgainstRows(nats=reference.nats, kl=np.concatenate(kl), same=np.concatenate(same))
    return JudgedRows(nats=np.concatenate(nats), against=against)
