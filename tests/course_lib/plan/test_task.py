"""What cannot be planned is refused with its cause and its remedy; what is not said is as usual."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.estimate.setting import Needs, Setting
from course_lib.estimate.time import Place, presets
from course_lib.estimate.time.bars import BARS, fit
from course_lib.estimate.time.costs import costs_of_model
from course_lib.plan import Model, Task, search
from course_lib.plan.task import divisors
from tests.course_lib.estimate.test_transformers_model import small
from tests.course_lib.plan.parts import BERT, CLUSTER, CONSTANTS, task_of

WRONG = [
    ({"gpus": 6}, r"--gpus 6 does not fill nodes of 4 GPUs: take 4 or 8"),
    ({"tokens": 100}, r"--tokens 100 is not a multiple of --length .* take 64 or 128"),
    ({"tokens": 10}, r"take 64$"),
    ({"gpus": -1}, r"--gpus -1 has to be 0 or more"),
    ({"length": 128, "tokens": 128}, r"--length 128 is longer than the 64 tokens"),
    ({"precision": "int8"}, r"--precision int8 is none of"),
    ({"price": -1.0}, r"--price -1.0 per GPU"),
    ({"gpus": 10**9}, r"--gpus 1,000,000,000: more than 262,144 GPUs are not counted"),
    ({"tokens": 64 * 10**12}, r"--tokens 64,000,000,000,000: no step has more than"),
]


@pytest.mark.parametrize(("how", "message"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        task_of(**how)


def test_divisors_are_found_without_a_look_at_every_number():
    for n in (1, 2, 36, 97, 720):
        assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
    assert len(divisors(10**12)) == 13 * 13


def test_what_is_not_said_is_as_usual():
    task = task_of(gpus=0, tokens=0)
    assert (task.gpus, task.length, task.tokens) == (4, 64, 8 * 4 * 64)
    assert task.precision == CLUSTER.precision and (task.nodes, task.per_node) == (1, 4)
    assert (task_of(gpus=2).per_node, task_of(gpus=8).nodes) == (2, 2)
    assert task.cost(3600.0) is None
    assert task_of(price=2.0).cost(1.8) == pytest.approx(2 * 4 * 1.8 / 3600 / 1024 * 1e9)


def test_a_machine_goes_through_its_file(tmp_path):
    file = tmp_path / "here.json"
    presets.write_machine(CLUSTER, file)
    assert presets.cluster(str(file)) == CLUSTER
    file.write_text('{"like": "dgx-a100", "memory": 4e10, "across": {"bandwidth": 1e11}}')
    plain, changed = presets.cluster("dgx-a100"), presets.cluster(str(file))
    assert (changed.memory, changed.across.bandwidth) == (4e10, 1e11)
    assert (changed.inside, changed.rates) == (plain.inside, plain.rates)
    for wrong, words in (
        ('{"name": "x"}', "it lacks gpus, memory, rates, inside .or .like."),
        ("[]", "it has to hold an object"),
        ("{", "it is not JSON"),
        ('{"like": "dgx-a100", "colour": 1}', "it names colour, but the figures are name, gpus"),
        ('{"like": "dgx-a100", "gpus": "four"}', "gpus is 'four', but has to be a number above 0"),
        ('{"like": "dgx-a100", "disk": -1}', "disk is -1, but has to be a number above 0"),
        ('{"like": "dgx-a100", "across": {"width": 1}}', r"links \{.bandwidth., .latency.\}"),
    ):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=f"is not a file of a machine: .*{words}"):
            presets.cluster(str(file))
    file.write_text('{"like": "cray"}')
    with pytest.raises(ValueError, match="--machine cray is none of dgx-2h"):
        presets.cluster(str(file))


def test_gpus_have_the_fitted_constants_and_processes_none():
    assert presets.constants(CLUSTER) == fit(BARS, worst=True)
    own = presets.constants(presets.cluster("laptop"))
    assert (own.reach, own.spread) == (1.0, 0.0)


def test_more_processes_than_cores_are_on_one_host():
    few, many = (presets.cluster("laptop", gpus=n) for n in (2, 8))
    assert (few.gpus, many.gpus, many.memory) == (4, 8, few.memory // 2)
    assert many.oversubscribed(8) == 2 and presets.cluster("dgx-a100", gpus=16).gpus == 8


def kept_once(model: Model, rows: int) -> int:
    kept = model.kept(rows, 64, torch.float32)
    return sum(kept.blocks) + kept.ends


def test_of_another_family_memory_and_work_are_counted(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    model = Model.read(tmp_path)
    assert model.config is None and model.shape.params > 10_000
    with pytest.raises(ValueError, match=r"states no longest sequence .* with --length"):
        Task.of(model, CLUSTER, CONSTANTS)
    task = Task.of(model, CLUSTER, CONSTANTS, length=64)
    found = search(task)
    assert {plan.place.tp for plan in found.plans} == {1}
    kept = model.kept(found.plans[0].setting.rows, 64, torch.float32)
    assert found.plans[0].needs.activations == kept.total
    assert "model_type 'bert'" in found.fallen["the model cannot be sharded this way"].example
    assert {plan.setting.stage for plan in found.plans} == {0, 1, 2, 3}
    products = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 32 * 32 + 100 * 32  # layers, and the head's two
    tokens = 8 * 64  # of a rank
    flops = 3 * tokens * (2 * model.theirs().product_params() + 4 * 64 * 2 * 32)
    assert model.theirs().product_params() == products
    first = next(plan for plan in found.plans if not plan.setting.recompute)
    moved = 1e10 * (first.seconds.compute - flops / 1e11)  # beside them, what a forward keeps
    passes = first.setting.accumulate * kept_once(model, first.setting.rows)
    assert moved == pytest.approx(5 * passes, rel=1e-6)


def test_tensor_parallelism_of_another_family_costs_what_our_decoder_costs():
    """The same Llama, once by our closed forms, once as a model that only Transformers knows."""
    pytest.importorskip("transformers")
    keys = small("llama-3.1-8b", num_key_value_heads=4)
    ours, theirs = Model(keys), Model(keys)
    theirs.config = None
    needs = Needs(0, None, 0, 0, sent=10**6)
    for recompute in (False, True):
        for sequence in (False, True):
            how = (Setting(3, 2, recompute=recompute, stage=2), Place(2, 2, 4, sequence), 96, needs)
            known, counted = (costs_of_model(model, *how) for model in (ours, theirs))
            assert [p.flops for p in counted.passes] == [p.flops for p in known.passes]
            norms = 7 * 2 * 128  # bytes of the norms' gradients, which only the closed forms have
            for verb, (sent, messages) in known.tp.items():
                more = (norms, 7) if sequence and verb == "all_reduce" else (0, 0)
                assert counted.tp.get(verb, (0, 0)) == (sent - more[0], messages - more[1])
            assert counted.dp == known.dp and counted.updated == known.updated
    mistral = Model(small("mistral-7b"))
    found = search(Task.of(mistral, CLUSTER, CONSTANTS, gpus=4, rows=2, length=64))
    assert {plan.place.tp for plan in found.plans} == {1, 2}
    assert "2 key/value heads" in found.fallen["the model cannot be sharded this way"].example
    assert found.task.tokens == 4 * 2 * 64
    with pytest.raises(ValueError, match=r"--rows and --tokens both set"):
        Task.of(mistral, CLUSTER, CONSTANTS, rows=2, tokens=64)
