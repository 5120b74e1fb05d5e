"""Command line and batch jobs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.jobs.batch import run_batch
    from jaxinfer.jobs.batch_settings import BatchSummary

_HOMES = {
    "run_batch": "jaxinfer.jobs.batch",
    "BatchSummary": "jaxinfer.jobs.batch_settings",
}

__all__ = ["BatchSummary", "run_batch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer.jobs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
