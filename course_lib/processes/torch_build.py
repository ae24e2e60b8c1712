"""The GPU support of torch, read from its files, because importing it takes a second and 200 MB.

A notebook's own process needs no torch until the learner uses it; only its ranks import it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

_BUILT = re.compile(r"^(?:cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)", re.MULTILINE)


def gpu_build() -> str:
    """Return the CUDA or ROCm version of the torch build; empty for a CPU build."""
    version = getattr(sys.modules.get("torch"), "version", None)  # None while it is being imported
    if version is not None:
        return version.cuda or getattr(version, "hip", None) or ""
    found = importlib.util.find_spec("torch")
    file = Path(found.origin).parent / "version.py" if found and found.origin else None
    if file is None or not file.exists():
        return ""
    built = _BUILT.search(file.read_text())
    return built.group(1) if built else ""


def gpu_count() -> int:
    """Count the GPUs that torch sees, without importing torch if its build supports none."""
    if "torch" not in sys.modules and not gpu_build():
        return 0
    import torch

    return torch.cuda.device_count()  # asks the driver, and uses no GPU memory
