"""The `course plan` command: from a model and a cluster to the fastest plan that fits.

It tries every combination of tp, sequence parallelism, dp, stage, offload, recomputation and
micro-batch in the cost model. Plans that do not fit are counted by reason. Lesson 15.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_classroom.cli.base import Json, app, stop

if TYPE_CHECKING:
    from course_lib.estimate.time import Machine
    from course_lib.plan import Model, Search

SIGNS = (
    "Columns: tp is ranks per model (8s adds sequence parallelism), away is the place of offloaded "
    "optimizer states (* for parameters too), again means recomputed blocks, rows is sequences per "
    "micro-batch x micro-batches, and cost is per 10^9 tokens, in the currency of --price."
)


@app.command()
def plan(
    config: Annotated[Path, typer.Option(
        help="Path of the model's Hugging Face config.json (no weights needed).")],
    machine: Annotated[str | None, typer.Option(
        help="Machine to plan for: dgx-2h, dgx-a100, hgx-h100, hgx-h200, workstation, laptop, or a "
        'JSON file. The file contains all figures that --json prints under "machine", or the name '
        'of a known machine as "like" and only the figures that differ.')] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate",
        help="Measure this machine and plan for it (--machine FILE saves the figures in a new "
        "file).")] = False,
    gpus: Annotated[int, typer.Option(
        help="Total number of GPUs (0 means the GPUs of one node).")] = 0,
    gpus_per_node: Annotated[int, typer.Option(
        help="Number of GPUs on each node (0 means as many as a node of --machine has).")] = 0,
    gpu_memory: Annotated[str | None, typer.Option(
        help="Memory of one GPU: a number in GB (10^9 bytes), such as 24, or a value with a unit, "
        "such as 22.4GiB. The default is the memory of --machine's GPU.")] = None,
    rows: Annotated[int, typer.Option(
        help="Sequences per GPU per step (0 means 8, unless --tokens is given).")] = 0,
    tokens: Annotated[int, typer.Option(
        help="Tokens per step, in total over all GPUs (0 means that --rows sets the size of a "
        "step).")] = 0,
    length: Annotated[int, typer.Option(
        help="Tokens per sequence (0 means the maximum in the model's config).")] = 0,
    precision: Annotated[str | None, typer.Option(
        help="Training precision: bfloat16, float16 or float32. The default is the precision of "
        "--machine.")] = None,
    price: Annotated[float | None, typer.Option(
        help="Price per GPU-hour. The table then shows the cost of 10^9 tokens in the same "
        "currency.")] = None,
    top: Annotated[int, typer.Option(min=1,
        help="Number of plans to show, with the fastest first.")] = 10,
    choose: Annotated[int, typer.Option(
        help="Number of the plan that --emit writes, where 1 is the fastest plan.")] = 1,
    emit: Annotated[str | None, typer.Option(
        help="Write the plan as files for this program: deepspeed, fsdp2, accelerate, torchrun or "
        "slurm.")] = None,
    out: Annotated[Path, typer.Option(
        help="Folder to which --emit writes its files.")] = Path("plan"),
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rank all ways to train a model on a cluster by predicted seconds per step.

    The exit code is 1 if no plan fits into memory.

    \b
    Example: course plan --config config.json --machine hgx-h100 --gpus 16
    """
    from course_lib.estimate.time import presets
    from course_lib.peers.deepspeed_config.sizes import nbytes
    from course_lib.plan import Model, Task, search

    try:
        model = Model.read(config)
        known = _machine(machine, calibrate, model, gpus)
        if gpus_per_node:
            known = known.changed(gpus=gpus_per_node)
        if gpu_memory is not None:
            known = known.changed(memory=nbytes(gpu_memory, "--gpu-memory"))
        how = {"gpus": gpus, "rows": rows, "tokens": tokens, "length": length}
        how |= {"precision": precision, "price": price}
        task = Task.of(model, known, presets.constants(known), **how)
        found = search(task)
        written = _written(found, emit, choose, out)
    except (ValueError, OSError) as error:
        stop(error, command="plan")
    if as_json:
        from course_lib.plan.report import as_dict

        print(json.dumps(as_dict(found, top, written)))
    else:
        _show(found, top, written)
    raise typer.Exit(0 if found.plans else 1)


