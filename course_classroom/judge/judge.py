"""The judge: three separate ranks on which answers are tried, reused from check to check.

The learner's ranks and variables are never touched. If an answer raises, hangs, loops or kills a
rank, a finding reports it, and the next check gets working ranks. From lesson 01 on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from course_classroom.judge import left_out, untouched
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding, NotJudged
from course_classroom.judge.general import SAYS
from course_classroom.ranks import agreement, values
from course_classroom.ranks.cluster import Cluster, Ended
from course_classroom.ranks.crew import START_LIMIT
from course_classroom.ranks.hangs import Fact
from course_classroom.ranks.own_time import OwnTime
from course_classroom.ranks.wire import Outcome

WORLD = 3  # three ranks expose errors that two hide, because left and right neighbours differ
LIMIT = 10.0  # seconds for one trial; a right answer needs milliseconds
WORK = 5.0  # busy seconds that a rank may use of them, so an endless loop is reported sooner
HOMES = ("course_classroom.judge", "course_lessons")  # of the code that runs on the judge's ranks
_CHECKS = "__import__('course_classroom.judge.bench').judge"
_BENCH = f"{_CHECKS}.bench"
_CALL = "__report__ = __tried__()"  # the call under the time limit; learners must not see it
_OUTSIDE = "line 1"  # its place in the cell that the check runs
_OURS = ("rank", "world", "me")
_GAVE_UP = "until torch gave up: Timed out"  # when both ends of the message were posted
A_SMALLER_GROUP = re.compile(r"on a group of \d+ out of \d+ ranks")  # as `on` writes it
_POINT_TO_POINT = re.compile(r"waited in (send|recv)\(")
_BEYOND = "but this cell runs on ranks"  # as the referee words it


class Judge(Cluster):
    """A cluster of CPU ranks on every machine, because checks leave the GPUs to the learner.

    The last rank has a different hash secret, so `seed = hash(name)` differs there, as it would
    between separately started processes.
    """

    def __init__(self, idle_minutes: float = 10.0):
        quiet = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        super().__init__(
            WORLD, notebook="checks", idle_minutes=idle_minutes, env=quiet, odd=(WORLD - 1,)
        )
        self.spoilt = False  # a rank ran into a deadline, so an import may have been interrupted
        # For the waiting learner: the current part of the check, and the ranks' activity.
        self.stage = self.doing = ""

    def says(self) -> str:
        """Describe the current activity for the waiting learner."""
        return self.stage + self.doing

    def enter(self, stage: str) -> None:
        self.stage, self.doing = stage, ""

    def note(self, outcomes: Sequence[Outcome], doing: list[str], spent: OwnTime) -> None:
        """Describe the ranks' activity without showing the judge's own lines."""
        lines = (line.replace(f"line 1: {_CALL}", "the check's call") for line in doing)
        self.doing = "\n".join([f", up to {spent.left()}", *lines])

    def _run(self, code, ranks, limits, about, alive) -> Ended:
        ended = super()._run(code, ranks, limits, about, self.note)
        self.spoilt = self.spoilt or ended.timed_out or ended.interrupted
        return ended

    def ready(self, *modules: str) -> None:
        """Ensure that the ranks work, have loaded `modules` and hold nothing from an answer."""
        fresh = f"{_BENCH}.fresh(globals(), {modules!r})"
        self.enter(f"preparing the check's {self.world} ranks")
        try:
            if self.running and self.spoilt:
                self.restart()
            if not self.running:
                self.start()
            self.spoilt = False
            if self._fresh(fresh):
                return
            self.restart()
            self.everywhere(lambda r: fresh, START_LIMIT)
            self.pull(f"{_BENCH}.healthy()")
        except (OSError, MemoryError, RuntimeError) as error:
            raise NotJudged(f"The check's ranks could not be started: {error}") from error

    def _fresh(self, fresh: str) -> bool:
        """Clear the ranks and load modules; return False if an earlier answer has broken a rank."""
        try:
            self.everywhere(lambda r: fresh, START_LIMIT)
            return all(self.pull(f"{_BENCH}.healthy()"))
        except RuntimeError:
            return False

    def take(self, answer: Answer, *modules: str) -> None:
        """Run the answer's cells on fresh ranks; raise a Finding if one of them fails.

        `modules` contain the functions that will try the answer. They and the functions in their
        `warm` are loaded before the answer runs, so that no trial is charged for a first use.
        """
        self.ready(*modules)
        self.enter("running your cell")
        for cell in answer.cells:
            ended = self.run(cell, deadline=LIMIT, label="your cell", first_line=2)
            if ended.failed:
                raise _finding(ended, "when its cell was run")

    def trial(
        self,
        answer: Answer,
        function: Callable,
        *args: object,
        members: Sequence[int] = (),
        when: str = "",
        outside: str = "the check's call",
        empty: Sequence[int] = (),
    ) -> list:
        """Call `function(the answer's function, group, *args)` on a group; return each rank's
        result.

        The ranks find `function`, at the top level of a checks module, by its name; `args` and
        results are data. Each trial has a new group of `members`, so no earlier message can reach
        it. `outside` describes ranks outside the answer's lines; `empty` lists ranks with no data.
        """
        plan = {"answer": answer.name, "function": reference(function), "args": args}
        text = values.pack(plan | {"members": list(members)})
        arrange = f"{_BENCH}.arrange(globals(), {text!r})"
        self.enter(f"trying `{answer.name}` {when}".rstrip())
        self.everywhere(lambda r: arrange, START_LIMIT)
        ended = self.run(_CALL, ranks=list(members), deadline=LIMIT, work=WORK, label="the check")
        if ended.failed:
            if list(members) != list(range(WORLD)):
                _refuse_other_ranks(ended, when)
                refuse_world_numbers(answer, when)
            nothing = [members[rank] for rank in empty]
            left_out.refuse_by_empty(ended.scene.ordered(), nothing, when)
            if all(fact.kind in ("raised", "ok") for fact in ended.scene.facts):
                self._refuse_replaced(members, when)  # a possible cause of the error
            raise _finding(ended, when, outside)
        self._refuse_replaced(members, when)
        left_out.refuse_unawaited(answer, lambda call: self.pull(call, list(members)), when)
        try:
            reports = self.pull("__report__", list(members))
            self.everywhere(lambda r: f"{_BENCH}.end(__trial__)", 10.0)
        except RuntimeError:
            raise SAYS("broke its ranks", what="", when=when) from None
        return reports

    def measured(self, function: Callable, *args: object) -> list:
        """Return the result of `function(*args)` on each rank, outside the answer's time."""
        text = values.pack({"function": reference(function), "args": args})
        self.everywhere(lambda r: f"__measured__ = {_BENCH}.measured({text!r})", START_LIMIT)
        return self.pull("__measured__")

    def _refuse_replaced(self, members: Sequence[int], when: str) -> None:
        """Raise a Finding if the answer has replaced part of what measures it."""
        try:
            found = self.pull(f"{_CHECKS}.untouched.replaced(globals())", list(members))
        except RuntimeError:
            raise SAYS("broke its ranks", what="", when=when) from None
        names = list(dict.fromkeys(name for each in found for name in each))
        if names:
            self.spoilt = True
            if names[0] in untouched.SETTINGS:
                raise SAYS("changes a global setting", call=names[0], when=when)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise SAYS("broke its ranks", what=f": {names[0]}{more}", when=when)


