"""The magics `%%ranks`, which runs a cell on real ranks, and `%ranks`, which controls the ranks.

The cell magic shows the ranks' output in rank order, the same in every run, and turns every failure
into one exception with an explanation. Lesson 00 introduces both magics.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex

from IPython import get_ipython
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from course_classroom.judge.slips import plainly
from course_classroom.leases import share
from course_classroom.ranks.carried import Definitions
from course_classroom.ranks.cluster import Cluster, Ended
from course_classroom.ranks.output import LiveArea, show
from course_classroom.ranks.wire import Outcome
from course_lib.processes.torch_build import gpu_count

LONGEST = 86_400  # maximum seconds for a cell


class RanksFailed(RuntimeError):
    """An error for a cell that failed on some rank, with the place, the cause and the state."""

    def _render_traceback_(self):
        return str(self).splitlines()


class CellInterrupted(KeyboardInterrupt):
    """The learner's interrupt, passed on with a report of the cell that it ended."""

    def _render_traceback_(self):
        return ["KeyboardInterrupt", *str(self).splitlines()]


CellInterrupted.__name__ = "KeyboardInterrupt"  # the name by which notebooks know an interrupt


class Words(argparse.ArgumentParser):
    """A magic's argument parser; a wrong argument gives a sentence and does not end the kernel."""

    def error(self, message):
        raise ValueError(f"{self.prog}: {message}. {self.format_usage().strip()}")


def _cell_words() -> argparse.ArgumentParser:
    words = Words(prog="%%ranks", add_help=False, allow_abbrev=False)
    words.add_argument(
        "which", nargs="?", default="", help="ranks, such as 0 or 0,2 or 1-3; all by default"
    )
    words.add_argument("--world", type=int, help="number of ranks to run with")
    words.add_argument("--deadline", type=float, help="seconds after which the cell is ended")
    words.add_argument("--unchecked", action="store_true", help="no referee: for cells that time")
    return words


@magics_class
class RanksMagics(Magics):
    def __init__(self, shell):
        super().__init__(shell)
        self.cluster: Cluster | None = None
        self.defined = Definitions()
        self.last: tuple[str, list[Outcome], list[str]] | None = None  # a cell, its output, notes
        self._said: list[str] = []  # before the current cell
        shell.events.register("post_run_cell", self.defined.ran_in_notebook)

    @cell_magic("ranks")
    @plainly
    def run_cell(self, line: str, cell: str) -> None:
        """%%ranks [WHICH] [--world N] [--deadline S] [--unchecked]: run the cell on the ranks."""
        words = _cell_words().parse_args(shlex.split(line))
        deadline = words.deadline
        if deadline is None:
            deadline = float(os.environ.get("COURSE_DEADLINE", 30))
        check_deadline(deadline)
        self._said.clear()
        cluster = self.ready(words.world)
        which = parse_which(words.which, cluster.world)
        if not cell.strip():
            return
        live, label = LiveArea(), f"cell [{self._cell_number()}]"
        ended = cluster.run(
            cell,
            ranks=which,
            deadline=deadline,
            checked=not words.unchecked,
            label=label,
            first_line=2,  # the magic's own line is the first
            alive=live.show,
        )
        if live.clear() and self._said:
            print(*self._said, sep="\n")
        self.defined.ran_on_ranks(cell)
        story = explain(ended, deadline).splitlines() if ended.failed else ended.notes
        self.last = label, ended.outcomes, story
        show(ended.outcomes)
        if ended.failed:
            kind = CellInterrupted if ended.interrupted else RanksFailed
            raise kind("\n".join(story))
        if story:
            print(*story, sep="\n")

    def _cell_number(self) -> int:
        # The number of the cell; in some IPythons execution_count is ahead of it.
        return len(self.shell.history_manager.input_hist_parsed) - 1

    @line_magic("ranks")
    @plainly
    def steer(self, line: str) -> None:
        """%ranks [status|start|stop|restart|last] [--world N]

        status   shows each rank and the device it computes on (the default)
        start    starts the ranks, which the first %%ranks cell also does
        stop     ends the ranks and frees their memory
        restart  starts new ranks with empty variables, with --world N a different number
        last     shows the output of the last %%ranks cell again, because JupyterLab loses
                 it after the page was closed
        """
        words = Words(prog="%ranks", add_help=False, allow_abbrev=False)
        words.add_argument("what", nargs="?", default="status")
        words.add_argument("--world", type=int)
        asked = words.parse_args(shlex.split(line))
        world = asked.world
        if asked.what == "last":
            self._show_last()
            return
        if world is not None:
            share.check_world(world)  # before anything is given up for it
        if asked.what in ("stop", "restart") and self.cluster:
            self.cluster.stop()
        if asked.what == "restart" and self.cluster:
            world = world or self.cluster.world
            self.cluster = None
        if asked.what in ("start", "restart"):
            self.ready(world, tell=False)  # the status below shows it
        elif asked.what not in ("status", "stop"):
            raise ValueError(f"%ranks {asked.what}: write status, start, stop, restart or last")
        if self.cluster and self.cluster.running:
            for text in self.cluster.pull("me.describe()"):
                print(text)
            for text in self.cluster.lease.status():
                print(text)
        else:
            print("No ranks are running; the next %%ranks cell starts them.")

    def _show_last(self) -> None:
        if self.last is None:
            print("No %%ranks cell has run in this kernel yet.")
            return
        label, outcomes, story = self.last
        print(f"The output of {label}:")
        show(outcomes)
        if story:
            print(*story, sep="\n")

    def ready(self, world: int | None = None, *, tell: bool = True) -> Cluster:
        """Return the running cluster; start or restart it if needed."""
        if world is not None and self.cluster and world != self.cluster.world:
            share.check_world(world)  # before anything is given up for it
            self.cluster.stop()
            self._say(f"Ranks: {world} instead of {self.cluster.world}, with new, empty variables.")
            self.cluster = None
        if self.cluster is None:
            size = default_world() if world is None else world
            idle = float(os.environ.get("COURSE_IDLE_MINUTES", 30))
            notebook = os.environ.get("JPY_SESSION_NAME", os.getcwd())
            cluster = Cluster(size, notebook=notebook, idle_minutes=idle)
            cluster.start()
            self.cluster = cluster
        elif not self.cluster.running:
            self._say("The ranks were released; they start again with empty variables.")
            self.cluster.start()
        else:
            return self.cluster
        for text in self.cluster.lease.told if tell else []:
            self._say(text)
        return self.cluster

    def _say(self, text: str) -> None:
        print(text)
        self._said.append(text)


