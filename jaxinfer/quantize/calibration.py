"""HOST. A calibration text as token blocks of one length.

Blocks are taken evenly from the whole text, and each begins as a prompt does. Knows text, no model.
"""

import numpy as np

from jaxinfer.errors import ConfigError
from jaxinfer.text.tokenizer import Tokenizer


def token_blocks(
    text: str, tokenizer: Tokenizer, *, num_tokens: int, sequence_length: int
) -> np.ndarray:
    """[blocks, sequence_length] i32: at least `num_tokens` tokens in all.

    Raises:
        ConfigError: the text has fewer tokens.
    """
    ids = tokenizer.encode(text, add_special_tokens=True)
    bos = tokenizer.bos_token_id
    lead = [bos] if bos is not None and ids[:1] == [bos] else []
    plain = np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int32)
    length, count = sequence_length - len(lead), -(-num_tokens // sequence_length)
    there = len(plain) // length
    if there < count:
        raise ConfigError(
            f"the calibration text has {len(plain):,} tokens, {count} blocks of {sequence_length} "
            f"take {count * length:,}; give a longer text, or lower calibration_tokens="
            f"{num_tokens} or sequence_length"
        )
    chosen = np.arange(count) * there // count
    blocks = plain[: there * length].reshape(there, length)[chosen]
    start = np.tile(np.asarray(lead, np.int32), (count, 1))
    return np.ascontiguousarray(np.concatenate([start, blocks], axis=1))
