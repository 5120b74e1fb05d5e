"""HOST. A tokenizer as the files of a Hugging Face folder, for models from GGUF files."""

import json
from typing import Any

from jaxinfer.text.template_files import DEFAULT
from jaxinfer.text.tokenizer import Tokenizer


def tokenizer_files(tokenizer: Tokenizer, *, max_tokens: int) -> dict[str, str]:
    """Content of the files by name: tokenizer.json and tokenizer_config.json.

    Args:
        max_tokens: that the model can hold, for tools that cut texts.
    """
    config: dict[str, Any] = {
        # The class that takes tokenizer.json as it is; what it adds to a text is said in there.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
        **tokenizer.special_tokens,
    }
    templates = tokenizer.chat_templates
    if list(templates) == [DEFAULT]:
        config["chat_template"] = templates[DEFAULT]
    elif templates:
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    return {
        "tokenizer.json": tokenizer.backend.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
    }
