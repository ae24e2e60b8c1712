"""The ladder for a config.json and a machine: the first rung that fits, and its files.

If nothing fits, the result states how many GPUs would be enough. All bytes equal the forecast of
`ds-check --memory` for the written file. Lesson 13.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap

from course_lib.estimate import ladder
from course_lib.estimate.fit import nodes_of
from course_lib.estimate.ladder import Nodes, Rung
from course_lib.estimate.lighter import Lighter, lighter
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Needs, Setting
from course_lib.files import write_whole
from course_lib.peers.deepspeed_config import fsdp2, settings
from course_lib.peers.deepspeed_config.memory import Forecast, forecast
from course_lib.peers.deepspeed_config.settings import Sizes
from course_lib.peers.deepspeed_config.sizes import nbytes
from course_lib.zero.precision import DTYPES

SHOWN = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class WalkTask:
    """A model, a machine, and a step of `rows` sequences of `length` tokens on each GPU."""

    model: Model
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
        per_node: int,
        rows: int,
        length: int,
        precision: str,
    ) -> WalkTask:
        least = {"gpus": 1, "gpus-per-node": 1, "rows": 1, "length": 0}
        for name, value in zip(least, (gpus, per_node, rows, length), strict=True):
            if value < least[name]:
                raise ValueError(f"--{name} {value} has to be {least[name]} or more")
        nodes = nodes_of(gpus, per_node)
        if precision not in DTYPES:
            raise ValueError(f"--precision {precision} is none of {', '.join(DTYPES)}")
        host = None if host_memory is None else nbytes(host_memory, "--host-memory")
        machine = Nodes(nbytes(gpu_memory, "--gpu-memory"), gpus // nodes, nodes, host)
        model = Model.read(path)
        return cls(model, machine, rows, model.length(length), precision)

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(self.model)


class DeepSpeedRun:
    """A model under DeepSpeed with the settings that this course writes. The bytes equal the
    forecast of `ds-check --memory` for the same file."""

    def __init__(self, model: Model, tp: int = 1, sequence: bool = False):
        self.model, self.params, self.sizes = model, model.shape.params, Sizes.of(model)
        self.cut, self.shape = {"tp": tp, "sequence": sequence}, model.shape_of_rank(tp)

    def forecast(self, setting: Setting, machine: Nodes, length: int) -> Forecast:
        config = settings.deepspeed(setting, machine, self.sizes)
        how = {"gpus": machine.gpus, "length": length, "recompute": setting.recompute}
        return forecast(config, self.model, machine.world, **how, **self.cut)

    def needs(self, setting: Setting, machine: Nodes, length: int) -> Needs:
        parts = self.forecast(setting, machine, length)
        tiers = {
            "gpu": parts.total("gpu"),
            "host": parts.total("host"),
            "disk": parts.total("disk"),
        }
        how = {"recompute": setting.recompute, **self.cut}
        kept = self.model.kept(setting.rows, length, setting.dtype, **how)
        traffic = ladder.needs_of_states(self.shape, setting, machine, self.cut["tp"])
        return replace(traffic, activations=None if kept is None else kept.total, **tiers)


@dataclass(frozen=True)
class Walk:
    """All rungs, the first that fits (or None), and that rung with as many rows as fit. If nothing
    fits, `gpus_needed` GPUs are enough. If no number of GPUs is enough, it is None, and `longest`
    is the longest sequence that fits. `others` are ways to train in fewer bytes."""

    task: WalkTask
    rungs: list[Rung]
    first: Rung | None
    back_up: Setting | None
    gpus_needed: int | None
    longest: int | None = None
    others: Sequence[Lighter] = ()

    def size(self, nbytes: float) -> str:
        """Format bytes in the unit of this machine's GPU."""
        return f"{nbytes / self._unit[0]:,.2f}" if nbytes else "–"

    @property
    def _unit(self) -> tuple[int, str]:
        gpu = self.task.machine.gpu_bytes
        return next((pair for pair in SHOWN if gpu >= pair[0]), SHOWN[-1])

    @property
    def unit(self) -> str:
        return self._unit[1]

    @property
    def forecast(self) -> Forecast:
        """The memory of the written settings, part by part."""
        task = self.task
        return DeepSpeedRun(task.model).forecast(self.back_up, task.machine, task.length)

    @property
    def answer(self) -> str:
        """The first line, which names the rung that fits or states that nothing fits."""
        machine, unit = self.task.machine, self.unit
        if self.first is None:
            return f"Nothing fits. {self._nothing}"
        rows, times = self.back_up.rows, self.back_up.accumulate
        batch = f"{rows} row{'s'[: rows != 1]} at once"
        batch += f", accumulated {times} times" if times > 1 else ""
        took = self.size(self.forecast.total("gpu"))
        of = f"{took} of {self.size(machine.gpu_bytes)} {unit} on each GPU"
        if self.first.needs.activations is None:
            return f"The states fit with {self.first.name} ({of}); activations need more memory."
        return f"It fits with {self.first.name}: {of}, with {batch}."

    @property
    def assumptions(self) -> str:
        """The assumptions, in one line."""
        task, machine = self.task, self.task.machine
        where = f"{machine.nodes} node{'s'[: machine.nodes > 1]} with {machine.gpus} GPU"
        where += "s"[: machine.gpus > 1]
        return (
            f"{task.model.shape.params:,} parameters, {task.rows} sequences of {task.length:,} "
            f"tokens per step on each GPU, {task.precision}, AdamW, fused attention; {where}."
        )

    @property
    def remarks_of_others(self) -> list[str]:
        return [
            "Sharded means stage 3 or FSDP2. Blocks are recomputed, but selective recomputation "
            "keeps their products (a context_fn in code, no Trainer argument). Without master "
            "weights, small updates are rounded away, but torchao's 8-bit AdamW can round "
            "randomly. LoRA (PEFT) trains adapters for every linear layer of the blocks. Fused "
            "AdamW, the Trainer's default, is assumed, because others need one more weight copy."
        ]

    @property
    def remarks(self) -> list[str]:
        task = self.task
        lines = [
            "Columns: GPU is the memory that DeepSpeed needs on each GPU, saves compares it with "
            "the rung before, host and disk are per node, sent goes to other GPUs per step, and "
            "PCIe moves between a GPU, its host and its files per step.",
            "Gradient checkpointing computes a third more, because blocks are recomputed.",
        ]
        if task.model.activations_unknown:
            lines.append(
                f"The activations are not known, because {task.model.activations_unknown}. A step "
                "needs more than shown, and the settings have 1 row at a time."
            )
        elif self.first is not None:
            part = self.forecast.lines(*self._unit)[0]
            lines.append(f"The written settings, part by part: {part}.")
        if task.model.keys.get("quantization_config"):
            lines.append("quantization_config is left out, because training is not quantized.")
        if self.back_up is not None and self.back_up.stage < 3:
            each, ranks = self.back_up.width * task.model.shape.params, task.machine.gpus
            lines.append(
                f"While the model is loaded, each of {ranks} processes of a node holds it once, "
                f"which takes {self.size(ranks * each)} {self.unit} of the host's memory."
            )
        if task.machine.host_bytes is None:
            lines.append("The host's memory is not checked without --host-memory.")
        return lines

    @property
    def _nothing(self) -> str:
        machine = self.task.machine
        least = min(rung.needs.gpu for rung in self.rungs)
        if self.gpus_needed is not None:
            nodes = self.gpus_needed // machine.gpus
            return (
                f"The leanest rung needs {self.size(least)} {self.unit} on each GPU. On "
                f"{self.gpus_needed} GPUs ({nodes} nodes with {machine.gpus} each) the model fits."
            )
        shorter = (
            f" Take a shorter --length (it fits with {self.longest}), or" if self.longest else ""
        )
        return (
            f"The leanest rung needs {self.size(least)} {self.unit} on each GPU, and no number of "
            "GPUs changes that, because each GPU holds a full unit of parameters, its gradients "
            f"and a row's activations.{shorter or ' Take'} GPUs with that much memory, or tensor "
            "parallelism (course estimate --tp)."
        )

    def as_dict(self, files: dict[str, str]) -> dict:
        first = None if self.first is None else self.rungs.index(self.first)
        task, machine = self.task, self.task.machine
        found = {"gpu_memory_bytes": machine.gpu_bytes, "gpus": machine.gpus}
        found |= {"nodes": machine.nodes, "rows": task.rows, "length": task.length}
        found |= {"activations": not task.model.activations_unknown}
        found |= {"rungs": [rung.as_dict() for rung in self.rungs], "first": first}
        found |= {"gpus_needed": self.gpus_needed, "longest": self.longest, "answer": self.answer}
        found["others"] = [way.as_dict() for way in self.others]
        if self.first is not None:
            more = {"rows": self.back_up.rows, "accumulate": self.back_up.accumulate}
            found |= {"back_up": more, "notes": fsdp2.notes(self.back_up), "files": files}
            found["deepspeed"] = self.forecast.as_dict()
        return found


