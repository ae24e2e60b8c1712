"""Every probe is run against the installed releases, and holds its row to what they say."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import tempfile
import warnings

import pytest
import torch.distributed as dist
from packaging.version import Version

from course_lib.then_and_now import CHANGED, RELEASES, Row, table
from course_lib.then_and_now.asking import Unchanged, refusal, remark
from course_lib.then_and_now.probes import quantization

PROBED = [(page, row) for page, row in table() if row.probe]
installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in RELEASES),
    reason="the table asks deepspeed, transformers and accelerate "
    "(pip install 'course_lib[deepspeed,huggingface]')",
)


def older(row):
    """Whether the installed release is one that the row is too new for."""
    name, _, release = row.since.partition(" ")
    return bool(name) and Version(importlib.metadata.version(name)) < Version(release)


@installed
@pytest.mark.parametrize(
    "row", [row for _, row in PROBED], ids=lambda row: f"{row.topic}-{row.probe.__name__}"
)
def test_the_installed_release_says_it(row):
    if older(row):
        pytest.skip(f"{row.topic}: of {row.since}; here is an older one")
    assert row.says in row.probe()


def test_every_row_that_has_changed_is_probed():
    assert len(PROBED) > 40
    assert [row.topic for _, row in table(verdict=CHANGED) if row.probe is None] == []


def everything():
    """What a probe could leave behind in this process or on the disk."""
    from accelerate.state import AcceleratorState, PartialState

    loggers = [logging.getLogger(name) for name in ("transformers", "DeepSpeed", "accelerate")]
    return {
        "environment": dict(os.environ),
        "folder": sorted(os.listdir()),
        "files": sorted(one for one in os.listdir(tempfile.gettempdir()) if "then-and-now" in one),
        "filters": list(warnings.filters),
        "loggers": [(list(one.handlers), one.level, one.propagate) for one in loggers],
        "states": [dict(one._shared_state) for one in (AcceleratorState, PartialState)],
        "group": dist.is_initialized(),
        "streams": (sys.stdout, sys.stderr),
    }


@installed
def test_nothing_is_left_behind(capfd, monkeypatch):
    monkeypatch.delenv("FSDP_CPU_RAM_EFFICIENT_LOADING", raising=False)
    asked = [row for _, row in PROBED if not older(row)]
    for name in RELEASES:
        importlib.import_module(name)
    capfd.readouterr()
    before = everything()
    del before["filters"]  # what is imported for the first time adds its own
    for row in asked:
        row.probe()
        after = everything()
        assert {name: after[name] for name in before} == before, row.probe.__name__
    before = everything()
    for row in asked:
        row.probe()
        assert everything() == before, row.probe.__name__
    assert capfd.readouterr() == ("", "")


def test_a_probe_fails_where_nothing_has_changed():
    with pytest.raises(Unchanged, match="accepted"):
        refusal(lambda: 1)
    with pytest.raises(Unchanged, match="without a word"):
        remark(lambda: 1)
    with pytest.raises(KeyError):  # the wrong refusal is none
        refusal(lambda: {}["x"], TypeError)
    assert refusal(lambda: {}["x"], KeyError) == "KeyError: 'x'"
    assert remark(lambda: warnings.warn("old", FutureWarning, stacklevel=1)) == "FutureWarning: old"
    assert remark(lambda: logging.getLogger("DeepSpeed").warning("older")) == "older"


@installed
def test_a_probe_is_no_rank_of_the_cell_that_asks(monkeypatch):
    """A notebook runs with WORLD_SIZE set, by which Accelerate would look for the other ranks."""
    from course_lib.then_and_now.probes import trainer

    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "num_items_in_batch" in trainer.compute_loss_signature()
    assert os.environ["WORLD_SIZE"] == "2"


def test_what_was_set_is_put_back_after_an_error(monkeypatch):
    monkeypatch.setenv("COURSE_KEPT", "as it was")

    def changing():
        os.environ.update(COURSE_KEPT="changed", COURSE_NEW="1")
        raise ValueError("x")

    assert refusal(changing) == "ValueError: x"
    assert os.environ["COURSE_KEPT"] == "as it was"
    assert "COURSE_NEW" not in os.environ


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "gone"}, "is none of"),
        ({"verdict": CHANGED}, "needs a probe"),
        ({"where": ()}, "name where it is run"),
        ({"says": "x"}, "come together"),
        ({"today": ""}, "what was then"),
    ],
)
def test_a_row_that_is_none_is_refused(change, words):
    right = {"topic": "a", "then": "b", "verdict": "run", "today": "c", "where": ("d",)}
    Row(**right)
    with pytest.raises(ValueError, match=words):
        Row(**{**right, **change})


def test_references_are_a_tuple():
    with pytest.raises(TypeError, match="has to be a tuple"):
        Row("a", "b", "run", "c", "d")


@installed
def test_tf32_needs_a_gpu(monkeypatch):
    from transformers import TrainingArguments
    from transformers.utils import is_torch_tf32_available

    if is_torch_tf32_available():
        pytest.skip("this machine computes in tf32")
    said = refusal(
        lambda: TrainingArguments("unused", use_cpu=True, report_to=[], tf32=True), ValueError
    )
    assert "requires Ampere" in said


@installed
def test_eight_bits_have_the_pages_defaults():
    assert quantization.threshold() == "llm_int8_threshold is 6.0"


@installed
def test_four_bits_have_the_pages_words():
    import torch
    from transformers import BitsAndBytesConfig

    words = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    made = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **words)
    kept = made.to_dict()
    assert {name: kept[name] for name in words} == words
    assert kept["bnb_4bit_compute_dtype"] == "bfloat16"
    assert BitsAndBytesConfig(load_in_4bit=True).bnb_4bit_quant_type == "fp4"
