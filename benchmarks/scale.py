"""Weak and strong scaling over both axes: `course bench scale`, at 1 to 4 ranks or `--set ranks=N`.

Strong scaling divides the work of one rank. Weak scaling gives each rank as much work, over tp as
layers, over dp as rows. Every configuration is timed in turns with a single rank, has the same
losses if its work is the same, and its bytes sent over each axis equal the closed forms exactly.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _progress
import _ranks
import _scale_text
from _scale_text import as_text as as_text
from _scale_text import picture as picture

WORKLOAD = {
    "ranks": 0, "stage": 2, "family": "gpt2", "vocabulary": 1152, "length": 64, "hidden": 192,
    "layers": 2, "heads": 12, "rows": 24, "peak_tflops": 0.0,
}  # fmt: skip
RUNS = 9
WORLDS = (1, 2, 3, 4)
BOUND = 1e-4  # of the losses, relative: float32, with sums in a different order
NAMES = ("vocabulary", "length", "hidden", "heads")
ONE = "one rank"


@dataclass(frozen=True)
class Way:
    """A configuration: `rows` per replica, `layers` of the model."""

    name: str
    scaling: str
    dp: int
    tp: int
    rows: int
    layers: int

    @property
    def world(self) -> int:
        return self.dp * self.tp


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    from course_lib.estimate.time.calibrate import cores_here

    workload, cores = {**WORKLOAD, **(workload or {})}, cores_here()
    if workload["ranks"] < 0:
        raise ValueError(f"ranks={workload['ranks']} must be 0 (1 to 4 in turn) or a number")
    worlds = [workload["ranks"]] if workload["ranks"] else list(WORLDS)
    for world in worlds:
        ways(workload, world)  # refuses indivisible work before anything runs
    methods, told = [], []
    for world in worlds:
        every = _ranks.run(
            world, __file__, "steps", limit=limit, workload=workload, runs=runs, cores=cores
        )
        methods += every[0].pop("methods")
        told.append(every[0])
    return {
        "name": "scale", "workload": {**workload, "runs": runs, "cores": cores},
        "machine": _ranks.machine(), "methods": methods, "worlds": told,
        "notes": _scale_text.notes(told, cores),
    }  # fmt: skip


def ways(workload: dict, world: int) -> list[Way]:
    """List a single rank, then weak and strong over tp, over dp and, where possible, over both."""
    rows, layers = workload["rows"], workload["layers"]
    meshes = [(1, world), (world, 1)]  # (dp, tp)
    meshes += [(dp, world // dp) for dp in range(2, world) if world % dp == 0]
    found = [Way(ONE, "none", 1, 1, rows, layers)]
    for dp, tp in meshes if world > 1 else []:
        if rows % dp:
            raise ValueError(f"rows={rows} cannot be shared by {dp} replicas; choose a multiple")
        what = " × ".join(f"{axis} {n}" for axis, n in (("dp", dp), ("tp", tp)) if n > 1)
        found.append(Way(f"{what}, strong", "strong", dp, tp, rows // dp, layers))
        found.append(Way(f"{what}, weak", "weak", dp, tp, rows, layers * tp))
    return found


def config_of(workload: dict, way: Way):
    from course_lib.gpt import Config

    make = {"gpt2": Config.gpt2, "llama": Config.llama}[workload["family"]]
    return make(**{name: workload[name] for name in NAMES}, layers=way.layers)


def flops_of(workload: dict, way: Way) -> int:
    from course_lib.train.flops import step_flops

    return step_flops(config_of(workload, way), way.rows * way.dp, workload["length"])


def steps(me, workload: dict, runs: int, cores: int) -> dict:
    """Time this world's configurations and a single rank, in turns with the machine's probes."""
    from course_lib.estimate.time.calibrate import probes, timed

    together, every = min(cores, me.world), ways(workload, me.world)
    on_cpu = me.device.type == "cpu"
    peaks = _peaks(me, workload, me.world if not on_cpu else together)
    made = {way.name: _made(me, workload, way) for way in every}
    methods = {name: one for name, (one, _) in made.items()}
    losses: dict[str, list[float]] = {name: [] for name in methods}
    once, sent = {}, {}
    for way in every:
        with _progress.doing(way.name):
            once[way.name] = _ranks._once(me, methods[way.name], losses[way.name])
            del once[way.name]["held_mb"]  # not measured
            sent[way.name] = _sent(me, workload, way, *made[way.name])
    first = {way.name: _of_all(way, losses[way.name], workload) for way in every}
    strong = {way.name: first[way.name] for way in every if way.scaling != "weak"}
    _ranks._same(strong, BOUND, me)
    like = config_of(workload, every[0])
    looks = {probe.name: probe for probe in (probes(together, like) if on_cpu else [])}
    found: dict[str, list[float]] = {name: [] for name in [*methods, *looks]}
    began = time.monotonic()
    for turn in range(runs + 1):
        if turn > _ranks.LEAST_RUNS and _ranks._late(began + _ranks.LIMIT):
            break
        for name in random.Random(turn).sample(list(found), len(found)):
            with _progress.doing(name):
                probe = looks.get(name)
                took = timed(probe) if probe else _ranks._timed(me, methods[name], [])
            if turn:  # the first turn loads libraries
                found[name].append(took)
    here = _machine(found, looks, together, cores, like)
    rows = _rows(workload, every, found, here, peaks)
    more = {name: {**once[name], "bytes": sent[name], "losses": first[name]} for name in first}
    return {
        "ranks": me.world, "backend": me.backend, "device": me.device.type,
        "oversubscribed": max(1.0, me.world / cores) if on_cpu else 1.0,
        "peak_gflops": [round(peak / 1e9, 2) for peak in peaks],
        "methods": [{**row, **more[way.name]} for row, way in zip(rows, every, strict=True)],
    }  # fmt: skip


def _rows(workload: dict, every: list[Way], found: dict, here, peaks: tuple) -> list[dict]:
    """Compute times, efficiency and MFU, measured and predicted. Efficiency compares the flops per
    rank and second with those of a single rank in the same turn."""
    one, flops_one = every[0], flops_of(workload, every[0])
    told = []
    for way in every:
        ratio = _ranks.paired(found[way.name], found[ONE])
        work, n = flops_of(workload, way), way.world
        seconds = statistics.median(found[way.name])
        row = {
            "name": way.name if way is not one or len(every) == 1 else f"{ONE}, in turn with "
            f"{every[1].world}",
            "scaling": way.scaling, "ranks": n, "dp": way.dp, "tp": way.tp,
            "stage": workload["stage"] if way.dp > 1 else 0, "ratio": ratio,
            "seconds": round(seconds, 6), "efficiency": round(work / flops_one / n / ratio, 4),
            "mfu": round(work / seconds / peaks[n > 1], 4), "predicted": None,
            "predicted_efficiency": None, "runs": len(found[way.name]),
        }  # fmt: skip
        if here is not None:
            seconds, alone = (_predicted(workload, w, here) for w in (way, one))
            row["predicted"] = round(seconds, 6)
            row["predicted_efficiency"] = round(work / flops_one / n * alone / seconds, 4)
        told.append(row)
    return told


def _machine(found: dict, looks: dict, together: int, cores: int, like):
    """Build the cost model's machine from the probes; None on GPUs."""
    from course_lib.estimate.time.calibrate import machine

    if not looks:
        return None
    medians = {name: statistics.median(found[name]) for name in looks}
    return machine(medians, together, cores, 10**9, like)


