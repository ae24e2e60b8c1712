"""The choice of code for the loss, once per call: Triton kernels or torch's operations.

Kernels take float32, bfloat16 and float16 on a GPU. The CPU, float64, and a GPU without a working
Triton use torch. COURSE_KERNELS=0 in the environment always selects torch. Lesson 07.
"""

from __future__ import annotations

import functools
import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def kernels_for(x: Tensor) -> ModuleType | None:
    """Return `loss_kernels` if it supports logits of this device, dtype and layout, else None."""
    if not x.is_cuda or x.dtype not in _DTYPES or x.stride(-1) != 1 or not x.numel():
        return None
    if os.environ.get("COURSE_KERNELS") == "0":
        return None
    return _tried(x.device, x.dtype)


@functools.cache
def _tried(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """Return the kernels if they import, compile and run here; otherwise warn with the reason."""
    try:
        from course_lib.tensor_parallel import loss_kernels

        logits = torch.zeros(1, 2, device=device, dtype=dtype)
        targets = torch.zeros(1, device=device, dtype=torch.int64)
        own = loss_kernels.local_statistics(logits, targets, 0, 2, 0.0)
        share = weight = torch.ones(1, device=device)
        loss_kernels.gradient(logits, targets, own, share, weight, logits, 0, 2, 2, 0.0)
        if own[1].item() != 2.0 or logits.tolist() != [[-0.5, 0.5]]:
            raise RuntimeError(f"two equal logits gave {own.tolist()} and {logits.tolist()}")
    except Exception as error:  # from Triton, its compilers, or the driver
        cause = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"the loss runs on {device} without its Triton kernels, "
            f"with the same numbers but more slowly ({type(error).__name__}: {cause}). "
            "Set COURSE_KERNELS=0 to leave them out without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return loss_kernels
