"""What cannot be planned is refused with its cause and its remedy; what is not said is as usual."""

from __future__ import annotations

import json

import pytest

from course_lib.estimate.time import Link
from course_lib.estimate.time.bars import BARS, fit
from course_lib.gpt import Config
from course_lib.plan import cluster
from course_lib.plan.model import Model, of_sizes
from course_lib.plan.task import divisors
from tests.plan.parts import CLUSTER, LLAMA, task_of

WRONG = [
    ({"gpus": 4, "tp": 3}, r"--tp 3 does not divide the 4 GPUs .* take 1, 2, 4"),
    ({"gpus": 8, "tp": 8, "tokens": 512}, r"--tp 8: the model has 4 heads.*--tp 4 at most"),
    ({"gpus": 6}, r"--gpus 6 does not fill nodes of 4: take 4 or 8"),
    ({"tokens": 100}, r"--tokens 100 is no number of whole sequences .* take 64 or 128"),
    ({"tokens": 10}, r"take 64$"),
    ({"gpus": -1}, r"--gpus -1 has to be 0 or more"),
    ({"length": 128, "tokens": 128}, r"a sequence of 128 tokens is longer than length=64"),
    ({"precision": "int8"}, r"--precision int8 is none of"),
    ({"price": -1.0}, r"--price -1.0 of a GPU"),
    ({"spare": -0.5}, r"--spare -0.5"),
    ({"stage": 4}, r"--stage 4 is none of 0, 1, 2, 3"),
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


FIGURES = {"memory": "24GB", "tflops": 80.0, "inside": 16.0}
BAD_FIGURES = [
    ({"inside": 0.0}, "--inside 0 has to be above 0"),
    ({"across": -1.0}, "--across -1 has to be above 0"),
    ({"memory": "0"}, "--memory 0 is 0 bytes"),
    ({"memory": "much"}, "--memory 'much' is no size"),
    ({"gpus": -2}, "--gpus-per-node -2 has to be above 0"),
    ({"across_latency": 5.0}, "--across-latency is that of a link of which --across is missing"),
    ({"inside_latency": -5.0}, "latency"),
    ({"tflops": None}, "of the machine --tflops is missing; or name a known one"),
    ({"inside": None}, "of the machine --inside is missing"),
    ({"memory": None, "tflops": None}, "--memory, --tflops is missing"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_FIGURES, ids=lambda x: str(x)[:20])
def test_a_machine_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        cluster.cluster(None, {**FIGURES, **wrong}, gpus=2)


def test_single_figures_count_more_than_the_named_machines():
    plain = cluster.cluster("dgx-a100", {})
    changed = cluster.cluster(
        "dgx-a100", {"memory": "40GB", "across": 100.0, "inside_latency": 2.0, "disk": 6.0,
                     "tflops": 200.0, "gpus": 4, "host": None},
    )  # fmt: skip
    assert (changed.memory, changed.gpus, changed.disk) == (40 * 10**9, 4, 6e9)
    assert changed.across.bandwidth == 1e11 and changed.across.latency == plain.across.latency
    assert changed.inside == Link(plain.inside.bandwidth, 2e-6)
    assert changed.rate(4).flops == 2e14 and changed.rate(4).moved == plain.rates[0].moved
    assert changed.host == plain.host
    own = cluster.cluster(None, {**FIGURES, "memory_bandwidth": 900.0, "host": 10.0}, gpus=2)
    assert (own.gpus, own.rates[0].flops, own.rates[0].moved) == (2, 8e13, 9e11)
    assert own.across is None and (own.host, own.host_moved) == (1e10, 1e10)
    alone = cluster.cluster(None, {**FIGURES, "inside": None}, gpus=1)
    assert alone.gpus == 1


def test_a_machine_goes_through_its_file(tmp_path):
    file = tmp_path / "here.json"
    cluster.write_machine(CLUSTER, file)
    assert cluster.cluster(str(file), {}) == CLUSTER
    file.write_text('{"name": "x"}')
    with pytest.raises(ValueError, match="no file of --save-machine"):
        cluster.cluster(str(file), {})


def test_gpus_have_the_fitted_constants_and_processes_none():
    assert cluster.constants(CLUSTER) == fit(BARS, worst=True)
    own = cluster.constants(cluster.cluster("laptop", {}))
    assert (own.reach, own.spread) == (1.0, 0.0)


def test_more_processes_than_cores_are_on_one_host():
    few, many = (cluster.cluster("laptop", {}, gpus=n) for n in (2, 8))
    assert (few.gpus, many.gpus, many.memory) == (4, 8, few.memory // 2)
    assert many.oversubscribed(8) == 2 and cluster.cluster("dgx-a100", {}, gpus=16).gpus == 8


def test_a_model_by_its_sizes_is_that_of_its_config():
    mine = of_sizes("llama", hidden=96, layers=3, heads=4, kv_heads=2, inner=256, vocabulary=400,
                    length=64)  # fmt: skip
    assert mine.config == LLAMA and mine.kind == "llama"
    assert mine.keys["num_key_value_heads"] == 2
    with pytest.raises(ValueError, match="--family bert is none of gpt2, llama"):
        of_sizes("bert", hidden=1, layers=1, heads=1, vocabulary=1, length=1)


def test_of_another_family_the_size_alone_is_known(tmp_path):
    pytest.importorskip("transformers")
    keys = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 2, "intermediate_size": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    model = Model.read(tmp_path)
    assert model.config is None and model.shape.params > 10_000 and model.sizes.hidden == 32

    from course_lib.plan import Task, search
    from tests.plan.parts import CONSTANTS

    with pytest.raises(ValueError, match="--length is missing"):
        Task.of(model, CLUSTER, CONSTANTS)
    task = Task.of(model, CLUSTER, CONSTANTS, length=64)
    found = search(task)
    assert {plan.place.tp for plan in found.plans} == {1}
    assert found.plans[0].needs.activations is None
    assert "model_type 'bert'" in found.fallen["the model cannot be cut so"].example
    stages = {plan.setting.stage for plan in found.plans}
    assert stages == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="is not known here"):
        Task.of(model, CLUSTER, CONSTANTS, length=64, tp=2)
    flops = 6 * model.shape.params * 8 * 64  # of a rank's eight sequences
    first = next(plan for plan in found.plans if not plan.setting.recompute)
    assert first.seconds.compute == pytest.approx(flops / 1e11)


def test_a_config_and_sizes_need_each_other_not():
    with pytest.raises(ValueError, match="hidden=10 does not divide into heads=4"):
        Model.of(Config.gpt2(hidden=10, heads=4))
