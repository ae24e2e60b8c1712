"""Broken configs: each mistake is found by its name, with the suggestion that sets it right."""

from __future__ import annotations

import copy
import json
import random

import pytest

from course_lib.peers.deepspeed_config import check, fix
from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.source import Document
from tests.course_lib.peers.deepspeed_config.broken import BROKEN, STAGE_2, STAGE_3, TRAINING
from tests.course_lib.peers.deepspeed_config.mutations import paths
from tests.course_lib.peers.deepspeed_config.parts import PAGES, VALID, loud, report, shipped


@pytest.mark.parametrize("base", [TRAINING, STAGE_2, STAGE_3])
def test_what_they_are_made_of_is_right(base):
    assert report(json.dumps(base)).findings == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_the_mistake_is_found_and_nothing_else(case):
    findings = report(case.text, world=case.world, arguments=case.arguments).findings
    hits = [item for item in findings if item.path == case.path and item.level == case.level]
    hits = [item for item in hits if case.word in item.message + item.reason]
    assert [item for item in hits if case.right in item.suggestion], findings
    assert [item for item in loud(findings) if item not in hits] == []
    name = case.path.rpartition(".")[2]
    for item in hits:
        line = case.text.splitlines()[item.line - 1]
        assert 1 <= item.column <= len(line)
        assert f'"{name}"' not in case.text or f'"{name}"' in line, (
            "the finding's line has the key in it"
        )
        assert item.source and item.reason


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_corrected_copy_has_nothing_left_of_what_was_corrected(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(case.text)
    how = {"world": case.world, "arguments": case.arguments}
    before = check.check_file(path, known=shipped(), **how)
    if any(item.kind == "endless" for item in before.findings):
        with pytest.raises(ValueError, match="only you know the number"):
            fix.fix_file(path, before, shipped(), **how)
        return
    result = fix.fix_file(path, before, shipped(), **how)
    assert path.read_text() == case.text
    again = {} if result.place is None else json.loads(result.place.read_text())
    assert (result.place is None) == (not result.done)
    assert [item for item in before.findings if item.repair and item not in result.done] == []
    if result.place is None:
        return
    left = check.check_file(result.place, known=shipped(), **how).findings
    for item in left:
        assert item.repair is None, (item, again)
    corrected = {(item.path, item.message) for item in result.done}
    assert not corrected & {(item.path, item.message) for item in left}


def test_the_ranks_are_those_of_the_file_where_none_are_named():
    """64 sequences are 4 × 4 on four ranks, and agree with arguments that say 4 and 4."""
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    arguments |= {"bf16": True, "learning_rate": 1e-4}
    text = json.dumps(STAGE_2 | {"train_batch_size": 64})
    assert loud(report(text, arguments=arguments).findings) == []
    (finding,) = loud(report(text, arguments=arguments, world=8).findings)[:1]
    assert finding.path == "train_batch_size"
    auto = json.dumps(STAGE_2 | {"train_batch_size": "auto"})
    entry = report(auto, arguments=arguments).resolved["train_batch_size"]
    assert entry["value"] == 16 and "--world" in entry["origin"]
    entry = report(auto, arguments=arguments, world=8).resolved["train_batch_size"]
    assert entry["value"] == 128 and "--world" not in entry["origin"]


NESTED = {
    **TRAINING, "zero_optimisation": {"stage": 3, "overlap_com": True, "stage3_gather": 1,
    "offload_optimiser": {"device": "cpu", "pin_memry": True, "nvme_path": "/local"}},
}  # fmt: skip


def test_a_misspelt_section_is_looked_into():
    """At once, and not only when its own name is right."""
    text = json.dumps({k: v for k, v in NESTED.items() if k != "zero_optimization"}, indent=2)
    findings = report(text).findings
    suggested = {item.path: item.suggestion for item in loud(findings)}
    outer = "zero_optimisation"
    assert suggested[outer] == "rename it to zero_optimization"
    assert suggested[f"{outer}.overlap_com"].endswith("zero_optimization.overlap_comm")
    inner = f"{outer}.offload_optimiser"
    assert suggested[inner].endswith("zero_optimization.offload_optimizer")
    assert suggested[f"{inner}.pin_memry"].endswith("offload_optimizer.pin_memory")
    hints = {item.path for item in findings if item.level == "hint"}
    assert f"{inner}.nvme_path" in hints  # of no effect with the device cpu
    for item in findings:
        assert item.path.rpartition(".")[2] in text.splitlines()[item.line - 1]
    again = fix.fixed(json.loads(text), lambda value: report(json.dumps(value)).findings, findings)
    assert again.config["zero_optimization"]["offload_optimizer"]["pin_memory"] is True
    assert again.config["zero_optimization"]["overlap_comm"] is True


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"stage": 3', '"Stage": 3'),
        ('"device": "cpu"', '"devise": "cpu"'),
        ('"enabled": true', '"enabeld": true'),
        ('"warmup_num_steps"', '"warmup_num_step"'),
        ('"total_num_steps"', '"total_steps"'),
        ('"gradient_clipping"', '"gradient_cliping"'),
    ],
)
def test_nothing_follows_from_a_slip_that_is_named(right, wrong):
    """The stage that is misspelt is none that makes the offload an error."""
    config = {
        "train_batch_size": 8, "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupDecayLR",
                      "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
    }  # fmt: skip
    text = json.dumps(config)
    assert right in text and report(text).findings == []
    (finding,) = report(text.replace(right, wrong, 1)).findings
    assert finding.level == "error" and "rename it to" in finding.suggestion


def test_nothing_follows_from_a_key_a_level_too_high():
    config = {"train_batch_size": 8, "gradient_clipping": 0.5, "stage": 3,
              "zero_optimization": {"offload_param": {"device": "cpu"}}}  # fmt: skip
    (finding,) = report(json.dumps(config)).findings
    assert finding.suggestion == "move it to zero_optimization.stage"


def only(**changes: object) -> Finding:
    (finding,) = report(json.dumps({**SMALL, **changes})).findings
    return finding


def of_adam(**params: object) -> Finding:
    return only(optimizer={"type": "AdamW", "params": {"lr": 1e-4, **params}})


SMALL = {"train_batch_size": 8, "gradient_clipping": 1.0}


def test_what_is_left_to_a_decision_is_not_corrected():
    """On the GPU is not offloaded, and one decay is not two."""
    zero = {"stage": 3, "offload_param": {"device": "gpu", "pin_memory": True}}
    finding = only(zero_optimization=zero)
    assert "none" in finding.suggestion and "cpu" in finding.suggestion
    assert finding.repair is None
    finding = of_adam(betas=0.9)
    assert finding.suggestion == "write two numbers, such as [0.9, 0.999]"
    assert finding.repair is None


def test_what_has_one_right_form_is_corrected():
    assert of_adam(betas=["0.9", "0.95"]).repair == ("value", [0.9, 0.95])
    assert only(gradient_clipping="Auto").suggestion == 'write "auto" in lower case'


@pytest.mark.parametrize("value", [-5, -1.0])
def test_a_negative_size_is_an_error_and_no_other_unit(value):
    zero = {"stage": 3, "stage3_prefetch_bucket_size": value}
    finding = only(zero_optimization=zero)
    assert finding.level == "error" and "MB" not in finding.message + finding.suggestion


# ---- whatever stands where: a report and a copy come of it, and never an exception
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
            return check.check_document(Document(None, value), shipped(), **how).findings

        fixed = fix.fixed(found.value, again, found.findings)
        assert json.loads(json.dumps(fixed.config)) is not None
