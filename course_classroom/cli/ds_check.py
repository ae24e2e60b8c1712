"""The `course ds-check` command, which finds mistakes in a DeepSpeed config before it is used.

It reports misspelt keys, wrong types and units, keys without effect, contradictions and unresolved
"auto" values, each with its location and a remedy. Lesson 13.
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
    file: Annotated[Path, typer.Argument(metavar="FILE",
        help="DeepSpeed config to check, as a JSON file.")],
    world: Annotated[int | None, typer.Option(show_default=False,
        help="Number of ranks, used to check the batch sizes and for --memory.")] = None,
    model: Annotated[Path | None, typer.Option(
        help="Path of the model's Hugging Face config.json, from which the model's sizes are "
        "read.")] = None,
    args: Annotated[Path | None, typer.Option(
        help='JSON file with the arguments of the Hugging Face Trainer, used to resolve "auto" '
        "values.")] = None,
    as_json: Json = False,
    fix: Annotated[bool, typer.Option("--fix",
        help="Write a corrected copy next to the config file.")] = False,
    strict: Annotated[bool, typer.Option("--strict",
        help="Treat warnings as errors, so that a warning gives exit code 1.")] = False,
    memory: Annotated[bool, typer.Option("--memory",
        help="Forecast the memory on each GPU and each host (requires --model).")] = False,
    length: Annotated[int, typer.Option(min=0,
        help="Tokens per sequence in the --memory forecast (0 means the maximum in the model's "
        "config).")] = 0,
    gpus_per_node: Annotated[int, typer.Option(min=0,
        help="Number of GPUs on each node in the --memory forecast (0 means all of --world).")] = 0,
    gpu_memory: Annotated[str | None, typer.Option(
        help="Memory of one GPU, e.g. 24GB. The --memory forecast is compared with it.")] = None,
) -> None:  # fmt: skip
    """Find mistakes in a DeepSpeed config without running it.

    An error is refused or misread by DeepSpeed or the Trainer. A warning has a
    different effect than its name suggests. A hint is legal but may surprise you.
    The exit code is 1 if there is an error (with --strict also for a warning).

    \b
    Example: course ds-check ds_config.json --args args.json --world 4
    """
    from course_lib.peers.deepspeed_config import check, schema
    from course_lib.peers.deepspeed_config.sizes import nbytes

    try:
        if world is not None and world < 1:
            raise ValueError(f"--world {world} has to be 1 or more")
        if memory and model is None:
            raise ValueError("--memory needs a model: name its config.json with --model")
        if not memory and (length or gpus_per_node or gpu_memory):
            raise ValueError(
                "--length, --gpus-per-node and --gpu-memory belong to --memory, so add it"
            )
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
    """Format the forecast as text lines, with the verdict first if a GPU's memory is known."""
    lines = [f"Assumed: {takes.assumed}."]
    if card is not None:
        need = takes.total("gpu")
        fits = "It fits" if need <= card else "It does not fit"
        lines.insert(0, f"{fits}: {need / GIB:,.2f} of {card / GIB:,.2f} GiB on each GPU.")
    return lines + takes.lines()


def _forecast(
    report: ConfigReport, model: Path, world: int | None, arguments: dict | None, **how: int | None
) -> Forecast | None:
    """Forecast the memory of the resolved config, or add a note to the report. No other function in
    this module needs torch."""
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
    """Read the JSON object in the file that an option names."""
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

    # Lines are wrapped here, without trailing blanks.
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
                indented(f'{len(waiting)} values are "auto": {names}. Add --args for them')
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
        console.print('Resolved "auto" values:')
    for path, entry in became.items():
        indented(f"{path} = {json.dumps(entry['value'])}: {entry['origin']}")


def _capitalised(message: str) -> str:
    """Capitalise a message, unless it begins with a name such as a key."""
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
        print(f"--fix cannot write a copy: {error.strerror or error}", file=out)
        raise typer.Exit(1) from None
    if fixed.place is None:
        print("--fix found nothing that can be corrected without your decision", file=out)
    else:
        print(f"--fix: {fixed.place}, with {len(fixed.done)} corrected:", file=out)
        for item in fixed.done:
            print(f"  {item.path or 'the file'}: {item.suggestion}", file=out)
    for item in fixed.left:
        if item.level != "hint":
            print(f"  left, {item.level}: {item.path or 'the file'}: {item.message}", file=out)
