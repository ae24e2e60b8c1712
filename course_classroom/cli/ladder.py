"""`course ladder`: from OutOfMemory to the first settings that fit, rung by rung, by the numbers.

What each rung holds, saves and costs; the first that fits in DeepSpeed's words, FSDP2's and
Accelerate's. Lesson 12 walks the ladder, lesson 13 writes its settings.
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

MOST_ON_A_NODE = 8  # GPUs, where nothing else is said


@app.command()
def ladder(
    config: Annotated[
        Path, typer.Option(help="A Hugging Face config.json; no weights are needed.")
    ],
    gpu_memory: Annotated[
        str, typer.Option(help="Memory of one GPU, in 10^9 bytes: 24, 24GB, 22.4GiB, 50MB.")
    ],
    host_memory: Annotated[
        str | None,
        typer.Option(help="Memory of one node, written likewise; not given: not checked."),
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs in all.")] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs on each node; 0: all on one node, and at most 8.")
    ] = 0,
    rows: Annotated[
        int, typer.Option(help="Sequences of a step on each GPU, at first all at once.")
    ] = 8,
    length: Annotated[int, typer.Option(help="Tokens of a sequence; 0: the config's longest.")] = 0,
    precision: Annotated[
        str, typer.Option(help="Precision to begin with: bfloat16, float16 or float32.")
    ] = "bfloat16",
    trainer: Annotated[
        bool, typer.Option(help='Settings for the Trainer, with its "auto"; or with all figures.')
    ] = True,
    nvme_path: Annotated[
        str, typer.Option(help="Folder on a local disk, for settings with files.")
    ] = "/local_nvme",
    write: Annotated[
        Path | None, typer.Option(help="A folder to leave the settings in, as files.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The remedies against OutOfMemory in their order, what each saves and costs, and the first
    that fits, with its settings. Exit code 1 where nothing fits."""
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
        say("\nOther ways to train it in bfloat16, 1 row at a time, without offload, each GPU:")
        _others(console, result)
    for line in result.remarks_of_others if result.others else ():
        say(line)
    if result.first is None:
        return
    if written:
        say(f"Written: {', '.join(written)}")
    else:
        say("--write FOLDER leaves the settings as files, for DeepSpeed, Accelerate and FSDP2.")
    say("A Trainer script, train.py, starts with:")
    say(launch(result, str(folder or "FOLDER")), soft_wrap=True)  # to be copied: no line is broken


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
    columns = [Column("way"), Column("whole", right=True)]
    if machine.world > 1:
        columns.append(Column(f"sharded over {machine.world}", right=True))

    def cell(nbytes: int) -> str:
        return f"{result.size(nbytes)} {'✓' if nbytes <= machine.gpu_bytes else '✗'}"

    rows = [(way.name, cell(way.whole), cell(way.sharded))[: len(columns)] for way in result.others]
    show(console, columns, rows)
