"""HOST. A job's fingerprint: model, settings, parameters and seed as twelve hex digits.

What only changes how fast a job runs (slots, pages, overlap, …) is left out: a job may be resumed
with more slots. Knows files and values, no model.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.source import resolve_source
from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.kernel_choice import kernel_choice
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.config.speculative_config import speculative_config

# Settings that change no token.
NEUTRAL_SETTINGS = frozenset(
    (
        *("max_num_seqs", "block_size", "num_gpu_blocks_override", "gpu_memory_utilization"),
        *("prefill_chunk_tokens", "max_num_batched_tokens", "enable_prefix_caching"),
        *("enable_chunked_prefill", "max_prefill_steps", "long_prefill_token_threshold"),
        *("async_scheduling", "num_decode_steps", "admission", "preemption", "scheduling_policy"),
        *("max_num_waiting", "latency_max_num_seqs", "max_logprobs", "strict", "seed"),
        *("compilation_cache_dir", "trace"),
        *("show_progress", "tokenizer"),  # of `LLM`; the tokenizer's files count with the model's
    )
)
# Parameters that may be given in several forms, and the field that has the one form of them.
_ONE_FORM = {"stop": "stop_strings", "logit_bias": "bias_entries"}
_WHOLE_BYTES = 32 * 2**20  # files up to here are read whole, larger ones in samples
_SAMPLE_BYTES = 2**18
_NUM_SAMPLES = 32
_MODEL_FILES = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model")
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


def model_fingerprint(
    model: str | Path,
    tokenizer: object = None,
    *,
    draft: str | Path | None = None,
    show_progress: bool = False,
) -> str:
    """Hex digits that depend on the content of a model's files, not on where they are.

    Of large files the size and 32 samples count, so that it takes no longer than a second.

    Args:
        tokenizer: another folder's, whose files count too. draft: the model that drafts, likewise.
        show_progress: a bar for a download.

    Raises:
        CheckpointError: no such model.
    """
    source = resolve_source(model, show_progress=show_progress)
    files = _folder_files(source.path) if source.folder else _gguf_parts(source.path)
    if isinstance(tokenizer, str | Path):
        files = [*files, *_folder_files(Path(tokenizer))]
    parts = [f"{path.name} {_file_digest(path)}" for path in files]
    if draft is not None:
        parts.append(f"draft {model_fingerprint(draft, show_progress=show_progress)}")
    return _digest(parts)


def draft_of(settings: Mapping[str, Any]) -> str | None:
    """The draft model that settings of the engine name."""
    asked = speculative_config(settings.get("speculative_config"))
    return asked.model if asked is not None else None


def job_fingerprint(
    model: str, settings: Mapping[str, Any], params: Mapping[str, Any], **others: Any
) -> str:
    """Twelve hex digits.

    Args:
        model: the fingerprint of the model. settings: of the engine. params: of every line.
        others: further values that the outputs depend on.
    """
    kept = {name: settings[name] for name in settings if name not in NEUTRAL_SETTINGS}
    if "kernels" in kept:  # a text or a mapping
        kept["kernels"] = kernel_choice(kept["kernels"])
    checked = SamplingParams(**params)
    asked = {name: getattr(checked, _ONE_FORM.get(name, name)) for name in params}
    facts = _plain({"model": model, "settings": kept, "params": asked, **others})
    return _digest([json.dumps(facts, sort_keys=True, default=str)])[:12]


def engine_fingerprint(model: str, geometry: Geometry, asked: EngineConfig, device: str) -> str:
    """Twelve hex digits of the model and of what its arithmetic was decided to be.

    Args:
        model: the fingerprint of the model. geometry, asked: of the engine. device: it, and what
            compiled for it.
    """
    decided = {
        "weight_dtype": geometry.weight_dtype,
        "activation_dtype": geometry.activation_dtype,
        "kv_dtype": geometry.kv_dtype,
        "kv_scales": geometry.kv_scales,
        "attention_kernel": geometry.attention_kernel,
        "norm_kernel": geometry.norm_kernel,
        "expert_kernel": geometry.expert_kernel,
        "max_model_len": geometry.max_model_len,
        "quantization": asked.quantization,
        "weights": asked.weights,
        "activations": asked.activations,
        "kernels": asked.kernels,  # with the device they say which multiply packed matrices
        "device": device,
    }
    return _digest([model, json.dumps(_plain(decided), sort_keys=True, default=str)])[:12]


def _plain(value: Any) -> Any:
    """The value as JSON has it, whole numbers as ints: 0 and 0.0 ask for the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _folder_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _MODEL_FILES for path in folder.glob(pattern)})


def _gguf_parts(path: Path) -> list[Path]:
    split = _PART.fullmatch(path.name)
    if split is None:
        return [path]
    return sorted(path.parent.glob(f"{split[1]}-*-of-{split[2]}.gguf"))


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
        else:
            for sample in range(_NUM_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * sample // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()
