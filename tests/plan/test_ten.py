"""Ten models on ten clusters: what comes first fits, uses all ranks and tokens, can be written."""

from __future__ import annotations

import json

import pytest

from course_lib.deepspeed_config import check, schema
from course_lib.estimate.ladder import SPARE
from course_lib.gpt import Config
from course_lib.plan import Task, cluster, search
from course_lib.plan.advice import advice
from course_lib.plan.emit import cannot, files_of, first_that_can
from course_lib.plan.model import Model
from course_lib.train.checks import resolve
from course_lib.train.options import parse

LLAMA_7B = {"vocabulary": 32000, "hidden": 4096, "layers": 32, "heads": 32, "inner": 11008}
LLAMA_8B = {"vocabulary": 128256, "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8,
            "inner": 14336}  # fmt: skip
LLAMA_70B = {"vocabulary": 128256, "hidden": 8192, "layers": 80, "heads": 64, "kv_heads": 8,
             "inner": 28672}  # fmt: skip
LLAMA_1B = {"vocabulary": 32000, "hidden": 2048, "layers": 22, "heads": 32, "kv_heads": 4,
            "inner": 5632}  # fmt: skip
GPT2_XL = {"vocabulary": 50257, "hidden": 1600, "layers": 48, "heads": 25}
MEGATRON = {"vocabulary": 51200, "hidden": 3072, "layers": 72, "heads": 32}
PAIRS = {  # a model, its longest sequence, the machine, GPUs, tokens a step
    "GPT-2 on a laptop": ("gpt2", {}, 1024, "laptop", 4, 16 * 1024),
    "GPT-2 XL on a workstation": ("gpt2", GPT2_XL, 1024, "workstation", 2, 64 * 1024),
    "Llama 1.1B on a workstation": ("llama", LLAMA_1B, 2048, "workstation", 2, 64 * 2048),
    "Llama 7B on a workstation": ("llama", LLAMA_7B, 2048, "workstation", 2, 16 * 2048),
    "Llama 7B on 8 A100": ("llama", LLAMA_7B, 4096, "dgx-a100", 8, 128 * 4096),
    "Llama 8B on 16 H100": ("llama", LLAMA_8B, 8192, "hgx-h100", 16, 128 * 8192),
    "Llama 70B on 8 H200": ("llama", LLAMA_70B, 4096, "hgx-h200", 8, 64 * 4096),
    "Llama 70B on 64 H100": ("llama", LLAMA_70B, 4096, "hgx-h100", 64, 256 * 4096),
    "Megatron's 8.3B on 32 DGX-2H": ("gpt2", MEGATRON, 1024, "dgx-2h", 512, 512 * 1024),
    "Llama 70B on a laptop": ("llama", LLAMA_70B, 4096, "laptop", 4, 16 * 4096),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_plan(name, tmp_path):
    family, sizes, length, machine, gpus, tokens = PAIRS[name]
    make = {"gpt2": Config.gpt2, "llama": Config.llama}[family]
    known = cluster.cluster(machine, {})
    task = Task.of(Model.of(make(length=length, **sizes)), known, cluster.constants(known),
                   gpus=gpus, tokens=tokens)  # fmt: skip
    found = search(task)
    print(f"\n{name}: {found.considered} ways, {len(found.plans)} fit")
    if name == "Llama 70B on a laptop":
        told = advice(found)
        print(told)
        assert not found.plans and told.remedies
        return
    for plan in found.plans[:3]:
        print(f"  {plan.seconds.total:8.3f} s {plan.needs.gpu / 1e9:6.1f} GB  {plan.name}")
    for plan in found.plans:
        assert plan.needs.gpu * (1 + SPARE) <= known.memory
        assert plan.place.world == gpus
        each = plan.setting.rows * plan.setting.accumulate * plan.place.dp * length
        assert each == tokens and plan.seconds.total > 0
    first = found.plans[0]
    if cannot("torchrun", first, task.model, length) is None:
        (text,) = files_of("torchrun", first, task).values()
        words = text.partition("course_lib.train ")[2].replace('"$@"', "").split()
        assert resolve(parse(words), gpus).stage == first.setting.stage
    at = first_that_can("deepspeed", found.plans, task.model, length)
    plan = found.plans[at - 1]
    (tmp_path / "ds.json").write_text(files_of("deepspeed", plan, task)["ds_config.json"])
    report = check.check_file(tmp_path / "ds.json", world=gpus, known=schema.load(),
                              model=json.loads(json.dumps(task.model.keys)))  # fmt: skip
    assert [item for item in report.findings if item.level == "error"] == []
