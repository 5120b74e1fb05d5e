"""Quantized Qwen2 fixtures as the Llama that they are but for the bias of o: one of zeros."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def as_llama(source: Path, target: Path) -> Path:
    """A folder that says the same as `source`; `source` itself if it is no Qwen2."""
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "qwen2":
        return source
    shutil.copytree(source, target, dirs_exist_ok=True)
    config |= {"model_type": "llama", "attention_bias": True}
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.o_proj.bias"
        tensors[name] = np.zeros(config["hidden_size"], np.float32)
    save_file(tensors, target / "model.safetensors")
    return target
