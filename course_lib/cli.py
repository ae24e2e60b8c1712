"""The `course` command: opens JupyterLab, ends stray ranks, makes exercises, runs benchmarks.

Exit code 0 is good, 1 means findings or a failure, 2 a wrong call. With --json one JSON document
goes to standard output and nothing else does.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Commands of the course. `course COMMAND --help` tells more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ROOT = Path(__file__).resolve().parent.parent
FIRST_LESSON = "notebooks/01_collectives_and_the_ledger.ipynb"
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the first lesson, on this machine alone and behind a token.

    Whatever follows goes to JupyterLab: `course lab --no-browser --port 9000`.
    """
    from jupyterlab.labapp import LabApp

    options = lab_options(context.args)
    sys.argv = ["jupyter-lab", *options]
    # Kernels find the library from any folder; the notice about news stays away from a first visit.
    put_first("PYTHONPATH", ROOT)
    put_first("JUPYTER_CONFIG_PATH", ROOT / "course_lib" / "classroom" / "jupyter")
    LabApp.launch_instance(argv=options)


def put_first(variable: str, path: Path) -> None:
    parts = [str(path), *filter(None, os.environ.get(variable, "").split(os.pathsep))]
    os.environ[variable] = os.pathsep.join(parts)


def lab_options(extra: list[str]) -> list[str]:
    """JupyterLab's options: loopback, a token, no calls home, notebooks saved whole."""
    refused = [o for o in extra if "allow_unauthenticated_access" in o or o.endswith(".token=")]
    if refused:
        raise typer.BadParameter(
            f"{refused[0]} would open this machine to everybody who reaches it"
        )
    options = [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.contents_manager_class=course_lib.classroom.saving.WholeFiles",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if os.geteuid() == 0:  # rented nodes and containers log in as root
        options.append("--allow-root")
    if not any(o.startswith(("--LabApp.default_url", "--ServerApp.default_url")) for o in extra):
        options.append(f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}")
    return options + extra


@app.command()
def stop(
    everything: Annotated[bool, typer.Option("--all", help="Of living notebooks too.")] = False,
    as_json: Json = False,
) -> None:
    """End ranks whose notebook is gone; with --all, every rank of yours on this machine."""
    from course_lib.classroom import runs

    ended = [
        {"notebook": run.notebook, "owner": run.owner, "ranks": run.end()}
        for run in runs.all_runs()
        if everything or not run.owner_alive()
    ]
    runs.sweep()
    if as_json:
        print(json.dumps({"stopped": ended}))
        return
    for run in ended:
        print(f"Ended {run['ranks']} rank(s) of {run['notebook'] or 'a notebook'}.")
    if not ended:
        living = sum(len(run.living_ranks()) for run in runs.all_runs())
        more = (
            f" {living} rank(s) belong to open notebooks; --all ends those too." if living else ""
        )
        print(f"No stray ranks.{more}")


@app.command()
def release(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; say what differs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make exercises/ from solutions/, or check that it is what solutions/ gives."""
    from course_lib.classroom import release as maker

    found = maker.check(ROOT) if check else maker.release(ROOT)
    names = [str(item) for item in found]
    if as_json:
        print(json.dumps({"differences" if check else "written": names}))
    else:
        for name in names:
            print(name)
        if not names:
            print("exercises/ is what solutions/ gives.")
    raise typer.Exit(1 if check and names else 0)


@app.command()
def notebooks(
    paths: Annotated[list[Path] | None, typer.Argument(help="Default: every lesson.")] = None,
    world: Annotated[int, typer.Option(help="Ranks to execute with.")] = 2,
) -> None:
    """Execute notebooks again and write them back with stable ids and clean metadata."""
    from course_lib.classroom.notebooks import refresh

    chosen = paths or sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")])
    refresh(chosen, world)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which one; without a name, what there is.")] = "",
    as_json: Json = False,
) -> None:
    """Measure the course beside its peers, as ratios within one run."""
    known = {p.stem: p for p in sorted((ROOT / "benchmarks").glob("[a-z]*.py"))}
    if name not in known:
        print(f"Benchmarks: {', '.join(known)}", file=sys.stderr)
        raise typer.Exit(2)
    result = runpy.run_path(str(known[name]))["measure"]()
    if as_json:
        print(json.dumps(result))
    else:
        print(runpy.run_path(str(known[name]))["as_text"](result))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
