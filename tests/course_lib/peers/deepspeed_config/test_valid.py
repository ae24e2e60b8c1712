"""Valid configs raise no alarm: ours, which DeepSpeed reads, and those that the pages show."""

from __future__ import annotations

import pytest

from course_lib.peers.deepspeed_config.rules import autos
from tests.course_lib.peers.deepspeed_config.oracle import parses
from tests.course_lib.peers.deepspeed_config.parts import (
    ARGUMENTS,
    MODEL,
    PAGES,
    VALID,
    loud,
    report,
    resolved,
)


@pytest.mark.parametrize("path", VALID + PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_error_and_no_warning(path):
    assert loud(report(path.read_text()).findings) == []


@pytest.mark.parametrize("path", [VALID[7], *PAGES], ids=lambda path: path.stem)
def test_nor_under_the_trainer(path):
    arguments = ARGUMENTS | {"fp16": "fp16" in path.read_text(), "gradient_accumulation_steps": 4}
    findings = report(path.read_text(), arguments=arguments, model=MODEL).findings
    assert [item for item in findings if 'this "auto"' in item.message] == []
    # The pages show parts: some have no stage, without which Accelerate does not begin, others
    # numbers in the place of arguments.
    assert [item for item in loud(findings) if item.source != autos.TRAINER] == []


def test_there_are_as_many_as_promised():
    assert len(VALID) == len(PAGES) == 15


def test_deepspeed_reads_ours():
    pytest.importorskip("deepspeed")
    for path, (parsed, error) in zip(
        VALID, parses([resolved(path.read_text()) for path in VALID]), strict=True
    ):
        assert parsed, (path.name, error)
