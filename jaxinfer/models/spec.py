"""DEV. How an architecture describes itself: its leaves, its config, its forward function.

One description of a leaf (`Leaf`) gives abstract shapes, loading and, later, sharding. Knows no
file: the checkpoint joint reads the tensors that leaves name.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from jaxinfer.config.model_config import ModelConfig

LeafRole = Literal["embedding", "matrix", "router", "norm", "bias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One parameter array: what it looks like and where a checkpoint keeps it.

    Norms, biases and routers are kept in float32, embeddings and matrices in the model's weight
    dtype.

    shape: as the model uses it, matrices `[out, in]`, those of experts `[experts, out, in]`.
    axes: a logical name for each axis (for sharding).
    hf: tensor name in a Hugging Face checkpoint.
    gguf: tensor name in a GGUF file.
    hf_add: added in float32 to what a Hugging Face file holds (Gemma stores norm weight - 1 there).
    gguf_interleaved_heads: above 0, the GGUF file stores the rows of each of that many heads with
        rotary pairs interleaved; they are put back into halves (FORMATS: llama's q and k).
    stored_rows: above 0, the tensor has that many rows and fills other leaves too (fused q, k and
        v); this one is made of those from `first_row` on.
    hf_newer: what newer Hugging Face files may call it; empty where all call it the same.
    stack: how the parts of an array with an axis of experts are named, None for other arrays.
    """

    role: LeafRole
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    hf: str
    gguf: str
    hf_add: float = 0.0
    gguf_interleaved_heads: int = 0
    stored_rows: int = 0
    first_row: int = 0
    hf_newer: str = ""
    stack: "ExpertStack | None" = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the tensor in the file."""
        return (self.stored_rows or self.shape[0], *self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStack:
    """The tensors that may hold an array `[experts, out, in]`: one an expert, or one of them all.

    Names of one expert have "{expert}" for its number; names come as in `Leaf`. Biases of experts,
    [experts, out], are held likewise, without the axis "in".

    hf_each, gguf_each: one tensor an expert, [out, in].
    gguf_all: one tensor [experts, out, in].
    hf_all: one tensor [experts, parts · out, in], and the part of its rows that is meant: gate and
        up may be stored one above the other.
    hf_takes_turns: the rows of the parts take turns instead.
    hf_inputs_first: it is [experts, in, parts · out].
    """

    hf_each: str
    gguf_each: str
    gguf_all: str
    hf_all: str
    hf_part: int = 0
    hf_num_parts: int = 1
    hf_takes_turns: bool = False
    hf_inputs_first: bool = False

    def first_row(self, expert: int, num_rows: int) -> int:
        """In the tensor `hf_all`, its first two axes as one: of the part's `num_rows` in one."""
        first = expert * self.hf_num_parts * num_rows
        return first + self.hf_part * (1 if self.hf_takes_turns else num_rows)

    @property
    def row_step(self) -> int:
        """From one row of the part to the next."""
        return self.hf_num_parts if self.hf_takes_turns else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Everything that tells one model family from another.

    name: what `ModelConfig.architecture` holds.
    hf_model_types: values of config.json's `model_type` that this family serves.
    gguf_names: values of `general.architecture` that it serves.
    has_experts: it serves the files of those names that have experts, otherwise those without.
    hf_defaults: what an absent key of config.json means in this family. A key that changes what
        other models compute is honoured here, and must be read, if it is in this table.
    gguf_keys: keys of that kind, without the architecture's name, that `from_gguf` reads.
    from_hf: config.json (defaults applied) → the `ModelConfig` fields that differ from the common
        reading; may raise UnsupportedError.
    from_gguf: (GGUF metadata, tensor names) → likewise.
    leaves: config → pytree of `Leaf`, the structure of the parameters.
    forward: the pure function of `models/transformer.py`'s signature.
    """

    name: str
    hf_model_types: tuple[str, ...]
    gguf_names: tuple[str, ...]
    hf_defaults: Mapping[str, Any]
    from_hf: Callable[[Mapping[str, Any]], dict[str, Any]]
    from_gguf: Callable[[Mapping[str, Any], Set[str]], dict[str, Any]]
    leaves: Callable[[ModelConfig], Any]
    forward: Callable[..., Any]
    has_experts: bool = False
    gguf_keys: tuple[str, ...] = ()

    @property
    def has_partial_rotary(self) -> bool:
        """Whether files of this family may turn only the first values of a head."""
        return "partial_rotary_factor" in self.hf_defaults
