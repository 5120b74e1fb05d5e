"""HOST. What a plan for a GPU says, as records that travel between processes as JSON.

Knows arithmetic on bytes; compiles nothing and prints nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jaxinfer.config.geometry import Geometry, kv_token_bytes
from jaxinfer.config.model_config import ModelConfig

# Of the device memory, what the driver and the runtime keep for themselves.
RESERVED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """One program as compiled for the target.

    kernels: launches of a whole run, branches not counted; kernels_a_layer: in the second layer
    (the first may differ), 0 without layers. recorded_kernels: of `kernels`, those inside command
    buffers (CUDA graphs). moved_bytes: read and written by one run, pages aside; 0 where that is
    not known. page_reads: bytes that it reads of each cached
    token, by layer.
    """

    name: str
    compile_seconds: float
    temporary_bytes: int
    aliased_bytes: int
    kernels: int
    recorded_kernels: int
    kernels_a_layer: int
    moved_bytes: int
    page_reads: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """One kernel that was written for the GPU: what its assembler said, for one block."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoad:
    """A decode step with every one of `num_rows` requests at `context_tokens`.

    needed_bytes: weights, live keys and values and logits, once. moved_bytes: what the compiled
    program moves, None where it was not compiled, or reads pages in a loop that cannot be counted.
    floor_s: the least time, needed_bytes at the memory's bandwidth.
    """

    num_rows: int
    context_tokens: int
    needed_bytes: int
    moved_bytes: int | None
    floor_s: float

    @property
    def tokens_per_s(self) -> float:
        """The most that this bandwidth allows."""
        return self.num_rows / self.floor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """What drafting moves: bytes of a decode step, of drafting a token and of the step that
    verifies `num_drafts`. break_even_acceptance: how often a draft must stand for a round to give
    more tokens than decode steps that move as much; None where it never does.
    """

    num_drafts: int
    decode_bytes: int
    draft_bytes: int
    verify_bytes: int
    break_even_acceptance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """An engine on the target.

    memory_bytes: of the GPU. read_weights_bytes: of `weights_bytes`, what a decode step reads (of
    an embedding that is no head, only the rows of its tokens). temporary_bytes: the most that any
    program needs, None where nothing was compiled. settings: what was decided, by name. drafts:
    None without speculation. fallbacks: ops that do without a kernel for this GPU, and why.
    """

    model: str
    target: str
    description: str
    memory_bytes: int
    bandwidth_bytes_per_s: int
    settings: Mapping[str, Any]
    weights: str
    weights_bytes: int
    read_weights_bytes: int
    cache_bytes: int
    cached_tokens: int
    state_bytes: int
    temporary_bytes: int | None
    decode: tuple[DecodeLoad, ...]
    programs: tuple[ProgramPlan, ...]
    kernels: tuple[KernelPlan, ...]
    drafts: DraftPlan | None = None
    fallbacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed_bytes(self) -> int:
        """Weights, cache, state and temporaries together."""
        held = self.weights_bytes + self.cache_bytes + self.state_bytes
        return held + (self.temporary_bytes or 0)

    @property
    def spare_bytes(self) -> int:
        """What stays free beside what the driver keeps; below 0, what does not fit."""
        return self.memory_bytes - RESERVED_BYTES - self.needed_bytes

    @property
    def compile_seconds(self) -> float:
        return sum(one.compile_seconds for one in self.programs)

    def as_json(self) -> dict[str, Any]:
        """Every field, and what follows from them."""
        loads = [asdict(one) | {"tokens_per_s": one.tokens_per_s} for one in self.decode]
        return asdict(self) | {
            "decode": loads,
            "needed_bytes": self.needed_bytes,
            "spare_bytes": self.spare_bytes,
            "fits": self.spare_bytes >= 0,
        }


def plan_from_json(values: Mapping[str, Any]) -> TargetPlan:
    """The plan that `as_json` gave."""
    fields = {name: values[name] for name in TargetPlan.__dataclass_fields__}
    loads = [{k: v for k, v in one.items() if k != "tokens_per_s"} for one in fields["decode"]]
    fields["decode"] = tuple(DecodeLoad(**one) for one in loads)
    fields["programs"] = tuple(ProgramPlan(**one) for one in fields["programs"])
    fields["kernels"] = tuple(KernelPlan(**one) for one in fields["kernels"])
    fields["drafts"] = DraftPlan(**fields["drafts"]) if fields["drafts"] else None
    return TargetPlan(**fields)


def live_kv_bytes(model: ModelConfig, geometry: Geometry, num_rows: int, context: int) -> int:
    """Keys and values that a decode step of `num_rows` requests at `context` tokens reads."""
    layers = range(model.num_layers)
    tokens = sum(live_tokens(model, layer, num_rows, context) for layer in layers)
    return tokens * kv_token_bytes(model, geometry.page_kinds)


def live_tokens(model: ModelConfig, layer: int, num_rows: int, context: int) -> int:
    """Tokens of one layer that such a step sees: under a window no more than that."""
    window = model.windows[layer]
    return num_rows * (min(context, window) if window else context)


def decode_loads(
    model: ModelConfig,
    geometry: Geometry,
    read_weights_bytes: int,
    bandwidth: int,
    program: ProgramPlan | None,
) -> tuple[DecodeLoad, ...]:
    """Decode steps of all slots: contexts of a sixteenth and a quarter of the longest, and that.

    Where the pool does not hold all slots at a context, as many rows as it holds.
    """
    pool = geometry.cached_tokens
    longest = geometry.max_model_len
    contexts = sorted({max(1, longest // 16), max(1, longest // 4), longest})
    sizes = [(max(1, min(geometry.num_slots, pool // one)), one) for one in contexts]
    return tuple(
        _load(model, geometry, read_weights_bytes, bandwidth, program, rows, context)
        for rows, context in sizes
    )


def _load(
    model: ModelConfig,
    geometry: Geometry,
    weights: int,
    bandwidth: int,
    program: ProgramPlan | None,
    rows: int,
    context: int,
) -> DecodeLoad:
    logits = rows * model.vocab_size * 4
    needed = weights + live_kv_bytes(model, geometry, rows, context) + logits
    moved = None
    if program is not None and program.page_reads:
        moved = program.moved_bytes + sum(
            token_bytes * live_tokens(model, int(layer), rows, context)
            for layer, token_bytes in program.page_reads.items()
        )
    return DecodeLoad(
        num_rows=rows,
        context_tokens=context,
        needed_bytes=needed,
        moved_bytes=moved,
        floor_s=needed / bandwidth,
    )
