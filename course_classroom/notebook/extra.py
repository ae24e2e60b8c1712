"""A few more ranks beside the notebook's own, and of another number: `%%extra 4`.

They start empty and end with their cell, unless it keeps them; the notebook's ranks never notice.
Lesson 01 measures a ring on four ranks this way, whatever world it is read in.
"""

from __future__ import annotations

import argparse
import atexit
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from IPython.core.magic import Magics, line_cell_magic, magics_class

from course_classroom.notebook.magic import RanksFailed, Words, check_deadline, explain
from course_classroom.ranks.cluster import Cluster
from course_classroom.ranks.output import show


class ExtraRanks(Cluster):
    """Ranks that run cells given as text; `push`, `pull` and `world` are as for a notebook's."""

    def run(self, cell: str, deadline: float = 30.0) -> None:
        """Run a cell on all of them; a failure raises as a `%%ranks` cell's does."""
        check_deadline(deadline)
        ended = super().run(cell, deadline=deadline)
        show(ended.outcomes)
        if ended.failed:
            raise RanksFailed(explain(ended, deadline))


@contextmanager
def extra_ranks(world: int) -> Iterator[ExtraRanks]:
    """`world` more ranks, for as long as the block lasts."""
    ranks = ExtraRanks(world, notebook="extra ranks")
    ranks.start()
    try:
        for text in ranks.lease.told:
            print(text)
        yield ranks
    finally:
        ranks.stop()


@magics_class
class ExtraMagics(Magics):
    """The magic `%%extra`, with the extra ranks that a cell has kept."""

    def __init__(self, shell):
        super().__init__(shell)
        self.kept = ExitStack()
        self.ranks: ExtraRanks | None = None
        atexit.register(self.kept.close)

    @line_cell_magic("extra")
    def run(self, line: str, cell: str | None = None) -> None:
        """%%extra N [--push NAMES] [--with NAMES] [--pull NAMES] [--keep] [--deadline S]

        Runs the cell on N more ranks. Before it, `--push` copies variables of the notebook to them,
        and `--with` runs the `%%ranks` cells that made these names; after it, `--pull` copies
        variables into the notebook, each as a list in rank order. The ranks end with the cell, or
        `--keep` has them wait for the next `%%extra`; `%extra stop` ends them.
        """
        from course_classroom.judge import cell_of

        if cell is None:
            if line.strip() != "stop":
                raise ValueError(f"%extra {line}: say `%extra stop`, or `%%extra 4` above a cell")
            return self._stop()
        words = _words().parse_args(shlex.split(line))
        if self.ranks is not None and words.world not in (None, self.ranks.world):
            self._stop()
        if self.ranks is None:
            if words.world is None:
                raise ValueError("%%extra: say how many ranks, as in `%%extra 4`")
            self.ranks = self.kept.enter_context(extra_ranks(words.world))
        try:
            if words.push:
                self.ranks.push({name: self.shell.user_ns[name] for name in _split(words.push)})
            for source in dict.fromkeys(map(cell_of, _split(words.sources))):
                self.ranks.run(source, words.deadline)
            self.ranks.run(cell, words.deadline)
            for name in _split(words.pull):
                self.shell.user_ns[name] = self.ranks.pull(name)
        finally:
            if not words.keep:
                self._stop()

    def _stop(self) -> None:
        self.ranks = None
        self.kept.close()


def _words() -> argparse.ArgumentParser:
    words = Words(prog="%%extra", add_help=False, allow_abbrev=False)
    words.add_argument("world", nargs="?", type=int)
    words.add_argument("--push", default="")
    words.add_argument("--with", dest="sources", default="")
    words.add_argument("--pull", default="")
    words.add_argument("--keep", action="store_true")
    words.add_argument("--deadline", type=float, default=30.0)
    return words


def _split(names: str) -> list[str]:
    return [name for name in names.split(",") if name]