def _place(workload: dict, way: Way):
    from course_lib.estimate.setting import Setting
    from course_lib.estimate.time import Place

    stage = workload["stage"] if way.dp > 1 else 0
    return Setting(way.rows, stage=stage, precision="float32"), Place(way.tp, way.dp, way.world)


def _predicted(workload: dict, way: Way, here) -> float:
    from course_lib.estimate.time import Constants, costs, step_seconds

    counted = costs(config_of(workload, way), *_place(workload, way), workload["length"])
    return step_seconds(counted, here, Constants()).total


def _peaks(me, workload: dict, together: int) -> tuple[float, float]:
    """Measure the flops per second of a single rank, and of all that have a core or a GPU."""
    from course_lib.train.flops import measured_peak

    given = workload["peak_tflops"] * 1e12
    if given:
        return given, given * together
    sums = []
    for ranks in (1, together):
        _ranks._settle(me)
        here = measured_peak(me.device, torch.float32) if me.rank < ranks else 0.0
        both = torch.tensor([here], dtype=torch.float64)
        dist.all_reduce(both)
        sums.append(both.item())
    return sums[0], sums[1]


def _made(me, workload: dict, way: Way):
    """Create (the timed method, its mesh); for the single rank, the others create it and sleep."""
    from plan import _alone

    from course_lib import ranks, zero
    from course_lib.gpt import GPT
    from course_lib.step.losses import loss_sum
    from course_lib.tensor_parallel import parallelize

    alone = way.name == ONE
    mesh = _alone(me) if alone else ranks.mesh(me, dp=way.dp, tp=way.tp)
    config, length = config_of(workload, way), workload["length"]
    torch.manual_seed(0)  # the same weights, whatever the sharding
    model = GPT(config)
    if way.tp > 1:
        parallelize(model, mesh)
    model = model.to(me.device)
    engine = zero.engine(
        model, torch.optim.AdamW(model.parameters(), lr=1e-4), mesh=mesh, clip=1.0,
        stage=workload["stage"] if way.dp > 1 else 0,
    )  # fmt: skip
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(config.vocabulary, (way.dp * way.rows, length + 1), generator=drawn)
    first = 0 if alone else mesh.get_local_rank("dp") * way.rows
    own = ids[first : first + way.rows].to(me.device)
    inputs, targets = own[:, :-1].contiguous(), own[:, 1:].contiguous()

    def step() -> float:
        loss = loss_sum(engine.module, inputs, targets)
        engine.backward(loss, tokens=targets.numel())
        engine.step()
        return loss.item()

    return _ranks.Method(step, held=0, alone=alone), mesh


