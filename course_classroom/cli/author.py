"""The `course release | handout | notebooks | bench` commands, for authors of the course."""

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
    check: Annotated[bool, typer.Option("--check",
        help="Report differences without changing any file.")] = False,
    remove: Annotated[bool, typer.Option("--remove",
        help="Also delete exercises that have no solution.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Make exercises/ from solutions/, or check that the two agree.

    The exit code is 1 if a difference remains. It is 2 if there are no solutions,
    or if an exercise would reveal its answer.
    """
    from course_classroom.notebook import release as maker

    _need_the_full_course("release")
    if check and remove:
        raise typer.BadParameter("--check changes nothing, but --remove deletes exercises")
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
            print("exercises/ agrees with solutions/.")
    raise typer.Exit(1 if differences else 0)


@app.command()
def handout(
    folder: Annotated[Path, typer.Argument(metavar="DIR",
        help="New or empty folder for the learner's copy.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Make a learner's copy of the course in DIR without solutions, tests or
    history.

    From a clone, the copy contains only the files that git tracks. If the copy is
    refused, nothing is left in DIR and the exit code is 1.
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
    print(f"Left out: {', '.join(copy.stayed)}.")
    if copy.untracked:
        more = f" and {len(copy.untracked) - 5} more" if copy.untracked[5:] else ""
        print(f"Left out because git does not track it: {', '.join(copy.untracked[:5])}{more}.")


@app.command()
def notebooks(
    paths: Annotated[list[Path] | None, typer.Argument(
        help="Notebooks to execute (default: all lessons and solutions).")] = None,
    world: Annotated[int, typer.Option(help="Number of ranks that execute the cells.")] = 2,
) -> None:  # fmt: skip
    """Execute notebooks again and write them back with stable ids and clean metadata."""
    from course_classroom.notebook.notebooks import refresh

    _need_the_full_course("notebooks")
    if not paths:
        need_the_course("notebooks", ROOT)
    chosen = paths or sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")])
    refresh(chosen, world)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(
        help="Name of the benchmark to run (omit it to list all benchmarks).")] = "",
    changed: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
        help="Change a setting of the benchmark's workload. This option may be repeated.")] = None,
    runs: Annotated[int | None, typer.Option(min=1,
        help="Number of timed runs for each method (the default depends on the "
        "benchmark).")] = None,
    limit: Annotated[float | None, typer.Option(min=1,
        help="Time limit for all runs of a method, in seconds (default: 600). A method that takes "
        "longer or fails is named but has no results, and the exit code is 1.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png",
        help="Also save a plot of the results, if the benchmark provides one.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a benchmark that compares the course with its peers (e.g. `course bench loss`)."""
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
    if plot is not None and not plot.absolute().parent.is_dir():  # checked before an hour of work
        stop(f"--plot {plot}: there is no folder {plot.parent}.")
    try:
        result = benchmark["measure"](**given)
    except (RuntimeError, ValueError) as error:
        # An impossible workload is a wrong call, but a failure during the run is not.
        stop(error, 2 if isinstance(error, ValueError) else 1)
    print(json.dumps(result) if as_json else benchmark["as_text"](result))
    if plot is not None:
        benchmark["picture"](result).save(plot)
    raise typer.Exit(1 if result.get("missing") else 0)


def _need_the_full_course(command: str) -> None:
    """Exit with an error in a learner's copy, which lacks the files that this command needs."""
    from course_classroom.grading import learners_copy

    if learners_copy.is_one(ROOT):
        stop(
            f"this is a learner's copy, but `course {command}` is for authors of the course. "
            "`course check 01` checks your answers, and `course --help` lists all commands."
        )


def _workload(changed: list[str], default: dict) -> dict:
    """Parse settings such as `hidden=64`, and convert each value to the type of its default."""
    made = {}
    for text in changed:
        key, _, value = text.partition("=")
        try:
            made[key] = type(default[key])(value)
        except (KeyError, ValueError):
            told = ", ".join(f"{key}={value}" for key, value in default.items()) or "none"
            stop(f"--set {text} is not possible (the settings are {told})")
    return made
