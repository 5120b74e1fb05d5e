"""JOINT. What a checkpoint says about text: its tokenizer, and the ids that end one."""

from jaxinfer.checkpoint.checkpoint import Checkpoint
from jaxinfer.text.gguf_tokenizer import tokenizer_from_gguf
from jaxinfer.text.tokenizer import Tokenizer, tokenizer_from_folder


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer that comes with the weights, if one does."""
    if checkpoint.gguf_metadata is not None:
        return tokenizer_from_gguf(checkpoint.gguf_metadata)
    return tokenizer_from_folder(checkpoint.folder) if checkpoint.folder else None


def end_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The union of what config, generation_config (already in the config's) and tokenizer say."""
    ids = checkpoint.config.eos_token_ids + (tokenizer.eos_token_ids if tokenizer else ())
    return tuple(dict.fromkeys(ids))
