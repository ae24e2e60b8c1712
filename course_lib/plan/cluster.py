"""The machine of a plan: a known one, one that was measured, or figure by figure.

A single figure counts more than that of the machine that was named. Lesson 15.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from course_lib.deepspeed_config.walk import nbytes
from course_lib.estimate.time import Constants, Link, Machine, Rate
from course_lib.estimate.time.bars import BARS, fit
from course_lib.estimate.time.presets import PRESETS, preset
from course_lib.files import write_whole

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6


def cluster(name: str | Machine | None, figures: Mapping, *, gpus: int = 0) -> Machine:
    """A known machine by its name, the file of one, or one that was measured.

    `figures` by the names of the command's options, None where one was not typed; `gpus` in all,
    for a machine of a single node that nobody named.
    """
    typed = {key: value for key, value in figures.items() if value is not None}
    for key, value in typed.items():
        if isinstance(value, (int, float)) and not value > 0 and not key.endswith("latency"):
            option = "--gpus-per-node" if key == "gpus" else f"--{key.replace('_', '-')}"
            raise ValueError(
                f"{option} {value:g} has to be above 0; leave it out where there is none"
            )
    machine = _named(name) if name is not None else _typed(typed, gpus)
    if machine.cores is not None and "gpus" not in typed and gpus > machine.gpus:
        # Processes of one host, however many: they share its cores and its memory.
        machine = machine.changed(gpus=gpus, memory=machine.memory * machine.gpus // gpus)
    return _changed(machine, typed)


def constants(machine: Machine) -> Constants:
    """Those of the published bars, for GPUs; of a machine whose ranks are processes the links are
    what a collective was measured to reach, and which rank is slow changes from step to step."""
    return Constants() if machine.cores is not None else fit(BARS, worst=True)


def read_machine(path: Path) -> Machine:
    """A file of --save-machine."""
    try:
        return Machine.from_dict(json.loads(path.read_text()))
    except (TypeError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"--machine {path} is no file of --save-machine: {error}") from error


def write_machine(machine: Machine, path: Path) -> None:
    write_whole(path, (json.dumps(machine.as_dict(), indent=2) + "\n").encode())


def _named(name: str | Machine) -> Machine:
    if isinstance(name, Machine):
        return name
    if name not in PRESETS and Path(name).is_file():
        return read_machine(Path(name))
    return preset(name)


def _typed(typed: Mapping, gpus: int) -> Machine:
    """A machine that is described by its figures alone."""
    missing = [name for name in ("memory", "tflops") if name not in typed]
    per_node = typed.get("gpus") or max(1, gpus)
    if per_node > 1 and "inside" not in typed:
        missing.append("inside")
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        raise ValueError(
            f"of the machine {options} is missing; or name a known one with --machine "
            f"({', '.join(PRESETS)}), or measure this one with --calibrate"
        )
    return Machine(
        "this machine", per_node, nbytes(typed["memory"], "--memory"),
        (Rate(per_node, typed["tflops"] * TERA, float("inf")),),
        Link(typed.get("inside", 1.0) * GIGA),
    )  # fmt: skip


def _changed(machine: Machine, typed: Mapping) -> Machine:
    values: dict = {}
    if "gpus" in typed:
        values["gpus"] = typed["gpus"]
    for name in ("memory", "host_memory"):
        if name in typed:
            values[name] = nbytes(typed[name], f"--{name.replace('_', '-')}")
    for name in ("host", "disk"):
        if name in typed:
            values[name] = typed[name] * GIGA
    if values.get("host", machine.host) and not machine.host_moved:
        values["host_moved"] = values.get("host", machine.host)  # no faster than what brings it
    rates = machine.rates
    if "tflops" in typed or "memory_bandwidth" in typed:
        rates = tuple(
            Rate(
                rate.ranks,
                typed["tflops"] * TERA if "tflops" in typed else rate.flops,
                typed["memory_bandwidth"] * GIGA if "memory_bandwidth" in typed else rate.moved,
            )
            for rate in rates
        )
    links = {name: _link(getattr(machine, name), name, typed) for name in ("inside", "across")}
    if links["inside"] != machine.inside:
        values["halves"] = None  # what was typed is what every message gets
    return machine.changed(**values, **links, rates=rates)


def _link(link: Link | None, name: str, typed: Mapping) -> Link | None:
    width, wait = typed.get(name), typed.get(f"{name}_latency")
    if width is None and link is None:
        if wait is not None:
            raise ValueError(f"--{name}-latency is that of a link of which --{name} is missing")
        return None
    return Link(
        link.bandwidth if width is None else width * GIGA,
        (link.latency if link else 0.0) if wait is None else wait * MICRO,
    )
