"""DEV. Which architectures there are. A new family is its file and one line here."""

from jaxinfer.errors import UnsupportedError
from jaxinfer.models.gemma import GEMMA
from jaxinfer.models.gemma2 import GEMMA2
from jaxinfer.models.gemma3 import GEMMA3
from jaxinfer.models.gpt_oss import GPT_OSS
from jaxinfer.models.llama import LLAMA
from jaxinfer.models.mistral import MISTRAL
from jaxinfer.models.mixtral import MIXTRAL
from jaxinfer.models.olmo2 import OLMO2
from jaxinfer.models.phi3 import PHI3
from jaxinfer.models.qwen2 import QWEN2
from jaxinfer.models.qwen3 import QWEN3
from jaxinfer.models.qwen3_moe import QWEN3_MOE
from jaxinfer.models.smollm3 import SMOLLM3
from jaxinfer.models.spec import Architecture

ARCHITECTURES: tuple[Architecture, ...] = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    OLMO2,
    PHI3,
    SMOLLM3,
)


def architecture_named(name: str) -> Architecture:
    """The architecture whose `ModelConfig.architecture` is `name`."""
    return next(arch for arch in ARCHITECTURES if arch.name == name)


def architecture_for_hf(model_type: str) -> Architecture:
    """The architecture that serves a config.json's `model_type`."""
    return _find("model_type", model_type, [(a, a.hf_model_types) for a in ARCHITECTURES])


def architecture_for_gguf(name: str, *, has_experts: bool = False) -> Architecture:
    """The architecture of a GGUF file's `general.architecture`, with experts or without."""
    table = [(a, a.gguf_names) for a in ARCHITECTURES if a.has_experts == has_experts]
    key = "general.architecture" + (" with experts" if has_experts else "")
    return _find(key, name, table)


def _find(key: str, wanted: str, table: list[tuple[Architecture, tuple[str, ...]]]) -> Architecture:
    for architecture, names in table:
        if wanted in names:
            return architecture
    known = ", ".join(name for _, names in table for name in names)
    raise UnsupportedError(
        f"{key}={wanted!r} is not an architecture that jaxinfer runs; known: {known}"
    )
