"""DEV. Mistral: a Llama whose layers all slide where config.json gives a window.

GGUF files of it say `llama`, and hold no window.
"""

from collections.abc import Mapping
from typing import Any

from jaxinfer.models.layer_kinds import same_windows
from jaxinfer.models.llama import LLAMA, llama_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"windows": same_windows(raw)}


MISTRAL = Architecture(
    name="mistral",
    hf_model_types=("mistral",),
    gguf_names=(),
    hf_defaults={
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "layer_types": None,
        "num_key_value_heads": 8,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    from_hf=_from_hf,
    from_gguf=LLAMA.from_gguf,
    leaves=llama_leaves,
    forward=forward,
)
