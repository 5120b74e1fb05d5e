"""Writes `float/qwen3_moe_mixed`: dense and sparse layers, shares that do not add up to 1.

Needs torch and transformers, so it runs in an environment of its own:
`python tests/data/make_qwen3_moe_mixed.py`. Weights are random: they test exactness, not quality.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

FOLDER = Path(__file__).parent / "float" / "qwen3_moe_mixed"
VOCABULARY, GREEDY = 256, 8
# Of four layers the first is dense by its number, the third because it is listed.
SETTINGS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0, 2],
    "norm_topk_prob": False,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
THETA = 1000000.0


def make_model() -> Qwen3MoeForCausalLM:
    """Weights wide enough that experts differ and the router is sure of its choice."""
    torch.manual_seed(7)
    rope = {"rope_type": "default", "rope_theta": THETA}
    config = Qwen3MoeConfig(**SETTINGS, rope_parameters=rope)
    model = Qwen3MoeForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("norm.weight"):
                value.copy_(1 + 0.2 * torch.randn_like(value))
            else:
                value.copy_(torch.randn_like(value) * (0.5 if "gate.weight" in name else 0.15))
    return model


@torch.no_grad()
def expected(model: Qwen3MoeForCausalLM) -> dict[str, np.ndarray]:
    """Logits of two prompts, eight greedy tokens of each and by how much each was the best."""
    found = {}
    for place, length in enumerate((7, 40)):
        ids = torch.tensor([[(11 * at * at + 5 * place + 3) % VOCABULARY for at in range(length)]])
        tokens, margins = [], []
        found[f"ids{place}"] = ids[0].numpy()
        found[f"logits{place}"] = model(ids).logits[0].numpy()
        for _ in range(GREEDY):
            best = model(ids).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            ids = torch.cat([ids, best.indices[None, :1]], dim=1)
        found[f"greedy{place}"] = np.array(tokens)
        found[f"margin{place}"] = np.array(margins, np.float32)
    return found


def older_config(config: dict) -> dict:
    """The same as releases before 5 wrote it."""
    older = {key: value for key, value in config.items() if key != "rope_parameters"}
    older["num_experts"] = older.pop("num_local_experts", SETTINGS["num_experts"])
    older["torch_dtype"] = older.pop("dtype", "float32")
    return older | {"rope_theta": THETA, "rope_scaling": None}


def main() -> None:
    model = make_model()
    model.save_pretrained(FOLDER)
    np.savez_compressed(FOLDER / "expected.npz", **expected(model))
    config = json.loads((FOLDER / "config.json").read_text())
    (FOLDER / "config.v4.json").write_text(json.dumps(older_config(config), indent=1))


if __name__ == "__main__":
    main()
