"""The ranks' saved parts, under the same names for all stages and all DeepSpeed optimizers.

Masters and moments are flat tensors in one list per quantity. Each list has one entry per parameter
group at stages 1 and 2, and one per sub-group at stage 3. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from course_lib.checkpoint.deepspeed_files.archive import COPY, Archive, Flat
from course_lib.pretrained.header import CheckpointError

MASTER = "master"


class OptimizerPart(NamedTuple):
    """One rank's part of the optimizer."""

    archive: Archive
    stage: int
    world: int
    release: str
    flats: dict[str, list[Flat]]  # quantity: the flat tensor of every group
    scalars: list[dict]  # for each group, such as step: a number, or a one-element tensor
    gaps: list[list[int]] | None  # unused elements after each parameter of a group


def part_of(archive: Archive) -> OptimizerPart:
    """Read the content of an optimizer file of any stage."""
    content = archive.content
    saved = content.get("optimizer_state_dict") if isinstance(content, Mapping) else None
    if not isinstance(saved, Mapping):
        raise CheckpointError(
            f"{archive.path} is not a DeepSpeed optimizer file: it has no optimizer_state_dict"
        )
    try:
        world = saved["partition_count"]
        if isinstance(world, (list, tuple)):
            if len(set(world)) > 1:
                raise CheckpointError(
                    f"{archive.path}: its groups are sharded over {sorted(set(world))} ranks, as "
                    "expert groups are, which cannot be read here"
                )
            world = world[0]
        # BF16_Optimizer (stage 1 with fp32 accumulation) saves no stage.
        stage = int(saved.get("zero_stage", 1))
        third = stage == 3
        masters = saved["fp32_flat_groups" if third else "single_partition_of_fp32_groups"]
        base = saved["optimizer_state_dict" if third else "base_optimizer_state"]
        states = _states(base, saved, len(masters))
        flats = {MASTER: [archive.flat(x, "a master copy") for x in masters]}
        flats |= _moments(archive, states, flats[MASTER], saved.get("group_paddings"))
        scalars = [
            {key: value for key, value in state.items() if key not in flats} for state in states
        ]
        gaps = None if third else saved.get("param_alignment_paddings")
        release = str(content.get("ds_version", ""))
        return OptimizerPart(archive, stage, int(world), release, flats, scalars, gaps)
    except CheckpointError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise of_another_build(archive, error) from error


def model_of(archive: Archive) -> Mapping:
    """Read a model file's content: module, buffer names, shapes, shared and frozen parameters."""
    content = archive.content
    needed = ("module", "buffer_names", "param_shapes", "shared_params", "frozen_param_shapes")
    lost = [key for key in needed if not isinstance(content, Mapping) or key not in content]
    if lost or not isinstance(content["module"], Mapping) or content["param_shapes"] is None:
        what = f"without {', '.join(lost)}" if lost else "without the shapes of its parameters"
        raise CheckpointError(
            f"{archive.path} is not a model file of DeepSpeed's ZeRO, because it is {what}; {COPY}"
        )
    return content


def of_another_build(archive: Archive, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{archive.path} does not have the structure of DeepSpeed's files up to 0.19.8 "
        f"({type(error).__name__}: {error}). Convert it with the zero_to_fp32.py of the release "
        "that wrote it"
    )


def _states(base: object, saved: Mapping, groups: int) -> list[dict]:
    """Return the optimizer's state of each group, or empty states before the first step."""
    if isinstance(base, list):  # elastic_checkpoint
        step = saved.get("base_optimizer_state_step")
        return [{**({} if step is None else {"step": step}), **state} for state in base]
    steps = [group.get("step") for group in base["param_groups"] for _ in group["params"]]
    if len(steps) != groups:
        raise ValueError(f"{len(steps)} flat parameters with options and {groups} masters")
    states = [dict(base["state"].get(number, {})) for number in range(groups)]
    for state, step in zip(states, steps, strict=True):
        if state and step is not None:  # FusedAdam counts there
            state.setdefault("step", step)
    return states


def _moments(
    archive: Archive, states: list[dict], masters: list[Flat], paddings: list | None
) -> dict[str, list[Flat]]:
    """Collect the quantities that have one element for every element of the masters."""
    names = dict.fromkeys(
        key
        for state in states
        for key, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0
    )
    moments: dict[str, list[Flat]] = {name: [] for name in names}
    for number, (state, master) in enumerate(zip(states, masters, strict=True)):
        padding = paddings[number] if paddings else 0
        for name, flats in moments.items():
            flat = archive.flat(state.get(name), f"{name} of group {number}")
            if flat.count not in (master.count, master.count + padding):
                raise CheckpointError(
                    f"in {archive.path}, {name} of group {number} has {flat.count} elements, but "
                    f"its master copy has {master.count}; {COPY}"
                )
            flats.append(flat)
    return moments