def reference(function: Callable) -> tuple[str, str]:
    """Return the module and name by which the ranks find a function of the checks."""
    module, name = function.__module__, function.__qualname__
    ours = module.startswith(tuple(f"{home}." for home in HOMES))
    if not ours or vars(sys.modules[module]).get(name) is not function:
        raise ValueError(
            f"the ranks cannot find {module}.{name}: a trial must be a function at the top of a "
            f"module of {' or '.join(HOMES)}"
        )
    return module, name


def refuse_world_numbers(answer: Answer, when: str) -> None:
    """Raise a Finding if an answer that fails in a smaller group uses the world's numbers."""
    misused = sorted(answer.free_names.intersection(_OURS) | answer.world_calls)
    if misused:
        names = " and ".join(f"`{name}`" for name in misused)
        are = "they are the wrong numbers" if misused[1:] else "it is the wrong number"
        raise SAYS("uses world numbers", names=names, are=are, when=when)


def refuse_none(reports: list[dict], when: str, owed: str) -> None:
    """Raise a Finding if a rank returned None; `owed` describes the expected result."""
    nothing = [rank for rank, report in enumerate(reports) if report["kind"] == "NoneType"]
    some = [rank for rank in range(len(reports)) if rank not in nothing]
    if nothing and some:
        raise SAYS("not returned everywhere", ranks=agreement.ranks(some), wanted=owed, when=when)
    if nothing:
        raise SAYS("nothing returned", wanted=owed, when=when)


