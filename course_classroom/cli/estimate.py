"""The `course estimate` command: the memory per GPU and host, and the setups in which a model fits.

It prints DeepSpeed's memory table next to our engine's closed forms, from two parameter counts or
from a config.json. Lesson 12 derives the figures.
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
    params: Annotated[str | None, typer.Option(
        help="Number of parameters in the model, e.g. 7e9, 7B or 2783959040.")] = None,
    largest_layer: Annotated[str | None, typer.Option(
        help="Number of parameters in the largest layer, e.g. 131M.")] = None,
    gpus: Annotated[int, typer.Option(
        help="Total number of GPUs, or with --nodes the number of GPUs on each node.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(
        help="Number of GPUs on each node (0 means all of --gpus).")] = 0,
    nodes: Annotated[int, typer.Option(
        help="Number of nodes, each with --gpus GPUs (use either --nodes or "
        "--gpus-per-node).")] = 1,
    gpu_memory: Annotated[str | None, typer.Option(
        help="Memory of one GPU, e.g. 80GB. The command then names the first setup that "
        "fits.")] = None,
    stage: Annotated[int, typer.Option(help="ZeRO stage shown in DeepSpeed's table: 2 or 3.")] = 3,
    config: Annotated[Path | None, typer.Option(
        help="Path of the model's Hugging Face config.json (no weights needed).")] = None,
    tp: Annotated[int, typer.Option(
        help="Number of tensor-parallel ranks that share one replica of the model.")] = 1,
    rows: Annotated[int, typer.Option(
        help="Sequences per micro-batch in each replica (0 means that activations are not "
        "counted).")] = 0,
    length: Annotated[int, typer.Option(
        help="Tokens per sequence (0 means the maximum in the model's config).")] = 0,
    recompute: Annotated[bool, typer.Option("--recompute",
        help="Keep only each block's input, and recompute its activations in the backward "
        "pass.")] = False,
    sequence: Annotated[bool, typer.Option("--sequence",
        help="Also shard the activations along the sequence outside the tensor-parallel layers "
        "(with --tp).")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Estimate the memory per GPU and host for every ZeRO stage and offload.

    Describe the model with --config, or with --params and --largest-layer. With
    --rows, the estimate includes the activations of a config's model.

    \b
    Example: course estimate --params 7B --largest-layer 131M --gpus 8
    """
    from course_lib.estimate import deepspeed, fit
    from course_lib.estimate.model import Model
    from course_lib.peers.deepspeed_config.sizes import nbytes

    try:
        card = None if gpu_memory is None else nbytes(gpu_memory, "--gpu-memory")
        gpus, nodes = _nodes(gpus, gpus_per_node, nodes)
        if config is not None and not (params is None and largest_layer is None):
            raise ValueError("--config already contains both numbers, so leave them out")
        model = None if config is None else Model.read(config)
        if model is not None:
            total, layer = model.shape
        else:
            if params is None or (largest_layer is None and stage != 2):
                missing = "--params" if params is None else "--largest-layer"
                raise ValueError(f"{missing} is missing (or name a config.json with --config)")
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
    """Compute (GPUs on each node, nodes) from the options."""
    from course_lib.estimate.fit import nodes_of

    if not per_node:
        return gpus, nodes
    if per_node < 0:
        raise ValueError(f"--gpus-per-node {per_node} must be 1 or more")
    if nodes != 1:
        raise ValueError("--gpus-per-node and --nodes say the same; leave one of them out")
    nodes = nodes_of(gpus, per_node)
    return gpus // nodes, nodes


def _answer(ways: list[Fit], card: int) -> str:
    """Name the first setup in the table that fits on a GPU with `card` bytes of memory."""
    room = f"of {card / (1 << 30):,.2f} GiB on each GPU"
    activations = "" if ways[0].activations is not None else ", without activations"
    for way in ways:
        if way.gpu <= card:
            where = {"states": way.optimizer, "parameters": way.parameters}
            away = [f"{what} on {place}" for what, place in where.items() if place]
            name = ", ".join([f"stage {way.stage}", *away])
            return f"It fits with {name}: {_gib(way.gpu)} {room}{activations}."
    least = min(way.gpu for way in ways)
    return f"Nothing fits: the smallest setup needs {_gib(least)} {room}{activations}."


def _on_a_rank(
    model: Model | None,
    params: int,
    tp: int,
    rows: int,
    length: int,
    recompute: bool,
    sequence: bool,
) -> tuple[int, int | None]:
    """Compute (parameters, peak bytes of activations) on each tensor-parallel rank."""
    import torch

    for name, value in (("--rows", rows), ("--length", length)):
        if value < 0:
            raise ValueError(f"{name} {value} has to be 0 or more")
    if not rows and (length or recompute or sequence):
        raise ValueError("--length, --recompute and --sequence apply to --rows, so add --rows")
    if sequence and tp == 1:
        raise ValueError("--sequence shards the tokens over the tensor-parallel ranks, so add --tp")
    if model is None:
        if rows:
            raise ValueError("--rows needs a config.json to count activations: name it (--config)")
        return -(-params // tp), None
    own = model.params_of_rank(tp)
    if not rows:
        return own, None
    if model.activations_unknown:
        raise ValueError(f"--rows cannot count activations, because {model.activations_unknown}")
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
    console.print(f"{title}. In GiB (2^30 bytes), per GPU and per host:")
    show(console, [*columns, Column("fits (GB)")], rows)
    room = ", ".join(f"{card} GB = {card * fit.GIGA / fit.UNIT:.1f} GiB" for card in fit.CARDS)
    console.print(
        f"A card counts as the size in its name, in 10^9 bytes: {room}. The 5 to 7 % that it has "
        "in addition are left for the CUDA context and for gaps between blocks."
    )
    console.print(
        "16-bit training with Adam, while gradients exist. states and params: place of offload. "
        + ("" if ways[0].activations is not None else "Activations are not counted (see --rows). ")
        + ("" if layer else "Stage 3 lacks the layer in use (see --largest-layer). ")
        + "Communication buckets and buffers for files are not counted.\n"
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
        "Only model states, in 16-bit training with Adam. zero_init 1: the model is built sharded. "
        "A GiB is 2^30 bytes, but DeepSpeed prints the same numbers as GB."
        + (" This table has no tensor parallelism, so it is for tp=1." if tp > 1 else "")
    )


def _gib(nbytes: int | None) -> str:
    if not nbytes:
        return "–"
    return f"{nbytes / (1 << 30):,.2f}"