def _machine(name: str | None, calibrate: bool, model: Model, gpus: int) -> Machine:
    """Return a preset machine, a machine read from a file, or this machine as measured now."""
    from course_lib.estimate.time.calibrate import calibrate as calibrated
    from course_lib.estimate.time.presets import PRESETS, cluster, write_machine

    if name is None and not calibrate:
        raise ValueError(
            f"name a machine with --machine ({', '.join(PRESETS)}, or a JSON file), or measure "
            "this machine with --calibrate"
        )
    if not calibrate:
        return cluster(name, gpus=gpus)
    if name in PRESETS:
        raise ValueError(f"--calibrate measures this machine, but --machine is {name}; omit one")
    if name is not None and Path(name).exists():
        raise ValueError(
            f"--calibrate would write over {name}: name a new file, or omit --calibrate to read it"
        )
    measured = calibrated(like=model.config)
    if name is not None:
        write_machine(measured, Path(name))
    return cluster(measured, gpus=gpus)


def _written(found: Search, emit: str | None, choose: int, out: Path) -> list[str]:
    from course_lib.peers.deepspeed_config.walk import leave
    from course_lib.plan.emit import cannot, files_of, first_that_can

    if emit is None or not found.plans:
        if emit is not None:
            cannot_be = "nothing fits, so there is no plan to write"
            print(f"course plan: --emit {emit}: {cannot_be}", file=sys.stderr)
        return []
    task = found.task
    if not 1 <= choose <= len(found.plans):
        raise ValueError(f"--choose {choose}: there are plans 1 to {len(found.plans)}")
    chosen = found.plans[choose - 1]
    why = cannot(emit, chosen, task.model, task.length)
    if why is not None:
        other = first_that_can(emit, found.plans, task.model, task.length)
        remedy = "No plan here can be written" if other is None else f"Take --choose {other}"
        raise ValueError(f"--emit {emit}, plan {choose} ({chosen.name}): {why}. {remedy}")
    return leave(files_of(emit, chosen, task), out, "--out")


def _show(found: Search, top: int, written: list[str]) -> None:
    from rich.console import Console

    from course_lib.plan.report import advice, remarks, title

    console = Console(highlight=False, force_jupyter=False)

    def say(text: str = "") -> None:
        console.print(text, markup=False)

    if found.plans:
        first = found.plans[0]
        say(f"Fastest plan that fits: {first.name} ({_short(first.seconds.total)} s per step).")
    say(f"{title(found.task)}\n")
    if found.plans:
        console.print(_table(found, top, console.width), markup=False, soft_wrap=True)
    say(f"\n{found.considered:,} ways were considered, and {len(found.plans):,} fit. The others:")
    for reason, one in sorted(found.fallen.items(), key=lambda item: -item[1].count):
        say(f"  {one.count:>6,}  {reason}. {one.example}")
    for line in [SIGNS, *remarks(found)]:
        say(line)
    told = advice(found)
    if told is not None:
        say(f"Nothing fits. The nearest plan: {told.nearest}.")
        say(f"It would fit with: {'; '.join(told.remedies) or 'none of the tried changes'}.")
    if written:
        say(f"Written: {', '.join(written)}")


def _table(found: Search, top: int, columns: int) -> str:
    """Format the plans as a table, at its minimum width, if possible within `columns`."""
    task, plans = found.task, found.plans[:top]
    away, priced = any(plan.seconds.tiers for plan in plans), task.price is not None
    rows = [["", "tp", "dp", "stage", "away", "again", "rows", "s/step", "comp s", "tp s", "dp s"]]
    rows[0] += ["tier s"] * away + ["GPU GB"] + ["CPU GB"] * away + ["cost"] * priced
    for i, plan in enumerate(plans, 1):
        took, needs, setting, place = plan.seconds, plan.needs, plan.setting, plan.place
        tiers = {setting.optimizer, setting.parameters} - {None}
        row = [str(i), f"{place.tp}{'s' * place.sequence}", str(place.dp), str(setting.stage)]
        row += ["+".join(sorted(tiers)) + "*" * (setting.parameters is not None) or "–"]
        row += ["yes" if setting.recompute else "–", f"{setting.rows}x{setting.accumulate}"]
        parts = [took.total, took.compute + took.wait + took.update, took.tp, took.dp]
        row += [_short(x) if x else "–" for x in parts + [took.tiers] * away]
        row += [f"{x / 1e9:,.3g}" if x else "–" for x in [needs.gpu] + [needs.host] * away]
        cost = task.cost(took.total)
        rows.append(row + ([] if cost is None else [f"{cost:,.{2 if cost < 100 else 0}f}"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= columns else " "
    return "\n".join(
        gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _short(seconds: float) -> str:
    return (
        f"{seconds:.3g}" if seconds >= 0.01 else f"{seconds:.4f}" if seconds >= 1e-4 else "<0.0001"
    )
