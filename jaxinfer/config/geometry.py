"""HOST. What was decided for a device: every axis length of every program, once, by arithmetic.

Knows the ask (`EngineConfig`), the model and the free bytes; touches no device.
"""

from dataclasses import dataclass
from typing import Literal

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.kv_cache_dtype import array_dtype, page_kinds, token_bytes
from jaxinfer.config.memory_needs import (
    NO_DRAFTS,
    NOTHING_PACKED,
    DraftNeeds,
    PackedShare,
    loop_state_bytes,
    weights_bytes,
)
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CapacityError, ConfigError

HEAD_ROWS = 32  # rows that `head_step` turns into logits at once
SWAP_PAGES = 8  # pages of each group that travel to the host or back at once
# Pages are committed when the engine starts. On a CPU the default pool stops here (or at one
# request of full length), however much memory is free, so that a small model does not take a whole
# workstation; ask for more with num_gpu_blocks_override.
CPU_POOL_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What planning knows of a device. platform: "cpu" or "gpu"; free_bytes: before load."""

    platform: str
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Every axis length that a compiled program has, beside those of the model.

    num_slots (B), page_tokens (S), pages_per_row (N), chunk_tokens (T), prefill_rows (the values of
    R), decode_widths (rows of each decode program, ascending; the last is B). A cache group is
    the layers that keep the same tokens: `group_windows` (0 is full attention) and `num_pages` (P,
    null page included) have one entry a group, `layer_groups` one a layer. swap_pages: pages of
    each group that are swapped at once, 0 where none ever are. draft_tokens (J), 0 without
    speculation; verify_widths: rows of each verify program, ascending; draft_layer_groups: the
    cache group of each layer of a draft model that has pages of its own. kv_dtype: a name of
    `KV_CACHE_DTYPES` but "auto". kv_scales: of an fp8 cache, for each layer of `cache_groups` the
    fixed scales of its keys and of its values, one or one a kv head; empty where all are 1.
    norm_kernel, residual_kernel (of a norm together with the addition before it), expert_kernel:
    as `layers.norm` and `layers.moe` take them. write_kernel: of `rotate_write`, which rotates and
    writes new keys; "reference" leaves that to XLA. fills_tiles: whether a step's tokens are filled
    up to whole tiles of the kernels that multiply.
    """

    max_model_len: int
    num_slots: int
    page_tokens: int
    pages_per_row: int
    chunk_tokens: int
    prefill_rows: tuple[int, ...]
    decode_widths: tuple[int, ...]
    head_rows: int
    group_windows: tuple[int, ...]
    layer_groups: tuple[int, ...]
    num_pages: tuple[int, ...]
    weight_dtype: str
    activation_dtype: str
    kv_dtype: str
    attention_kernel: str
    swap_pages: int = 0
    draft_tokens: int = 0
    verify_widths: tuple[int, ...] = ()
    draft_layer_groups: tuple[int, ...] = ()
    logprobs_mode: Literal["raw", "processed"] = "raw"
    kv_scales: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()
    norm_kernel: str = "auto"
    residual_kernel: str = "auto"
    write_kernel: str = "reference"
    expert_kernel: str = "tiles"
    fills_tiles: bool = False

    @property
    def page_kinds(self) -> tuple[str, str]:
        """What keys and values are kept as."""
        return page_kinds(self.kv_dtype, self.activation_dtype)

    @property
    def pages_hold_bits(self) -> bool:
        """Whether page arrays hold the bits of small floats as unsigned integers.

        A CPU (the place with float32 activations) widens a gather or scatter of bfloat16 to
        float32, and all pages with it; integers it leaves alone.
        """
        return self.activation_dtype == "float32"

    @property
    def page_dtypes(self) -> tuple[str, str]:
        """Dtypes of the arrays that hold keys and values."""
        key, value = (array_dtype(kind, as_bits=self.pages_hold_bits) for kind in self.page_kinds)
        return key, value

    @property
    def cached_tokens(self) -> int:
        """Tokens that the pool of the first cache group holds."""
        return (self.num_pages[0] - 1) * self.page_tokens

    @property
    def cache_groups(self) -> tuple[int, ...]:
        """The cache group of every layer that has pages: the model's, then a draft model's."""
        return self.layer_groups + self.draft_layer_groups

    @property
    def max_prefill_tokens(self) -> int:
        """Tokens of the largest prefill step."""
        return self.chunk_tokens * self.prefill_rows[-1]


