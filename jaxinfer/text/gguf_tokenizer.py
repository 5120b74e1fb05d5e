"""HOST. The tokenizer that a GGUF file describes in its metadata, with the ids llama.cpp gives.

Two kinds: "gpt2" (byte-level BPE with merges) and "llama" (SentencePiece-like: merges are recovered
from the pieces and their scores). Gets the metadata as a plain mapping; knows nothing of files.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from jaxinfer.errors import CheckpointError, JaxInferError, UnsupportedError
from jaxinfer.text.pieces import SPACE_MARK
from jaxinfer.text.pretokenizers import (
    PRE_TOKENIZATIONS,
    PreTokenization,
    byte_level_pre_tokenizer,
)
from jaxinfer.text.template_files import templates_of_entry
from jaxinfer.text.tokenizer import Tokenizer, set_added_tokens

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MAX_TOKENS = 1 << 22
_KEY = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn whatever the keys say: files often name only the end of the text.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>")
# Phi-3 ends a turn with this one; where a vocabulary also has the other, it only ends a part of it.
_PART_END, _WHOLE_END = "<|end|>", "<|return|>"
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_LLAMA_DEFAULTS = {"bos": 1, "eos": 2, "unknown": 0}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer that GGUF metadata describes, or None where it describes none.

    Args:
        metadata: key to value; arrays as lists or numpy arrays.

    Raises:
        UnsupportedError: a kind (`tokenizer.ggml.model`) or a cut (`.pre`) that is not known.
        CheckpointError: a key that is missing or does not fit the others; the message names it.
    """
    kind = metadata.get(f"{_KEY}model")
    if kind is None or kind in ("none", "no_vocab"):
        return None
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"{_KEY}model={kind!r}: only 'gpt2' and 'llama' are read; "
            "use a checkpoint with a tokenizer.json, or token ids"
        )
    tokens = _tokens(metadata)
    types = _numbers(metadata, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    try:
        make = _byte_level_backend if kind == "gpt2" else _sentence_piece_backend
        backend = make(metadata, tokens, types)
        _add_tokens(backend, tokens, types)
        return _finish(backend, metadata, tokens, types)
    except JaxInferError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(
            f"{_KEY}*: the tokenizers library refuses this vocabulary ({error}); "
            "write the GGUF file again with a current converter"
        ) from None


def _as_list(value: Any) -> list[Any]:
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Text of every id; like llama.cpp an empty one gets a name of its own."""
    tokens = _as_list(_required(metadata, "tokens"))
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise CheckpointError(
            f"{_KEY}tokens: {len(tokens)} entries, must be 1 to {MAX_TOKENS}; check the file"
        )
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        twice = next(t for i, t in enumerate(tokens) if first.setdefault(t, i) != i)
        raise CheckpointError(
            f"{_KEY}tokens: {twice!r} is listed twice (first as id {first[twice]}); every token "
            "must have one id; write the GGUF file again"
        )
    return tokens


def _required(metadata: Mapping[str, Any], name: str) -> Any:
    value = metadata.get(_KEY + name)
    if value is None:
        raise CheckpointError(
            f"{_KEY}{name}: missing, but a {metadata[f'{_KEY}model']!r} tokenizer needs it; "
            "write the GGUF file again with a current converter"
        )
    return value


def _numbers(metadata: Mapping[str, Any], name: str, count: int) -> list[Any]:
    """An array with one number a token; empty where the file has none."""
    value = metadata.get(_KEY + name)
    numbers = [] if value is None else _as_list(value)
    if numbers and len(numbers) != count:
        raise CheckpointError(
            f"{_KEY}{name}: {len(numbers)} entries for {count} tokens; the counts must be equal; "
            "write the GGUF file again"
        )
    return numbers


def _pre_tokenization(metadata: Mapping[str, Any]) -> PreTokenization:
    name = metadata.get(f"{_KEY}pre")
    family = PRE_TOKENIZATIONS.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedError(
            f"{_KEY}pre={name!r}: must be one of {sorted(PRE_TOKENIZATIONS)}; a guess would give "
            "wrong ids, so use a checkpoint with a tokenizer.json, or token ids"
        )
    return family


def _byte_level_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    family = _pre_tokenization(metadata)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = []
    for index, merge in enumerate(_as_list(_required(metadata, "merges"))):
        left, space, right = merge.partition(" ")
        if not space:
            raise CheckpointError(
                f"{_KEY}merges[{index}]={merge!r}: must be two tokens with a space between them; "
                "write the GGUF file again"
            )
        if left in vocabulary and right in vocabulary and left + right in vocabulary:
            merges.append((left, right))
    model = models.BPE(vocabulary, merges, ignore_merges=family.ignores_merges)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = byte_level_pre_tokenizer(family.splits)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece_backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tokenizers.Tokenizer:
    scores = _numbers(metadata, "scores", len(tokens)) or [0.0] * len(tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = _token_id(metadata, "unknown", len(tokens))
    model = models.BPE(
        vocabulary,
        recover_merges(tokens, types, scores),
        byte_fallback=True,
        fuse_unk=False,
        unk_token=None if unknown is None else tokens[unknown],
    )
    backend = tokenizers.Tokenizer(model)
    prefix = bool(metadata.get(f"{_KEY}add_space_prefix", True))
    escape = normalizers.Replace(" ", SPACE_MARK)
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), escape])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = escape
    backend.decoder = decoders.Sequence(steps)
    return backend


def recover_merges(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, best score first, then by position.

    Scores decide as in SentencePiece itself. Tokens that a user defined are cut out of the text
    before any joining, so they are no results of it.
    """
    known = set(tokens)
    joined = [i for i, kind in enumerate(types) if kind in (NORMAL, UNUSED) and len(tokens[i]) > 1]
    joined.sort(key=lambda index: -scores[index])
    merges = []
    for index in joined:
        token = tokens[index]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and unknown tokens are special; tokens that a user defined are not."""
    special = [
        token for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, UNKNOWN)
    ]
    defined = [token for token, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    """The id of a named special token; kind "llama" has defaults; out of range is an error."""
    defaults = _LLAMA_DEFAULTS if metadata[f"{_KEY}model"] == "llama" else {}
    value = metadata.get(f"{_KEY}{name}_token_id")
    if value is None:
        value = defaults.get(name)
        return value if value is not None and value < count else None
    if not 0 <= int(value) < count:
        raise CheckpointError(
            f"{_KEY}{name}_token_id={value}: the file lists {count} tokens, so ids are 0 to "
            f"{count - 1}; correct the key"
        )
    return int(value)


def _finish(
    backend: tokenizers.Tokenizer,
    metadata: Mapping[str, Any],
    tokens: Sequence[str],
    types: Sequence[int],
) -> Tokenizer:
    ids = {name: _token_id(metadata, key, len(tokens)) for name, key in _NAMED.items()}
    special = {name: tokens[index] for name, index in ids.items() if index is not None}
    set_added_tokens(
        backend,
        bos=_added(metadata, special, "bos", _adds_bos(metadata)),
        eos=_added(metadata, special, "eos", False),
    )
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=_end_ids(metadata, tokens, types),
        chat_templates=_chat_templates(metadata),
        silent_ids=[index for index, kind in enumerate(types) if kind == UNUSED],
    )


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    return metadata[f"{_KEY}model"] == "llama" or _pre_tokenization(metadata).adds_bos


def _added(
    metadata: Mapping[str, Any], special: Mapping[str, str], name: str, default: bool
) -> str | None:
    """The token that is put before (bos) or after (eos) every text, or None."""
    key = f"{_KEY}add_{name}_token"
    token = special.get(f"{name}_token")
    if metadata.get(key) and token is None:
        raise CheckpointError(
            f"{key}=True: but there is no {_KEY}{name}_token_id; add that key or set it to False"
        )
    return token if metadata.get(key, default) else None


def _end_ids(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """Ids that end a text: those the keys name, then control tokens known to end a turn."""
    names = [key.removesuffix("_token_id") for key in _END_KEYS]
    named = [_token_id(metadata, name, len(tokens)) for name in names]
    ends = (*_TURN_ENDS, _WHOLE_END if _WHOLE_END in tokens else _PART_END)
    turns = [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == CONTROL and token in ends
    ]
    return [index for index in named if index is not None] + turns


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    templates = templates_of_entry(metadata.get(key), key)
    prefix = f"{key}."
    named = {
        name.removeprefix(prefix): text
        for name, text in metadata.items()
        if name.startswith(prefix)
    }
    return named | templates
