"""`course ds-check`: what is wrong with a DeepSpeed config, before anything runs.

Misspelt keys, wrong types and units, keys without effect, contradictions, and each "auto" that
no program resolves, with its place and its remedy. Lesson 13.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from course_classroom.cli.base import Json, app, stop

if TYPE_CHECKING:
    from course_lib.peers.deepspeed_config.check import ConfigReport
    from course_lib.peers.deepspeed_config.finding import Finding
    from course_lib.peers.deepspeed_config.memory import Forecast
    from course_lib.peers.deepspeed_config.schema import Schema

GIB = 1 << 30
COLOURS = {"error": "bold red", "warning": "yellow", "hint": "cyan"}


@app.command("ds-check")
def ds_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DeepSpeed config, in JSON.")],
    world: Annotated[
        int | None, typer.Option(help="Ranks of the run, for the batch sizes.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face config.json, for sizes that follow from the model."),
    ] = None,
    args: Annotated[
        Path | None,
        typer.Option(help='The Trainer\'s arguments in JSON: resolves "auto", finds mismatches.'),
    ] = None,
    as_json: Json = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write a corrected copy beside the file.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="A warning counts as an error does.")
    ] = False,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Forecast what a GPU and a host need (--model)."),
    ] = False,
    length: Annotated[
        int, typer.Option(help="Tokens of a sequence, for --memory; 0: the longest.", min=0)
    ] = 0,
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs on each node, for --memory; 0: all of --world.", min=0)
    ] = 0,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of one GPU, for --memory: says whether it fits.")
    ] = None,
) -> None:
    """Find what DeepSpeed accepts and ignores, and what it refuses, before it runs.

    Errors are what DeepSpeed or the Trainer refuses or misreads; warnings,
    what does not do what it says; hints, what is legal and may surprise. The
    file is read, never run. Exit code 1 where there is an error (--strict: or
    a warning).
    """
    from course_lib.peers.deepspeed_config import check, schema
    from course_lib.peers.deepspeed_config.sizes import nbytes

    try:
        if world is not None and world < 1:
            raise ValueError(f"--world {world} has to be 1 or more")
        if memory and model is None:
            raise ValueError("--memory is reckoned for a model: name its config.json with --model")
        if not memory and (length or gpus_per_node or gpu_memory):
            raise ValueError("--length, --gpus-per-node and --gpu-memory belong to --memory")
        card = None if gpu_memory is None else nbytes(gpu_memory, "--gpu-memory")
        arguments, shape = _object(args, "--args"), _object(model, "--model")
        known = schema.load()
        report = check.check_file(file, world=world, arguments=arguments, model=shape, known=known)
    except ValueError as error:
        stop(error, command="ds-check")
    how = {"length": length or None, "gpus": gpus_per_node or None}
    takes = _forecast(report, model, world, arguments, **how) if memory else None
    for note in report.notes:
        print(f"course ds-check: {note}", file=sys.stderr)
    if as_json:
        found = [item.as_dict() for item in report.findings]
        more = {"memory": takes and takes.as_dict()} if memory else {}
        print(json.dumps({"findings": found, "resolved": report.resolved, **more}))
    else:
        _show(file, report, known.release)
        for line in _memory_lines(takes, card) if takes is not None else []:
            print(textwrap.fill(line, 78, subsequent_indent="  "))
    if fix:
        _fix(file, report, known, world, arguments, shape, sys.stderr if as_json else sys.stdout)
    bad = report.count("error") + (report.count("warning") if strict else 0)
    raise typer.Exit(1 if bad else 0)


def _memory_lines(takes: Forecast, card: int | None) -> list[str]:
    """The forecast for people: first whether it fits, where a GPU's memory was named."""
    lines = [f"Assumed: {takes.assumed}."]
    if card is not None:
        need = takes.total("gpu")
        fits = "It fits" if need <= card else "It does not fit"
        lines.insert(0, f"{fits}: {need / GIB:,.2f} of {card / GIB:,.2f} GiB on each GPU.")
    return lines + takes.lines()


