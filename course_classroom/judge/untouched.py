"""Protection of a check's tools: detection of parts that an answer has replaced.

An answer runs in the process that measures it, so `dist.all_reduce = mine` or `math.isclose = mine`
affects all code in that process. From lesson 01 on.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import importlib
import itertools
import json
import math
import operator
import random
import re
import statistics
from collections.abc import Iterable
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

KEPT, SET = "__untouched__", "__untouched_settings__"
SETTINGS = {  # the function that sets it, and the current value
    "torch.set_default_dtype": torch.get_default_dtype,
    "torch.set_default_device": torch.get_default_device,
}
_OURS = (
    "course_classroom.ranks.values",
    "course_classroom.judge.bench",
    "course_lib.ledger.torch_calls",
)
_OURS += ("course_lib.ledger", "course_lib.memory", "course_lib.ranks", "course_lib.collectives")
# The checks compute with them, in the same process as the answer.
_PYTHON = (builtins, collections, copy, functools, itertools, json, math, operator, random, re)
_PYTHON += (random.Random, statistics)
_TORCH = (torch, torch.Tensor, torch.linalg, torch.autograd, torch.autograd.graph, F, dist)
_TORCH += (dist.distributed_c10d, dist.ProcessGroup, nn.Module, nn.Parameter, torch.optim.Optimizer)


def keep(namespace: dict, modules: Iterable[str] = ()) -> None:
    """Record every function and class of the measuring tools, before an answer runs."""
    ours = [importlib.import_module(name) for name in (*_OURS, *modules)]
    watched = (*_PYTHON, *_TORCH, *ours)
    namespace[KEPT] = [(it, _callables(it), frozenset(vars(it))) for it in watched]
    namespace[SET] = {call: asked() for call, asked in SETTINGS.items()}


def replaced(namespace: dict) -> list[str]:
    """Return the names that an answer has set, replaced or removed since `keep`."""
    were = namespace.get(SET, {})
    found = [call for call, asked in SETTINGS.items() if call in were and asked() != were[call]]
    if found:
        return found  # torch itself then replaces some of its names
    for it, before, names in namespace.get(KEPT, ()):
        now = vars(it)
        gone = [name for name, was in before if now.get(name) is not was]
        over = [name for name in now.keys() - names if isinstance(it, type) and _inherits(it, name)]
        found += [f"{it.__name__}.{name}" for name in (*gone, *over)]
    return found


def _inherits(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__[1:])


def _callables(it: ModuleType | type) -> list[tuple[str, object]]:
    named = list(vars(it).items())
    watched = [one for one in named if callable(one[1]) or isinstance(one[1], _ODD)]
    return [(name, value) for name, value in watched if name not in _IPYTHONS]


_IPYTHONS = ("get_ipython", "display", "input", "exit", "quit")  # builtins while a cell runs
_ODD = (property, classmethod, staticmethod)
