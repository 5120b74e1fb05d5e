"""HOST. The tokenizer that the rest of jaxinfer sees, and its making from a Hugging Face folder.

Holds ids, special tokens, chat templates and the exact bytes of every id. Knows nothing of GGUF
(see gguf_tokenizer), of rendering chats (see chat) or of stop strings (see detokenize).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from jaxinfer.errors import CheckpointError, RequestError, UnsupportedError
from jaxinfer.text.pieces import TokenPieces
from jaxinfer.text.template_files import read_json, templates_of_folder

MAX_TOKENIZER_BYTES = 1 << 28
NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Classes whose `add_bos_token` and `add_eos_token` decide over what tokenizer.json itself adds.
_CLASSES_WITH_ADD_BOS = (
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "CohereTokenizer",
)
_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tiktoken.model", "tekken.json", "vocab.json")


class Tokenizer:
    """Text to ids and back, exactly as the checkpoint's own tokenizer does it.

    Args:
        backend: the `tokenizers.Tokenizer`; its post-processor adds BOS (and EOS) where the
            checkpoint's does. Truncation and padding in it are switched off.
        special_tokens: text of bos_token, eos_token, ... as a chat template may use them.
        eos_token_ids: ids that end a text, as far as the tokenizer says.
        chat_templates: template sources by name ("default", "tool_use", ...).
        silent_ids: ids in the vocabulary that never have text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        silent_ids: Collection[int] = frozenset(),
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        self.chat_templates: Mapping[str, str] = dict(chat_templates or {})
        self.eos_token_ids = tuple(dict.fromkeys(int(token) for token in eos_token_ids))
        self.bos_token = self.special_tokens.get("bos_token")
        self.eos_token = self.special_tokens.get("eos_token")
        self.bos_token_id = self.token_id(self.bos_token) if self.bos_token else None
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.vocab_size = _count_ids(backend)
        self._pieces = TokenPieces(backend, silent_ids=silent_ids)
        self.token_bytes = self._pieces.token_bytes
        self.rule = self._pieces.rule

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its text in the vocabulary, or None."""
        return self.backend.token_to_id(token)

    def token_text(self, token_id: int) -> str:
        """The text of one id as the vocabulary writes it; empty beyond the list."""
        return (self.backend.id_to_token(token_id) if token_id >= 0 else None) or ""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; the text of special tokens becomes their ids.

        Args:
            text: any string without lone surrogates.
            add_special_tokens: add BOS and EOS where the checkpoint's tokenizer does. Where the
                text itself begins with BOS (a rendered chat), no second one is added.

        Raises:
            RequestError: not a string, or one that has no UTF-8 form.
        """
        if not isinstance(text, str):
            raise RequestError(f"prompt={text!r}: must be a string to be tokenized; pass a str")
        try:
            ids = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):  # the library says either, by version
            raise RequestError(
                f"prompt {text[:40]!a}...: holds a lone surrogate, which has no UTF-8 form; "
                "remove it or encode with errors='replace'"
            ) from None
        bos = self.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            return ids[1:] if text.startswith(self.bos_token or "") else ids
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids; an id beyond the tokenizer's list has none.

        Args:
            ids: token ids.
            skip_special_tokens: leave out control tokens (tokens a user defined stay).
        """
        skip = self.special_ids if skip_special_tokens else frozenset()
        pieces = [self.token_bytes(token) for token in ids if token not in skip]
        if self.rule.separator:
            pieces = [piece for piece in pieces if piece]
        text = self.rule.separator.encode().join(pieces).decode("utf-8", "replace")
        return text[1:] if self.rule.strips_first_space and text.startswith(" ") else text


def _count_ids(backend: tokenizers.Tokenizer) -> int:
    """One more than the largest id (the number of tokens, where ids have no gaps)."""
    count = backend.get_vocab_size(with_added_tokens=True)
    if count == 0 or (backend.id_to_token(count - 1) and backend.id_to_token(count) is None):
        return count
    return max(backend.get_vocab(with_added_tokens=True).values()) + 1


def tokenizer_from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder, or None where it has none.

    Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat templates.

    Raises:
        CheckpointError: a file that cannot be read.
        UnsupportedError: a tokenizer in another format only, or with a decoder that is not known.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        _refuse_other_formats(folder)
        return None
    config = read_json(folder / "tokenizer_config.json")
    backend = _load_backend(path)
    special = _special_tokens(folder, config)
    _mark_special(backend, special, config)
    _apply_add_bos(backend, special, config)
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return Tokenizer(
        backend,
        special_tokens=special,
        eos_token_ids=() if eos is None else (eos,),
        chat_templates=templates_of_folder(folder, config),
    )


def _refuse_other_formats(folder: Path) -> None:
    found = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
    if found:
        raise UnsupportedError(
            f"{folder / found[0]}: only tokenizer.json is read; convert once with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            f"{path}: {size} bytes; a tokenizer has at most {MAX_TOKENIZER_BYTES}; fetch it again"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(
            f"{path}: not a tokenizer.json that the tokenizers library reads ({error}); "
            "fetch the file again or write it with a current version"
        ) from None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Text of the named special tokens; tokenizer_config.json beats special_tokens_map.json."""
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    found = {name: _token_text(named.get(name)) for name in NAMED_TOKENS}
    return {name: text for name, text in found.items() if text}


def _token_text(entry: Any) -> str | None:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _mark_special(
    backend: tokenizers.Tokenizer, special: Mapping[str, str], config: Mapping[str, Any]
) -> None:
    """Makes special what tokenizer_config.json calls special and tokenizer.json does not."""
    names = list(special.values())
    for key in ("additional_special_tokens", "extra_special_tokens"):
        entries = config.get(key) or ()
        entries = entries.values() if isinstance(entries, dict) else entries
        names += [text for text in map(_token_text, entries) if text]
    known = {
        entry.content for entry in backend.get_added_tokens_decoder().values() if entry.special
    }
    missing = [name for name in dict.fromkeys(names) if name not in known]
    present = [name for name in missing if backend.token_to_id(name) is not None]
    if present:
        backend.add_special_tokens(present)


def _apply_add_bos(
    backend: tokenizers.Tokenizer, special: Mapping[str, str], config: Mapping[str, Any]
) -> None:
    """Lets `add_bos_token` and `add_eos_token` decide, for the classes that obey them."""
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    explicit = {key: config[key] for key in ("add_bos_token", "add_eos_token") if key in config}
    if name not in _CLASSES_WITH_ADD_BOS or not explicit:
        return
    set_added_tokens(
        backend,
        bos=special.get("bos_token") if explicit.get("add_bos_token", True) else None,
        eos=special.get("eos_token") if explicit.get("add_eos_token", False) else None,
    )


def set_added_tokens(backend: tokenizers.Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """Makes the post-processor put these tokens around a text, and nothing else."""
    ids = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    for token, token_id in ids.items():
        if token_id is None:
            raise CheckpointError(
                f"special token {token!r}: is to be added to every text but is not in the "
                "vocabulary; correct tokenizer_config.json"
            )
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    before = [] if bos is None else [{"SpecialToken": {"id": bos, "type_id": 0}}]
    after = [] if eos is None else [{"SpecialToken": {"id": eos, "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 0}}]
    state = {
        "type": "TemplateProcessing",
        "single": before + single + after,
        "pair": before + single + second + after,
        "special_tokens": {
            token: {"id": token, "ids": [token_id], "tokens": [token]}
            for token, token_id in ids.items()
        },
    }
    processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    processor.__setstate__(json.dumps(state).encode())
    backend.post_processor = processor
