"""The order of the units, by which the next unit is gathered while the current one is in use.

It is the order of the last forward pass. A backward pass follows it in reverse, without uses that
no gradient reaches. Lesson 11 draws depths 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from course_lib.zero.stage3.branch_guard import Together
from course_lib.zero.stage3.units import Unit


class Order:
    """The order in which units are used, with `depth` of them gathered ahead."""

    def __init__(self, depth: int, together: Together):
        if depth < 0:
            raise ValueError(f"prefetch={depth} units ahead: it must be 0 or more")
        self.depth, self.together = depth, together
        self.now: list[Unit] = []  # of the current forward, or the last
        self._unreached: set[int] = set()  # places in `now` whose output requires no gradient
        self._before: list[Unit] = []  # of the forward before
        self._same = True  # so far, this forward follows the order of the last
        self._open = False

    def begin(self) -> None:
        """Begin a forward pass."""
        if self.now:
            self._before = self.now
        self.now, self._same, self._open = [], True, True
        self._unreached = set()

    def end(self) -> None:
        """End a backward pass; the next use begins a forward pass."""
        self._open = False

    def used(self, unit: Unit) -> int:
        """Record a use in a forward pass and return its place. Outside the last order, first ask
        the other ranks."""
        if not self._open:  # used by a different method than forward
            self.begin()
        place = len(self.now)
        self._same = self._same and self._before[place : place + 1] == [unit]
        if not self._same and not unit.whole:
            self.together.ask(unit.name)
        self.now.append(unit)
        return place

    def ends_gradient(self, places: Iterable[int]) -> None:
        """Record uses in a forward pass whose outputs require no gradient."""
        self._unreached.update(places)

    def ahead(self) -> None:
        """Start to gather the units that followed last time, in a forward pass."""
        if self._same:
            place = len(self.now)
            last = place + self.depth
            for one in self._before[place:last]:
                one.start()
            for one in self._before[last : last + 1]:
                one.fetch()

    def ends_with(self, unit: Unit) -> bool:
        """Return True for the last unit of a forward pass, whose backward pass comes first."""
        return self._same and len(self.now) == len(self._before) and self.now[-1] is unit

    def back(self, unit: Unit) -> None:
        """Gather ahead in a backward pass: the units used before this one that gradients reach."""
        place = len(self.now) - 1 - self.now[::-1].index(unit) if unit in self.now else 0
        reached = (i for i in reversed(range(place)) if i not in self._unreached)
        before = [self.now[i] for i in islice(reached, self.depth + 1)]
        for one in before[: self.depth]:
            one.start()
        for one in before[self.depth :]:
            one.fetch()
