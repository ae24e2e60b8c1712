"""What goes where: the optimizer's part of a rank and its parameters, on the host or in files.

What does not go together is refused here, before anything is made. Lesson 12 walks the ladder of
remedies with it.
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
    """`optimizer`: where the optimizer's states live, with the numbers that it updates and their
    gradients, at stages 1 to 3; `parameters`: where the shards of the parameters wait between uses,
    at stage 3, on the host by themselves too. (DeepSpeed has files with stage 3 alone.)"""

    optimizer: str | None
    parameters: str | None = None
    folder: Path | None = None
    take_over: bool = False  # remove what a run that did not close has left in the folder
    io: Files | str = "threads"  # or an object like files.Files

    @classmethod
    def named(cls, offload: str | Mapping | OffloadPlan | None, stage: int) -> OffloadPlan | None:
        """The plan behind an engine's `offload=`, or a refusal."""
        if offload is None:
            return None
        if isinstance(offload, str):
            offload = {"optimizer": offload}
        if isinstance(offload, Mapping):
            known = [field.name for field in fields(cls)]
            strange = [str(key) for key in offload if key not in known]
            if strange:
                raise ValueError(
                    f"offload= knows no {', '.join(strange)}; it takes {', '.join(known)}"
                )
            offload = cls(**{"optimizer": None, **offload})
        if not isinstance(offload, cls):
            raise TypeError(
                f"offload={offload!r} is a {type(offload).__name__}; it takes 'cpu', or a dict "
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
                "offload does not go with stage 0: every rank would move all states of the whole "
                "model, and all ranks the same ones. Use stage 1, 2 or 3"
            )
        if self.parameters is not None and stage != 3:
            raise ValueError(
                f"offload: parameters={self.parameters!r} is of stage 3, and this is stage "
                f"{stage}, where every rank keeps the whole model at hand for its forward"
            )
        if self.parameters == "nvme" and self.optimizer != "nvme":
            place = PLACES.get(self.optimizer, "the device")
            raise ValueError(
                f"offload: parameters='nvme' with the optimizer's states on {place}: "
                "states are used once a step and parameters in every forward and backward, so "
                "what goes to files first are the states; add optimizer='nvme'"
            )
        if self.optimizer is None and self.parameters is None:
            raise ValueError("offload names nothing to move: optimizer='cpu' is the first step")
        if self.in_files and not isinstance(self.folder, (str, os.PathLike)):
            raise ValueError(
                "offload to files needs a folder on the disk that shall hold them: "
                "{'optimizer': 'nvme', 'folder': PATH}"
            )
        if not self.in_files and (self.folder is not None or self.take_over):
            raise ValueError("offload: a folder was named, and nothing goes to files ('nvme')")
