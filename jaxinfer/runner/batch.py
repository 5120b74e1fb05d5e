"""DEV. The pytrees that are staged for a step; what it donates is in `cache` and `sampling`."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxinfer.config.geometry import Geometry
from jaxinfer.models.transformer import TokenRows
from jaxinfer.sampling.logits import SamplingRows


@struct.dataclass
class PrefillBatch:
    """R chunks of prompts."""

    rows: TokenRows  # [R, T]
    sampling: SamplingRows  # R rows
    slots: jax.Array  # [R] i32, slot that gets the drawn token; B for none


@struct.dataclass
class DecodeBatch:
    """One token for each of up to W slots."""

    slots: jax.Array  # [W] i32, slot of each row; B for an empty row
    positions: jax.Array  # [W] i32
    tables: jax.Array  # [groups, W, N] i32
    sampling: SamplingRows  # W rows


@struct.dataclass
class VerifyBatch:
    """The last token of each of up to W slots and drafts of the next."""

    slots: jax.Array  # [W] i32, slot of each row; B for an empty row
    positions: jax.Array  # [W] i32
    tables: jax.Array  # [groups, W, N] i32
    drafts: jax.Array  # [W, J] i32
    num_drafts: jax.Array  # [W] i32
    sampling: SamplingRows  # W rows


def abstract_prefill_batch(geometry: Geometry, num_rows: int) -> PrefillBatch:
    """Shapes of a prefill batch of `num_rows` rows."""
    rows = TokenRows(
        tokens=_ints(num_rows, geometry.chunk_tokens),
        starts=_ints(num_rows),
        lengths=_ints(num_rows),
        tables=_ints(len(geometry.group_windows), num_rows, geometry.pages_per_row),
    )
    return PrefillBatch(rows=rows, sampling=_abstract_sampling(num_rows), slots=_ints(num_rows))


def abstract_decode_batch(geometry: Geometry, width: int) -> DecodeBatch:
    """Shapes of a decode batch of `width` rows."""
    return DecodeBatch(
        slots=_ints(width),
        positions=_ints(width),
        tables=_ints(len(geometry.group_windows), width, geometry.pages_per_row),
        sampling=_abstract_sampling(width),
    )


def abstract_verify_batch(geometry: Geometry, width: int) -> VerifyBatch:
    """Shapes of a verify batch of `width` rows."""
    return VerifyBatch(
        slots=_ints(width),
        positions=_ints(width),
        tables=_ints(len(geometry.group_windows), width, geometry.pages_per_row),
        drafts=_ints(width, geometry.draft_tokens),
        num_drafts=_ints(width),
        sampling=_abstract_sampling(width),
    )


def _abstract_sampling(rows: int) -> SamplingRows:
    return SamplingRows(
        temperature=_floats(rows),
        top_k=_ints(rows),
        top_p=_floats(rows),
        min_p=_floats(rows),
        seeds=jax.ShapeDtypeStruct((rows, 2), jnp.uint32),  # type: ignore[arg-type]
        sample_index=_ints(rows),
        num_logprobs=_ints(rows),
        repetition_penalty=_floats(rows),
        presence_penalty=_floats(rows),
        frequency_penalty=_floats(rows),
        first_end=_ints(rows),
        seated=_ints(rows),
    )


# A shape stands in for an array wherever a program is lowered without data.
def _ints(*shape: int) -> jax.Array:
    return jax.ShapeDtypeStruct(shape, jnp.int32)  # type: ignore[return-value]


def _floats(*shape: int) -> jax.Array:
    return jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[return-value]
