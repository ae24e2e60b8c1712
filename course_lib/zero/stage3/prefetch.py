"""Which unit comes next: asked for while the one before is still at work.

The order is that of the last forward; a backward goes through it from the end, and leaves out the
uses that it does not reach. Lesson 11 draws depths 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from course_lib.zero.stage3.branch_guard import Together
from course_lib.zero.stage3.units import Unit


class Order:
    """The order in which units are used, and `depth` of them under way ahead of the one in use."""

    def __init__(self, depth: int, together: Together):
        if depth < 0:
            raise ValueError(f"prefetch={depth} units ahead: it has to be 0 or more")
        self.depth, self.together = depth, together
        self.now: list[Unit] = []  # of the forward under way, or the last
        self._unreached: set[int] = set()  # places in `now` whose output wants no gradient
        self._before: list[Unit] = []  # of the one before
        self._same = True  # so far, this forward goes the way of the last
        self._open = False

    def begin(self) -> None:
        """A forward begins."""
        if self.now:
            self._before = self.now
        self.now, self._same, self._open = [], True, True
        self._unreached = set()

    def end(self) -> None:
        """A backward has ended, and what is used next begins a forward."""
        self._open = False

    def used(self, unit: Unit) -> int:
        """In a forward: take note; off the way of the last one, not without the other ranks. The
        use's place in the order."""
        if not self._open:  # by a method of the model that is not its forward
            self.begin()
        place = len(self.now)
        self._same = self._same and self._before[place : place + 1] == [unit]
        if not self._same and not unit.whole:
            self.together.ask(unit.name)
        self.now.append(unit)
        return place

    def ends_gradient(self, places: Iterable[int]) -> None:
        """In a forward: these uses made nothing that wants a gradient, and no backward comes."""
        self._unreached.update(places)

    def ahead(self) -> None:
        """In a forward: ask for the units that followed last time."""
        if self._same:
            place = len(self.now)
            last = place + self.depth
            for one in self._before[place:last]:
                one.start()
            for one in self._before[last : last + 1]:
                one.fetch()

    def ends_with(self, unit: Unit) -> bool:
        """Whether this is the use with which the last forward ended: its backward comes next."""
        return self._same and len(self.now) == len(self._before) and self.now[-1] is unit

    def back(self, unit: Unit) -> None:
        """In a backward: ask for those that were used before it, as far as a gradient reaches."""
        place = len(self.now) - 1 - self.now[::-1].index(unit) if unit in self.now else 0
        reached = (i for i in reversed(range(place)) if i not in self._unreached)
        before = [self.now[i] for i in islice(reached, self.depth + 1)]
        for one in before[: self.depth]:
            one.start()
        for one in before[self.depth :]:
            one.fetch()
