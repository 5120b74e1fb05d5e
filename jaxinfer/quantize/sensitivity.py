"""JOINT. Which layers rounding hurts most: KL on held-out text with one of them rounded at a time.

One engine, one set of programs: rounded weights are decoded to floats and put in the place of the
float ones, so nothing is compiled anew; all others stay the arrays that they are.
"""

import hashlib
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.storage import Storage, decide_storage
from jaxinfer.config.quantization import Quantization
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.engine.draft_model import by_leaf
from jaxinfer.errors import ConfigError
from jaxinfer.llm import LLM
from jaxinfer.models.spec import Leaf
from jaxinfer.quantize.evaluate import judge_rows, keep_reference
from jaxinfer.quantize.forced_pass import open_judged
from jaxinfer.quantize.passages import Passages, cut_passages
from jaxinfer.quantize.ranking import PARTS, Part, Ranking, RankingFile, Sensitivity
from jaxinfer.quantize.texts import held_out_text

_LAYER = re.compile(r"(model\.layers\.\d+)\.")
_OWN_OPTIONS = ("quantization", "weights", "activations", "speculative_config")


def rank_sensitivity(
    model: str | Path,
    *,
    bits: int = 4,
    group_size: int | None = None,
    part: Part = "layer",
    text: str | None = None,
    context: int = 512,
    judged: int = 256,
    num_passages: int = 2,
    file: str | Path | None = None,
    engine: Mapping[str, Any] | None = None,
    scratch: str | Path | None = None,
    show_progress: bool = True,
) -> Ranking:
    """Rounds one decoder layer (or matrix) at a time to nearest, and measures what it does.

    Args:
        model: as `LLM` takes it; a float model, or GGUF blocks.
        bits: 4 or 8. group_size: columns under one scale, -1 for a row; None decides as
            `quantization=` does.
        part: what is rounded at a time: "layer", or "matrix".
        text: by default what ships with Python and makers do not calibrate with.
        context, judged, num_passages: of each passage of `context` tokens the last `judged` count.
        file: keeps what is measured; the same call goes on there where it was interrupted.
        engine: fields of `EngineConfig`.
        scratch: a folder for the logits of the float model.
        show_progress: bars.

    Raises:
        ConfigError: settings, a text that is too short, a file of another ranking, or a checkpoint
            that somebody has quantized already. JaxInferError: as `LLM`.
    """
    scheme = _scheme(bits, group_size, part)
    options = _engine_options(engine or {})
    checkpoint = open_checkpoint(model, show_progress=show_progress)
    storage = decide_storage(checkpoint, weights="dequantized", quantization=scheme, platform="cpu")
    passages = _passages(checkpoint, text, context, judged, num_passages)
    parts = parts_of(checkpoint, part)
    mark = _fingerprint(checkpoint, scheme, part, passages)
    kept = RankingFile(
        Path(file) if file else None,
        Ranking(
            model=str(model), bits=bits, group_size=group_size, part=part, fingerprint=mark, rows=()
        ),
    )
    if len(kept.ranking.rows) < len(parts):
        with (
            tempfile.TemporaryDirectory(prefix="jaxinfer-", dir=scratch) as folder,
            open_judged(model, passages, options, show_progress=show_progress) as llm,
        ):
            logits = Path(folder) / "logits"
            rounding = _Rounding(llm, checkpoint, storage, passages, logits, show_progress)
            _measure_all(rounding, parts, kept, show_progress)
            del rounding  # the map is closed before its file goes away
    return kept.ranking


