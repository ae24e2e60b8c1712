"""Plans compared with the cost model's predictions: `course bench plan`, `--set ranks=1` to 4.

The machine's own rates are measured in the same turns as the plans: a product, a small model, a
sum. Each rank has one thread. With more ranks than cores, the prediction includes a factor for
oversubscription. `ratio` is the paired median relative to the same tokens on one rank, and `off` is
the deviation of its prediction.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _progress
import _ranks

WORKLOAD = {
    "ranks": 2, "family": "gpt2", "vocabulary": 1024, "length": 64, "hidden": 192, "layers": 4,
    "heads": 4, "tokens": 1536,
}  # fmt: skip
RUNS = 9
NAMES = ("vocabulary", "length", "hidden", "layers", "heads")


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    from course_lib.estimate.time.calibrate import cores_here

    workload = {**WORKLOAD, **(workload or {})}
    cores = cores_here()
    every = _ranks.run(
        workload["ranks"], __file__, "steps", limit=limit, workload=workload, runs=runs, cores=cores
    )
    return {
        "name": "plan", "workload": {**workload, "runs": runs, "cores": cores},
        "machine": _ranks.machine(), **every[0],
    }  # fmt: skip


def steps(me, workload: dict, runs: int, cores: int) -> dict:
    """Time all plans of this world and a single rank, in turns with the probes of the machine."""
    from course_lib.estimate.time.calibrate import Probe, probes, timed

    together = min(cores, me.world)
    config, length, tokens = _config(workload), workload["length"], workload["tokens"]
    every = probes(together, config)
    plans = _ways(workload, me.world)
    alone = _step(_alone(me), config, _ways(workload, 1)[0], length)
    every.append(Probe("one rank", alone, 1))
    for plan in plans:
        mesh = _alone(me) if me.world == 1 else _mesh(me, plan)
        every.append(Probe(plan.name, _step(mesh, config, plan, length), me.world))
    found: dict[str, list[float]] = {probe.name: [] for probe in every}
    for turn in range(runs + 1):
        for probe in random.Random(turn).sample(every, len(every)):
            with _progress.doing(probe.name):
                took = timed(probe)
            if turn:  # the first turn creates the optimizer's states
                found[probe.name].append(took)
    return _compared(found, workload, plans, together, cores, tokens)


def _compared(found: dict, workload: dict, plans, together: int, cores: int, tokens: int) -> dict:
    from course_lib.estimate.time import Constants, costs, step_seconds
    from course_lib.estimate.time.calibrate import machine

    medians = {name: statistics.median(took) for name, took in found.items()}
    config, length = _config(workload), workload["length"]
    here = machine(medians, together, cores, 10**9, config)

    def predicted(plan) -> float:
        counted = costs(config, plan.setting, plan.place, length)
        return step_seconds(counted, here, Constants()).total

    one = predicted(_ways(workload, 1)[0])
    reference = found["one rank"]
    methods = [
        {
            "name": "one rank", "ratio": 1.0, "seconds": round(medians["one rank"], 6),
            "predicted": round(one, 6), "predicted_ratio": 1.0,
            "off": round(one / medians["one rank"] - 1, 4),
        }
    ]  # fmt: skip
    for plan in plans:
        ratio, seconds = _ranks.paired(found[plan.name], reference), predicted(plan)
        methods.append(
            {
                "name": plan.name, "ratio": ratio, "seconds": round(medians[plan.name], 6),
                "predicted": round(seconds, 6), "predicted_ratio": round(seconds / one, 4),
                "off": round(seconds / one / ratio - 1, 4),
            }
        )  # fmt: skip
    ranked = min(methods[1:], key=lambda one: one["predicted"])
    fastest = min(methods[1:], key=lambda one: one["ratio"])
    return {
        "methods": methods,
        "oversubscribed": here.oversubscribed(workload["ranks"]),
        "rates": {
            "gflops": [round(rate.flops / 1e9, 2) for rate in here.rates],
            "gb_moved": [round(rate.moved / 1e9, 2) for rate in here.rates],
            **_link("sum", here.inside), **_link("half", here.halves),
        },
        "first": {
            "name": ranked["name"], "fastest": fastest["name"],
            "slower_than_the_fastest": round(ranked["ratio"] / fastest["ratio"] - 1, 4),
        },
    }  # fmt: skip


def _link(name: str, link) -> dict:
    """Format a link's GB/s and the microseconds of a ring's step and wait; empty if none."""
    if link is None:
        return {}
    waits = {f"{name}_step_us": link.latency, f"{name}_wait_us": link.wait}
    return {
        f"gb_{name}": round(link.bandwidth / 1e9, 3),
        **{key: round(seconds * 1e6, 1) for key, seconds in waits.items()},
    }  # fmt: skip


def as_text(result: dict) -> str:
    lines = [f"{result['name']}: {', '.join(f'{k} {v}' for k, v in result['workload'].items())}"]
    width = max(len(one["name"]) for one in result["methods"])
    lines.append(
        f"{'':{width}} {'seconds':>9} {'predicted':>9} {'ratio':>7} {'predicted':>9}   off"
    )
    for one in result["methods"]:
        lines.append(
            f"{one['name']:{width}} {one['seconds']:9.4f} {one['predicted']:9.4f} "
            f"{one['ratio']:7.3f} {one['predicted_ratio']:9.3f} {one['off']:+6.1%}"
        )
    lines.append(f"oversubscribed {result['oversubscribed']:g}; {result['rates']}")
    first = result["first"]
    lines.append(
        f"ranked first: {first['name']}, {first['slower_than_the_fastest']:+.1%} compared with the "
        f"fastest, {first['fastest']}"
    )
    return "\n".join(lines)


def _config(workload: dict):
    from course_lib.gpt import Config

    make = {"gpt2": Config.gpt2, "llama": Config.llama}[workload["family"]]
    return make(**{name: workload[name] for name in NAMES})


def _ways(workload: dict, world: int) -> list:
    """List every plan without offload, with one or two micro-batches, ranked for a laptop."""
    from course_lib.estimate.time import Constants
    from course_lib.estimate.time.presets import laptop
    from course_lib.plan import Model, Task, search

    machine = laptop().changed(gpus=world, host=None)
    task = Task(
        Model.of(_config(workload)), machine, Constants(), world, workload["tokens"],
        workload["length"], "float32",
    )  # fmt: skip
    every = search(task).plans
    chosen = [p for p in every if p.setting.accumulate <= 2 and not p.setting.recompute]
    chosen = [p for p in chosen if p.setting.accumulate == 1 or p.setting.stage in (0, 2)]
    if world == 1:
        chosen = [p for p in chosen if p.setting.accumulate == 1]
    return chosen


def _alone(me) -> DeviceMesh:
    """Create a mesh of only this rank; all ranks call it."""
    groups = [dist.new_group([rank]) for rank in range(me.world)]
    own = [groups[me.rank]] * 2
    return DeviceMesh.from_group(
        own, me.device.type, mesh=torch.tensor([[me.rank]]), mesh_dim_names=("dp", "tp")
    )


def _mesh(me, plan) -> DeviceMesh:
    from course_lib import ranks

    return ranks.mesh(me, dp=plan.place.dp, tp=plan.place.tp)


def _step(mesh: DeviceMesh, config, plan, length: int):
    from course_lib import zero
    from course_lib.gpt import GPT
    from course_lib.step.losses import loss_sum
    from course_lib.tensor_parallel import parallelize

    torch.manual_seed(0)
    setting = plan.setting
    model = GPT(config)
    if plan.place.tp > 1:
        parallelize(model, mesh, sequence=plan.place.sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine = zero.engine(
        model, optimizer, stage=setting.stage, mesh=mesh, accumulate=setting.accumulate, clip=1.0
    )
    made = torch.Generator().manual_seed(1)
    ids = torch.randint(config.vocabulary, (setting.rows, length + 1), generator=made)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> None:
        for _ in range(setting.accumulate):
            loss = loss_sum(engine.module, inputs, targets)
            engine.backward(loss / targets.numel(), tokens=1.0)
            engine.step()

    return step
