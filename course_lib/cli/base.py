"""What all commands share: the typer app, the house's folder, the --json option.

Exit code 0 is good, 1 means findings or a failure, 2 a wrong call. With --json one JSON document
goes to standard output and nothing else does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Commands of the course. `course COMMAND --help` tells more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ROOT = Path(__file__).resolve().parents[2]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
