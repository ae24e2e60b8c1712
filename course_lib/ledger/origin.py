"""Where a collective comes from: the reader's own line, the phase of training, who issued it.

All three are found on the Python stack at the moment of the call, so that nothing has to be
announced and nothing hooked. Lesson 01 uses the line, lessons 04 and 09 count by phase.
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

# Who issues collectives, by a piece of the path of its files; the call's innermost one counts.
ISSUERS = {
    "/torch/distributed/fsdp/": "FSDP",
    "/torch/distributed/tensor/": "DTensor",
    "/torch/nn/parallel/distributed.py": "DDP",
    "/torch/distributed/optim/zero_redundancy_optimizer.py": "ZeroRedundancyOptimizer",
    "/deepspeed/": "DeepSpeed",
}
TORCH = os.path.dirname(torch.__file__) + os.sep
LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The library and what stands on top of it: none of their lines is one that a reader wrote.
HOUSE = (LIBRARY + os.sep, *(f"{os.path.dirname(LIBRARY)}{os.sep}{name}{os.sep}"
                             for name in ("course_classroom", "course_lessons")))  # fmt: skip
LEDGER = os.path.dirname(os.path.abspath(__file__)) + os.sep
VERBS = os.path.join(LIBRARY, "collectives") + os.sep


class Origin(NamedTuple):
    """The three answers."""

    site: str  # "train.py:31", or "cell:4" for the fourth line of a notebook cell
    phase: str
    issued_by: str


def find(wants_gradient: bool, functional: bool, opener: int) -> Origin:
    """Look at the stack of the call that is being recorded.

    `opener` is the thread that opened the ledger: it stands in the reader's `loss.backward()` while
    a thread of autograd's own, which has no Python frames, reduces gradients on a GPU.
    """
    frames = [f for f in _outwards(sys._getframe(1)) if not _file(f).startswith(LEDGER)]
    site = _site(frames)
    if site is None:
        site = _site(_outwards(sys._current_frames().get(opener))) or "unknown"
    return Origin(site, _phase(frames, wants_gradient), _issuer(frames, functional))


def _phase(frames: list[FrameType], wants_gradient: bool) -> str:
    """What a reader would call this moment of a training step.

    backward: autograd is running a graph, or a function named `backward` is (DeepSpeed reduces
              after the graph has ended, and a lesson writes its gradients by hand).
    step:     inside the `step` of something with `param_groups`: an optimizer, whoever wrote it.
    forward:  inside a module's call or a function named `forward`, or on a tensor that wants a
              gradient. A forward that is recomputed in the backward counts as backward.
    other:    everything else, such as sharing out weights before training.
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
    # The only collectives that autograd's engine issues without a Python frame of torch.distributed
    # are those of DDP's reducer, which is written in C++.
    in_backward = torch._C._current_graph_task_id() != -1
    return "DDP" if in_backward and not by_python else "torch.distributed"


def _site(frames: Iterator[FrameType] | list[FrameType]) -> str | None:
    """The innermost line that the reader wrote; failing that, the innermost of the course's own."""
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
    # IPython compiles each cell under a made-up name, which says nothing to a reader.
    in_cell = os.path.basename(folder).startswith("ipykernel_") or name.startswith("<ipython-")
    return f"{'cell' if in_cell else name}:{frame.f_lineno}"


@lru_cache(maxsize=4096)
def _is_readers(path: str) -> bool:
    """Whether a file is neither Python's, nor an installed package's, nor the course's."""
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
    """Whether pip put the package or module of that name there, as `pip install --target` does
    in any folder: a distribution's list of files beside it names it."""
    line = re.compile(rf"^{re.escape(name)}[/,]", re.MULTILINE)
    lists = Path(place).glob("*.dist-info/RECORD")
    return any(line.search(file.read_text(errors="replace")) for file in lists)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
