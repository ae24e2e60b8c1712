"""From a command line to an exit code, on one rank: 0 success, 1 failure, 2 wrong call.

An error that every rank detects is printed only by rank 0, and an error of a single rank by that
rank. A lost neighbour is reported by the first rank of each host, unless our launcher reports it.
Lesson 08.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import torch

from course_lib import ranks
from course_lib.pretrained.header import CheckpointError
from course_lib.train.checks import resolve
from course_lib.train.memory_check import is_short, needs
from course_lib.train.options import Options, Refused, parse, parser
from course_lib.train.record import Failed
from course_lib.train.rendezvous import Rendezvous, abandon
from course_lib.train.report import Unbroken
from course_lib.train.stop import Stop, end_with

RENDEZVOUS, STARTER = "COURSE_TRAIN_RENDEZVOUS", "COURSE_TRAIN_STARTER"
READY, OPTIONS = "COURSE_TRAIN_READY", "COURSE_TRAIN_OPTIONS"
SILENT = re.compile(r"timed? ?out", re.IGNORECASE)
GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (was )?closed|timed? ?out|"
    r"caused pair closure|failed to recv|no work done",
    re.IGNORECASE,
)


class Unmet(RuntimeError):
    """The error if the ranks did not connect; each rank may know a different reason."""


def who() -> tuple[int, int, int]:
    """Return (rank, world, rank on this host) as set by torchrun, SLURM or `course train`, or
    (0, 1, 0) if none of them started this process."""
    try:
        return ranks._identity_from_environment(os.environ)[:3]
    except RuntimeError:
        return 0, 1, 0


def run(argv: Sequence[str], train: Callable, prog: str = "python -m course_lib.train") -> int:
    """Read the options, start the group, call train(options, me, stop); return the exit code."""
    rank, world, local = who()
    if {"-h", "--help"} & set(argv):
        if rank == 0:
            print(parser(prog).format_help(), end="", file=Unbroken(sys.stdout), flush=True)
        return 0
    stop, stack, options = Stop(), contextlib.ExitStack(), None
    if STARTER in os.environ:
        end_with(int(os.environ[STARTER]), lambda: abandon(os.environ[RENDEZVOUS]))
        os.write(int(os.environ[READY]), b".")  # from here on, a signal is handled and not fatal
    try:
        if OPTIONS in os.environ:  # a launcher has already checked them
            options = Options.from_json(os.environ[OPTIONS])
        else:  # errors of the call itself are reported before any rank waits
            options = resolve(parse(argv, prog), world)
        me = _start(rank, world, options.timeout, stack)
        train(options, me, stop)
        ranks.stop()
        stack.close()
        Unbroken(sys.stdout).flush()
        return 0
    except Exception as error:
        code = _tell(error, rank, world, options, first_of_host=local == 0)
    # A group with a failed rank is in an undefined state, so it is not used any more.
    Unbroken(sys.stdout).flush()
    Unbroken(sys.stderr).flush()
    if rank:
        time.sleep(1.0)  # a launcher ends all ranks after the first exit, so let rank 0 print first
    stack.close()
    os._exit(code)


def _start(rank: int, world: int, timeout: float, stack: contextlib.ExitStack) -> ranks.Me:
    meet = os.environ.get(RENDEZVOUS)
    try:
        if meet is None and world == 1 and "MASTER_ADDR" not in os.environ:
            # Later groups meet there too, so it must exist until the end.
            path = stack.enter_context(Rendezvous()).path
            return ranks.start(0, 1, rendezvous=path, timeout=timeout)
        if meet is not None:
            return ranks.start(rank, world, rendezvous=meet, timeout=timeout)
        return ranks.start(timeout=timeout)
    except ranks.TwiceTheSame as error:
        raise Unmet(str(error)) from error
    except (torch.distributed.DistNetworkError, torch.distributed.DistStoreError) as error:
        if meet is not None:
            raise
        at = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            raise Failed(
                f"the ranks' meeting port, {at}, is used by a different program; set MASTER_PORT "
                "to a free port for all ranks, or wait until that program has ended"
            ) from error
        raise Unmet(_unmet(str(error), at, world, timeout)) from error


def _unmet(error: str, at: str, world: int, timeout: float) -> str:
    """Explain why the ranks did not connect, as far as this rank knows."""
    came = re.search(r"(\d+)/\d+ clients joined", error)
    if came:
        return (
            f"only {came[1]} of {world} ranks had connected to {at} after {timeout:g} s. Check "
            "that every host is started, with the total number of ranks and with distinct ranks"
        )
    return (
        f"no process answered at {at} within {timeout:g} s. Check that rank 0's host runs the same "
        "command, that MASTER_ADDR names it, and that its firewall allows the port"
    )


def _tell(
    error: Exception, rank: int, world: int, options: Options | None, *, first_of_host: bool = True
) -> int:
    """Print the error, if this rank is responsible for it, and return the exit code."""
    if isinstance(error, Unmet):
        if first_of_host:
            _line(f"rank {rank} on {socket.gethostname()}: {error}")
        return 1
    if isinstance(error, (Refused, Failed, CheckpointError)):  # known to all ranks
        if rank == 0:
            _line(str(error))
        return 2 if isinstance(error, Refused) else 1
    if _neighbour_gone(error):
        if STARTER not in os.environ and first_of_host:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = "lost another rank, whose own message gives the reason"
            if options is not None and SILENT.search(str(error)):
                why = (
                    f"heard nothing from another rank for {options.timeout:g} s (--timeout); it "
                    "hangs, or its host or link failed. Continue from the last checkpoint with "
                    "--resume"
                )
            _line(f"rank {rank} on {socket.gethostname()} {why} ({first})")
        return 1
    if is_short(error) and options is not None:
        _line(f"rank {rank}: {needs(error, options, rank, world)}")
        return 1
    if not isinstance(error, (OSError, ImportError)):
        traceback.print_exception(error, file=Unbroken(sys.stderr))
    _line(f"rank {rank}: {type(error).__name__}: {error}")
    return 1


def _line(text: str) -> None:
    Unbroken(sys.stderr).write(f"course train: {' '.join(text.split())}\n")


def _neighbour_gone(error: BaseException) -> bool:
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, (RuntimeError, OSError)) and GONE.search(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False
