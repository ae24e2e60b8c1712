"""`course release | notebooks | bench`: what those who write the course type.

No lesson derives it.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.base import ROOT, Json, app


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