def walk(task: WalkTask) -> Walk:
    """Walk the ladder from top to bottom."""
    how = (DeepSpeedRun(task.model), task.machine)
    rungs = ladder.ladder(*how, task.rows, task.length, precision=task.precision)
    first = ladder.first_that_fits(rungs)
    others = lighter(task.model, task.machine.world, task.length)
    if first is None:
        lean = [rung.setting for rung in rungs if rung.setting.lean]
        enough = [ladder.enough(*how, setting, task.length) for setting in lean]
        needed = min(filter(None, enough), default=None)
        shorter = [] if needed else [ladder.longest(*how, x, task.length) for x in lean]
        fits = max(filter(None, shorter), default=None)
        return Walk(task, rungs, None, None, needed, fits, others)
    return Walk(task, rungs, first, ladder.back_up(*how, first, task.length), None, None, others)


def files_of(result: Walk, *, trainer: bool = True, nvme_path: str = "/local_nvme") -> dict:
    """Return {name: text} of the settings files of the first rung that fits. With `trainer`, the
    config has "auto" values, and the Trainer's arguments are added."""
    if result.first is None:
        return {}
    task, setting, name = result.task, result.back_up, "ds_config.json"
    kind = task.model.kind
    config = settings.deepspeed(
        setting, task.machine, task.sizes, trainer=trainer, nvme_path=nvme_path
    )
    found = {name: json.dumps(config, indent=2) + "\n"}
    found["accelerate_deepspeed.yaml"] = fsdp2.accelerate_deepspeed(setting, task.machine, name)
    lines = (line for note in fsdp2.notes(setting) for line in wrap(f"{note}.", 96))
    comments = "".join(f"# {line}\n" for line in lines)
    found["fsdp2.py"] = comments + fsdp2.python(setting, kind)
    found["accelerate_fsdp2.yaml"] = fsdp2.accelerate_fsdp2(setting, task.machine, kind)
    if trainer:
        arguments = settings.training_arguments(setting, name)
        found["training_arguments.json"] = json.dumps(arguments, indent=2) + "\n"
    return found


def launch(result: Walk, folder: str) -> str:
    """Return the command that starts a Trainer script with the settings in a folder."""
    machine, arguments = result.task.machine, settings.training_arguments(result.back_up, "")
    words = ["torchrun", "--nproc-per-node", str(machine.gpus)]
    if machine.nodes > 1:
        words += ["--nnodes", str(machine.nodes), "--node-rank", "$NODE_RANK"]
        words += ["--master-addr", "$MASTER_ADDR"]
    words += ["train.py", "--deepspeed", f"{folder}/ds_config.json"]
    for name, value in arguments.items():
        if name != "deepspeed" and value is not False:
            words += [f"--{name}", str(value)]
    return " ".join(words)


def leave(files: dict[str, str], folder: Path, option: str = "--write") -> list[str]:
    """Write files into a folder, unless files of these names have different content there."""
    others = [folder / name for name in files if (folder / name).exists()]
    changed = [path for path in others if path.read_text(encoding="utf-8") != files[path.name]]
    if changed:
        raise ValueError(
            f"{option} {folder}: {', '.join(path.name for path in changed)} is there already with "
            "different content, so name a new folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text.encode())
    return [str(folder / name) for name in files]
