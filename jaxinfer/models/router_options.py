"""DEV. What families of experts may say about their router, and what of it is run.

A softmax over all experts, the best of them chosen, their shares made to add up to 1 or not. All
that would choose or weigh otherwise is refused by name. Knows keys, no tensors.
"""

from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import CheckpointError, UnsupportedError

# Keys of config.json with the values that change nothing.
_HF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("softmax",),
    "score_function": ("softmax",),
    "topk_method": ("greedy",),
    "n_group": (0, 1),
    "topk_group": (0, 1),
    "routed_scaling_factor": (1,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "first_k_dense_replace": (0,),
    "moe_layer_freq": (1,),
    "use_expert_bias": (False,),
    "use_routing_bias": (False,),
    "router_bias": (False,),
    "zero_expert_num": (0,),
}
# Keys of GGUF metadata, after the architecture's name; gating function 1 is the softmax.
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_scale": (0, 1),
    "expert_weights_norm": (True,),
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0, 1),
}


def refuse_hf_options(raw: Mapping[str, Any]) -> None:
    """Raises: UnsupportedError: config.json asks for a router that is not run."""
    _refuse(raw, {key: (key, neutral) for key, neutral in _HF_NEUTRAL.items()})


def refuse_gguf_options(metadata: Mapping[str, Any], arch: str) -> None:
    """Raises: UnsupportedError: the metadata asks for a router that is not run."""
    _refuse(metadata, {key: (f"{arch}.{key}", value) for key, value in _GGUF_NEUTRAL.items()})


def whole_number(raw: Mapping[str, Any], *keys: str) -> int:
    """The positive integer under the first of `keys` that is there; all that are must agree.

    Raises:
        CheckpointError: none is there, they differ, or it is no such number.
    """
    found = {key: raw[key] for key in keys if raw.get(key) is not None}
    values = list(found.values())
    if not values:
        return raw[keys[0]]  # the reader's own message
    if any(type(value) is not int or value < 1 or value != values[0] for value in values):
        raise CheckpointError(
            f"{', '.join(f'{key}={value!r}' for key, value in found.items())} must be one positive "
            "integer; mend the config"
        )
    return values[0]


def _refuse(entries: Mapping[str, Any], known: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    for name, neutral in known.values():
        value = entries.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedError(
                f"{name}={value!r} is a router or a layout of experts that is not run; known: "
                f"{' or '.join(map(repr, neutral))}"
            )
