"""`course plan`: from a model and a cluster to the fastest way that fits, with its files.

Every tp, sequence parallelism, dp, stage, offload, recomputation and micro-batch is counted and
timed by the cost model; what fell out is named with its reason. Lesson 15.
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
    "tp 8s: with sequence parallelism. away: where the optimizer's states are, with a * the "
    "parameters too. again: blocks are recomputed. rows: of a micro-batch x accumulated. "
    "cost: of 10^9 tokens, in the currency of --price."
)


@app.command()
def plan(
    config: Annotated[
        Path, typer.Option(help="A Hugging Face config.json; no weights are needed.")
    ],
    machine: Annotated[
        str | None,
        typer.Option(
            help="dgx-2h, dgx-a100, hgx-h100, hgx-h200, workstation, laptop, or a JSON file of "
            'one: the figures of the document\'s "machine", or some of them and "like": a name.'
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure this machine's processors; --machine may name a new file for them.",
        ),
    ] = False,
    gpus: Annotated[int, typer.Option(help="GPUs in all; 0: those of one node.")] = 0,
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs on each node; 0: as many as the machine has.")
    ] = 0,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of one GPU, in 10^9 bytes: 24, 24GB, 22.4GiB.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Sequences of a step on each GPU; 0: 8.")] = 0,
    tokens: Annotated[
        int, typer.Option(help="Tokens of a step over all replicas, in the place of --rows.")
    ] = 0,
    length: Annotated[int, typer.Option(help="Tokens of a sequence; 0: the model's longest.")] = 0,
    precision: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32; default: the machine's.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Of a GPU for an hour: shows the cost of the tokens.")
    ] = None,
    top: Annotated[int, typer.Option(help="Plans that are shown.", min=1)] = 10,
    choose: Annotated[int, typer.Option(help="The plan that --emit writes, from 1 on.")] = 1,
    emit: Annotated[
        str | None,
        typer.Option(help="Files of the plan: deepspeed, fsdp2, accelerate, torchrun, slurm."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that they are left in.")] = Path("plan"),
    as_json: Json = False,
) -> None:
    """Every way to train a model on a cluster: which fit, ranked by predicted seconds, and why the
    others fell out. Exit code 1 where nothing fits."""
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
    """The known one, the file's, or this machine as it is measured now."""
    from course_lib.estimate.time.calibrate import calibrate as calibrated
    from course_lib.estimate.time.presets import PRESETS, cluster, write_machine

    if name is None and not calibrate:
        raise ValueError(
            f"name a machine with --machine ({', '.join(PRESETS)}, or a file of one), or measure "
            "this one with --calibrate"
        )
    if not calibrate:
        return cluster(name, gpus=gpus)
    if name in PRESETS:
        raise ValueError(f"--calibrate measures this machine, and --machine is {name}: one")
    if name is not None and Path(name).exists():
        raise ValueError(
            f"--calibrate would write over {name}: name a file that is not there yet, or leave "
            "--calibrate out to read it"
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
            cannot_be = "nothing fits, and there is no plan to write"
            print(f"course plan: --emit {emit}: {cannot_be}", file=sys.stderr)
        return []
    task = found.task
    if not 1 <= choose <= len(found.plans):
        raise ValueError(f"--choose {choose}: there are plans 1 to {len(found.plans)}")
    chosen = found.plans[choose - 1]
    why = cannot(emit, chosen, task.model, task.length)
    if why is not None:
        other = first_that_can(emit, found.plans, task.model, task.length)
        remedy = "no plan here can be said so" if other is None else f"take --choose {other}"
        raise ValueError(f"--emit {emit}, plan {choose} ({chosen.name}): {why}; {remedy}")
    return leave(files_of(emit, chosen, task), out, "--out")


def _show(found: Search, top: int, written: list[str]) -> None:
    from rich.console import Console

    from course_lib.plan.report import advice, remarks, title

    console = Console(highlight=False, force_jupyter=False)

    def say(text: str = "") -> None:
        console.print(text, markup=False)

    if found.plans:
        first = found.plans[0]
        say(f"The fastest that fits: {first.name}: {_short(first.seconds.total)} s a step.")
    say(f"{title(found.task)}\n")
    if found.plans:
        console.print(_table(found, top, console.width), markup=False, soft_wrap=True)
    say(f"\n{found.considered:,} ways were considered, {len(found.plans):,} fit. Of the others:")
    for reason, one in sorted(found.fallen.items(), key=lambda item: -item[1].count):
        say(f"  {one.count:>6,}  {reason}. {one.example}")
    for line in [SIGNS, *remarks(found)]:
        say(line)
    told = advice(found)
    if told is not None:
        say(f"Nothing fits. The nearest: {told.nearest}.")
        say(f"It would with: {'; '.join(told.remedies) or 'none of what was tried'}.")
    if written:
        say(f"Written: {', '.join(written)}")


def _table(found: Search, top: int, columns: int) -> str:
    """As narrow as what is in it, in so many columns of a terminal if it can."""
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
        rows.append(row + ([] if cost is None else [f"{cost:,.2f}"]))
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