def default_world() -> int:
    """Return WORLD_SIZE if it is set, otherwise one rank for each of several GPUs, otherwise two.

    On a node that several learners share, only this learner's part of it counts.
    """
    text = os.environ.get("WORLD_SIZE", "")
    if text:
        if not re.fullmatch(r"-?\d+", text):
            raise ValueError(f"WORLD_SIZE={text!r} is not a number of ranks")
        return int(text)
    return share.default_world(gpu_count())


def check_deadline(seconds: float) -> None:
    """Raise an error for an invalid deadline, because every wait for a cell must be bounded."""
    if not 0 < seconds <= LONGEST:  # NaN is not between any two numbers
        raise ValueError(
            f"--deadline {seconds:g}: give seconds above 0 and at most {LONGEST:,} (a day)"
        )


def parse_which(text: str, world: int) -> list[int] | None:
    """Parse `0`, `0,2` or `1-3` as a list of ranks, or `all` as None."""
    if not text or text == "all":
        return None
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ValueError(f"%%ranks {text}: write ranks like 0 or 0,2 or 1-3")
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    if not found:
        raise ValueError(f"%%ranks {text}: a range counts upwards, like 1-3")
    outside = sorted(r for r in found if r >= world)
    if outside:
        raise ValueError(
            f"%%ranks {text}: there is no rank {outside} among {world} ranks (from 0 on)"
        )
    return sorted(found)


def explain(ended: Ended, deadline: float) -> str:
    """Return the full report of a failed cell, with the first cause first."""
    facts = ended.scene.ordered()
    lines = []
    if ended.interrupted:
        lines.append("The cell was interrupted.")
    elif ended.timed_out:
        lines.append(f"The cell did not end within its {deadline:g} s.")
    if ended.busy:
        lines.append(f"The ranks had little of that time, because {ended.busy}: try it again.")
    same = {fact.text for fact in facts}
    if len(same) == 1 and len(facts) > 1:
        lines.append(f"every rank {facts[0].text}")
    else:
        lines.extend(f"rank {fact.rank} {fact.text}" for fact in facts)
    first = next(o for o in ended.outcomes if o.rank == facts[0].rank)
    if facts[0].kind == "raised" and len(first.trail) > 1:
        lines.append("It got there through " + ", then ".join(first.trail[:-1]))
    return "\n".join([*lines, *ended.notes])


@plainly
def push(**values) -> None:
    """Copy variables of the notebook to all ranks."""
    _magics().ready().push(values)


@plainly
def pull(expression: str, rank: int | None = None):
    """Return the value of an expression on every rank, as a list in rank order, or on one rank.

    Data is copied: numbers, text, tensors, and lists, tuples, sets and dicts of them. A dataclass
    arrives as a named tuple of its fields.
    """
    cluster = _magics().ready()
    found = cluster.pull(expression, None if rank is None else [rank])
    return found if rank is None else found[0]


def _magics() -> RanksMagics:
    shell = get_ipython()
    found = shell.magics_manager.registry.get("RanksMagics") if shell else None
    if found is None:
        raise RuntimeError("run `%load_ext course_classroom` first")
    return found
