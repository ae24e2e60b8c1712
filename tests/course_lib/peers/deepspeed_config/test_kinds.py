"""Which values a key takes: held against DeepSpeed's own reading of each value at each key."""

from __future__ import annotations

import json
import random

import pytest

from course_lib.peers.deepspeed_config.kinds import judge
from tests.course_lib.peers.deepspeed_config.oracle import parses
from tests.course_lib.peers.deepspeed_config.parts import report, shipped

VALUES = [
    True, False, None, 0, 1, 2, -1, 7, 1.0, 1.5, 5e8, 1e30, "", "1", " 1 ", "1.0", "1.5", "5e8",
    "1e-5", "1_000", "500MB", "true", "True", "yes", "off", "maybe", "none", "cpu", "CPU", "z1",
    "symmetric", "inf", "nan", "0x10", "+5", "-0", "01", "1.", [], [1], ["z1"], ["a", "b"], [1.5],
    {}, {"a": 1},
]  # fmt: skip
BASE = {"train_batch_size": 8}
SAMPLE = 150


def questions() -> list[tuple[tuple[str, ...], dict, object]]:
    """(path, what is known of the key, value) for every key of a config model."""
    asked = []
    for path, section in shipped().walk():
        for name, key in section["keys"].items():
            if key.get("checked") and "deprecated" not in key and path[-1:] != ("bfloat16",):
                asked += [((*path, name), key, value) for value in VALUES]
    return asked


def _config(path: tuple, value: object) -> str:
    config: dict = dict(BASE)
    holder = config
    for name in path[:-1]:
        holder = holder.setdefault(name, {})
    holder[path[-1]] = value
    return json.dumps(config)


def _disagreements(asked: list) -> list[str]:
    wrong = []
    for (path, _, value), (parsed, error) in zip(
        asked, parses([_config(path, value) for path, _, value in asked]), strict=True
    ):
        if not parsed and "validation error" not in error:
            continue  # another rule's: two keys against each other
        errors = [item for item in report(_config(path, value)).findings if item.level == "error"]
        refused = [item for item in errors if item.path == ".".join(path)]
        if parsed and [item for item in refused if "must be" in item.message]:
            wrong.append(f"{'.'.join(path)} = {value!r} is taken by DeepSpeed: {refused}")
        if not parsed and not errors:
            wrong.append(f"{'.'.join(path)} = {value!r} is refused by DeepSpeed: {error[:200]}")
    return wrong


def test_a_sample_of_values_is_taken_as_deepspeed_takes_them():
    pytest.importorskip("deepspeed")
    wrong = _disagreements(random.Random(11).sample(questions(), SAMPLE))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_value_at_every_key():
    pytest.importorskip("deepspeed")
    wrong = _disagreements(questions())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("kind", "value", "fits", "taken", "meant"),
    [
        ({"type": "boolean"}, "false", False, False, False),
        ({"type": "boolean", "checked": True}, "false", False, True, False),
        ({"type": "boolean"}, 1, False, True, True),
        ({"type": "integer"}, "16", False, False, 16),
        ({"type": "integer"}, 16.0, True, True, None),
        ({"type": "integer"}, True, False, False, None),
        ({"type": "integer", "checked": True}, "500MB", False, False, 500_000_000),
        ({"type": "number"}, "1e-4", False, False, 1e-4),
        ({"type": "choice", "choices": ["a", "B"], "fold": True}, "b", True, True, None),
        ({"type": "choice", "choices": ["a", "B"]}, "b", False, False, "B"),
        ({"type": "list", "items": {"type": "number"}}, [1, "2"], False, False, None),
        ({"type": "integer"}, None, False, False, None),
        ({"type": "integer", "default": None}, None, True, True, None),
    ],
)
def test_a_key_outside_the_models_keeps_what_it_is_given(kind, value, fits, taken, meant):
    verdict = judge(kind, value)
    assert (verdict.fits, verdict.taken, verdict.meant) == (fits, taken, meant)


def raw_questions() -> list[tuple[tuple[str, ...], object]]:
    """(path, value) for every key that the parser itself asks for."""
    return [
        ((*path, name), value)
        for path, section in shipped().walk()
        for name, key in section["keys"].items()
        if not key.get("checked") and "*" not in (*path, name)
        for value in VALUES
    ]


def _unflagged(asked: list) -> list[str]:
    """What DeepSpeed's parser refuses, and the checker lets pass; the null that it takes for a
    section, and the checker refuses. (data_efficiency is read to its end by the run alone.)"""
    wrong = []
    for (path, value), (parsed, error) in zip(
        asked, parses([_config(path, value) for path, value in asked]), strict=True
    ):
        found = report(_config(path, value)).findings
        if "CUDA" in error:
            continue  # of the machine, not of the file
        # Without a batch size a config as short as this one is a part of one.
        part = path == ("train_batch_size",) and value is None
        if not parsed and not part and not [item for item in found if item.level != "hint"]:
            wrong.append(f"{'.'.join(path)} = {value!r} is refused by DeepSpeed: {error[:200]}")
        null = [x for x in found if x.level == "error" and "is null but must be" in x.message]
        section = "section" in (shipped().find(path) or {}) and path[0] != "data_efficiency"
        if parsed and value is None and section and null:
            wrong.append(f"{'.'.join(path)} = null is taken by DeepSpeed: {null}")
    return wrong


@pytest.mark.slow
def test_what_the_parser_refuses_outside_the_models():
    pytest.importorskip("deepspeed")
    wrong = _unflagged(raw_questions())
    assert not wrong, "\n".join(wrong)
