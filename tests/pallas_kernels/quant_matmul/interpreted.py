"""`quant_matmul` in Triton's interpreter against float64: run with TRITON_INTERPRET=1.

In float32: the interpreter multiplies bfloat16 as if its bits were integers.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from pallas_kernels.quant_matmul.cases import CASES, Case
from pallas_kernels.quant_matmul.triton import QuantTiles, launch_options, quant_matmul_kernel
from tests.pallas_kernels.quant_matmul.packed import make_case
from tests.support.tolerances import KERNELS

ADDENDS = {"none": 0, "zeros": 1, "offsets": 2}


def as_torch(array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


def check(case: Case) -> None:
    packed = make_case(
        case.codes,
        addend=case.addend,
        shape=(case.outputs, case.columns),
        group=case.group,
        scale_dtype=ml_dtypes.bfloat16 if case.scales == "bfloat16" else np.dtype(case.scales),
    )
    values = np.random.default_rng(1).normal(size=(case.rows, case.columns))
    x = values.astype(ml_dtypes.bfloat16)
    codes, scales = as_torch(packed.codes), as_torch(packed.scales)
    addends = next(map(as_torch, packed.addends.values()), scales)
    tiles = QuantTiles()
    out = torch.empty((case.rows, case.outputs), dtype=torch.float32)
    options = launch_options(x.shape, packed.codes, case.group, ADDENDS[case.addend], tiles)
    grid = (-(-case.rows // tiles.block_rows), -(-case.outputs // tiles.block_out))
    wide = as_torch(x.astype(np.float32))
    quant_matmul_kernel[grid](wide, codes, scales, addends, out, **options)
    exact = x.astype(np.float64) @ packed.matrix.astype(np.float64).T
    error = np.linalg.norm(out.double().numpy() - exact)
    assert error <= KERNELS["float32"] * np.linalg.norm(exact), (case, error)


def main() -> None:
    for case in [case for case in CASES if case.tier != "bench" and case.out_group == 1]:
        check(case)


if __name__ == "__main__":
    main()
