"""Ranks on this host without a launcher: they meet in a file, so no port is open.

When a rank fails, all ranks end, and the cause is reported. All ranks receive signals. If this
process is killed, the ranks notice it and end too. Lesson 08.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from course_lib.processes import Wanted
from course_lib.processes.here import Process, start_here
from course_lib.train.checks import resolve
from course_lib.train.entry import OPTIONS, READY, RENDEZVOUS, STARTER
from course_lib.train.options import Options, Refused, parse, parser
from course_lib.train.record import last
from course_lib.train.rendezvous import Rendezvous
from course_lib.train.report import Unbroken
from course_lib.train.stop import heard, insists

PROG = "course train"
MOST = 1024  # processes of one run on a host
GRACE = 3.0  # seconds for the others to end after one has failed
ENDING = 5.0  # seconds for all of them to end after a second signal
ABOUT = """
Example with two replicas on two ranks each, all shards in files, and a plot:
    course train --ranks 4 --tp 2 --stage 3 --offload nvme --plot

The ranks of this host meet through a file and communicate only over loopback.
torchrun can also start them, on one host or many, but its store listens on all
interfaces and has no password.
    .venv/bin/torchrun --standalone --nproc-per-node 2 -m course_lib.train --tp 2
    srun .venv/bin/python -m course_lib.train --tp 2 --steps 200 --out /shared/run
"""


def main(argv: Sequence[str]) -> int:
    """Start the ranks of a run and wait for them: 0 success, 1 failure, 2 wrong call."""
    if {"-h", "--help"} & set(argv):
        print(parser(PROG).format_help() + ABOUT, file=Unbroken(sys.stdout), flush=True)
        return 0
    try:
        options = parse(argv, PROG)
        count = _count(options)
        options = resolve(replace(options, ranks=count), count)
    except (OSError, ValueError) as error:
        _say(" ".join(str(error).split()))
        return 2 if isinstance(error, Refused) else 1
    with Rendezvous() as meeting:
        return _Ranks(count, argv, meeting, options).wait()


def _count(options: Options) -> int:
    """Return the number of ranks to start: --ranks, or the resumed run's number, or --tp."""
    if not 0 <= options.ranks <= MOST:
        raise Refused(f"--ranks {options.ranks} must be an integer from 0 to {MOST}")
    if options.ranks:
        return options.ranks
    if options.resume and options.out:
        return math.prod(last(Path(options.out))[1]["mesh"].values())
    return max(1, options.tp)


