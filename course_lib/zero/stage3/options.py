"""What stage 3 alone can be asked for: its units, and what of them is whole when.

An engine takes these as keywords of its own and refuses them at another stage. Lesson 11 weighs
them against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from torch import nn

from course_lib.zero.refusals import check_names
from course_lib.zero.stage3.build import Fill

PERSIST = 1 << 16  # bytes: a parameter that is smaller costs less kept than sent


@dataclass(frozen=True)
class Stage3:
    """`units`: modules whose parameters come and go together, None for the members of every
    ModuleList; `prefetch`: units asked for ahead; `keep`: bytes that may stay whole from the
    forward to the backward; `persist`: bytes below which a parameter stays whole; `fill`: a
    function of a name and a tensor, which gives numbers to a model on torch's meta device."""

    units: Sequence[nn.Module] | None = None
    prefetch: int = 1
    keep: int = 0
    persist: int = PERSIST
    fill: Fill | None = None

    @classmethod
    def named(cls, options: Mapping[str, object], known: Sequence[str], stage: object) -> Stage3:
        """Read stage 3's options from an engine's keywords; `known` are the engine's others."""
        check_names(options, known, [field.name for field in fields(cls)], stage)
        return cls(**options)
