"""The judge: three ranks of its own on which an answer is tried, kept warm from check to check.

The learner's ranks and variables are never touched. An answer that raises, hangs, loops or kills a
rank ends in a finding that says so, and the next check meets ranks that work. From lesson 01 on.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.cluster import Cluster, Ended
from course_lib.classroom.crew import START_LIMIT
from course_lib.classroom.hangs import Fact

WORLD = 3  # three ranks find what two hide: left and right are different neighbours
LIMIT = 10.0  # seconds for one trial, which takes milliseconds when it is right
_PREPARE = "from course_lib.classroom.checks import bench; bench.clear(globals())"
_HEALTHY = "__import__('course_lib.classroom.checks.bench').classroom.checks.bench.healthy()"
_BROKEN = (
    "After your function had run, its ranks no longer worked: it ended their groups, or replaced a "
    "part of torch. Leave both to the caller"
)
_OURS = ("rank", "world", "me")


class Judge(Cluster):
    """Ranks on the CPU, whatever the machine has: a check leaves the GPUs to the learner."""

    def __init__(self, idle_minutes: float = 10.0):
        quiet = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        super().__init__(WORLD, notebook="checks", idle_minutes=idle_minutes, env=quiet)

    def ready(self) -> None:
        """Ranks that work, with nothing left of an earlier answer."""
        if not self.running:
            self.start()
        try:
            self.everywhere(lambda r: _PREPARE, START_LIMIT)
            if all(self.pull(_HEALTHY)):
                return
        except RuntimeError:
            pass  # an earlier answer has broken something: below it is made anew
        self.restart()
        self.everywhere(lambda r: _PREPARE, START_LIMIT)
        self.pull(_HEALTHY)

    def take(self, answer: Answer) -> None:
        """Give the answer's cells to fresh ranks; a Finding where one of them fails."""
        self.ready()
        for cell in answer.cells:
            ended = self.run(cell, deadline=LIMIT, label="your cell", first_line=2)
            if ended.failed:
                raise _finding(ended, "when its cell was run")

    def trial(self, answer: Answer, call: str, members: list[int], when: str) -> list[dict]:
        """The reports of `call`, made on a fresh group of `members`, in their order.

        `call` is an expression over the answer's function, `bench` and `group`, which is the group
        of the trial. A fresh group for each: no message of an earlier trial can reach a later one.
        """
        made = f"from course_lib.classroom.checks import bench; __trial__ = bench.group({members})"
        self.everywhere(lambda r: made, 20.0)
        code = f"__report__ = {call}"
        ended = self.run(code, ranks=members, deadline=LIMIT, label="the check")
        if ended.failed:
            if members != list(range(WORLD)):
                refuse_world_numbers(answer, when)
            raise _finding(ended, when)
        try:
            reports = self.pull("__report__", members)
            self.everywhere(lambda r: "bench.end(__trial__)", 10.0)
        except RuntimeError:
            raise Finding("broke its ranks", f"{_BROKEN} ({when}).") from None
        return reports


def refuse_world_numbers(answer: Answer, when: str) -> None:
    """A Finding where an answer that fails in a smaller group reads the whole world's numbers."""
    misused = sorted(answer.free_names.intersection(_OURS))
    if misused:
        names = " and ".join(f"`{name}`" for name in misused)
        raise Finding(
            "not of the group",
            f"It fails {when}. It reads {names}, which count all ranks of the notebook; in a "
            "smaller group they are the wrong numbers. Ask the group: group.rank(), group.size().",
        )


def _finding(ended: Ended, when: str) -> Finding:
    """How an answer failed to end, as a finding with a name."""
    if ended.interrupted:  # by the learner, which says nothing about the answer
        raise KeyboardInterrupt
    facts = ended.scene.ordered()
    first = facts[0]
    told = "\n".join(f"rank {fact.rank} {_shortened(fact)}" for fact in facts)
    if first.kind == "died":
        return Finding("killed", f"A rank's process ended {when}.\n{told}")
    if first.kind == "raised":
        return Finding("raised", f"It stopped with an error {when}.{_advice(first)}\n{told}")
    waiting = [fact for fact in facts if fact.kind in ("waited", "transport")]
    if waiting and all(fact.kind in ("waited", "transport", "ok") for fact in facts):
        return Finding(
            "deadlock", f"The ranks waited for each other {when}.{_stuck(waiting)}\n{told}"
        )
    return Finding(
        "no end", f"It had not ended after {LIMIT:g} s {when}: a loop without end?\n{told}"
    )


def _shortened(fact: Fact) -> str:
    return fact.text if len(fact.text) <= 400 else fact.text[:400] + " …"


def _advice(first: Fact) -> str:
    if "NameError" in first.text:
        return (
            " What the answer uses has to stand in a %%ranks cell as an import or a function: "
            "variables of your own ranks are not there when it is checked."
        )
    return ""


def _stuck(waiting: list[Fact]) -> str:
    if all("recv(" in fact.text for fact in waiting):
        return (
            " Each waits to receive, and nobody has sent: start one of the two, the send or the "
            "receive, without waiting for it."
        )
    return ""
