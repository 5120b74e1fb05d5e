"""HOST. How text is cut before byte-level BPE, by the name in a GGUF file (`tokenizer.ggml.pre`).

Each cut is one list of regular expressions, applied in turn: a match and what is left between two
matches are separate pieces. The expressions are those of the models' own tokenizer.json files, or
of llama.cpp where it has its own. Knows nothing of vocabularies.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@"
    rf"|#| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_MARKS}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_TEKKEN = _CASED.replace("@", "").replace("#", r"\p{N}")
_GPT4O = _CASED.replace("@", f"{_CONTRACTION}?").replace("#", r"\p{N}{1,3}")
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_CJK_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
)
# Letters that have case, as the DeepSeek LLM tokenizer lists them: code points and ranges.
_DEEPSEEK_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F "
    "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
    "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 "
    "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
    "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def _class_of(ranges: str) -> str:
    """The inside of a character class: "41-5A B5" becomes `\\x{41}-\\x{5A}\\x{B5}`."""
    return re.sub(r"[0-9A-F]+", lambda code: rf"\x{{{code[0]}}}", ranges).replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """One family: its expressions, and two habits that come with the name.

    splits: regular expressions, applied in turn.
    ignores_merges: a whole piece that is a token is taken as it is.
    adds_bos: BOS is added where the file does not say.
    """

    splits: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False


_FAMILIES = {
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenization(
        splits=(_LLAMA3,), ignores_merges=True, adds_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe glm4": PreTokenization(splits=(_LLAMA3,)),
    "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan kormo solar-open grok-2": PreTokenization(
        splits=(_QWEN2,)
    ),
    "qwen35": PreTokenization(splits=(_QWEN35,)),
    "tekken": PreTokenization(splits=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o llama4 kanana2 minimax-m2": PreTokenization(splits=(_GPT4O,)),
    "gpt-2 olmo mpt phi-2 jais trillion exaone4 gigachat a.x-4.0 mellum modern-bert "
    "granite-docling jina-es jina-de jina-v2-es jina-v2-de": PreTokenization(splits=(GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b minerva mellum2": (
        PreTokenization(splits=(r"\p{N}", GPT2))
    ),
    "deepseek-llm": PreTokenization(
        splits=(
            r"[\r\n]",
            rf"\s?[{_class_of(_DEEPSEEK_LETTERS)}]+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenization(
        splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
    ),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenization(
        splits=(
            r"\p{N}{1,3}",
            r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            _DEEPSEEK3,
        )
    ),
    "falcon": PreTokenization(splits=(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "bloom poro-chat gpt3-finnish": PreTokenization(splits=(_BLOOM,)),
    "viking": PreTokenization(splits=(_BLOOM, r"\p{N}")),
    "bailingmoe bailingmoe2 llada-moe": PreTokenization(splits=(_BAILING,)),
    "seed-coder": PreTokenization(splits=(_SEED,)),
    "default": PreTokenization(
        splits=(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    ),
}
PRE_TOKENIZATIONS = {name: family for names, family in _FAMILIES.items() for name in names.split()}


def byte_level_pre_tokenizer(splits: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts at every expression in turn, then writes the bytes in the byte-level alphabet."""
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    return pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