def on(members: list[int]) -> str:
    """Describe the ranks of a trial: in a smaller group, rank numbers differ from the world's."""
    n = len(members)
    return f"on {n} ranks" if n == WORLD else f"on a group of {n} out of {WORLD} ranks"


def _refuse_other_ranks(ended: Ended, when: str) -> None:
    """Raise a Finding if a call went to ranks outside the group that the function received."""
    for fact in ended.scene.ordered():
        if fact.kind == "raised" and _BEYOND in fact.text:
            line = _words(fact).rpartition("%%ranks in ")[2]
            raise SAYS("group left out", rank=fact.rank, line=line, when=when)


def _finding(ended: Ended, when: str, outside: str = "the check's call") -> Finding:
    """Return the Finding for an answer that did not end normally."""
    if ended.interrupted:  # by the learner, so nothing is known about the answer
        raise KeyboardInterrupt
    facts = ended.scene.ordered()
    first = facts[0]
    if ended.busy and first.kind not in ("died", "raised", "unanswered"):
        raise NotJudged(f"Your answer could not be judged {when}: {ended.busy}. Try it again.")
    about = {"when": when, "told": _told(facts, outside)}
    named = {"died": "killed", "unanswered": "not called by all"}
    named["raised"] = "raised #2" if "NameError" in first.text else "raised #1"
    if first.kind in named:
        return SAYS(named[first.kind], **about)
    busy = [fact for fact in facts if fact.kind in ("interrupted", "stuck")]
    if busy and all(f"{_OUTSIDE}: {_CALL}" in fact.text for fact in busy):
        who = agreement.said_of([fact.rank for fact in busy], "was still busy")
        raise NotJudged(
            f"Your answer could not be judged {when}: after {ended.limit:g} s {who} in {outside}, "
            "outside your lines. This can happen on a busy machine. Try it again."
        )
    waiting = [fact for fact in facts if fact.kind in ("waited", "transport")]
    left = [fact.rank for fact in facts if fact.kind == "ok"]
    if waiting and left and all(_GAVE_UP in fact.text for fact in waiting):
        who = f"Rank {left[0]}" if len(left) == 1 else "A rank"
        return SAYS("send not waited for", who=who, **about)
    if waiting and all(fact.kind in ("waited", "transport", "ok") for fact in facts):
        return SAYS(_stuck(facts), **about)
    return SAYS("no end", limit=ended.limit, **about)


def _told(facts: list[Fact], outside: str) -> str:
    """Return a line for each activity, shared by all ranks with that activity."""
    ranks: dict[str, list[int]] = {}
    for fact in facts:
        text = _words(fact, outside)
        ranks.setdefault(text if len(text) <= 400 else f"{text[:400]} …", []).append(fact.rank)
    return "\n".join(agreement.said_of(who, text) for text, who in ranks.items())


def _words(fact: Fact, outside: str = "the check's call") -> str:
    """Describe a rank's activity; any place outside the answer's lines is called `outside`."""
    text = fact.text.replace(f"line 1: {_CALL}", outside)
    at = f" in {_OUTSIDE}"  # a disagreement names the place of each call
    if text.endswith(at):  # ... and a place common to all is named only once
        text = f"{text.replace(at, '')}, in {outside}"
    return text


def _stuck(facts: list[Fact]) -> str:
    """Return the deadlock entry for the kind of call in which the ranks wait."""
    for entry, call in (("deadlock #1", "recv"), ("deadlock #2", "send")):
        if all(fact.text.startswith(f"waited in {call}(") for fact in facts):
            return entry
    if any(fact.kind == "ok" for fact in facts):
        messages = any(_POINT_TO_POINT.match(fact.text) for fact in facts)
        return "deadlock #4" if messages else "deadlock #3"
    return "deadlock #5"