def _sent(me, workload: dict, way: Way, method, mesh) -> dict:
    """Count a step's bytes over each axis and compare them with the closed forms on every rank.

    Norms and token counts are sent in float64 and are excluded.
    """
    from course_lib.estimate.outline import outline_of_rank
    from course_lib.estimate.over_tp import tensor_parallel_bytes
    from course_lib.estimate.traffic import must_bytes
    from course_lib.ledger import ledger

    config, stage = config_of(workload, way), workload["stage"]
    forms = {"tp": 0.0, "dp": 0.0}
    if way.tp > 1:
        own = mesh.get_local_rank("tp")
        forms["tp"] = tensor_parallel_bytes(config, way.rows, workload["length"], way.tp, rank=own)
        outline = outline_of_rank(config, way.tp, own)
    if way.dp > 1:
        whole = outline if way.tp > 1 else config
        forms["dp"] = sum(must_bytes(whole, stage=stage, n=way.dp).values())
    with ledger(mesh) as book:
        if me.rank == 0 or not method.alone:
            method.step()
    told = {}
    for axis, form in forms.items():
        records = [r for r in book.records if r.dtype == "float32" and r.axis == axis]
        counted = float(sum(r.must for r in records))
        if abs(counted - form) > 1e-9 * max(counted, form):
            raise RuntimeError(
                f"rank {me.rank} has sent {counted:,.1f} bytes over {axis} in a step of "
                f"{asdict(way)}, but the closed form gives {form:,.1f}; one of them is wrong"
            )
        told[axis] = {"counted": counted, "form": form}
    return told


def _of_all(way: Way, losses: list[float], workload: dict) -> list[float]:
    """Average the loss of each step over all tokens of all replicas."""
    tokens = way.rows * way.dp * workload["length"]
    if way.name == ONE:
        return [loss / tokens for loss in losses]
    sums = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(sums)  # over every rank; the ranks of a replica have equal losses
    return [loss / way.tp / tokens for loss in sums.tolist()]
