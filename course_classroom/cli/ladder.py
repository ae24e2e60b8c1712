"""The `course ladder` command: from OutOfMemory to the first settings that fit.

Each rung lists its memory, savings and costs. The settings of the first rung that fits are written
for DeepSpeed, FSDP2 and Accelerate. Lesson 12 climbs the ladder, and lesson 13 writes its settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_classroom.cli.base import Json, app, stop

if TYPE_CHECKING:
    from rich.console import Console

    from course_lib.peers.deepspeed_config.walk import Walk

MOST_ON_A_NODE = 8  # GPUs, without --gpus-per-node


@app.command()
def ladder(
    config: Annotated[Path, typer.Option(
        help="Path of the model's Hugging Face config.json (no weights needed).")],
    gpu_memory: Annotated[str, typer.Option(
        help="Memory of one GPU: a number in GB (10^9 bytes), such as 24, or a value with a unit, "
        "such as 22.4GiB.")],
    host_memory: Annotated[str | None, typer.Option(
        help="Host memory of one node, e.g. 256GB (by default, host memory is not "
        "checked).")] = None,
    gpus: Annotated[int, typer.Option(help="Total number of GPUs.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(
        help="Number of GPUs on each node (0 means all of --gpus, but at most 8).")] = 0,
    rows: Annotated[int, typer.Option(
        help="Sequences per GPU per step. They form one micro-batch until a remedy divides "
        "them.")] = 8,
    length: Annotated[int, typer.Option(
        help="Tokens per sequence (0 means the maximum in the model's config).")] = 0,
    precision: Annotated[str, typer.Option(
        help="Precision before any remedy: bfloat16, float16 or float32.")] = "bfloat16",
    trainer: Annotated[bool, typer.Option(
        help='Write the settings for the Hugging Face Trainer with "auto" where possible, or (with '
        "--no-trainer) with every value stated.")] = True,
    nvme_path: Annotated[str, typer.Option(
        help="Folder on a local disk, used if a remedy offloads to files.")] = "/local_nvme",
    write: Annotated[Path | None, typer.Option(
        help="Write the settings as files to this folder.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Try remedies for OutOfMemory in order, and show the first one that suffices.

    Each row of the table adds a remedy to the rows above it. The exit code is 1
    if the model does not fit even with all remedies.

    \b
    Example: course ladder --config config.json --gpu-memory 24GB --gpus 4
    """
    from course_lib.peers.deepspeed_config import walk

    try:
        per_node = gpus_per_node or min(gpus, MOST_ON_A_NODE)
        how = {"gpus": gpus, "per_node": per_node, "rows": rows, "length": length}
        memory = (gpu_memory, host_memory)
        task = walk.WalkTask.read(config, *memory, precision=precision, **how)
        result = walk.walk(task)
        files = walk.files_of(result, trainer=trainer, nvme_path=nvme_path)
        written = [] if write is None else walk.leave(files, write)
    except (ValueError, OSError) as error:
        stop(error, command="ladder")
    if as_json:
        print(json.dumps(result.as_dict(files) | {"written": written}))
    else:
        _show(result, written, write)
    raise typer.Exit(0 if result.first is not None else 1)


def _show(result: Walk, written: list[str], folder: Path | None) -> None:
    from rich.console import Console

    from course_lib.peers.deepspeed_config.walk import launch

    console = Console(highlight=False, force_jupyter=False)

    def say(text: str = "", **options: bool) -> None:
        console.print(text, markup=False, **options)

    say(result.answer)
    say(f"{result.assumptions} In {result.unit}:")
    _table(console, result)
    for line in result.remarks:
        say(line)
    if result.others:
        say("\nOther ways in bfloat16 without offload, 1 row at a time, per GPU:")
        _others(console, result)
    for line in result.remarks_of_others if result.others else ():
        say(line)
    if result.first is None:
        return
    if written:
        say(f"Written: {', '.join(written)}")
    else:
        say("--write FOLDER writes the settings as files for DeepSpeed, Accelerate and FSDP2.")
    say("Start a Trainer script train.py with:")
    say(launch(result, str(folder or "FOLDER")), soft_wrap=True)  # not wrapped, so it can be copied


def _table(console: Console, result: Walk) -> None:
    from course_classroom.cli.tables import Column, show

    columns = [Column(""), Column("rung", wraps=True)]
    columns += [Column(x, right=True) for x in ("GPU", "saves", "host", "disk", "sent", "PCIe")]
    rows = []
    for rung in result.rungs:
        needs = rung.needs
        mark = "→" if rung is result.first else "✓" if rung.fits else "✗"
        crossing = needs.down + needs.up + needs.read + needs.written
        sizes = (needs.gpu, rung.saves, needs.host, needs.disk, needs.sent, crossing)
        rows.append((mark, rung.name, *(result.size(x) for x in sizes)))
    show(console, columns, rows)


def _others(console: Console, result: Walk) -> None:
    from course_classroom.cli.tables import Column, show

    machine = result.task.machine
    columns = [Column("way"), Column("unsharded", right=True)]
    if machine.world > 1:
        columns.append(Column(f"sharded over {machine.world}", right=True))

    def cell(nbytes: int) -> str:
        return f"{result.size(nbytes)} {'✓' if nbytes <= machine.gpu_bytes else '✗'}"

    rows = [(way.name, cell(way.whole), cell(way.sharded))[: len(columns)] for way in result.others]
    show(console, columns, rows)
