"""Extra ranks in addition to the notebook's ranks, in any number: `%%extra 4`.

They start without variables and end with their cell, unless it keeps them; the notebook's ranks are
not affected. Lesson 01 uses them to measure a ring on four ranks in any world.
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
    """Ranks that run cells given as text; `push`, `pull` and `world` are as for other ranks."""

    def run(self, cell: str, deadline: float = 30.0) -> None:
        """Run a cell on all extra ranks; a failure raises the same error as in a `%%ranks` cell."""
        check_deadline(deadline)
        ended = super().run(cell, deadline=deadline)
        show(ended.outcomes)
        if ended.failed:
            raise RanksFailed(explain(ended, deadline))


@contextmanager
def extra_ranks(world: int) -> Iterator[ExtraRanks]:
    """Yield `world` additional ranks, which end with the `with` block."""
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

        Runs the cell on N extra ranks. Before it, `--push` copies variables of the notebook to
        them, and `--with` runs the `%%ranks` cells that defined these names. After it, `--pull`
        copies variables into the notebook, each as a list in rank order. The ranks end with the
        cell, or wait for the next `%%extra` with `--keep`; `%extra stop` ends them.
        """
        from course_classroom.judge import cell_of

        if cell is None:
            if line.strip() != "stop":
                raise ValueError(f"%extra {line}: write `%extra stop`, or `%%extra 4` above a cell")
            return self._stop()
        words = _words().parse_args(shlex.split(line))
        if self.ranks is not None and words.world not in (None, self.ranks.world):
            self._stop()
        if self.ranks is None:
            if words.world is None:
                raise ValueError("%%extra: pass the number of ranks, as in `%%extra 4`")
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
