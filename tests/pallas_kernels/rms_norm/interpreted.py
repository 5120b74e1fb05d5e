"""`rms_norm` in Triton's interpreter against float64: run with TRITON_INTERPRET=1."""

import numpy as np
import torch

from pallas_kernels.rms_norm.cases import CASES
from pallas_kernels.rms_norm.triton import launch_options, rms_norm_kernel
from tests.support.tolerances import KERNELS

EPS = 1e-6


def main() -> None:
    random = np.random.default_rng(0)
    for case in [case for case in CASES if case.is_small]:
        values = random.normal(size=(case.rows, case.columns)) * case.deviation
        x = torch.tensor(values, dtype=getattr(torch, case.dtype))
        weight = torch.tensor(random.normal(size=case.columns), dtype=torch.float32)
        out = torch.empty_like(x, dtype=torch.float32)  # its bfloat16 is cut off, not rounded
        rms_norm_kernel[(case.rows,)](x, weight, out, **launch_options(case.columns, EPS))
        wide = x.double().numpy()
        mean = (wide**2).mean(axis=-1, keepdims=True)
        exact = wide / np.sqrt(mean + EPS) * weight.double().numpy()
        error = np.linalg.norm(out.double().numpy() - exact)
        assert error <= KERNELS["float32"] * np.linalg.norm(exact), (case, error)


if __name__ == "__main__":
    main()
