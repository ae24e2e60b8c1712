"""`course release | handout | notebooks | bench`: what those who write the course type."""

from __future__ import annotations

import inspect
import json
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import ROOT, Json, app, need_the_course, stop

SHORT = {"tensor_parallel": "tp"}  # benchmarks with a shorter name than their file


@app.command()
def release(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; say what differs.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Also take away exercises that have no solution.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make exercises/ from solutions/, or check that it is what solutions/ gives.

    Exit code 1 where a difference is left, 2 where there are no solutions, or one gives its answer
    away.
    """
    from course_classroom.notebook import release as maker

    _need_the_full_course("release")
    if check and remove:
        raise typer.BadParameter("--check changes nothing, and --remove takes exercises away")
    try:
        written = [] if check else maker.release(ROOT, remove=remove)
        differences = maker.check(ROOT)
    except (maker.NoSolutions, maker.BadSolution) as error:
        stop(error)
    if as_json:
        print(json.dumps(({} if check else {"written": written}) | {"differences": differences}))
    else:
        for line in [*written, *differences]:
            print(line)
        if not written and not differences:
            print("exercises/ is what solutions/ gives.")
    raise typer.Exit(1 if differences else 0)


@app.command()
def handout(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.")],
    as_json: Json = False,
) -> None:
    """Make the learners' copy of the course as DIR: no solutions, no tests, no history.

    Of a clone it takes what git tracks, and nothing else. Exit code 1 where it is refused; then
    nothing is left of it.
    """
    from dataclasses import asdict

    from course_classroom.grading import learners_copy

    _need_the_full_course("handout")
    try:
        copy = learners_copy.make(ROOT, folder)
    except learners_copy.Refused as error:
        stop(f"{error}.", 1)
    if as_json:
        print(json.dumps(asdict(copy)))
        return
    version = f" of {copy.version}" if copy.version else ""
    print(
        f"{copy.folder}: a learner's copy{version}, {copy.files} files, {copy.size / 1e6:.1f} MB."
    )
    print(f"Not in it: {', '.join(copy.stayed)}.")
    if copy.untracked:
        more = f" and {len(copy.untracked) - 5} more" if copy.untracked[5:] else ""
        print(f"Not in it, as git does not track it: {', '.join(copy.untracked[:5])}{more}.")


@app.command()
def notebooks(
    paths: Annotated[list[Path] | None, typer.Argument(help="Default: every lesson.")] = None,
    world: Annotated[int, typer.Option(help="Ranks to execute with.")] = 2,
) -> None:
    """Execute notebooks again and write them back with stable ids and clean metadata."""
    from course_classroom.notebook.notebooks import refresh

    _need_the_full_course("notebooks")
    if not paths:
        need_the_course("notebooks", ROOT)
    chosen = paths or sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")])
    refresh(chosen, world)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which one; without a name, what there is.")] = "",
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of the workload, as often as wanted."),
    ] = None,
    runs: Annotated[int | None, typer.Option(help="How often each method is timed.", min=1)] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds that one method may take, all its turns together (600). One that takes "
            "longer is left out and named, as one that fails; the exit code is then 1.",
            min=1,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw it too, where it has a picture.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the course beside its peers, as ratios within one run."""
    need_the_course("bench", ROOT)
    files = sorted((ROOT / "benchmarks").glob("[a-z]*.py"))
    known = {SHORT.get(file.stem, file.stem): file for file in files}
    if name not in known:
        print(f"Benchmarks: {', '.join(known)}", file=sys.stderr)
        raise typer.Exit(2)
    benchmark = runpy.run_path(str(known[name]))
    given = {name: x for name, x in (("runs", runs), ("limit", limit)) if x is not None}
    if changed:
        given["workload"] = _workload(changed, benchmark.get("WORKLOAD", {}))
    taken = inspect.signature(benchmark["measure"]).parameters
    for option in [key for key in given if key not in taken]:
        stop(f"{name} has no --{'set' if option == 'workload' else option}; leave it out.")
    if plot is not None and "picture" not in benchmark:
        stop(f"{name} has no picture; leave --plot out.")
    if plot is not None and not plot.absolute().parent.is_dir():  # said before an hour's work
        stop(f"--plot {plot}: there is no folder {plot.parent}.")
    try:
        result = benchmark["measure"](**given)
    except (RuntimeError, ValueError) as error:
        # A workload that cannot be is a wrong call; what failed on the way is not.
        stop(error, 2 if isinstance(error, ValueError) else 1)
    print(json.dumps(result) if as_json else benchmark["as_text"](result))
    if plot is not None:
        benchmark["picture"](result).save(plot)
    raise typer.Exit(1 if result.get("missing") else 0)


def _need_the_full_course(command: str) -> None:
    """Stop in a learner's copy, which has nothing that this command could work on."""
    from course_classroom.grading import learners_copy

    if learners_copy.is_one(ROOT):
        stop(
            f"this is a learner's copy, and `course {command}` is for those who write the course; "
            "`course check 01` tries your answers, `course --help` lists the rest."
        )


def _workload(changed: list[str], default: dict) -> dict:
    """`hidden=64` and the like, each value of the kind that the default has."""
    made = {}
    for text in changed:
        key, _, value = text.partition("=")
        try:
            made[key] = type(default[key])(value)
        except (KeyError, ValueError):
            told = ", ".join(f"{key}={value}" for key, value in default.items()) or "nothing"
            stop(f"--set {text}: what can be set is {told}")
    return made
