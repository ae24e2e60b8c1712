"""The machine of a plan: a known one by its name, or a file of one, which was measured or written.

Lesson 15.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

from course_lib.estimate.time import Constants, Machine
from course_lib.estimate.time.bars import BARS, fit
from course_lib.estimate.time.presets import PRESETS, preset
from course_lib.files import write_whole

NUMBERS = ("gpus", "memory", "host", "host_memory", "host_moved", "disk", "cores", "peak", "single")


def cluster(name: str | Machine, *, gpus: int = 0) -> Machine:
    """A known machine, the file of one, or one that was measured; `gpus` are wanted in all."""
    machine = name if isinstance(name, Machine) else _named(name)
    if machine.cores is not None and gpus > machine.gpus:
        # Processes of one host, however many: they share its cores and its memory.
        return machine.changed(gpus=gpus, memory=machine.memory * machine.gpus // gpus)
    return machine


def constants(machine: Machine) -> Constants:
    """Those of the published bars, for GPUs; of a machine whose ranks are processes the links are
    what a collective was measured to reach, and which rank is slow changes from step to step."""
    return Constants() if machine.cores is not None else fit(BARS, worst=True)


def read_machine(path: Path) -> Machine:
    """A machine as `write_machine` leaves it; `like` names a known one, whose figures count for
    those that the file has not."""
    refused = f"--machine {path} is no file of a machine: "
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{refused}it is no JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f'{refused}it has to hold an object, such as {{"like": "hgx-h100"}}')
    like = values.pop("like", None)
    values = {**(preset(like).as_dict() if like else {}), **values}
    figures = fields(Machine)
    if strange := sorted(values.keys() - {one.name for one in figures}):
        known = ", ".join(one.name for one in figures)
        raise ValueError(f"{refused}it names {', '.join(strange)}; the figures are {known}")
    if missing := [
        one.name for one in figures if one.default is MISSING and one.name not in values
    ]:
        raise ValueError(f'{refused}it lacks {", ".join(missing)}; or give "like": a known machine')
    for name in NUMBERS:
        value = values.get(name)
        if value is not None and not (type(value) in (int, float) and value > 0):
            raise ValueError(f"{refused}{name} is {value!r} and has to be a number above 0")
    try:
        return Machine.from_dict(values)
    except (TypeError, KeyError, AttributeError) as error:
        form = 'rates are [{"ranks", "flops", "moved"}], links {"bandwidth", "latency"}'
        raise ValueError(f"{refused}{form}") from error


def write_machine(machine: Machine, path: Path) -> None:
    write_whole(path, (json.dumps(machine.as_dict(), indent=2) + "\n").encode())


def _named(name: str) -> Machine:
    return (
        read_machine(Path(name)) if name not in PRESETS and Path(name).is_file() else preset(name)
    )
