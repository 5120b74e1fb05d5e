"""Root-mean-square normalization."""

from pallas_kernels.rms_norm.api import (
    add_rms_norm,
    resolve_implementation,
    resolve_residual,
    rms_norm,
)

__all__ = ["add_rms_norm", "resolve_implementation", "resolve_residual", "rms_norm"]
