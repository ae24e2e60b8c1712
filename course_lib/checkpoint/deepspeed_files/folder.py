"""Which files make a DeepSpeed checkpoint: the step that `latest` names, a file of each rank.

What is no checkpoint of ZeRO's ranks alone, or not all of one, is refused here by its file, before
one of them is opened. Lesson 14.
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
    """The files of one step, each list in the order of ranks; below stage 3 there is one model."""

    step: Path
    optimizer: list[Path]
    model: list[Path]


def is_one(path: Path) -> bool:
    """Whether a folder is a DeepSpeed checkpoint, of whatever kind, or names one by `latest`."""
    if not path.is_dir():
        return False
    step = _named_by_latest(path)
    return _has_files(path) or (step is not None and _has_files(step))


def step_of(path: Path) -> Path:
    """The folder of the step: this one, or the one that its `latest` names."""
    if not path.is_dir():
        raise CheckpointError(f"there is no folder {path}")
    step = path if _has_files(path) else _named_by_latest(path)
    if step is None:
        steps = sorted(one.name for one in path.iterdir() if one.is_dir() and _has_files(one))
        raise CheckpointError(
            f"{path} has no file of a rank in it, and no file `latest` that names a folder in it: "
            "the save did not end, or a folder was taken away; name the folder of the step itself"
            f"{'; there is ' * bool(steps)}{', '.join(steps)}"
        )
    return step


def _named_by_latest(path: Path) -> Path | None:
    latest = path / LATEST
    name = latest.read_text(errors="replace").strip() if latest.is_file() else ""
    inside = name not in ("", ".", "..") and Path(name).name == name
    return path / name if inside and (path / name).is_dir() else None


def files_of(step: Path) -> Ranks:
    """The files of the ranks of a step; which of them belong together is for their content."""
    optimizer, model = _by_rank(step, OPTIMIZER), _by_rank(step, MODEL)
    if not optimizer:
        raise CheckpointError(
            f"{step} has no zero_pp_rank_*_optim_states.pt. Of stage 0 the weights lie whole in "
            "mp_rank_00_model_states.pt: torch.load(…, weights_only=True)['module'] gives them. Of "
            "a universal checkpoint, name the step that ds_to_universal.py made it from. Else the "
            "ranks' files are missing: copy them"
        )
    if not model:
        raise CheckpointError(
            f"{step} has no mp_rank_00_model_states.pt, nor zero_pp_rank_0_mp_rank_00_model_states"
            ".pt, which say which weights there are; copy them from where it was written"
        )
    if (step / "offloaded_tensors").is_dir():
        raise CheckpointError(
            f"{step}/offloaded_tensors: this run kept its optimizer on NVMe, and what was there "
            "was copied as raw swap files without names; load it in DeepSpeed with the optimizer "
            "offloaded to the CPU and save it once more"
        )
    return Ranks(step, _in_order(step, optimizer), _in_order(step, model))


def _has_files(step: Path) -> bool:
    names = [one.name for one in step.iterdir()]
    return any(OPTIMIZER.fullmatch(name) or MODEL.fullmatch(name) for name in names)


def _by_rank(step: Path, pattern: re.Pattern) -> dict[int, Path]:
    """The files of a pattern by their rank; those of one model that no other axis cuts."""
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
                f"{files[at]} and {path.name} are both of rank {at}: two runs saved into one "
                "folder; take away the files of the older one"
            )
        files[at] = path
    return files


def _in_order(step: Path, files: dict[int, Path]) -> list[Path]:
    for rank in range(max(files) + 1):
        if rank not in files:
            like = files[max(files)].name.replace(f"pp_rank_{max(files)}_", f"pp_rank_{rank}_")
            raise CheckpointError(
                f"{step / like} is missing, and rank {max(files)}'s is there: each rank writes its "
                "own part, where disks are not shared onto its own disk; copy the missing one here"
            )
    return [files[rank] for rank in range(max(files) + 1)]


def _other_axes(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: this model was cut by tensor or pipeline parallelism or into experts too, which "
        "is not read here; make one whole model of it with the tools of the program that saved it"
    )
