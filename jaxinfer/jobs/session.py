"""JOINT. The one place where a command opens a model; jax is imported here and not before."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.llm import LLM


def open_llm(model: str, **options: Any) -> "LLM":
    """The model ready to generate, to be used as a context manager.

    Args:
        model: demo name, folder, GGUF file or hub id.
        options: keyword arguments of `LLM`.

    Raises:
        JaxInferError: whatever loading finds wrong.
    """
    from jaxinfer import LLM

    return LLM(model, **options)


def device_name() -> str:
    """Example: "NVIDIA H200, jax 0.10.2"."""
    import jax

    return f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
