"""Keys that DeepSpeed ignores: whose they may be, what is a slip, and what --fix may touch."""

from __future__ import annotations

import json

import pytest

from course_lib.peers.deepspeed_config import fix
from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.near import nearest
from tests.course_lib.peers.deepspeed_config.broken import STAGE_2, changed
from tests.course_lib.peers.deepspeed_config.parts import loud, report, shipped

TUNED = {"autotuning": {"enabled": True}, "train_micro_batch_size_per_gpu": "auto"}


def found(config: dict) -> list[Finding]:
    return loud(report(json.dumps(config)).findings)


def fixed(config: dict) -> dict:
    def findings_of(value: dict) -> list[Finding]:
        return report(json.dumps(value)).findings

    return fix.fixed(config, findings_of, findings_of(config)).config


# Keys that programs read from their DeepSpeed config themselves; all of them are in published ones.
PROGRAMS = {
    "seed": 42, "num_epochs": 3, "output_dir": "out", "random_flip": True, "save_steps": 500,
    "max_train_steps": 1000, "learning_rate": 1e-4, "enabled": True, "log_dir": "logs",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_s_own_key_is_no_error_and_stays(name):
    config = changed(STAGE_2, **{name: PROGRAMS[name]})
    findings = found(config)
    assert [item.level for item in findings if item.path == name] == ["warning"]
    assert {item.path for item in findings} == {name}
    assert fixed(config) == config


def test_a_misspelt_key_of_the_same_section_is_an_error_where_its_value_suits():
    for value, level in ((1.0, "error"), ("auto", "error"), ("sometimes", "warning")):
        config = changed(STAGE_2, "gradient_clipping", gradient_cliping=value)
        (finding,) = [item for item in found(config) if item.path == "gradient_cliping"]
        assert finding.level == level and "gradient_clipping" in finding.message
        assert ("gradient_clipping" in fixed(config)) == (level == "error")


def test_the_autotuner_s_stages_are_no_error():
    for stage in ("all", [0, 1, 2, 3], [1]):
        assert found(changed(TUNED, zero_optimization__stage=stage)) == []
        off = changed(TUNED, zero_optimization__stage=stage, autotuning__enabled=False)
        assert "zero_optimization.stage" in {item.path for item in found(off)}
    for stage in ("most", [4], []):
        (finding,) = found(changed(TUNED, zero_optimization__stage=stage))
        assert finding.level == "error"


YAML = {
    "base_model: x\ndeepspeed: cfg/zero2.json  # a stage\n": '"deepspeed" names: cfg/zero2.json',
    "---\ndeepspeed_config:\n  deepspeed_config_file: 'ds.json'\n": "names: ds.json",
    "deepspeed_config:\n  zero_stage: 3\ndistributed_type: DEEPSPEED\n": "Accelerate's own file",
    "# mine\nlora_r: 8\ndeepspeed: null\nlist:\n- a\n": "or write it as JSON",
}


@pytest.mark.parametrize("text", YAML)
def test_a_yaml_file_is_told_with_the_file_to_give(text):
    (finding,) = report(text).findings
    assert "the file is YAML" in finding.message and YAML[text] in finding.suggestion


@pytest.mark.parametrize("text", ['{\n"a": 1', "base_model", "[1,\n2", '"a": 1', "{a: 1}"])
def test_broken_json_is_not_taken_for_yaml(text):
    assert not any("YAML" in item.message for item in report(text).findings)


# ---- the nearest right name to a wrong one
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("zero", "zero_optimization"),
        ("gradient_clip", "gradient_clipping"),
        ("trainBatchSize", "train_batch_size"),
        ("micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("gradient-accumulation-steps", "gradient_accumulation_steps"),
        ("accumulation_steps_gradient", "gradient_accumulation_steps"),
        ("fp61", "fp16"),
        ("b16", "bf16"),
        ("AIO", "aio"),
        ("learning_rate", None),
        ("xyz", None),
    ],
)
def test_the_nearest_name(wrong, right):
    assert nearest(wrong, shipped().root["keys"]) == right


def test_a_doubt_decides_between_two():
    """bf16 is one letter away from nf16 and fp16 two, but it is fp16 that has a loss scale."""
    assert nearest("nf16", ["bf16", "fp16"]) == "bf16"
    assert nearest("nf16", ["bf16", "fp16"], doubt=lambda x: 1.5 * (x == "bf16")) == "fp16"
