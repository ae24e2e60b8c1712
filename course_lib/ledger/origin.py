"""The origin of a collective: the line in the reader's code, the training phase, the issuer.

All three are read from the Python stack at the moment of the call, so they need no extra calls or
hooks. Lesson 01 uses the line, and lessons 04 and 09 count by phase.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

PHASES = ("forward", "backward", "step", "other")

# Issuers of collectives, by a part of their files' path; the innermost match counts.
ISSUERS = {
    "/torch/distributed/fsdp/": "FSDP",
    "/torch/distributed/tensor/": "DTensor",
    "/torch/nn/parallel/distributed.py": "DDP",
    "/torch/distributed/optim/zero_redundancy_optimizer.py": "ZeroRedundancyOptimizer",
    "/deepspeed/": "DeepSpeed",
}
TORCH = os.path.dirname(torch.__file__) + os.sep
LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The library and the packages that use it. Their lines are not lines of the reader.
HOUSE = (LIBRARY + os.sep, *(f"{os.path.dirname(LIBRARY)}{os.sep}{name}{os.sep}"
                             for name in ("course_classroom", "course_lessons")))  # fmt: skip
LEDGER = os.path.dirname(os.path.abspath(__file__)) + os.sep
VERBS = os.path.join(LIBRARY, "collectives") + os.sep


class Origin(NamedTuple):
    """The reader's line, the phase and the issuer of a call."""

    site: str  # "train.py:31", or "cell:4" for the fourth line of a notebook cell
    phase: str
    issued_by: str


def find(wants_gradient: bool, functional: bool, opener: int) -> Origin:
    """Inspect the stack of the call that is being recorded.

    `opener` is the thread that opened the ledger. Its stack contains the reader's `loss.backward()`
    while an autograd thread, which has no Python frames, reduces gradients on a GPU.
    """
    frames = [f for f in _outwards(sys._getframe(1)) if not _file(f).startswith(LEDGER)]
    site = _site(frames)
    if site is None:
        site = _site(_outwards(sys._current_frames().get(opener))) or "unknown"
    return Origin(site, _phase(frames, wants_gradient), _issuer(frames, functional))


def _phase(frames: list[FrameType], wants_gradient: bool) -> str:
    """Return the phase of a training step in which this call happens.

    backward  autograd runs a graph, or a function named `backward` runs (DeepSpeed reduces after
              the graph has ended, and a lesson writes its gradients by hand).
    step      inside the `step` method of an object with `param_groups`, such as any optimizer.
    forward   inside a module's call or a function named `forward`, or on a tensor that requires a
              gradient. Recomputation in the backward pass counts as backward.
    other     everything else, such as distributing weights before training.
    """
    if torch._C._current_graph_task_id() != -1:
        return "backward"
    for frame in frames:
        name = frame.f_code.co_name
        if name == "backward":
            return "backward"
        if name == "step" and hasattr(frame.f_locals.get("self"), "param_groups"):
            return "step"
        if name in ("forward", "_call_impl"):
            return "forward"
    return "forward" if wants_gradient else "other"


def _issuer(frames: list[FrameType], functional: bool) -> str:
    by_python = functional
    for frame in frames:
        path = _file(frame)
        if path.startswith(HOUSE):
            return "course_lib"
        if _is_readers(path):
            return "torch.distributed"
        for piece, issuer in ISSUERS.items():
            if piece in path.replace(os.sep, "/"):
                return issuer
        by_python = by_python or path.startswith(TORCH + "distributed")
        if frame.f_code.co_name == "_engine_run_backward":
            break
    # Only DDP's reducer, which is written in C++, issues collectives from autograd's engine without
    # a Python frame of torch.distributed.
    in_backward = torch._C._current_graph_task_id() != -1
    return "DDP" if in_backward and not by_python else "torch.distributed"


def _site(frames: Iterator[FrameType] | list[FrameType]) -> str | None:
    """Return the innermost line of the reader's code or, without one, of the course's code."""
    ours = None
    for frame in frames:
        path = _file(frame)
        if _is_readers(path):
            return _line(frame)
        if ours is None and path.startswith(HOUSE) and not path.startswith((LEDGER, VERBS)):
            ours = _line(frame)
    return ours


def _line(frame: FrameType) -> str:
    path = _file(frame)
    folder, name = os.path.split(path)
    # IPython compiles each cell under a generated name, which tells a reader nothing.
    in_cell = os.path.basename(folder).startswith("ipykernel_") or name.startswith("<ipython-")
    return f"{'cell' if in_cell else name}:{frame.f_lineno}"


@lru_cache(maxsize=4096)
def _is_readers(path: str) -> bool:
    """Return True for files that belong neither to Python, nor to a package, nor to the course."""
    if path.startswith(("<frozen", "<eval_with_key>", TORCH, *HOUSE)):
        return False
    folders = path.replace(os.sep, "/").split("/")
    if "site-packages" in folders or "dist-packages" in folders:
        return False
    paths = sysconfig.get_paths()
    if path.startswith((paths["stdlib"] + os.sep, paths["platstdlib"] + os.sep)):
        return False
    places = [place + os.sep for place in sys.path if place and path.startswith(place + os.sep)]
    return not any(_is_installed(one, path[len(one) :].split(os.sep)[0]) for one in places)


@lru_cache(maxsize=1024)
def _is_installed(place: str, name: str) -> bool:
    """Return True if a distribution's list of files shows that pip installed this package or module
    there. With `pip install --target`, this can be any folder."""
    line = re.compile(rf"^{re.escape(name)}[/,]", re.MULTILINE)
    lists = Path(place).glob("*.dist-info/RECORD")
    return any(line.search(file.read_text(errors="replace")) for file in lists)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
