"""A llama-architecture checkpoint as a Hugging Face folder in bf16, for peers that read those.

`python bench/peers/export_hf_folder.py MODEL FOLDER`, in jaxinfer's environment. The weights are
those that jaxinfer runs (dequantized at load), so that engines are compared on the same numbers.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.load import load_params
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.text.gguf_tokenizer import tokenizer_from_gguf
from jaxinfer.text.tokenizer import Tokenizer, tokenizer_from_folder


def hf_tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Every parameter in bf16 under its Hugging Face name."""
    leaves = jax.tree.leaves(checkpoint.architecture.leaves(checkpoint.config))
    params = jax.tree.leaves(load_params(checkpoint, weight_dtype="bfloat16"))
    return {
        leaf.hf: (np.asarray(value, np.float32) - leaf.hf_add).astype(ml_dtypes.bfloat16)
        for leaf, value in zip(leaves, params, strict=True)
    }


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """config.json of a plain llama.

    Raises:
        SystemExit: the model is not one.
    """
    if config.architecture != "llama" or config.ropes[0].scaling != "none":
        raise SystemExit("only llama models without rope scaling can be exported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.ropes[0].theta,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    tokenizer = (
        tokenizer_from_gguf(checkpoint.gguf_metadata)
        if checkpoint.gguf_metadata is not None
        else tokenizer_from_folder(checkpoint.path)
    )
    if tokenizer is None:
        raise SystemExit(f"{checkpoint.path} has no tokenizer")
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model)
    config, tokenizer = hf_config(checkpoint.config), read_tokenizer(checkpoint)
    options.folder.mkdir(parents=True, exist_ok=True)
    save_file(
        hf_tensors(checkpoint), options.folder / "model.safetensors", metadata={"format": "pt"}
    )
    tokenizer.backend.save(str(options.folder / "tokenizer.json"))
    special = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    for name, content in {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": tokenizer.eos_token,
            **special,
        },
    }.items():
        (options.folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