def _engine_options(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of float weights; what a ranking decides itself is refused."""
    for name in _OWN_OPTIONS:
        if name in engine:
            raise ConfigError(f"{name}={engine[name]!r} is the ranking's own; leave it out")
    return {**engine, "weights": "dequantized"}


def _scheme(bits: int, group_size: int | None, part: str) -> Quantization:
    if bits not in (4, 8):
        raise ConfigError(f"bits={bits!r} must be 4 or 8")
    if part not in PARTS:
        raise ConfigError(f"part={part!r} must be one of {', '.join(PARTS)}")
    method: Any = f"int{bits}"
    return Quantization(method=method, group_size=group_size, float_ends=0)


def _passages(
    checkpoint: Checkpoint, text: str | None, context: int, judged: int, num_passages: int
) -> Passages:
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        raise ConfigError(
            f"{checkpoint.path} has no tokenizer, so a text cannot be judged; put the files of its "
            "tokenizer beside the weights"
        )
    return cut_passages(
        tokenizer,
        held_out_text() if text is None else text,
        contexts=[min(context, checkpoint.config.longest_context)],
        judged=judged,
        num_passages=num_passages,
    )


def parts_of(checkpoint: Checkpoint, part: Part) -> dict[str, list[Leaf]]:
    """The matrices that are rounded together, by a name that `protect` takes.

    Names: "model.layers.3"; "model.layers.3.mlp.down_proj"; for matrices of experts a pattern of
    all of them, "re:…".
    """
    parts: dict[str, list[Leaf]] = {}
    for leaf in jax.tree.leaves(checkpoint.architecture.leaves(checkpoint.config)):
        layer = _LAYER.match(leaf.hf)
        if leaf.role == "matrix" and layer is not None:
            name = layer[1] if part == "layer" else _matrix_name(leaf)
            parts.setdefault(name, []).append(leaf)
    return parts


def _matrix_name(leaf: Leaf) -> str:
    name = leaf.hf.removesuffix(".weight")
    if leaf.stack is None:
        return name
    return "re:" + re.escape(name).replace(re.escape("{expert}"), r"\d+")


def _fingerprint(
    checkpoint: Checkpoint, scheme: Quantization, part: str, passages: Passages
) -> str:
    """What decides the numbers: the model's size, the scheme, and every judged token."""
    config = checkpoint.config
    model = (config, checkpoint.quantization, checkpoint.num_parameters, checkpoint.file_bytes)
    return hashlib.sha256(repr((model, scheme, part, passages)).encode()).hexdigest()


def _measure_all(
    rounding: "_Rounding",
    parts: Mapping[str, list[Leaf]],
    kept: RankingFile,
    show_progress: bool,
) -> None:
    done = {row.name for row in kept.ranking.rows}
    with tqdm(
        total=len(parts), initial=len(done), desc="ranking", disable=not show_progress
    ) as bar:
        for name, leaves in parts.items():
            if name not in done:
                bar.set_postfix_str(name)
                kept.add(rounding.measure(name, leaves))
                bar.update()


class _Rounding:
    """An engine of float weights, some of which are replaced for a while."""

    def __init__(
        self,
        llm: LLM,
        checkpoint: Checkpoint,
        storage: Storage,
        passages: Passages,
        logits: Path,
        show_progress: bool,
    ) -> None:
        self.llm, self.checkpoint, self.passages = llm, checkpoint, passages
        self._reference = keep_reference(
            llm, passages, "the float model", logits, show_progress=show_progress
        )
        self._floats = by_leaf(checkpoint.architecture, checkpoint.config, llm.engine.runner.params)
        self._rounded = storage.sources

    def measure(self, name: str, leaves: list[Leaf]) -> Sensitivity:
        """What the model loses with these leaves rounded."""
        runner = self.llm.engine.runner
        plain = runner.params
        given = {leaf: value for leaf, value in self._floats.items() if leaf not in leaves}
        runner.params = load_params(
            self.checkpoint,
            weight_dtype=self.llm.geometry.weight_dtype,
            sources=self._rounded,
            given=given,
            show_progress=False,
        )
        try:
            rows = judge_rows(self.llm, self.passages, name, self._reference, show_progress=False)
        finally:
            changed = by_leaf(self.checkpoint.architecture, self.checkpoint.config, runner.params)
            runner.params = plain
            for leaf in leaves:
                changed[leaf].delete()
        assert rows.against is not None
        return Sensitivity(
            name=name,
            num_elements=sum(math.prod(leaf.shape) for leaf in leaves),
            kl_mean=float(rows.against.kl.mean()),
            kl_max=float(rows.against.kl.max()),
            top1_agreement=float(rows.against.same.mean()),
            nats=float(rows.nats.mean()),
        )