def plan_geometry(
    ask: EngineConfig,
    model: ModelConfig,
    device: Device,
    packed: PackedShare = NOTHING_PACKED,
    drafts: DraftNeeds = NO_DRAFTS,
) -> Geometry:
    """Decides the geometry.

    Args:
        packed: the matrices that are not kept as floats.
        drafts: what drafting needs beside the model.

    Raises:
        ConfigError: settings that contradict each other or the model.
        CapacityError: the weights, or one request of max_model_len, do not fit.
    """
    max_len = _max_model_len(ask, model)
    page, chunk, rows, slots = _sizes(ask, device)
    windows, groups, drafted = _cache_groups(model, drafts.model)
    weight, activation, kv = _dtypes(ask, device)
    needs = tuple(pages_needed(max_len, page, window, chunk * rows[-1]) for window in windows)
    kinds = page_kinds(kv, activation)
    page_bytes = _group_page_bytes((model, groups), (drafts.model, drafted), page=page, kinds=kinds)
    weights = weights_bytes(model, weight, packed, drafts)
    held = weights, loop_state_bytes(slots, model.vocab_size)
    budget = _pool_budget(ask, device, held, _request_bytes(needs, page_bytes))
    return Geometry(
        max_model_len=max_len,
        num_slots=slots,
        page_tokens=page,
        pages_per_row=-(-max_len // page),
        chunk_tokens=chunk,
        prefill_rows=rows,
        decode_widths=_decode_widths(slots, device),
        head_rows=HEAD_ROWS,
        group_windows=windows,
        layer_groups=groups,
        num_pages=_num_pages(ask, needs, slots, budget, page_bytes),
        weight_dtype=weight,
        activation_dtype=activation,
        kv_dtype=kv,
        attention_kernel=ask.asked_of("paged_attention"),
        swap_pages=_swap_pages(ask),
        logprobs_mode=ask.logprobs_mode,
        draft_tokens=_draft_tokens(ask, max_len),
        verify_widths=_verify_widths(ask, slots, device) if max_len > 1 else (),
        draft_layer_groups=drafted,
    )


def pages_needed(tokens: int, page_tokens: int, window: int, step_tokens: int) -> int:
    """The most pages that a request of `tokens` tokens holds at once in a cache group.

    Under a window only the pages that the next step reads or writes are kept: the window before it,
    the step's own tokens, and one page that they may straddle.
    """
    full = -(-tokens // page_tokens)
    if not window:
        return full
    return min(full, -(-(window + step_tokens) // page_tokens) + 1)


def kv_token_bytes(model: ModelConfig, kinds: tuple[str, str]) -> int:
    """Bytes that one token keeps in one layer: a key and a value a kv head, with their scales.

    kinds: what keys and what values are kept as (`Geometry.page_kinds`).
    """
    return model.num_kv_heads * sum(token_bytes(kind, model.head_dim) for kind in kinds)


def cache_bytes(model: ModelConfig, geometry: Geometry, draft: ModelConfig | None = None) -> int:
    """Bytes of the whole page pool, that of a draft model with pages of its own included."""
    page_bytes = _group_page_bytes(
        (model, geometry.layer_groups),
        (draft, geometry.draft_layer_groups),
        page=geometry.page_tokens,
        kinds=geometry.page_kinds,
    )
    return sum(count * size for count, size in zip(geometry.num_pages, page_bytes, strict=True))


def _check_threshold(ask: EngineConfig, chunk: int) -> None:
    threshold = ask.long_prefill_token_threshold
    if threshold is not None and threshold < chunk:
        raise ConfigError(
            f"long_prefill_token_threshold={threshold} is less than one chunk of {chunk} tokens; "
            "raise it or lower prefill_chunk_tokens"
        )


def _sizes(ask: EngineConfig, device: Device) -> tuple[int, int, tuple[int, ...], int]:
    """(tokens a page, tokens a chunk, chunks a prefill step, slots)."""
    tokens, slots = (64, 32) if device.platform == "cpu" else (128, 64)
    chunk = ask.prefill_chunk_tokens or tokens
    rows = _prefill_rows(ask, chunk)
    return ask.block_size or tokens, chunk, rows, ask.max_num_seqs or slots


def _max_model_len(ask: EngineConfig, model: ModelConfig) -> int:
    if ask.max_model_len is None:
        return min(model.default_context, 8192)
    if ask.max_model_len > model.longest_context:
        raise ConfigError(
            f"max_model_len={ask.max_model_len} is more than the model's {model.longest_context} "
            "positions; choose a smaller one"
        )
    return ask.max_model_len


def _dtypes(ask: EngineConfig, device: Device) -> tuple[str, str, str]:
    """(weights, activations, pages). A CPU computes in float32 faster than in bfloat16."""
    on_cpu = device.platform == "cpu" and not ask.simulates
    weight = "bfloat16" if ask.dtype == "auto" else ask.dtype
    activation = "float32" if on_cpu or weight == "float32" else "bfloat16"
    kv = activation if ask.kv_cache_dtype == "auto" else ask.kv_cache_dtype
    return weight, activation, kv


def _prefill_rows(ask: EngineConfig, chunk: int) -> tuple[int, ...]:
    _check_threshold(ask, chunk)
    if ask.max_num_batched_tokens is None:
        return (1, 4)
    if ask.max_num_batched_tokens < chunk:
        raise ConfigError(
            f"max_num_batched_tokens={ask.max_num_batched_tokens} is less than one chunk of "
            f"{chunk} tokens; raise it or lower prefill_chunk_tokens"
        )
    most = ask.max_num_batched_tokens // chunk
    return tuple(sorted({1, min(4, most), most}))


def _decode_widths(slots: int, device: Device) -> tuple[int, ...]:
    """Decode programs. On a CPU a step costs its rows, so few requests get a narrow one; a single
    row would be slow there, and its bits others."""
    if device.platform != "cpu":
        return (slots,)
    return tuple(width for width in (2, 8, 16) if width < slots) + (max(slots, 2),)


def _swap_pages(ask: EngineConfig) -> int:
    return SWAP_PAGES if (ask.admission, ask.preemption) == ("optimistic", "swap") else 0


def _draft_tokens(ask: EngineConfig, max_len: int) -> int:
    wanted = ask.speculative_config
    return min(wanted.num_speculative_tokens, max_len - 1) if wanted else 0


def _verify_widths(ask: EngineConfig, slots: int, device: Device) -> tuple[int, ...]:
    """Verify programs, as wide as requests may draft together. On a CPU a narrow one beside it.

    Drafting pays while few requests run: on a GPU a step of all slots, with all their drafts, would
    have so many rows that multiplying takes longer than reading the weights does.
    """
    if not ask.speculative_config:
        return ()
    wanted, widths = ask.speculative_config, _decode_widths(slots, device)
    most = max((running for running, tokens in wanted.drafting_table if tokens), default=1)
    if device.platform != "cpu":
        return (min(most, slots),)
    if wanted.tokens_by_running is None:
        most = widths[:2][-1]  # others ride along
    widest = next((width for width in widths if width >= most), widths[-1])
    return tuple(sorted({widths[0], widest}))


def _cache_groups(model: ModelConfig, draft: ModelConfig | None) -> tuple[tuple[int, ...], ...]:
    """The window of each cache group, and the group of each layer of the model and the draft's."""
    windows = tuple(sorted(set(model.windows)))
    groups = tuple(windows.index(window) for window in model.windows)
    return windows, groups, _draft_groups(windows, draft)


def _draft_groups(windows: tuple[int, ...], draft: ModelConfig | None) -> tuple[int, ...]:
    """The cache group of each layer of a draft model: the narrowest that keeps what it looks at.

    Example: groups of windows (0, 512): a layer of window 128 or 512 takes group 1, one of window
    1024 or of full attention group 0.
    """
    if draft is None:
        return ()
    found = []
    for window in draft.windows:
        fitting = [one for one in windows if one == 0 or 0 < window <= one]
        if not fitting:
            raise ConfigError(
                f"the draft model looks back {window or 'without limit'} (0 is no limit), the "
                f"model's layers keep {windows} tokens; use a draft model with such windows"
            )
        found.append(windows.index(min(fitting, key=lambda one: (one == 0, one))))
    return tuple(found)


def _group_page_bytes(
    *models: tuple[ModelConfig | None, tuple[int, ...]], page: int, kinds: tuple[str, str]
) -> tuple[int, ...]:
    """Bytes of a page of each cache group: that of all layers in it, of all models.

    models: each with the group of each layer that has pages of its own. page: tokens in one.
    """
    num_groups = 1 + max(group for _, groups in models for group in groups)
    return tuple(
        sum(
            groups.count(group) * page * kv_token_bytes(model, kinds)
            for model, groups in models
            if model is not None
        )
        for group in range(num_groups)
    )


def _pool_budget(
    ask: EngineConfig, device: Device, held: tuple[int, int], request_bytes: int
) -> int:
    """Bytes that pages may take.

    held: by the weights, and by what the loop keeps of each slot. request_bytes: of one request of
    full length.
    """
    budget = int(device.free_bytes * ask.gpu_memory_utilization) - sum(held)
    if budget <= 0:
        raise CapacityError(
            f"the weights need {held[0]:,} bytes and the state of the slots {held[1]:,}, "
            f"{ask.gpu_memory_utilization:.0%} of the free {device.free_bytes:,} bytes are there "
            "(gpu_memory_utilization); use a smaller model, lower max_num_seqs, leave out "
            "speculative_config's model, or free memory"
        )
    on_cpu = device.platform == "cpu"
    return min(budget, max(CPU_POOL_BYTES, request_bytes)) if on_cpu else budget


def _request_bytes(needs: tuple[int, ...], page_bytes: tuple[int, ...]) -> int:
    """What one request of full length takes, null pages included."""
    return sum((need + 1) * size for need, size in zip(needs, page_bytes, strict=True))


def _num_pages(
    ask: EngineConfig,
    needs: tuple[int, ...],
    slots: int,
    budget: int,
    page_bytes: tuple[int, ...],
) -> tuple[int, ...]:
    """Pages a group, null page included: all slots at full length, or their share of the budget."""
    if ask.num_gpu_blocks_override is not None:
        return (ask.num_gpu_blocks_override + 1,) * len(needs)
    null_pages = sum(page_bytes)
    one = _request_bytes(needs, page_bytes) - null_pages
    shared = budget - null_pages
    if shared < one:
        raise CapacityError(
            f"the KV cache may take {budget:,} bytes, one request of full length needs "
            f"{one + null_pages:,}; lower max_model_len or max_num_seqs, raise "
            "gpu_memory_utilization, or set num_gpu_blocks_override to use more memory"
        )
    # In whole numbers: a budget for exactly one request must give exactly its pages.
    return tuple(min(need * slots, need * shared // one) + 1 for need in needs)
