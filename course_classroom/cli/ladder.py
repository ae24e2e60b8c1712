"""`course ladder`: from OutOfMemory to the first settings that fit, rung by rung, by the numbers.

What each rung holds, saves and costs; the first that fits in DeepSpeed's words, FSDP2's and
Accelerate's. Lesson 12 walks the ladder, lesson 13 writes its settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import Json, app, stop


@app.command()
def ladder(
    config: Annotated[
        Path, typer.Option(help="A Hugging Face config.json; no weights are needed.")
    ],
    gpu_memory: Annotated[
        str, typer.Option(help="Of one GPU, in 10^9 bytes: 24, 24GB, 22.4GiB, 50MB.")
    ],
    host_memory: Annotated[
        str | None, typer.Option(help="Of one node, written likewise; without it none is short.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs on each node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    rows: Annotated[
        int, typer.Option(help="Sequences that a GPU sees in a step, at first all at once.")
    ] = 8,
    length: Annotated[int, typer.Option(help="Their tokens; 0: the config's longest.")] = 0,
    precision: Annotated[
        str, typer.Option(help="Where it begins: bfloat16, float16 or float32.")
    ] = "bfloat16",
    trainer: Annotated[
        bool, typer.Option("--trainer", help='Settings for the Trainer, with its "auto".')
    ] = False,
    nvme_path: Annotated[
        str, typer.Option(help="Of a local disk, for settings with files.")
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
        how = {"gpus": gpus, "nodes": nodes, "rows": rows, "length": length}
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
        _show(result, files, written)
    raise typer.Exit(0 if result.first is not None else 1)


def _show(result, files: dict[str, str], written: list[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False, force_jupyter=False)

    def say(text: str = "", **options: bool) -> None:
        console.print(text, markup=False, **options)

    say(result.title)
    _table(console, result)
    for line in result.remarks:
        say(line)
    if result.first is None:
        say(f"Nothing fits. {result.advice}")
        return
    which = "The first that fits"
    if result.first.needs.activations is None:
        which = "The first whose states fit, with activations still to come on top"
    say(f"{which}: {result.first.name}. {result.advice}")
    if written:
        say(f"Written: {', '.join(written)}")
        files = {}
    if result.runs:
        files = files | {"our engine, the rung before and this one": "\n".join(result.runs)}
    for name, text in files.items():
        say(f"\n# ---- {name}")
        say(text.rstrip("\n"), soft_wrap=True)  # ready to be copied: no line is broken


def _table(console, result) -> None:
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
