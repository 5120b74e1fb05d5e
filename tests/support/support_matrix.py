"""docs/support.md from the registry and the fixtures: python -m tests.support.support_matrix

A cell is "verified" where a fixture of that kind lies in a folder whose files a test compares with
an oracle, "refused" where the code refuses it by name, and "untested" where it runs and nothing
compares it. So a new family has its rows as soon as it is registered.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from jaxinfer.checkpoint.gguf_config import read_gguf_config
from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import ARCHITECTURES
from jaxinfer.models.spec import Architecture
from jaxinfer.text.pretokenizers import PRE_TOKENIZATIONS
from tests.end_to_end.test_batching import MODELS
from tests.end_to_end.test_families import FAST, SLOW
from tests.support.family_fixtures import fixture_names, read_fixture
from tests.support.family_gguf import has_gguf_form

ROOT = Path(__file__).parents[2]
DATA, PAGE = ROOT / "tests/data", ROOT / "docs/support.md"
ROPES = ("none", "linear", "dynamic", "llama3", "yarn", "longrope")
# A file with blocks has floats too (norms, routers); one of floats has nothing else.
FLOATS = {"F32", "F16", "BF16"}
REAL_TOKENIZERS = {"smollm": "SmolLM2"}
INTRODUCTION = """# What is supported

Written by `python -m tests.support.support_matrix` from the registry of families and the fixtures
of the tests; a test fails when this page is stale. **verified**: a test compares it with another
implementation (logits within 1e-4 in float32, through prefill and through decode steps).
**untested**: it runs, and nothing here compares it. **refused**: an error names it. **-**: there is
no such thing.
"""


FILES = """GGUF files of a Mistral say `llama` and hold no window: all layers attend fully, as in
llama.cpp. Scales, and the windows and layers that llama.cpp hard-codes where a file is silent
(Gemma 2, Gemma 3, gpt-oss, SmolLM3), are taken from it.
"""
ROPE_CONTEXT = """`dynamic` and `longrope` have one set of frequencies for contexts up to the
trained one, and another for longer ones. An engine uses one for all requests, by its
`max_model_len`, whose default keeps to short contexts; numbers are then those of transformers for
texts of that length. A larger `max_model_len` takes the other set.

