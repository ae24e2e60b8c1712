"""Run the probes of docs/then_and_now.md on the installed releases, and write their answers.

`python -m tools.then_and_now` renews the end of that page: the releases, and a sentence for each
probe of tests/course_lib/peers/then_and_now/probes.py. The rows above it are written by hand.
Lesson 13.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from tests.course_lib.peers.then_and_now.probes import sentences

PAGE = Path(__file__).resolve().parents[1] / "docs/then_and_now.md"
BEGIN, END = "<!-- said -->\n", "<!-- end of said -->\n"
RELEASES = ("torch", "deepspeed", "transformers", "accelerate")


def releases() -> str:
    """Return the page's line that names the tested releases."""
    versions = [(name, importlib.metadata.version(name).split("+")[0]) for name in RELEASES]
    return f"Today is {', '.join(f'{name} {version}' for name, version in versions)}."


def row(name: str, sentence: str) -> str:
    return f"| `{name}` | {sentence.replace('|', chr(92) + '|')} |"


def main() -> None:
    """Write the page again with the current answers."""
    before, rest = PAGE.read_text().split(BEGIN)
    rows = [row(name, sentence) for name, sentence in sentences().items()]
    said = [releases(), "", "| probe | the answer |", "|---|---|", *rows, ""]
    PAGE.write_text(before + BEGIN + "\n".join(said) + END + rest.split(END)[1])
    print(f"{PAGE.name}: {len(rows)} answers")


if __name__ == "__main__":
    main()
