"""Tokenizer metadata as GGUF files hold it: a real one from tests/data, and small made-up ones."""

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "tokenizer"
KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def smollm2_metadata() -> dict[str, Any]:
    """The tokenizer keys of SmolLM2-135M-Instruct's GGUF file (Apache-2.0)."""
    with gzip.open(DATA / "smollm2_metadata.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def llama_cpp_ids(name: str) -> list[tuple[str, list[int]]]:
    """Texts with the ids that llama.cpp gives for the tokenizer of `name`."""
    content = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return list(zip(content["texts"], content["ids"], strict=True))


def sentence_piece_metadata(*pieces: str, **keys: Any) -> dict[str, Any]:
    """A "llama" tokenizer: `<unk> <s> </s>`, all bytes, then `pieces` with falling scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    scores = [*[0.0] * 259, *(-float(place) for place in range(len(pieces)))]
    metadata = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **keys}
    return {KEY + name: value for name, value in metadata.items()}
