"""Whatever stands where in a config: a report and a copy come of it, and never an exception."""

from __future__ import annotations

import copy
import json
import random

import pytest

from course_lib.deepspeed_config import fix
from course_lib.deepspeed_config.check import check_document
from course_lib.deepspeed_config.source import Document
from tests.deepspeed_config.mutations import paths
from tests.deepspeed_config.parts import PAGES, VALID, report, shipped

VALUES = [
    None, True, False, 0, -1, 1.5, 10**30, "auto", "", "x", [], [None], [{"a": 1}], {}, [[[]]],
    {"enabled": True}, {"type": None}, {"type": ["x"]}, {"type": "AdamW", "params": []},
    {"device": "nvme"}, {"device": ["x"]}, {"params": {"lr": {}}}, {"": {"": 1}},
]  # fmt: skip
NAMES = ("", "stage", "zero_optimization", "scheduler", "optimizer", "data_efficiency", "aio")
HOW = [
    {},
    {"world": 3},
    {"arguments": {"max_steps": 10}, "model": {"hidden_size": 8}},
    {"arguments": {"optim": "x", "lr_scheduler_type": "cosine"}, "world": 2},
]


@pytest.mark.parametrize("seed", range(4))
def test_no_config_brings_the_checker_down(seed):
    draw = random.Random(seed)
    for _ in range(20):
        config = json.loads(draw.choice(VALID + PAGES).read_text())
        for _ in range(draw.randrange(1, 4)):
            path = draw.choice([path for path, _ in paths(config)] or [("stage",)])
            holder = config
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = copy.deepcopy(draw.choice(VALUES))
        config[draw.choice(NAMES)] = copy.deepcopy(draw.choice(VALUES))
        how = HOW[seed]
        found = report(json.dumps(config), **how)
        json.dumps([found.resolved, [item.as_dict() for item in found.findings]])
        assert all(item.line >= 1 and item.column >= 1 for item in found.findings)

        def again(value, how=how):
            return check_document(Document(None, value), shipped(), **how).findings

        fixed = fix.fixed(found.value, again, found.findings)
        assert json.loads(json.dumps(fixed.config)) is not None
