"""The files of a DeepSpeed checkpoint: the step that `latest` names, and one file per rank.

File names reveal incomplete checkpoints, and checkpoints sharded by more than ZeRO. These are
refused before any file is opened. Lesson 14.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from course_lib.pretrained.header import CheckpointError

LATEST = "latest"
OPTIMIZER = re.compile(r"((?:bf16_|fp16_)?zero_pp_rank_)(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODEL = re.compile(r"(zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


class Ranks(NamedTuple):
    """The files of one step, in rank order; below stage 3 there is only one model file."""

    step: Path
    optimizer: list[Path]
    model: list[Path]


def is_one(path: Path) -> bool:
    """Return True if a folder is a DeepSpeed checkpoint of any kind, or names one in `latest`."""
    if not path.is_dir():
        return False
    step = _named_by_latest(path)
    return _has_files(path) or (step is not None and _has_files(step))


def step_of(path: Path) -> Path:
    """Find the folder of the step: this folder, or the one named by its `latest`."""
    if not path.is_dir():
        raise CheckpointError(f"the folder {path} does not exist")
    step = path if _has_files(path) else _named_by_latest(path)
    if step is None:
        steps = sorted(one.name for one in path.iterdir() if one.is_dir() and _has_files(one))
        raise CheckpointError(
            f"{path} has no rank's file, and no file `latest` that names a folder in it, because "
            "the save did not finish or a folder was removed. Name the folder of the step itself"
            f"{'; there is ' * bool(steps)}{', '.join(steps)}"
        )
    return step


def _named_by_latest(path: Path) -> Path | None:
    latest = path / LATEST
    name = latest.read_text(errors="replace").strip() if latest.is_file() else ""
    inside = name not in ("", ".", "..") and Path(name).name == name
    return path / name if inside and (path / name).is_dir() else None


def files_of(step: Path) -> Ranks:
    """List the files of a step's ranks; whether they belong together depends on their content."""
    optimizer, model = _by_rank(step, OPTIMIZER), _by_rank(step, MODEL)
    if not optimizer:
        raise CheckpointError(
            f"{step} has no zero_pp_rank_*_optim_states.pt. For stage 0, all weights are in "
            "mp_rank_00_model_states.pt; read them by torch.load(…, weights_only=True)['module']. "
            "For a universal checkpoint, name the step from which ds_to_universal.py made it. "
            "Otherwise the ranks' files are missing, so copy them"
        )
    if not model:
        raise CheckpointError(
            f"{step} has no mp_rank_00_model_states.pt, nor zero_pp_rank_0_mp_rank_00_model_states"
            ".pt, which list the model's weights; copy them from where they were written"
        )
    if (step / "offloaded_tensors").is_dir():
        raise CheckpointError(
            f"{step}/offloaded_tensors shows that this run kept its optimizer on NVMe and copied "
            "it as raw swap files without names. Load it in DeepSpeed with the optimizer offloaded "
            "to the CPU, and save it again"
        )
    return Ranks(step, _in_order(step, optimizer), _in_order(step, model))


def _has_files(step: Path) -> bool:
    names = [one.name for one in step.iterdir()]
    return any(OPTIMIZER.fullmatch(name) or MODEL.fullmatch(name) for name in names)


def _by_rank(step: Path, pattern: re.Pattern) -> dict[int, Path]:
    """Map each rank to the file that matches a pattern; refuse models sharded over other axes."""
    files: dict[int, Path] = {}
    for path in sorted(step.iterdir()):
        match = pattern.fullmatch(path.name)
        if match is None:
            if re.fullmatch(r"(layer_\d+.*|.*expert_?\d*_.*)model_states\.pt", path.name):
                raise _other_axes(path)
            continue
        if int(match[3]) > 0:
            raise _other_axes(path)
        at = int(match[2] or 0)
        if at in files:
            raise CheckpointError(
                f"{files[at]} and {path.name} are both of rank {at}, because two runs saved into "
                "one folder; remove the files of the older run"
            )
        files[at] = path
    return files


def _in_order(step: Path, files: dict[int, Path]) -> list[Path]:
    for rank in range(max(files) + 1):
        if rank not in files:
            like = files[max(files)].name.replace(f"pp_rank_{max(files)}_", f"pp_rank_{rank}_")
            raise CheckpointError(
                f"{step / like} is missing, but rank {max(files)}'s file is there. Each rank "
                "writes its own part, possibly to its own host's disk; copy the missing file here"
            )
    return [files[rank] for rank in range(max(files) + 1)]


def _other_axes(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: this model was also sharded by tensor, pipeline or expert parallelism, which "
        "cannot be read here. Merge it with the tools of the program that saved it"
    )
