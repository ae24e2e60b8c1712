"""A few more ranks for one cell, beside the notebook's own and of another number.

They start empty and are gone when the `with` block ends; the notebook's ranks never notice. Lesson
01 measures a ring on two, three and four ranks this way, whatever world it is read in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.classroom.cluster import Cluster
from course_lib.classroom.magic import RanksFailed, check_deadline, explain, show


class ExtraRanks:
    """Ranks that run cells given as text."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster

    def run(self, cell: str, deadline: float = 30.0) -> None:
        """Run a cell on all of them; a failure raises as a `%%ranks` cell's does."""
        check_deadline(deadline)
        ended = self._cluster.run(cell, deadline=deadline)
        show(ended.outcomes)
        if ended.failed:
            raise RanksFailed(explain(ended, deadline))

    def pull(self, expression: str) -> list:
        """The value of an expression on each of them, in rank order."""
        return self._cluster.pull(expression)


@contextmanager
def extra_ranks(world: int) -> Iterator[ExtraRanks]:
    """`world` more ranks, for as long as the block lasts."""
    cluster = Cluster(world, notebook="extra ranks")
    cluster.start()
    try:
        for text in cluster.lease.told:
            print(text)
        yield ExtraRanks(cluster)
    finally:
        cluster.stop()
