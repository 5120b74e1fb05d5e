"""JOINT. Passages through an engine: logits by teacher forcing, and what it generates greedily.

Knows engines and passages; what is made of the numbers, others know.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import JaxInferError
from jaxinfer.llm import LLM
from jaxinfer.quantize.passages import Passages

_CHUNK_TOKENS = 256
_GREEDY_SLOTS = 8


def open_judged(
    model: str | Path,
    passages: Passages,
    engine: Mapping[str, Any],
    *,
    num_requests: int = 0,
    show_progress: bool = True,
) -> LLM:
    """The model with an engine as large as the passages need; what `engine` says comes first.

    Args:
        num_requests: that are going to be generated together.
    """
    own = 1 << min(_CHUNK_TOKENS, passages.longest).bit_length() - 1
    chunk = engine.get("prefill_chunk_tokens", own)
    options: dict[str, Any] = {
        "max_model_len": passages.longest,
        "max_num_seqs": max(2, min(_GREEDY_SLOTS, num_requests)),
        "prefill_chunk_tokens": chunk,
        "max_num_batched_tokens": chunk,
    }
    return LLM(model, show_progress=show_progress, **options | dict(engine))


def passage_logits(
    llm: LLM, passages: Passages, name: str, *, show_progress: bool = True
) -> Iterator[np.ndarray]:
    """Yields the logits of the judged places, passages in turn: [rows, V] f32, few rows at a time.

    Args:
        name: of the model, for the bar and for messages.

    Raises:
        JaxInferError: logits that are not finite.
    """
    total = len(passages.token_ids) * passages.longest
    places = passages.places
    with tqdm(total=total, desc=f"judging {name}", unit="tok", disable=not show_progress) as bar:
        for number, ids in enumerate(passages.token_ids):
            first = 0
            for block in llm.logit_blocks(ids[: passages.longest], places, report=bar.update):
                _refuse_if_not_finite(block, places[first:], f"{name}, passage {number}")
                first += len(block)
                yield block


def _refuse_if_not_finite(block: np.ndarray, places: list[int], where: str) -> None:
    bad = np.flatnonzero(~np.isfinite(block).all(axis=-1))
    if bad.size:
        raise JaxInferError(
            f"{where}: the logits after token {places[bad[0]]} hold NaN or infinity; the weights "
            "or their quantization are broken: make the checkpoint anew"
        )


def greedy_runs(
    llm: LLM, passages: Passages, num_tokens: int, *, show_progress: bool = True
) -> list[list[int]]:
    """What the model goes on with greedily, up to each context of each passage, contexts in turn.

    Args:
        num_tokens: at most, and at most a context less its first token: a run ends where the
            context does.

    Raises:
        JaxInferError: a request that failed.
    """
    prompts, params = [], []
    for context in passages.contexts:
        length = min(num_tokens, context - 1)
        for ids in passages.token_ids:
            prompts.append({"prompt_token_ids": ids[: context - length]})
            params.append(
                SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            )
    outputs = llm.generate(prompts, params, use_tqdm=show_progress)
    for output in outputs:
        if output.error is not None:
            raise JaxInferError(f"a greedy run ended with an error: {output.error}")
    return [list(output.outputs[0].token_ids) for output in outputs]
