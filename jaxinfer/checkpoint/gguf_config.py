"""JOINT. The metadata of a GGUF file as a `ModelConfig`.

Knows the keys that every family has; what a family has of its own is read by its file in `models/`.
Reads the factors of ropes, tensors that are metadata in all but name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_match import ROPE_DIVISORS, ROPE_LONG, ROPE_SHORT
from jaxinfer.checkpoint.tensor_file import TensorSource
from jaxinfer.checkpoint.variant_keys import refuse_gguf_variants
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig, rope_from_gguf
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.models.registry import architecture_for_gguf
from jaxinfer.models.spec import Architecture

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_LAYER_NAME = re.compile(r"blk\.(\d+)\.")
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Keys that may be one number or one a layer.
_PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


def read_gguf_config(
    metadata: Mapping[str, Any], tensors: TensorSource
) -> tuple[ModelConfig, Architecture]:
    """Config and architecture of a GGUF file.

    Raises:
        CheckpointError: a needed key or tensor is missing, or a value breaks its rule or
            contradicts the tensors.
        UnsupportedError: an architecture, rope type, partial rotary embedding or
            per-layer sizes that are not run.
    """
    place = str(tensors.files[0])
    name = ConfigReader(metadata, place)["general.architecture"]
    has_experts = bool(metadata.get(f"{name}.expert_count", 0))
    architecture = architecture_for_gguf(name, has_experts=has_experts)
    reader = ConfigReader(_one_per_model(metadata, name, place), place)
    _refuse_variants(reader, name)
    refuse_gguf_variants(reader, name, architecture.gguf_keys, place)
    _check_layers(reader, name, tensors)
    try:
        fields = _common_fields(reader, name, tensors, architecture)
        fields |= architecture.from_gguf(reader, set(tensors.infos))
        if "ropes" not in fields:
            fields["ropes"] = (_rope(reader, name, fields["head_dim"], tensors, architecture),)
        config = ModelConfig(architecture=architecture.name, **fields)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"{place} has metadata of a wrong kind: {error}") from error
    return config, architecture


def _one_per_model(metadata: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    """Lists of one value a layer as that value; different values are refused."""
    result = dict(metadata)
    for key in (f"{name}.{ending}" for ending in _PER_LAYER):
        values = metadata.get(key)
        if not isinstance(values, list):
            continue
        if len(values) != metadata.get(f"{name}.block_count"):
            raise CheckpointError(
                f"{place}: {key} has {len(values)} entries, {name}.block_count is "
                f"{metadata.get(f'{name}.block_count')}; there must be one a layer"
            )
        if any(value != values[0] for value in values):
            raise UnsupportedError(
                f"{place}: {key}={values[:8]} differs between layers, which is not supported"
            )
        result[key] = values[0] if values else None
    return result


def _refuse_variants(reader: ConfigReader, name: str) -> None:
    if reader.get(f"{name}.attention.causal", True) is not True:
        raise UnsupportedError(f"{reader.place}: {name}.attention.causal=false: decoders only")


def _check_layers(reader: ConfigReader, name: str, tensors: TensorSource) -> None:
    declared = reader.num_layers(f"{name}.block_count")
    matches = (_LAYER_NAME.match(tensor) for tensor in tensors.infos)
    found = len({int(match[1]) for match in matches if match})
    if declared != found:
        raise CheckpointError(
            f"{reader.place}: {name}.block_count={declared}, the file holds tensors of {found} "
            "layers; it is incomplete or damaged: fetch it again"
        )


def _common_fields(
    reader: ConfigReader, name: str, tensors: TensorSource, architecture: Architecture
) -> dict[str, Any]:
    heads, layers = reader.whole(f"{name}.attention.head_count"), reader[f"{name}.block_count"]
    kv_heads = f"{name}.attention.head_count_kv"
    head_dim = _head_dim(reader, name, heads, architecture.has_partial_rotary)
    eos = {token for key in _EOS_KEYS for token in reader.token_ids(f"tokenizer.ggml.{key}")}
    bos = reader.token_ids("tokenizer.ggml.bos_token_id")
    return {
        "vocab_size": _vocab_size(reader, tensors),
        "hidden_size": reader.whole(f"{name}.embedding_length"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": reader.whole(kv_heads) if kv_heads in reader else heads,
        "head_dim": head_dim,
        "mlp_size": reader.whole(f"{name}.feed_forward_length"),
        "max_position": reader.whole(f"{name}.context_length"),
        "norm_eps": reader.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "windows": (0,) * layers,
        "layer_ropes": (0,) * layers,
        "attention_scale": head_dim**-0.5,
        "tie_embeddings": _HEAD not in tensors.infos,
        "bos_token_id": next(iter(bos), None),
        "eos_token_ids": tuple(sorted(eos)),
    }


def _head_dim(reader: ConfigReader, name: str, heads: int, is_partial: bool) -> int:
    """is_partial: only the first `rope.dimension_count` values of a head may be turned."""
    keys = [f"{name}.{key}" for key in ("attention.key_length", "rope.dimension_count")]
    width = reader.whole(f"{name}.embedding_length")
    given = [reader.whole(key) for key in keys[: 1 if is_partial else 2] if key in reader]
    if not given and width % heads:
        raise CheckpointError(
            f"{reader.place}: {name}.embedding_length={width} is no multiple of "
            f"attention.head_count={heads} and there is no {keys[0]}; add it"
        )
    head_dim = given[0] if given else width // heads
    for key in (f"{name}.attention.value_length", *keys[2 if is_partial else 1 :]):
        if reader.get(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"{reader.place}: {key}={reader[key]} differs from the head size {head_dim}: "
                "partial rotary embeddings and values of another size are not supported"
            )
    return head_dim


def _vocab_size(reader: ConfigReader, tensors: TensorSource) -> int:
    """Rows of the embedding; a tokenizer may have fewer tokens (padding), never more."""
    if _EMBEDDING not in tensors.infos:
        raise CheckpointError(f"{reader.place} lacks the tensor {_EMBEDDING!r}; fetch it again")
    rows, tokens = tensors.infos[_EMBEDDING].shape[0], reader.get("tokenizer.ggml.tokens", [])
    if len(tokens) > rows:
        raise CheckpointError(
            f"{reader.place}: tokenizer.ggml.tokens has {len(tokens)} tokens, {_EMBEDDING} only "
            f"{rows} rows; the file is damaged or its tokenizer is another model's"
        )
    return rows


def _rope(
    reader: ConfigReader,
    name: str,
    head_dim: int,
    tensors: TensorSource,
    architecture: Architecture,
) -> RopeConfig:
    turned = head_dim
    if architecture.has_partial_rotary and f"{name}.rope.dimension_count" in reader:
        turned = reader.whole(f"{name}.rope.dimension_count")
    longrope = None
    if ROPE_SHORT in tensors.infos and ROPE_LONG in tensors.infos:
        found = [_factors(tensors, tensor, turned // 2) for tensor in (ROPE_SHORT, ROPE_LONG)]
        longrope = found[0], found[1]
    rotary_dim = 0 if turned == head_dim else turned
    rope = rope_from_gguf(reader, name, rotary_dim=rotary_dim, longrope=longrope)
    if ROPE_DIVISORS not in tensors.infos:
        return rope
    return replace(rope, divisors=_factors(tensors, ROPE_DIVISORS, turned // 2))


def _factors(tensors: TensorSource, name: str, count: int) -> tuple[float, ...]:
    """What frequencies are divided by, from a tensor."""
    shape, place = tensors.infos[name].shape, tensors.files[0]
    if shape != (count,):
        raise CheckpointError(
            f"{place}: {name} has shape {list(shape)}, expected [{count}], one divisor a "
            "frequency; the file is damaged or of another model"
        )
    values = tensors.read_rows(name, 0, count, np.float32)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise CheckpointError(f"{place}: {name} must hold positive numbers; fetch it again")
    return tuple(float(value) for value in values)