def _forecast(
    report: ConfigReport, model: Path, world: int | None, arguments: dict | None, **how: int | None
) -> Forecast | None:
    """What the resolved config takes; a note on the report where that cannot be told. Only this
    needs torch."""
    if report.config is None:
        return None
    from course_lib.peers.deepspeed_config.memory import forecast

    again = bool((arguments or {}).get("gradient_checkpointing"))
    try:
        return forecast(report.config, model, world or 1, recompute=again, **how)
    except ValueError as error:
        report.notes.append(f"--memory: no forecast: {error}")
        return None


def _object(path: Path | None, option: str) -> dict | None:
    """The object in a file that an option names."""
    if path is None:
        return None
    from course_lib.peers.deepspeed_config import source

    document = source.read(path)
    if document.findings:
        first = document.findings[0]
        raise ValueError(f"{option} {path}:{first.line}:{first.column}: {first.message}")
    return document.value


def _show(file: Path, report: ConfigReport, release: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from course_lib.peers.deepspeed_config.rules.autos import OF_THE_TRAINER

    # Lines are folded here, without blanks.
    console = Console(highlight=False, soft_wrap=True, force_jupyter=False)

    def indented(text: str) -> None:
        for line in textwrap.wrap(text, max(20, console.width - 2), break_on_hyphens=False):
            console.print(Text(f"  {line}"))

    def head(item: Finding, path: str) -> None:
        line = Text(f"{file}:{item.line}:{item.column} ")
        line.append(item.level, COLOURS[item.level])
        line.append(f" {path}" if path else "", "bold")
        console.print(line)

    waiting = [item for item in report.findings if item.message == OF_THE_TRAINER]
    for item in report.findings:
        if len(waiting) > 1 and item in waiting:
            if item is waiting[0]:
                head(item, "")
                names = ", ".join(each.path for each in waiting)
                indented(f'{len(waiting)} values are "auto": {names}; give --args')
            continue
        head(item, item.path)
        message = _capitalised(item.message)
        indented(f"{message}{'' if message.endswith('?') else '.'} {item.reason} ({item.source})")
        indented(f"→ {item.suggestion}")
    counts = ", ".join(
        f"{report.count(level)} {level}{'s'[: report.count(level) != 1]}" for level in COLOURS
    )
    console.print(Text(f"{file}: {counts} (DeepSpeed {release})"))
    became = {
        path: entry for path, entry in report.resolved.items() if entry["origin"] != "the file"
    }
    if became:
        console.print('What "auto" becomes:')
    for path, entry in became.items():
        indented(f"{path} = {json.dumps(entry['value'])}: {entry['origin']}")


def _capitalised(message: str) -> str:
    """A message as a sentence; one that begins with a name, such as a key's, keeps it as it is."""
    first = message.split(maxsplit=1)[0].rstrip(",;:")
    return message[:1].upper() + message[1:] if first.isalpha() else message


def _fix(
    file: Path,
    report: ConfigReport,
    known: Schema,
    world: int | None,
    arguments: dict | None,
    shape: dict | None,
    out: IO[str],
) -> None:
    from course_lib.peers.deepspeed_config import fix

    try:
        fixed = fix.fix_file(file, report, known, world=world, arguments=arguments, model=shape)
    except ValueError as error:
        print(f"--fix: no copy is written: {error}", file=out)
        return
    except OSError as error:
        print(f"--fix: no copy can be written: {error.strerror or error}", file=out)
        raise typer.Exit(1) from None
    if fixed.place is None:
        print("--fix: nothing that can be corrected without a decision of yours", file=out)
    else:
        print(f"--fix: {fixed.place}, with {len(fixed.done)} corrected:", file=out)
        for item in fixed.done:
            print(f"  {item.path or 'the file'}: {item.suggestion}", file=out)
    for item in fixed.left:
        if item.level != "hint":
            print(f"  left, {item.level}: {item.path or 'the file'}: {item.message}", file=out)
