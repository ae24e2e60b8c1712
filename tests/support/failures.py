"""What went wrong on some ranks, told in the order that helps: the root cause first.

A rank that fails takes its neighbours with it: they lose a connection or wait until their group's
timeout. Such consequences must not hide the error that began it (trap T35).
"""

from __future__ import annotations

import ast
import linecache
import re
import signal
import time
import traceback
from dataclasses import dataclass
from types import TracebackType

# What torch.distributed says on a rank whose neighbour has gone or never came.
CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (was )?closed|"
    r"timed out (waiting|after)|wait timeout|socket timeout|caused pair closure|"
    r"no work done|failed to recv|process group .* not (exist|initialized)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """One rank's error: what it said, when, and whether another rank's error explains it."""

    rank: int
    seconds: float  # on the machine's monotonic clock, the same for all processes
    summary: str  # one line
    detail: str  # the traceback, or how the process ended
    consequence: bool = False
    skipped: bool = False  # the rank called pytest.skip

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        lines = traceback.format_exception(type(error), error, _test_part(error.__traceback__))
        return cls(
            rank,
            time.monotonic(),
            said.splitlines()[0] if said else type(error).__name__,
            "".join(lines) + _values_in(error),
            is_consequence(error),
            type(error).__name__ == "Skipped",
        )


class RanksFailed(AssertionError):
    """Some ranks failed. `failures` holds them, the root cause first; `first` is that one."""

    def __init__(self, what: str, failures: list[Failure], remarks: dict[int, str]):
        self.failures = sorted(failures, key=lambda f: (f.consequence, f.seconds, f.rank))
        self.first = self.failures[0]
        self.remarks = remarks
        super().__init__(self._tell(what))

    def _tell(self, what: str) -> str:
        first = self.first
        lines = [f"{what}: rank {first.rank} failed first", "", first.detail.rstrip(), ""]
        if first.consequence:
            lines.append("Every error is the loss of a neighbour: some rank never came.")
        lines += [f"rank {f.rank}, after it: {f.summary}" for f in self.failures[1:]]
        lines += [f"rank {rank}: {text}" for rank, text in sorted(self.remarks.items())]
        return "\n".join(lines)


def told(
    what: str,
    timeout: float,
    failures: dict[int, Failure],
    remarks: dict[int, str],
    stacks: dict[int, str],
) -> RanksFailed:
    """The error of a call in which some ranks failed and some, whose stacks these are, hang."""
    now = time.monotonic()
    if stacks and all(failure.consequence for failure in failures.values()):
        # Nothing explains why they hang: then the hang is the error, and all stacks are shown.
        listed = "\n".join(f"rank {rank} is here:\n{stack}" for rank, stack in stacks.items())
        who = "rank " + ", ".join(map(str, stacks))
        detail = f"{who} did not end within {timeout:g} s.\n{listed}"
        hang = Failure(min(stacks), now, f"{who} did not end within {timeout:g} s", detail)
        return RanksFailed(what, [*failures.values(), hang], remarks)
    for rank, stack in stacks.items():
        places = [line.strip() for line in stack.splitlines() if line.lstrip().startswith("File")]
        remarks = {
            **remarks,
            rank: f"had not ended; {places[-1] if places else 'nothing is known'}",
        }
    return RanksFailed(what, list(failures.values()), remarks)


def is_consequence(error: BaseException) -> bool:
    """Whether this error, or the one it was raised from, says that a neighbour is gone."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, (RuntimeError, OSError)) and CONSEQUENCE.search(str(link)):
            return True
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return False


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"ended with exit code {code} in the middle of the call"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    return f"was killed by {name} (signal {-code})"


def _test_part(trace: TracebackType | None) -> TracebackType | None:
    # The frames of the pool itself tell a reader nothing.
    while (
        trace is not None
        and trace.tb_frame.f_globals.get("__name__") == "tests.support.pool_worker"
    ):
        trace = trace.tb_next
    return trace


def _values_in(error: BaseException) -> str:
    """The values of the names in a failed bare assertion, since nothing rewrote it on a rank."""
    trace = error.__traceback__
    if not isinstance(error, AssertionError) or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    line = linecache.getline(frame.f_code.co_filename, trace.tb_lineno, frame.f_globals).strip()
    try:
        names = {node.id for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Name)}
    except SyntaxError:
        names = set(re.findall(r"[A-Za-z_]\w*", line))
    known = [name for name in sorted(names) if name in frame.f_locals]
    return "".join(f"  where {name} = {_short(frame.f_locals[name])}\n" for name in known)


def _short(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= 400 else text[:400] + " …"
