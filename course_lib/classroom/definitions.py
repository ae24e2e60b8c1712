"""Which cell has defined a name last: on the ranks, or in the notebook's own process.

A check reads the answer from here, and says where it has looked. From lesson 00 on.
"""

from __future__ import annotations

from course_lib.classroom.carried import defined_names


class Definitions:
    """What the cells of one notebook have defined, in the order in which they were run."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}  # a name → the last `%%ranks` cell that bound it
        self.elsewhere: set[str] = set()  # names that a later cell without `%%ranks` has bound
        self.older: set[str] = set()  # names that the last `%%ranks` cell did not bind

    def ran_on_ranks(self, cell: str) -> None:
        names = defined_names(cell)
        self.sources |= dict.fromkeys(names, cell)
        self.elsewhere -= set(names)
        self.older = set(self.sources) - set(names)

    def ran_in_notebook(self, result) -> None:
        """Take note of a cell by what IPython says of it after its run."""
        cell = result.info.raw_cell or ""
        if result.error_before_exec is None and not cell.lstrip().startswith("%%"):
            self.elsewhere |= set(defined_names(cell))

    def remark(self, name: str) -> str:
        """Why the answer that the learner has in mind may not be the one that was read."""
        if name in self.elsewhere:
            since = ", since the last `%%ranks` cell that held it" if name in self.sources else ""
            return (
                f"`{name}` is defined in the notebook's own process{since}: is `%%ranks` the first "
                "line of its cell?"
            )
        if name in self.older:
            return (
                f"That is the last `%%ranks` cell that held `{name}`: no later one has defined it."
            )
        return ""
