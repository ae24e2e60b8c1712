"""What the tests of plans share: a small cluster, small models, a search."""

from __future__ import annotations

from course_lib.estimate.time import Constants, Link, Machine, Rate
from course_lib.gpt import Config
from course_lib.plan import Model, Search, Task, search

GPT2 = Config.gpt2(vocabulary=600, length=64, hidden=96, layers=3, heads=4)
LLAMA = Config.llama(vocabulary=400, length=64, hidden=96, layers=3, heads=4, kv_heads=2, inner=256)
CLUSTER = Machine(
    "cluster", 4, 10**7, (Rate(4, 1e11, 1e10),), Link(1e9, 1e-5), Link(5e8, 5e-5), host=1e9,
    host_memory=10**8, host_moved=1e10, disk=1e8, precision="float32",
)  # fmt: skip
CONSTANTS = Constants(0.8, 0.02)
BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}
BERT |= {"num_attention_heads": 2, "intermediate_size": 64}


def task_of(config: Config = LLAMA, machine: Machine = CLUSTER, **more) -> Task:
    how = {"gpus": 4, "tokens": 16 * 64, **more}
    return Task.of(Model.of(config), machine, CONSTANTS, **how)


def searched(config: Config = LLAMA, machine: Machine = CLUSTER, **more) -> Search:
    return search(task_of(config, machine, **more))
