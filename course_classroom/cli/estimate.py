"""`course estimate`: what a model takes on each GPU and host, stage by stage, and where it fits.

DeepSpeed's table of memory beside our engine's closed forms, from two numbers or from a
config.json. Lesson 12 takes the figures apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course_classroom.cli.base import Json, app, stop

if TYPE_CHECKING:
    from course_lib.estimate.fit import Fit
    from course_lib.estimate.model import Model


@app.command()
def estimate(
    params: Annotated[
        str | None,
        typer.Option(help="Parameters of the model: 7e9, 7B, 350M or 2783959040."),
    ] = None,
    largest_layer: Annotated[
        str | None, typer.Option(help="Those of its largest layer, written likewise.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs in all; with --nodes, those of each node.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node; 0: all on one node.")] = 0,
    nodes: Annotated[
        int, typer.Option(help="Nodes with --gpus each, in the place of --gpus-per-node.")
    ] = 1,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of one GPU: says which way is the first that fits.")
    ] = None,
    stage: Annotated[int, typer.Option(help="Of DeepSpeed's table: 3, or 2.")] = 3,
    config: Annotated[
        Path | None, typer.Option(help="A Hugging Face config.json; no weights are needed.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Ranks that one model is cut over.")] = 1,
    rows: Annotated[
        int, typer.Option(help="Sequences of a micro-batch on each replica; 0: no activations.")
    ] = 0,
    length: Annotated[int, typer.Option(help="Their tokens; 0: the config's longest.")] = 0,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Keep each block's input alone.")
    ] = False,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="Cut the tokens between the layers too (tp).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Memory on each GPU and host, for every ZeRO stage and offload, and which GPUs it fits on.

    The model is --config, or --params with --largest-layer. With --rows the activations of a
    config's model are counted too, as Transformers' own code keeps them.
    """
    from course_lib.estimate import deepspeed, fit
    from course_lib.estimate.model import Model
    from course_lib.peers.deepspeed_config.sizes import nbytes

    try:
        card = None if gpu_memory is None else nbytes(gpu_memory, "--gpu-memory")
        gpus, nodes = _nodes(gpus, gpus_per_node, nodes)
        if config is not None and not (params is None and largest_layer is None):
            raise ValueError("--config says both numbers itself; leave --params and the other out")
        model = None if config is None else Model.read(config)
        if model is not None:
            total, layer = model.shape
        else:
            if params is None or (largest_layer is None and stage != 2):
                missing = "--params" if params is None else "--largest-layer"
                raise ValueError(f"{missing} is missing; or name a config.json with --config")
            total = fit.count(params, "--params")
            layer = 0 if largest_layer is None else fit.count(largest_layer, "--largest-layer")
        table = deepspeed.table(total, layer, gpus, nodes, stage=stage)
        fit.check_ranks(gpus, nodes, tp)
        own, activations = _on_a_rank(model, total, tp, rows, length, recompute, sequence)
        ways = fit.fits(own, -(-layer // tp), gpus, nodes, tp=tp, activations=activations)
    except ValueError as error:
        stop(error, command="estimate")
    if as_json:
        stages = [way.as_dict() for way in ways]
        found = {"rows": [row.as_dict() for row in table], "stages": stages}
        print(json.dumps(found | ({} if card is None else {"answer": _answer(ways, card)})))
        return
    if card is not None:
        print(_answer(ways, card))
    cut = f"; {own:,} parameters on each of tp={tp} ranks" if tp > 1 else ""
    where = f"{nodes} node{'s'[: nodes > 1]} with {gpus} GPU{'s'[: gpus > 1]} each{cut}"
    _show_stages(ways, f"{total:,} parameters; {where}", layer > 0)
    of = f", {layer:,} in the largest layer" if stage == 3 else ""
    _show_deepspeeds(table, f"DeepSpeed's table, ZeRO-{stage}: {total:,} parameters{of}", tp)


def _nodes(gpus: int, per_node: int, nodes: int) -> tuple[int, int]:
    """(GPUs on each node, nodes)."""
    from course_lib.estimate.fit import nodes_of

    if not per_node:
        return gpus, nodes
    if per_node < 0 or nodes != 1:
        raise ValueError(
            f"--gpus-per-node {per_node} has to be 1 or more, with --gpus in all and no --nodes"
        )
    nodes = nodes_of(gpus, per_node)
    return gpus // nodes, nodes


def _answer(ways: list[Fit], card: int) -> str:
    """The first way that fits on such a GPU, in the order of the table."""
    room = f"of {card / (1 << 30):,.2f} GiB on each GPU"
    activations = "" if ways[0].activations is not None else ", without activations"
    for way in ways:
        if way.gpu <= card:
            where = {"states": way.optimizer, "parameters": way.parameters}
            away = [f"{what} on {place}" for what, place in where.items() if place]
            name = ", ".join([f"stage {way.stage}", *away])
            return f"It fits with {name}: {_gib(way.gpu)} {room}{activations}."
    least = min(way.gpu for way in ways)
    return f"Nothing fits: the least is {_gib(least)} {room}{activations}."


def _on_a_rank(
    model: Model | None,
    params: int,
    tp: int,
    rows: int,
    length: int,
    recompute: bool,
    sequence: bool,
) -> tuple[int, int | None]:
    """(parameters, bytes of activations at their highest point) on each tensor-parallel rank."""
    import torch

    for name, value in (("--rows", rows), ("--length", length)):
        if value < 0:
            raise ValueError(f"{name} {value} has to be 0 or more")
    if not rows and (length or recompute or sequence):
        raise ValueError("--length, --recompute and --sequence say how --rows are run; add --rows")
    if sequence and tp == 1:
        raise ValueError("--sequence cuts the tokens over the tensor-parallel ranks; add --tp")
    if model is None:
        if rows:
            raise ValueError(
                "--rows: activations are counted for a config.json: name it (--config)"
            )
        return -(-params // tp), None
    own = model.params_of_rank(tp)
    if not rows:
        return own, None
    if model.activations_unknown:
        raise ValueError(f"--rows: the activations are not known: {model.activations_unknown}")
    how = {"tp": tp, "sequence": sequence, "recompute": recompute}
    return own, model.kept(rows, model.length(length), torch.bfloat16, **how).peak


def _show_stages(ways: list, title: str, layer: bool) -> None:
    from rich.console import Console

    from course_classroom.cli.tables import Column, show
    from course_lib.estimate import fit

    columns = [Column(name) for name in ("stage", "states", "params")]
    columns += [Column(name, right=True) for name in ("GPU", "(acts)", "host", "disk")]
    rows = []
    for way in ways:
        sizes = [_gib(x) for x in (way.gpu, way.activations, way.host, way.disk)]
        cards = " ".join(map(str, way.cards)) or "none"
        where = way.optimizer or "–", way.parameters or "–"
        rows.append((str(way.stage), *where, *sizes, cards))
    console = Console(highlight=False, force_jupyter=False)
    console.print(f"{title}. In GiB (2^30 bytes), for each GPU and each host:")
    show(console, [*columns, Column("fits (GB)")], rows)
    room = ", ".join(f"{card} GB = {card * fit.GIGA / fit.UNIT:.1f} GiB" for card in fit.CARDS)
    console.print(
        f"A card is counted by the name it is sold under, in 10^9 bytes: {room}. It has 5 to 7 % "
        "more, which is left to the CUDA context and to gaps between blocks."
    )
    console.print(
        "Trained in 16 bits with Adam, gradients alive; states and params: where offload has them. "
        + ("" if ways[0].activations is not None else "Without activations: see --rows. ")
        + ("" if layer else "Stage 3 without the layer in use: see --largest-layer. ")
        + "Not counted: communication buckets, the windows that files are read through.\n"
    )


def _show_deepspeeds(table: list, title: str, tp: int) -> None:
    from rich.console import Console

    from course_classroom.cli.tables import Column, show

    columns = [Column(name) for name in ("offload_param", "offload_optimizer", "zero_init")]
    columns += [Column(name, right=True) for name in ("GiB, each node", "GiB, each GPU")]
    rows = []
    for row in table:
        init = "–" if row.zero_init is None else str(row.zero_init)
        words = row.offload_param, row.offload_optimizer, init
        rows.append((*words, f"{row.cpu_gb:.2f}", f"{row.gpu_gb:.2f}"))
    console = Console(highlight=False, force_jupyter=False)
    console.print(title)
    show(console, columns, rows)
    console.print(
        "Model states alone, trained in 16 bits with Adam: no activations, no buckets, no gaps "
        "between blocks of memory. A GiB is 2^30 bytes; DeepSpeed prints the same numbers as GB."
        + (" DeepSpeed's table knows no tensor parallelism: it is that of tp=1." if tp > 1 else "")
    )


def _gib(nbytes: int | None) -> str:
    if not nbytes:
        return "–"
    return f"{nbytes / (1 << 30):,.2f}"
