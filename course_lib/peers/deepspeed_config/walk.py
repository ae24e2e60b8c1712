"""The ladder walked for a config.json and a machine: the first rung that fits, and its files.

Where nothing fits it says how many GPUs would do. Of our own engine it names the command that runs
the rung, so that the meter can be held against it. Lesson 13.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from course_lib.estimate import ladder
from course_lib.estimate.fit import check_gpus
from course_lib.estimate.ladder import Nodes, Rung
from course_lib.estimate.over_tp import check_cut
from course_lib.estimate.setting import Setting
from course_lib.estimate.shape import Shape, keys_of, read, read_ours, shape_of
from course_lib.files import write_whole
from course_lib.gpt import Config
from course_lib.peers.deepspeed_config import fsdp2, settings
from course_lib.peers.deepspeed_config.memory import Forecast, forecast
from course_lib.peers.deepspeed_config.ours import train
from course_lib.peers.deepspeed_config.settings import Sizes
from course_lib.zero.precision import DTYPES

UNITS = {"": 10**9, "GB": 10**9, "MB": 10**6, "KB": 10**3, "TB": 10**12, "B": 1}
UNITS |= {"GIB": 1 << 30, "MIB": 1 << 20, "KIB": 1 << 10, "TIB": 1 << 40, "G": 10**9, "M": 10**6}
SHOWN = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class WalkTask:
    """What is to be trained where."""

    path: Path
    keys: dict
    model: Config | Shape
    machine: Nodes
    rows: int
    length: int
    precision: str

    @classmethod
    def read(
        cls,
        path: Path,
        gpu_memory: str,
        host_memory: str | None,
        *,
        gpus: int,
        nodes: int,
        rows: int,
        length: int,
        precision: str,
    ) -> WalkTask:
        numbers = {"gpus": (gpus, 1), "nodes": (nodes, 1), "rows": (rows, 1), "length": (length, 0)}
        for name, (value, least) in numbers.items():
            if value < least:
                raise ValueError(f"--{name} {value} has to be {least} or more")
        check_gpus(gpus * nodes, "--gpus times --nodes,")
        if precision not in DTYPES:
            raise ValueError(f"--precision {precision} is none of {', '.join(DTYPES)}")
        host = None if host_memory is None else nbytes(host_memory, "--host-memory")
        machine = Nodes(nbytes(gpu_memory, "--gpu-memory"), gpus, nodes, host)
        model = read_ours(path) or read(path)
        if isinstance(model, Config):
            length = length or model.length
            check_cut(model, length, 1, 0)
        return cls(path, dict(keys_of(path)), model, machine, rows, length, precision)

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(self.model, self.keys)


@dataclass(frozen=True)
class Walk:
    """All rungs, the first that fits or None, that rung with as many rows as fit, and, where
    nothing fits, the GPUs that the last rung needs, None where no number is enough, and then the
    longest sequences that would do."""

    task: WalkTask
    rungs: list[Rung]
    first: Rung | None
    back_up: Setting | None
    gpus_needed: int | None
    longest: int | None = None

    def size(self, nbytes: float) -> str:
        """In the unit of this machine's GPU."""
        unit, _ = self._unit
        return f"{nbytes / unit:,.2f}" if nbytes else "–"

    @property
    def _unit(self) -> tuple[int, str]:
        gpu = self.task.machine.gpu_bytes
        return next((pair for pair in SHOWN if gpu >= pair[0]), SHOWN[-1])

    @property
    def title(self) -> str:
        task, machine = self.task, self.task.machine
        params = _params(task.model)
        where = f"{machine.nodes} node{'s'[: machine.nodes > 1]} with {machine.gpus} GPU"
        where += f"{'s'[: machine.gpus > 1]} each of {self.size(machine.gpu_bytes)} {self._unit[1]}"
        of = f", {task.length} tokens a sequence" if task.length else ""
        return f"{params:,} parameters{of}; {where}. In {self._unit[1]}:"

    @property
    def remarks(self) -> list[str]:
        lines = [
            "GPU: the highest point of a step of our engine, with its loss and AdamW. saves: "
            "against the rung before. host, disk: of a node. sent: to other GPUs, and PCIe: "
            "between GPU, host and files, of one GPU in a step.",
            "Gradient checkpointing computes a third more: each block's forward once again.",
        ]
        if isinstance(self.task.model, Shape):
            kind = self.task.keys.get("model_type")
            lines.append(
                f"States alone: activations are known for GPT-2's and Llama's config.json, and "
                f"this is model_type {kind!r}. The first two remedies change nothing here, and a "
                "step needs more than is shown."
            )
        if self.first is not None:
            lines.append(
                f"DeepSpeed by itself, with its buckets: {self.deepspeeds.lines(*self._unit)[0]}."
            )
        if self.task.machine.host_bytes is None:
            lines.append("Of the host's memory nothing was said (--host-memory): it is not short.")
        return lines

    @property
    def advice(self) -> str:
        machine = self.task.machine
        if self.first is not None:
            most = self.back_up
            if most.rows > self.first.setting.rows:
                times = (
                    f"accumulated {most.accumulate} times" if most.accumulate > 1 else "all of them"
                )
                return (
                    f"{most.rows} rows at once fit on it too, {times}: the settings are those. "
                    "Then try the rungs above, which are faster."
                )
            return "More rows at once do not fit on it." if most.accumulate > 1 else ""
        last = self.rungs[-1]
        if self.gpus_needed is not None:
            nodes = self.gpus_needed // machine.gpus
            return (
                f"The last rung needs {self.size(last.needs.gpu)} {self._unit[1]} on each GPU and "
                f"{self.size(last.needs.host)} on each host; on {self.gpus_needed} GPUs ({nodes} "
                f"nodes with {machine.gpus} each) it fits."
            )
        least = min(rung.needs.gpu for rung in self.rungs)
        shorter = (
            f" Take a shorter --length (it fits with {self.longest}), or" if self.longest else ""
        )
        return (
            f"The leanest rung needs {self.size(least)} {self._unit[1]} on each GPU, and no number "
            "of GPUs changes that: a unit of parameters, its gradients and a row's activations are "
            f"whole on each.{shorter or ' Take'} GPUs with that much memory, or tensor parallelism "
            "(course estimate --tp)."
        )

    @property
    def runs(self) -> list[str]:
        """The commands that run the first rung that fits and the one before it with our engine,
        beside the meter; none where our engine has no such model, or it is no small one."""
        if self.first is None or _params(self.task.model) > ladder.SMALL:
            return []
        at = self.rungs.index(self.first)
        two = map(self.run_of, self.rungs[max(0, at - 1) : at + 1])
        return [f"course train {' '.join(argv)} --steps 2 --json" for argv in two if argv]

    def run_of(self, rung: Rung) -> list[str] | None:
        """The arguments of `course train` that run a rung, None where it has no such model."""
        task = self.task
        return train(task.model, task.length, task.machine.world, rung.setting)

    @property
    def deepspeeds(self) -> Forecast:
        """What DeepSpeed itself is forecast to take with the settings."""
        task, machine, setting = self.task, self.task.machine, self.back_up
        config = settings.deepspeed(setting, machine, task.sizes)
        how = {"gpus": machine.gpus, "length": task.length or None, "recompute": setting.recompute}
        return forecast(config, task.path, machine.world, **how)

    def as_dict(self, files: dict[str, str]) -> dict:
        rungs = [r.as_dict() | {"train": self.run_of(r)} for r in self.rungs]
        first = None if self.first is None else self.rungs.index(self.first)
        task, machine = self.task, self.task.machine
        found = {"gpu_memory_bytes": machine.gpu_bytes, "gpus": machine.gpus}
        found |= {"nodes": machine.nodes, "rows": task.rows, "length": task.length}
        found |= {"activations": isinstance(task.model, Config), "rungs": rungs, "first": first}
        found |= {"gpus_needed": self.gpus_needed, "longest": self.longest, "advice": self.advice}
        if self.first is not None:
            more = {"rows": self.back_up.rows, "accumulate": self.back_up.accumulate}
            found |= {"back_up": more, "notes": fsdp2.notes(self.back_up), "files": files}
            found["deepspeed"] = self.deepspeeds.as_dict()
        return found


