"""HOST. What a user may give as a prompt, checked and turned into token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from jaxinfer.errors import RequestError
from jaxinfer.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """A checked prompt; text is None where ids were given."""

    text: str | None
    token_ids: list[int]


def read_prompt(
    prompt: Any, tokenizer: Tokenizer | None, *, vocab_size: int, max_model_len: int
) -> TokenPrompt:
    """Text, ids, `{"prompt": …}` or `{"prompt_token_ids": …}` as token ids.

    Raises:
        RequestError: another type, no tokens, an id outside the vocabulary, or too long.
    """
    text, token_ids = _split(prompt)
    if text is not None:
        if tokenizer is None:
            raise RequestError(
                f"prompt={text[:40]!r}: the checkpoint has no tokenizer; pass token ids"
            )
        token_ids = tokenizer.encode(text)
        if not token_ids and tokenizer.bos_token_id is not None:
            token_ids = [tokenizer.bos_token_id]
    token_ids = _checked_ids(token_ids, vocab_size)
    if len(token_ids) > max_model_len:
        raise RequestError(
            f"the prompt has {len(token_ids)} tokens, max_model_len allows {max_model_len}; "
            "shorten it, or raise max_model_len where the model has more positions"
        )
    return TokenPrompt(text=text, token_ids=token_ids)


def text_of(prompt: Any) -> str | None:
    """The text of a prompt that was not checked, if it is one."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def _split(prompt: Any) -> tuple[str | None, list[int]]:
    if isinstance(prompt, Mapping):
        keys = set(prompt)
        if "multi_modal_data" in keys:
            raise RequestError("multi_modal_data: multimodal input is not built yet; pass text")
        if keys not in ({"prompt"}, {"prompt_token_ids"}):
            raise RequestError(
                f"a prompt mapping has keys {sorted(map(str, keys))}, it must have exactly one of "
                "'prompt' and 'prompt_token_ids'"
            )
        prompt = next(iter(prompt.values()))
        if "prompt_token_ids" in keys and isinstance(prompt, str):
            raise RequestError(
                f"prompt_token_ids={prompt[:40]!r} is a str; pass ids, or the text as 'prompt'"
            )
    if isinstance(prompt, str):
        return prompt, []
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt  # a numpy array's ids
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return None, list(values)
    raise RequestError(
        f"prompt={prompt!r} is a {type(prompt).__name__}; pass a str, a list of token ids, "
        "{'prompt': str} or {'prompt_token_ids': list}"
    )


def _checked_ids(token_ids: list[Any], vocab_size: int) -> list[int]:
    if not token_ids:
        raise RequestError("the prompt has no tokens; pass at least one character or token id")
    for place, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, Integral):  # numpy's are Integral
            raise RequestError(
                f"prompt_token_ids[{place}]={token!r} is a {type(token).__name__}, must be an int"
            )
        if not 0 <= int(token) < vocab_size:
            raise RequestError(
                f"prompt_token_ids[{place}]={token} is outside the vocabulary of {vocab_size} "
                f"tokens; ids go from 0 to {vocab_size - 1}"
            )
    return [int(token) for token in token_ids]
