"""A JAX/XLA-compiled inference runtime for language models.

Importing it starts nothing: no device is touched before an `LLM` is made.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.config.request_options import RequestOptions
    from jaxinfer.config.sampling_params import SamplingParams
    from jaxinfer.engine.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta
    from jaxinfer.errors import JaxInferError
    from jaxinfer.llm import LLM

_HOMES = {
    "LLM": "jaxinfer.llm",
    "SamplingParams": "jaxinfer.config.sampling_params",
    "RequestOptions": "jaxinfer.config.request_options",
    "RequestOutput": "jaxinfer.engine.outputs",
    "CompletionOutput": "jaxinfer.engine.outputs",
    "ScoreOutput": "jaxinfer.engine.outputs",
    "StreamDelta": "jaxinfer.engine.outputs",
    "JaxInferError": "jaxinfer.errors",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "JaxInferError",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "ScoreOutput",
    "StreamDelta",
]

try:
    __version__ = version("jaxinfer")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