def _params(model: Config | Shape) -> int:
    return (shape_of(model) if isinstance(model, Config) else model).params


def walk(task: WalkTask) -> Walk:
    """The ladder from top to bottom."""
    how = (task.model, task.machine)
    rungs = ladder.ladder(*how, task.rows, task.length, precision=task.precision)
    first = ladder.first_that_fits(rungs)
    if first is None:
        lean = next(rung for rung in rungs[::-1] if rung.setting.lean).setting
        needed = ladder.enough(*how, lean, task.length)
        shorter = None if needed else ladder.longest(*how, lean, task.length)
        return Walk(task, rungs, None, None, needed, shorter)
    return Walk(task, rungs, first, ladder.back_up(*how, first, task.length), None)


def files_of(result: Walk, *, trainer: bool = False, nvme_path: str = "/local_nvme") -> dict:
    """Name to text of the settings of the first rung that fits; empty where none does."""
    if result.first is None:
        return {}
    task, setting, name = result.task, result.back_up, "ds_config.json"
    kind = task.keys.get("model_type")
    config = settings.deepspeed(
        setting, task.machine, task.sizes, trainer=trainer, nvme_path=nvme_path
    )
    found = {name: json.dumps(config, indent=2) + "\n"}
    found["accelerate_deepspeed.yaml"] = fsdp2.accelerate_deepspeed(setting, task.machine, name)
    lines = (line for note in fsdp2.notes(setting) for line in wrap(f"{note}.", 96))
    comments = "".join(f"# {line}\n" for line in lines)
    found["fsdp2.py"] = comments + fsdp2.python(setting, kind)
    found["accelerate_fsdp2.yaml"] = fsdp2.accelerate_fsdp2(setting, task.machine, kind)
    arguments = settings.training_arguments(setting, name)
    found["training_arguments.json"] = json.dumps(arguments, indent=2) + "\n"
    return found


def leave(files: dict[str, str], folder: Path, option: str = "--write") -> list[str]:
    """Write them into a folder, where no other file of these names is."""
    others = [folder / name for name in files if (folder / name).exists()]
    changed = [path for path in others if path.read_text(encoding="utf-8") != files[path.name]]
    if changed:
        raise ValueError(
            f"{option} {folder}: {', '.join(path.name for path in changed)} is there already and "
            "says something else; name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text.encode())
    return [str(folder / name) for name in files]


def nbytes(text: str, name: str) -> int:
    """Bytes as people write them: 24 and 24GB are 24 · 10^9, 22.4GiB, 50MB, 0.05."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    unit = None if match is None else UNITS.get(match[2].upper())
    if unit is None:
        raise ValueError(f"{name} {text!r} is no size: write 24, 24GB, 22.4GiB or 50MB")
    size = float(match[1]) * unit
    if not (size >= 1 and math.isfinite(size)):
        raise ValueError(f"{name} {text} is {size:g} bytes: it has to be a size above 0")
    return int(size)
