"""What the tests of ds-check share: the configs beside them, a report on a text, and the answer of
an oracle."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from course_lib.peers.deepspeed_config import auto, check, schema, source
from course_lib.peers.deepspeed_config.finding import Finding
from tests.support.commands import ROOT

HERE = Path(__file__).parent
VALID = sorted((HERE / "valid").glob("*.json"))
PAGES = sorted((HERE / "pages").glob("*.json"))
ARGUMENTS = {"max_steps": 1000}
MODEL = {"model_type": "llama", "hidden_size": 4096}


@functools.lru_cache(maxsize=1)
def shipped() -> schema.Schema:
    return schema.Schema(json.loads(schema.SHIPPED.read_text(encoding="utf-8")))


def report(text: str | bytes, **how: object) -> check.ConfigReport:
    """The report on a file with this text, against the shipped keys."""
    document = source.Document(Path("config.json"))
    source.read_content(text.encode() if isinstance(text, str) else text, document)
    return check.check_document(document, shipped(), **how)


def loud(findings: Iterable[Finding]) -> list[Finding]:
    return [item for item in findings if item.level != "hint"]


def resolved(text: str) -> str:
    """The file that DeepSpeed reads under the Trainer: no "auto" in it. One that has none stays as
    it is written, doubled keys and all."""
    try:
        config = json.loads(text)
        if '"auto"' not in text or not isinstance(config, dict):
            return text
        return json.dumps(auto.resolve(config, ARGUMENTS, MODEL, 1).config)
    except (ValueError, TypeError, AttributeError):
        return text


def answered(module: str, question: object, *words: str) -> list:
    """What a program answers in a process of its own: JSON in, a line of JSON out."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words], input=json.dumps(question), capture_output=True,
        text=True, timeout=280, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
