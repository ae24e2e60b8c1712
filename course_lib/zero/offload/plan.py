"""The plan of an offload: a rank's optimizer states and parameters on the host or in files.

Unsupported combinations raise an error here, before anything is created. Lesson 12 compares the
combinations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from course_lib.zero.offload.files import Files

PLACES = {"cpu": "the host", "nvme": "files"}


@dataclass(frozen=True)
class OffloadPlan:
    """The places of offloaded tensors. `optimizer` is for the optimizer's states, the values that
    it updates and their gradients, at stages 1 to 3. `parameters` is for parameter shards between
    uses, at stage 3; without `optimizer`, only "cpu" works. DeepSpeed has files only at stage 3."""

    optimizer: str | None
    parameters: str | None = None
    folder: Path | None = None
    take_over: bool = False  # remove files of a run that did not close
    io: Files | str = "threads"  # or an object like files.Files

    @classmethod
    def named(cls, offload: str | Mapping | OffloadPlan | None, stage: int) -> OffloadPlan | None:
        """Return the plan for an engine's `offload=`, or raise."""
        if offload is None:
            return None
        if isinstance(offload, str):
            offload = {"optimizer": offload}
        if isinstance(offload, Mapping):
            known = [field.name for field in fields(cls)]
            strange = [str(key) for key in offload if key not in known]
            if strange:
                raise ValueError(
                    f"offload= has no option {', '.join(strange)}; it takes {', '.join(known)}"
                )
            offload = cls(**{"optimizer": None, **offload})
        if not isinstance(offload, cls):
            raise TypeError(
                f"offload={offload!r} is a {type(offload).__name__}, but must be 'cpu', or a dict "
                "such as {'optimizer': 'nvme', 'parameters': 'cpu', 'folder': PATH}"
            )
        offload._check(stage)
        return offload

    @property
    def in_files(self) -> bool:
        return "nvme" in (self.optimizer, self.parameters)

    def _check(self, stage: int) -> None:
        for name in ("optimizer", "parameters"):
            place = getattr(self, name)
            if place is not None and (not isinstance(place, str) or place not in PLACES):
                raise ValueError(f"offload: {name}={place!r} is neither 'cpu' nor 'nvme'")
        if not isinstance(self.io, Files) and self.io != "threads":
            raise ValueError(f"offload: io={self.io!r} is neither 'threads' nor a files.Files")
        if stage == 0:
            raise ValueError(
                "offload cannot be used with stage 0, because every rank would move the same "
                "states of the full model. Use stage 1, 2 or 3"
            )
        if self.parameters is not None and stage != 3:
            raise ValueError(
                f"offload: parameters={self.parameters!r} is only for stage 3, but this is stage "
                f"{stage}, where every rank keeps the full model for its forward pass"
            )
        if self.parameters == "nvme" and self.optimizer != "nvme":
            place = PLACES.get(self.optimizer, "the device")
            raise ValueError(
                f"offload: parameters='nvme' with the optimizer's states on {place}. Move states "
                "to files first, because a step uses them once but parameters in every forward and "
                "backward pass; add optimizer='nvme'"
            )
        if self.optimizer is None and self.parameters is None:
            raise ValueError("offload names nothing to move; begin with optimizer='cpu'")
        if self.in_files and not isinstance(self.folder, (str, os.PathLike)):
            raise ValueError(
                "offload to files needs a folder on the disk that will hold them: "
                "{'optimizer': 'nvme', 'folder': PATH}"
            )
        if not self.in_files and (self.folder is not None or self.take_over):
            raise ValueError("offload: a folder was named, but nothing goes to files ('nvme')")
