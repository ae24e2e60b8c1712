"""`course estimate`: DeepSpeed's table of memory, from two numbers or from a config.json.

Lesson 12 takes its figures apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.base import Json, app


@app.command()
def estimate(
    params: Annotated[int | None, typer.Option(help="Parameters of the model.")] = None,
    largest_layer: Annotated[int | None, typer.Option(help="Those of its largest layer.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs on each node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    stage: Annotated[int, typer.Option(help="3, or 2.")] = 3,
    config: Annotated[
        Path | None, typer.Option(help="A Hugging Face config.json; no weights are needed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Memory for the model states under ZeRO, as DeepSpeed estimates it."""
    from course_lib.estimate import deepspeed, shape

    try:
        if config is not None and not (params is None and largest_layer is None):
            raise ValueError("--config says both numbers itself; leave --params and the other out")
        if config is not None:
            params, largest_layer = shape.read(config)
        if params is None or (largest_layer is None and stage != 2):
            missing = "--params" if params is None else "--largest-layer"
            raise ValueError(f"{missing} is missing; or name a config.json with --config")
        rows = deepspeed.table(params, largest_layer or 0, gpus, nodes, stage=stage)
    except ValueError as error:
        print(f"course estimate: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps({"rows": [row.as_dict() for row in rows]}))
        return
    _show(rows, params, largest_layer, gpus, nodes, stage)


def _show(
    rows: list, params: int, largest_layer: int | None, gpus: int, nodes: int, stage: int
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    layer = f", {largest_layer:,} in the largest layer" if stage == 3 else ""
    hosts, cards = f"{nodes} node{'s'[: nodes > 1]}", f"{gpus} GPU{'s'[: gpus > 1]}"
    shown = Table(box=box.SIMPLE)
    for name in ("offload_param", "offload_optimizer", "zero_init"):
        shown.add_column(name, no_wrap=True)
    for name in ("GB, each node", "GB, each GPU"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        init = "–" if row.zero_init is None else str(row.zero_init)
        words = row.offload_param, row.offload_optimizer, init
        shown.add_row(*words, f"{row.cpu_gb:.2f}", f"{row.gpu_gb:.2f}")
    console = Console(highlight=False)
    console.print(f"ZeRO-{stage}: {params:,} parameters{layer}; {hosts} with {cards} each")
    console.print(shown)
    console.print(
        "Model states alone, trained in 16 bits with Adam: no activations, no buckets, no gaps "
        "between blocks of memory. A GB here is 2^30 bytes."
    )
