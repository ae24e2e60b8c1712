"""A rank's seat in the classroom: its groups, its part of the board, and its records of cells.

It joins groups, recreates them after a failure, names the variables that still hold a dead group,
and keeps the referee's records between cells. Every rank of a notebook has one (lesson 00).
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import linecache
import sys
import time
import types
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch.distributed.device_mesh import DeviceMesh

from course_classroom.ranks import stacks
from course_classroom.ranks.agreement import named_holders
from course_classroom.ranks.board import Board, Inbox
from course_classroom.ranks.calls import DeadGroup
from course_classroom.ranks.carried import loop_variables
from course_classroom.ranks.referee import Referee
from course_classroom.ranks.threads import CellThreads
from course_lib import ranks
from course_lib.ledger.torch_calls import listening

OURS = ("me", "rank", "world", "device", "group", "torch", "dist")
_LOOKED_AT = 20_000  # objects per variable in the search for dead groups
_NOT_SEARCHED = (str, int, float, type, types.ModuleType, InteractiveShell)


class Seat:
    def __init__(self, shell, rank: int, world: int, run_dir: Path):
        self.shell, self.rank, self.world = shell, rank, world
        self.board = Board(run_dir / "board", world + 1)
        self.inbox = Inbox(self.board)
        self.dead: dict[str, str] = {}
        self.made_in: dict[str, tuple[int, str]] = {}  # variable → (id, the cell that defined it)
        self._loops: set[str] = set()  # variables of `for` loops, which need not be created again
        self.generation = 0
        self._everyone = lambda: None
        # A cell's file name in tracebacks → its label, and the offset of its lines there.
        self._cells: dict[str, tuple[str, int]] = {}
        self._here = ""
        shell.user_ns["exit"] = shell.user_ns["quit"] = _no_exit
        self._given = set(shell.user_ns)
        self.threads = CellThreads(self.find_line)
        _refuse_dead_names(self.dead, self.threads)

    def join(self, rendezvous: str, timeout: float, reason: str = "") -> list[tuple[str, str]]:
        """Start or recreate the groups; return the variables that hold a dead group."""
        holders = self._bury(reason) if self.generation else []
        ranks.stop()
        self.generation += 1
        # Group names are never reused, so a dead group cannot be mistaken for a live one.
        dist.distributed_c10d._world.group_count = 1000 * self.generation
        me = ranks.start(self.rank, self.world, rendezvous=rendezvous, timeout=timeout)
        # Groups that a cell creates without a timeout get this one.
        dist.distributed_c10d.default_pg_timeout = timedelta(seconds=timeout)
        group = dist.group.WORLD
        self._everyone = weakref.ref(group)  # a group lives as long as any reference to it
        self.shell.user_ns.update(
            me=me,
            rank=me.rank,
            world=me.world,
            device=me.device,
            group=group,
            torch=torch,
            dist=dist,
        )
        dist.barrier(group)
        return holders

    @contextmanager
    def at_work(self, code: str, cell: dict) -> Iterator[Referee]:
        self._here = self._name_of(code)
        # IPython drops blank lines at the start, but a learner's editor counts them.
        blank = code[: len(code) - len(code.lstrip())].count("\n")
        self._cells[self._here] = (cell["label"], blank)
        self._bound_waits(cell["group_timeout"])
        self.threads.cell = cell["number"], cell["label"]
        referee = Referee(
            self.board,
            self.inbox,
            self.rank,
            cell=cell["number"],
            participants=cell["participants"],
            deadline=cell["deadline"],
            dead=self.dead,
            find_line=self.find_line,
        )
        before = {name: id(value) for name, value in self.shell.user_ns.items()}
        self.board.set_status(self.rank, {"cell": cell["number"], "state": "running"})
        if cell["checked"]:
            with listening(referee), referee:
                yield referee
        else:
            yield referee
        loops = loop_variables(code)
        for name, value in self.shell.user_ns.items():
            if before.get(name) != id(value):
                self.made_in[name] = (id(value), cell["label"])
                (self._loops.add if name in loops else self._loops.discard)(name)

    def report(self, cell: dict, reply: dict, referee: Referee) -> None:
        """Post the end of the cell on the board, because other ranks may wait for this rank."""
        self.threads.cell = 0, ""
        status = {"cell": cell["number"], "at": time.monotonic(), "counts": dict(referee.counts)}
        status["late"] = bool(self.threads.waiting())
        # The cell itself has destroyed the groups or replaced them.
        status["alone"] = not dist.is_initialized() or dist.group.WORLD is not self._everyone()
        if reply["status"] == "ok":
            self.board.set_status(self.rank, {**status, "state": "done"})
            return
        trail = self._trail()
        where, source = trail[-1] if trail else ("", "")
        error = f"{reply['ename']}: {reply['evalue']}" if reply["evalue"] else reply["ename"]
        more = {
            "where": where,
            "source": source[:80],
            "ename": reply["ename"],
            "error": error[:600],
            "trail": [f"{w}: {s[:80]}" for w, s in trail[-8:]],
        }
        self.board.set_status(self.rank, {**status, "state": "failed", **more})

    def stack(self, thread_id: int) -> dict:
        """Return this rank's current place for a hang report. A different thread calls this."""
        calls = stacks.of_all().get(thread_id, [])
        where, source = self.find_line(calls)
        inside, verb = "", ""
        for call in itertools.takewhile(lambda call: call.file not in self._cells, calls):
            inside = call.name
            if call.file == dist.distributed_c10d.__file__:
                verb = _describe(thread_id, call.name)
        return {"where": where, "source": source, "inside": inside, "verb": verb or recorded_verb()}

    def find_line(self, calls: Iterable[stacks.Call]) -> tuple[str, str]:
        """Return the description and the text of the learner's line nearest to a call."""
        for call in calls:
            if call.file in self._cells:
                return self._line(call.file, call.line)
        return "", ""

    def _line(self, file: str, number: int) -> tuple[str, str]:
        label, moved = self._cells[file]
        cell = "" if file == self._here else f"{label}, "
        return f"{cell}line {number + moved}", linecache.getline(file, number).strip()

    def _bound_waits(self, timeout: float) -> None:
        wanted = timedelta(seconds=timeout)
        if dist.distributed_c10d.default_pg_timeout != wanted:
            dist.distributed_c10d.default_pg_timeout = wanted
            for group in list(dist.distributed_c10d._world.pg_map):
                dist.distributed_c10d._set_pg_timeout(wanted, group)

    def _name_of(self, code: str) -> str:
        """Return the file name that IPython gives a cell in tracebacks."""
        try:
            transformed = self.shell.transform_cell(code)
        except Exception:  # not Python: running it will raise the right error
            transformed = code
        return self.shell.compile.get_code_name(code, transformed, 0)

    def _trail(self) -> list[tuple[str, str]]:
        """Return the learner's lines that the exception passed through, outermost first."""
        found, trace = [], getattr(sys, "last_traceback", None)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in self._cells:
                found.append(self._line(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        return found

    def _bury(self, reason: str) -> list[tuple[str, str]]:
        holders = []
        for name, value in list(self.shell.user_ns.items()):
            if name in self._given or name in OURS or name.startswith("_"):
                continue
            if _holds_group(value):
                holders.append((name, self.made_in.get(name, (0, "an earlier cell"))[1]))
        to_make = [(name, where) for name, where in holders if name not in self._loops]
        held = named_holders(to_make)
        sentence = f"this group did not survive {reason or 'an earlier failure'}"
        sentence += f"; {held} still hold{'s' if len(to_make) == 1 else ''} it" if held else ""
        sentence += ". Create these variables again: `group` is the new group of all ranks."
        for name, _ in holders:
            value = self.shell.user_ns[name]
            if isinstance(value, torch.nn.Module):  # otherwise DDP would fail with its own error
                value.register_forward_pre_hook(functools.partial(_refuse, sentence))
        for group in list(dist.distributed_c10d._world.pg_map):
            self.dead[group.group_name] = sentence
        return to_make


def _no_exit(*_) -> None:
    raise RuntimeError("a rank ends with its notebook (or by `%ranks stop`), not from a cell")


def _refuse(sentence: str, *_) -> None:
    raise DeadGroup(sentence)


def _holds_group(root) -> bool:
    """Return True if a process group or mesh is reachable from a variable's value."""
    seen, queue = set(), [root]
    while queue and len(seen) < _LOOKED_AT:
        item = queue.pop()
        if id(item) in seen or isinstance(item, _NOT_SEARCHED):
            continue
        seen.add(id(item))
        if isinstance(item, dist.ProcessGroup | DeviceMesh) or hasattr(type(item), "device_mesh"):
            return True
        if isinstance(item, types.FunctionType):  # its globals are the full namespace
            queue.extend([item.__closure__, item.__defaults__, item.__kwdefaults__])
        elif not isinstance(item, types.FrameType):
            queue.extend(gc.get_referents(item))
    return False


def _refuse_dead_names(dead: dict[str, str], threads: CellThreads) -> None:
    """Make torch refuse dead groups wherever it receives a group or finds one by name, and calls
    from threads of cells that have ended."""
    find = dist.distributed_c10d._resolve_process_group
    outside = dist.distributed_c10d._rank_not_in_group

    def outside_or_dead(group):
        threads.refuse_late()
        if isinstance(group, dist.ProcessGroup) and group.group_name in dead:
            raise DeadGroup(dead[group.group_name])
        return outside(group)

    dist.distributed_c10d._rank_not_in_group = outside_or_dead

    def find_living(name):
        if name in dead:
            raise DeadGroup(dead[name])
        return find(name)

    for module in (dist.distributed_c10d, sys.modules["torch.distributed.device_mesh"]):
        if hasattr(module, "_resolve_process_group"):
            module._resolve_process_group = find_living


def _describe(thread_id: int, name: str) -> str:
    """Describe the call of torch.distributed in which a thread waits, with tensor shapes."""
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    values = () if frame is None else frame.f_locals.values()
    shapes = [list(v.shape) for v in values if isinstance(v, torch.Tensor)][:2]
    return f"{name} of {', '.join(map(str, shapes))}" if shapes else ""


def recorded_verb() -> str:
    """Return the collective that torch's flight recorder lists as unfinished, if any."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return ""
    try:
        entries = json.loads(dump()).get("entries", [])
    except RuntimeError:
        return ""
    waiting = [e for e in entries if not e.get("retired")]
    if not waiting:
        return ""
    name = waiting[0]["profiling_name"].split(":")[-1]
    return f"{name} of {waiting[0].get('input_sizes')}"