class _Ranks:
    """The processes of a run, and their exit codes."""

    def __init__(self, count: int, argv: Sequence[str], meeting: Rendezvous, options: Options):
        self.signals: list[signal.Signals] = []
        self.ended: dict[int, int] = {}  # rank → exit code, in the order of ending
        self.out, self.ready, self.early = options.out or None, 0, False
        self.unheard = False  # True if no rank ended after a second signal
        for one in heard():
            signal.signal(one, lambda number, frame: self._hear(signal.Signals(number)))
        alive, self.lifeline = os.pipe()  # its end closes when this process ends in any way
        self.hears, ready = os.pipe()  # a byte from each rank that handles signals
        os.set_blocking(self.hears, False)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        threads = {"OMP_NUM_THREADS": str(max(1, cores // count))}
        self.ranks: list[Process] = []
        self.printed: list[IO[bytes]] = []  # unnamed files, which need no removal
        self.closing = contextlib.ExitStack()
        try:
            for rank in range(count):
                printed = tempfile.TemporaryFile()  # noqa: SIM115
                self.printed.append(self.closing.enter_context(printed))
                env = {**threads, **os.environ, **_numbers(rank, count), OPTIONS: options.to_json()}
                passed = {STARTER: alive, READY: ready}
                streams = (printed.fileno(),) * 2 if rank else (1, 2)
                self.ranks.append(_started(argv, env, passed, meeting, *streams))
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(alive)
            os.close(ready)

    def _hear(self, number: signal.Signals) -> None:
        if not self.signals or insists(number):
            self.signals.append(number)

    def wait(self) -> int:
        """Wait until all ranks have ended; return the exit code of the run."""
        forwarded, limit, killed = 0, float("inf"), False
        while len(self.ended) < len(self.ranks):
            for rank, process in enumerate(self.ranks):
                code = process.poll()
                if code is not None and rank not in self.ended:
                    self.ended[rank] = code
                    if code:
                        limit = min(limit, time.monotonic() + GRACE)
            while forwarded < len(self.signals):
                # A group needs all of its ranks to start training, so nothing is lost.
                self.early = self.early or not (forwarded or self._all_ready() or self.ended)
                if self.early:
                    limit = 0.0
                else:
                    self._send(self.signals[forwarded])
                forwarded += 1
                if forwarded > 1:
                    limit = min(limit, time.monotonic() + ENDING)
            if time.monotonic() > limit and not killed:
                killed, self.unheard = True, forwarded > 1 and not self.ended
                self._kill()
            time.sleep(0.03)
        os.close(self.lifeline)
        os.close(self.hears)
        with self.closing:
            return self._outcome()

    def _all_ready(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self.ready += len(os.read(self.hears, len(self.ranks)))
        return self.ready == len(self.ranks)

    def _send(self, number: signal.Signals) -> None:
        for process in self.ranks:
            with contextlib.suppress(OSError):
                process.send_signal(number)

    def _kill(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait()

    def _outcome(self) -> int:
        if self.early:
            _say(
                f"ended by {self.signals[0].name} while the ranks were starting, so nothing was "
                f"trained. {_how_to_go_on(self.out) if self.out else 'Start again'}"
            )
        elif self.unheard:
            _say(f"no rank ended within {ENDING:g} s of a second signal, so all ranks were killed")
        if self.early or len(self.signals) > 1:
            return 128 + self.signals[0]
        failed = [(rank, code) for rank, code in self.ended.items() if code]
        if not failed:
            return 0
        # A rank that lost a neighbour prints nothing; the first that prints or dies is the cause.
        causes = [(r, code) for r, code in failed if code < 0 or (r and self._words(r))]
        rank, code = (causes or failed)[0]
        if rank:
            sys.stderr.write(self._words(rank))
        if code < 0:
            _say(
                f"rank {rank} was ended by {signal.Signals(-code).name}, so the other ranks were "
                f"ended too. {_how_to_go_on(self.out)}"
            )
        return 1 if code < 0 else code

    def _words(self, rank: int) -> str:
        self.printed[rank].seek(0)
        return self.printed[rank].read().decode(errors="replace")


def _say(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr)


def _numbers(rank: int, count: int) -> dict[str, str]:
    """Return the variables for a rank's identity and for finding this library."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {k: str(v) for k, v in names.items()} | {"PYTHONPATH": os.pathsep.join(paths)}


def _started(
    argv: Sequence[str],
    env: dict[str, str],
    pipes: dict[str, int],
    meeting: Rendezvous,
    output: int,
    errors: int,
) -> Process:
    """Start one rank, which a keyboard interrupt reaches only once, through the launcher."""
    named = {name: str(number) for name, number in pipes.items()} | {RENDEZVOUS: meeting.path}
    return start_here(
        Wanted(
            "course_lib.train.__main__:forked",
            [list(argv), [*pipes]],
            {**env, **named},
            output,
            [*pipes.values(), *meeting.descriptors],
            errors=errors,
        ),
        [sys.executable, "-m", "course_lib.train", *argv],
        modules=("torch._dynamo",),  # an optimizer's first step imports it
    )


def _how_to_go_on(out: str | None) -> str:
    """Describe the last checkpoint as it is on the disk now."""
    if out is None:
        return "A checkpoint, if one was written, is in the newest folder of runs/"
    try:
        path, _ = last(Path(out))
    except Refused:
        return f"There is no checkpoint in {out}, so start again"
    except ValueError as error:
        return str(error)
    return f"Continue from {path} with --resume --out {out}"
