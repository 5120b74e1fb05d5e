"""Command line and batch jobs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.jobs.batch import run_batch
    from jaxinfer.jobs.batch_plots import plot_results
    from jaxinfer.jobs.batch_results import BatchResult, read_results
    from jaxinfer.jobs.batch_settings import BatchSummary
    from jaxinfer.jobs.ray_job import ray_batch, ray_map

_HOMES = {
    "run_batch": "jaxinfer.jobs.batch",
    "BatchResult": "jaxinfer.jobs.batch_results",
    "read_results": "jaxinfer.jobs.batch_results",
    "plot_results": "jaxinfer.jobs.batch_plots",
    "BatchSummary": "jaxinfer.jobs.batch_settings",
    "ray_batch": "jaxinfer.jobs.ray_job",
    "ray_map": "jaxinfer.jobs.ray_job",
}

__all__ = [
    "BatchResult",
    "BatchSummary",
    "plot_results",
    "ray_batch",
    "ray_map",
    "read_results",
    "run_batch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer.jobs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
