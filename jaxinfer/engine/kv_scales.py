"""HOST. The fixed scales of an fp8 cache: the checkpoint's, or 1.

Other caches make their own scales or need none: a checkpoint's are left alone there.
"""

import logging
from collections.abc import Mapping

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError

_log = logging.getLogger("jaxinfer")

LayerScales = tuple[tuple[float, ...], tuple[float, ...]]
ONES: tuple[LayerScales, ...] = (((1.0,), (1.0,)),)  # of one layer


def fixed_kv_scales(
    kv_dtype: str, model: ModelConfig, found: Mapping[int, LayerScales]
) -> tuple[LayerScales, ...]:
    """For each layer the scales of its keys and values; empty where none are needed or found.

    Args:
        found: the checkpoint's, by layer: one of each, or one a kv head.

    Raises:
        CheckpointError: some layers have scales and others have not, or not one a kv head.
    """
    if kv_dtype != "fp8":
        return ()
    if not found:
        _log.warning(
            "kv_cache_dtype='fp8': the checkpoint has no k_scale and v_scale; every scale is 1, "
            "which cuts off keys and values past 448"
        )
        return ()
    layers = range(model.num_layers)
    if missing := [layer for layer in layers if layer not in found]:
        raise CheckpointError(
            f"kv_cache_dtype='fp8' takes k_scale and v_scale of each of {model.num_layers} layers; "
            f"the checkpoint lacks those of layer {', '.join(map(str, missing[:5]))}; fetch it "
            "again, or use kv_cache_dtype='int8', which needs none"
        )
    for layer in layers:
        for name, scales in zip("kv", found[layer], strict=True):
            if len(scales) not in (1, model.num_kv_heads):
                raise CheckpointError(
                    f"'model.layers.{layer}.self_attn.{name}_scale' holds {len(scales)} scales; a "
                    f"model of {model.num_kv_heads} kv heads takes 1 or {model.num_kv_heads}; "
                    "config and weights are not of the same checkpoint"
                )
    return tuple(found[layer] for layer in layers)