`linear`, `dynamic` and `yarn` stretch the trained context by their factor. Which one that is, only
`original_max_position_embeddings` says; without it, it is `max_position_embeddings` (GGUF:
`context_length`), as transformers has it. `max_model_len` may go up to the stretched length: a
Qwen3 with a factor of 4 and 32,768 positions runs with `max_model_len=131072`. Its default never
goes past what the file gives, or 8,192. Gemma 3 scales the rope of some layers only, and its files
give the stretched length; so do those of `llama3` and `longrope`.
"""


class Seen(NamedTuple):
    """One fixture: what it is of, and how it is stored. blocks: GGUF types of its matrices."""

    config: ModelConfig
    is_gguf: bool
    quantization: str = ""
    blocks: frozenset[str] = frozenset()


@cache
def seen_fixtures() -> tuple[Seen, ...]:
    """Every fixture that a test compares with an oracle."""
    configs = [json.loads(path.read_text()) for path in DATA.glob("float/*/config.json")]
    found = [Seen(_config(config), False) for config in configs]
    for name in fixture_names():
        fixture = read_fixture(name)
        config, quantization = _config(fixture.config), _method(fixture.config)
        found.append(Seen(config, False, quantization=quantization))
        if has_gguf_form(fixture):
            blocks = {"F32", quantization.upper()} - {""}
            found.append(Seen(config, True, blocks=frozenset(blocks)))
    for path in sorted(DATA.glob("quant/*/config.json")):
        config = json.loads(path.read_text())
        found.append(Seen(_config(config), False, quantization=_method(config)))
    for path in sorted(DATA.glob("quant/*/model.gguf")):
        file = open_gguf(path)
        shapes = ((info.dtype_name, len(info.shape)) for info in file.infos.values())
        blocks = frozenset(name for name, axes in shapes if axes > 1)
        found.append(Seen(read_gguf_config(file.metadata, file)[0], True, blocks=blocks))
    return tuple(found)


def _method(raw: dict[str, Any]) -> str:
    return raw.get("quantization_config", {}).get("quant_method", "")


def _config(raw: dict[str, Any]) -> ModelConfig:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        return read_hf_config(Path(folder))[0]


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Families\n", families(), FILES]
    parts += ["## Rotary embeddings\n", _ropes(), ROPE_CONTEXT]
    parts += ["## Variants of a family\n", _variants(), "## Quantized weights\n", _quantized()]
    parts += ["## Tokenizers of GGUF files\n", _tokenizers()]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _of(architecture: Architecture) -> list[Seen]:
    return [one for one in seen_fixtures() if one.config.architecture == architecture.name]


def _said(is_verified: bool, runs: bool = True) -> str:
    return "verified" if is_verified else "untested" if runs else "refused"


def families() -> str:
    """`config.json` of both generations is read by the same tests, from the same fixtures."""
    batched = {read_fixture(name).config["model_type"] for name in (*FAST, *SLOW)}
    batched |= {model["base"]["model_type"] for model in MODELS.values()}
    rows = []
    for one in ARCHITECTURES:
        floats = any(not seen.is_gguf and not seen.quantization for seen in _of(one))
        files = [seen.blocks for seen in _of(one) if seen.is_gguf]
        whole = any(blocks <= FLOATS for blocks in files)
        said = _said(whole), _said(any(blocks - FLOATS for blocks in files))
        rows.append(
            (
                one.name,
                ", ".join(f"`{name}`" for name in one.hf_model_types),
                _said(floats),
                ", ".join(f"`{name}`" for name in one.gguf_names) or "as `llama`",
                *(said if one.gguf_names else ("-", "-")),
                _said(bool(batched & set(one.hf_model_types))),
            )
        )
    head = ("family", "`model_type`", "config.json v4 and v5", "GGUF architecture")
    return _table((*head, "GGUF floats", "GGUF blocks", "bits whatever the batch"), rows)


def _ropes() -> str:
    rows = []
    for one in ARCHITECTURES:
        ropes = [rope for seen in _of(one) for rope in seen.config.ropes]
        kinds = {rope.scaling for rope in ropes}
        partial = _said(any(rope.rotary_dim for rope in ropes), one.has_partial_rotary)
        without = any(None in seen.config.layer_ropes for seen in _of(one))
        skips = _said(without, "no_rope_layers" in one.hf_defaults)
        rows.append((one.name, *(_said(kind in kinds) for kind in ROPES), partial, skips))
    return _table(("family", *ROPES, "part of a head", "layers without"), rows)


def _variants() -> str:
    rows = []
    for one in ARCHITECTURES:
        configs, keys = [seen.config for seen in _of(one)], one.hf_defaults
        window = any(any(config.windows) for config in configs)
        bias = _said(any(config.attention_bias for config in configs), "attention_bias" in keys)
        mlp_bias = _said(any(config.mlp_bias for config in configs), "mlp_bias" in keys)
        cap = any(config.attention_softcap for config in configs)
        ties = {config.tie_embeddings for config in configs}
        rows.append(
            (
                one.name,
                _said(window) if "sliding_window" in keys else "-",
                bias,
                mlp_bias,
                _said(cap, "attn_logit_softcapping" in keys),
                _said(True in ties),
                _said(False in ties),
            )
        )
    head = (
        "family",
        "sliding window",
        "attention bias",
        "mlp bias",
        "softcaps",
        "tied",
        "own head",
    )
    return _table(head, rows)


def _quantized() -> str:
    """Readers know no families: what is verified with one is read for all."""
    methods: dict[str, set[str]] = {}
    for seen in seen_fixtures():
        names = [f"GGUF {name}" for name in seen.blocks if name != "F32"]
        for name in [*names, *([seen.quantization] if seen.quantization else [])]:
            methods.setdefault(name, set()).add(seen.config.architecture)
    rows = [(name, ", ".join(sorted(found))) for name, found in sorted(methods.items())]
    return _table(("format", "verified with"), rows)


def _tokenizers() -> str:
    """Split rules are tested one by one; ids against llama.cpp where a vocabulary is at hand."""
    families: dict[Any, list[str]] = {}
    for name, family in PRE_TOKENIZATIONS.items():
        families.setdefault((family.splits, family.ignores_merges), []).append(name)
    rows = []
    for names in families.values():
        real = [REAL_TOKENIZERS[name] for name in names if name in REAL_TOKENIZERS]
        listed = ", ".join(f"`{name}`" for name in names)
        rows.append((listed, f"verified with {real[0]}" if real else "untested with a vocabulary"))
    return _table(("`tokenizer.ggml.pre`", "ids"), rows)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
