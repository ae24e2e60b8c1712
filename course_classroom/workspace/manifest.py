"""The copied version of each notebook, which shows if the course has a newer version.

If the manifest is lost or damaged, every file counts as the learner's own, so nothing is lost.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_classroom.progress import log as progress
from course_classroom.workspace.handed_out import Version, version
from course_lib.files import write_whole

FORMAT = 1


@dataclass
class Manifest:
    """The copied versions by path. `trouble` states why the versions are unknown, if they are."""

    work: Path
    copies: dict[str, Version] = field(default_factory=dict)
    trouble: str = ""

    @classmethod
    def read(cls, work: Path) -> Manifest:
        try:
            told = json.loads(_file(work).read_bytes())
            if told["format"] != FORMAT:
                raise ValueError
            return cls(work, {str(path): Version(**one) for path, one in told["copies"].items()})
        except FileNotFoundError:
            return cls(work, trouble="missing")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls(work, trouble="damaged")

    def write(self) -> None:
        copies = {path: asdict(one) for path, one in sorted(self.copies.items())}
        write_whole(_file(self.work), json.dumps({"format": FORMAT, "copies": copies}, indent=1))

    def opened(self, path: str) -> bool:
        """Return True if a notebook was ever opened, which leaves a checkpoint or changes it."""
        file = self.work / path
        if (file.parent / ".ipynb_checkpoints" / f"{file.stem}-checkpoint.ipynb").exists():
            return True
        copied = self.copies.get(path)
        try:
            return copied is None or version(file.read_bytes()).whole != copied.whole
        except FileNotFoundError:
            return False


def _file(work: Path) -> Path:
    return work / progress.MARK / "manifest.json"
