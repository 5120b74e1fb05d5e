"""JOINT. The files of a result beside its weights: config.json, tokenizer, generation defaults.

Copied from a Hugging Face folder, written anew for a GGUF file. Nothing that is code is copied.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.checkpoint.checkpoint import Checkpoint
from jaxinfer.checkpoint.hf_config import CONFIG_FILE, GENERATION_FILE
from jaxinfer.checkpoint.hf_config_writer import hf_config_of
from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.safetensors_writer import write_file, written_whole
from jaxinfer.engine.checkpoint_text import end_ids, tokenizer_of
from jaxinfer.text.tokenizer_writer import tokenizer_files

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_FILE,
)
_TEMPLATES = "additional_chat_templates"
_QUANTIZATION = "quantization_config"
_OLDER_QUANTIZATION = "compression_config"


def model_config(checkpoint: Checkpoint, dtype: np.dtype) -> dict[str, Any]:
    """config.json of the result, its quantization left out.

    Raises:
        UnsupportedError: a GGUF file's model that config.json cannot describe.
    """
    name = np.dtype(dtype).name
    if checkpoint.kind == "gguf":
        return hf_config_of(checkpoint.config, name)
    said = read_json(checkpoint.path / CONFIG_FILE)
    for key in (_QUANTIZATION, _OLDER_QUANTIZATION):
        said.pop(key, None)
    named = [key for key in ("torch_dtype", "dtype") if key in said] or ["torch_dtype"]
    return said | dict.fromkeys(named, name)


def write_files(
    folder: Path,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    quantization: Mapping[str, Any] | None,
) -> None:
    """Writes everything but the weights.

    Args:
        quantization: of config.json; None for another format.

    Raises:
        CapacityError, CheckpointError: something could not be written.
    """
    said = dict(config) | ({_QUANTIZATION: dict(quantization)} if quantization else {})
    _write_json(folder / CONFIG_FILE, said)
    if checkpoint.folder is not None:
        _copy_text_files(checkpoint.folder, folder)
        return
    tokenizer = tokenizer_of(checkpoint)
    bos, eos = checkpoint.config.bos_token_id, list(end_ids(checkpoint, tokenizer))
    generation = {"bos_token_id": bos, "eos_token_id": eos}
    _write_json(
        folder / GENERATION_FILE, {key: x for key, x in generation.items() if x not in (None, [])}
    )
    if tokenizer is not None:
        max_tokens = checkpoint.config.longest_context
        for name, text in tokenizer_files(tokenizer, max_tokens=max_tokens).items():
            write_file(folder / name, text.encode())


def drop_quantization(folder: Path) -> None:
    """Takes out of config.json what it says of weights that are not there any more."""
    said = read_json(folder / CONFIG_FILE)
    if said.pop(_QUANTIZATION, None) is not None:
        _write_json(folder / CONFIG_FILE, said)


def _copy_text_files(source: Path, folder: Path) -> None:
    templates = [Path(_TEMPLATES) / path.name for path in (source / _TEMPLATES).glob("*.jinja")]
    for name in [*map(Path, _COPIED), *sorted(templates)]:
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            with written_whole(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
