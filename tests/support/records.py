"""Host records with defaults, for tests that change what matters to them. Needs no jax."""

from typing import Any

from jaxinfer.config.geometry import Geometry, pages_needed
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.scheduler.request import Request


def model_config(*, windows: tuple[int, ...] = (0, 0), **changes: Any) -> ModelConfig:
    """A llama of 64 wide with a layer a window."""
    fields: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "num_layers": len(windows),
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "mlp_size": 96,
        "max_position": 256,
        "norm_eps": 1e-5,
        "windows": windows,
        "ropes": (RopeConfig(),),
        "layer_ropes": (0,) * len(windows),
        "attention_scale": 0.25,
    }
    return ModelConfig(**{**fields, **changes})


def geometry(
    *,
    max_model_len: int = 64,
    page_tokens: int = 8,
    chunk_tokens: int = 8,
    prefill_rows: tuple[int, ...] = (1, 4),
    num_slots: int = 4,
    windows: tuple[int, ...] = (0,),
    num_pages: tuple[int, ...] | None = None,
    decode_widths: tuple[int, ...] | None = None,
    **changes: Any,
) -> Geometry:
    """A geometry with a layer a cache group and, by default, pages for every slot.

    changes: further fields.
    """
    most = chunk_tokens * prefill_rows[-1]
    needs = [pages_needed(max_model_len, page_tokens, window, most) for window in windows]
    return Geometry(
        max_model_len=max_model_len,
        num_slots=num_slots,
        page_tokens=page_tokens,
        pages_per_row=-(-max_model_len // page_tokens),
        chunk_tokens=chunk_tokens,
        prefill_rows=prefill_rows,
        decode_widths=decode_widths or (num_slots,),
        head_rows=4,
        group_windows=windows,
        layer_groups=tuple(range(len(windows))),
        num_pages=num_pages or tuple(need * num_slots + 1 for need in needs),
        weight_dtype="float32",
        activation_dtype="float32",
        kv_dtype="float32",
        attention_kernel="reference",
        **changes,
    )


def request(
    prompt_ids: list[int] | int = 3,
    *,
    max_new_tokens: int = 4,
    end_ids: tuple[int, ...] = (),
    stop_ids: tuple[int, ...] = (),
    order: int = 0,
    sample_index: int = 0,
    seed: int = 0,
    **params: Any,
) -> Request:
    """A request; a number in place of the prompt is its length. `params` are SamplingParams."""
    prompt = list(range(prompt_ids)) if isinstance(prompt_ids, int) else prompt_ids
    return Request(
        request_id=str(order),
        prompt_ids=prompt,
        params=SamplingParams(**params),
        max_new_tokens=max_new_tokens,
        end_ids=frozenset(end_ids + stop_ids),
        stop_ids=frozenset(stop_ids),
        seed=seed,
        order=order,
        sample_index=sample_index,
    )
