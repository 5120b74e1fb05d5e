"""Logits of a quantized folder in transformers, float32; runs in the peer's own environment.

`python bench/peers/logits_transformers.py FOLDER ASKED.json ANSWER.npz`
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, asked: str, answer: str) -> None:
    wanted = json.loads(Path(asked).read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, ids in zip(wanted["texts"], wanted["ids"], strict=True):
        found = tokenizer(text)["input_ids"]
        if found != ids:
            sys.exit(f"{text!r}: transformers has the ids {found}, jaxinfer {ids}")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    disable_rounded_inputs(model)
    with torch.inference_mode():
        logits = [model(torch.tensor([ids])).logits[0].numpy() for ids in wanted["ids"]]
    np.savez(answer, **{f"logits{number}": one for number, one in enumerate(logits)})


def disable_rounded_inputs(model: torch.nn.Module) -> None:
    """Leaves inputs float where a scheme would round them."""
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and scheme.input_activations is not None:
            scheme.input_activations = None


if __name__ == "__main__":
    main(*sys.argv[1:4])
