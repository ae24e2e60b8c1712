"""The stages on one GPU, the most valuable first, and the reasons against success.

Lessons and tests check only correctness, so they run in parallel in the remaining time. No lesson
derives it.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable
from typing import Any

from tools.accept_gpu.reading import last_json
from tools.accept_gpu.running import Place, grouped
from tools.accept_gpu.sizes import Sizes, fitting
from tools.accept_gpu.stages import Found, Stage, doctor, tests
from tools.accept_gpu.training import trained, training

SECONDS = 540.0  # for everything, by default
EACH = 75.0  # maximum seconds of one benchmark
REST = 86_400.0  # a limit for stages that use the remaining time
BENCH = ("-m", "course_classroom.cli", "bench")
GROUPS = ("doctor", "gpu-tests", "micro", "training", "bench", "layouts", "lessons", "tests")
LESSONS = ("01", "04", "07", "08", "09", "11", "12")
# Tests that create tensors on `me.device` or inspect a device's memory; collectives first.
DEVICE_TESTS = [f"tests/course_lib/{name}" for name in (
    "collectives", "test_ranks.py", "ledger", "memory", "tensor_parallel", "zero", "step",
    "test_norms.py", "gpt/test_gpt.py", "test_generate.py", "test_generate_cut.py", "checkpoint",
    "train", "peers/ways/test_ways.py",
)]  # fmt: skip
PEERS = "only=course_lib-0,course_lib-1,course_lib-2,course_lib-3-fast,course_lib-3-lean,"
PEERS += "course_lib-3-cpu,fsdp2,fsdp2-reshard"
COMMON = (
    "--steps 20 --warmup 2 --corpus-bytes 1500000 --validate-every 0 --log-every 5 --keep 1 --json"
)
HALF = ["--precision", "bfloat16"]
RUNS = {
    "bf16": HALF,
    "fp32": ["--steps", "10"],
    "bf16, stage 3, fused loss": [*HALF, "--stage", "3", "--fused-loss"],
    "bf16, stage 2 on the host": [*HALF, "--stage", "2", "--offload", "cpu"],
    "bf16, stage 3 on the host": [*HALF, "--stage", "3", "--offload", "cpu"],
    "bf16, tp 2 on one GPU": [*HALF, "--ranks", "2", "--tp", "2", "--steps", "10"],
}


def stages(sizes: Sizes, gpu: bool, cores: int) -> list[Stage]:
    """List all stages for sizes that fit; without a GPU, the GPU tests only report that."""
    many = max(1, cores // 3)

    def run_layouts(world: int) -> Stage:
        words = "one rank" if world == 1 else "two ranks that share the GPU"
        return Stage(
            f"layouts on {words}", "layouts", 90,
            lambda place, limit: training(place, limit, world, at_once=min(5, many)),
        )  # fmt: skip

    found = [
        Stage("doctor", "doctor", 90, doctor),
        Stage("gpu tests", "gpu-tests", 90,
              lambda place, limit: gpu_tests(place, limit, min(3, many))),
        Stage("measurements", "micro", 60, lambda place, limit: micro(place, limit, sizes)),
        Stage("training", "training", 240, lambda place, limit: runs(place, limit, sizes)),
        Stage("benches", "bench", 150, lambda place, limit: benches(place, limit, sizes)),
        run_layouts(1),
        run_layouts(2),
        Stage("lessons", "lessons", REST,
              lambda place, limit: lessons(place, limit, min(4, many)), "the rest"),
        Stage("device tests", "tests", REST,
              lambda place, limit: device_tests(place, limit, min(6, many)), "the rest"),
    ]  # fmt: skip
    return [one if gpu or one.name != "gpu tests" else _without_gpu(one) for one in found]


def _without_gpu(stage: Stage) -> Stage:
    words = "it needs a GPU, but torch sees none here"
    told = {"ok": True, "found": words, "left_out": [words]}
    return Stage(stage.name, stage.group, stage.limit, lambda place, limit: dict(told))


def sizes_here(place: Place) -> Sizes:
    """Choose sizes that fit the free GPU memory. A separate process asks, because the CUDA context
    of the asking process remains on the GPU."""
    ask = "import json, torch; print(json.dumps({'free': torch.cuda.mem_get_info(0)[0]}))"
    found = last_json(place.python(60.0, "-c", ask).out) or {"free": 0}
    return fitting(found["free"])


def why_not(results: Iterable[dict[str, Any]], gpu: bool, rehearsal: bool) -> list[str]:
    """List every reason against success: errors, and stages left out."""
    reasons = ["this was a rehearsal"] if rehearsal else []
    for one in results:
        name = one["name"]
        reasons += [] if one["ok"] else [f"{name}: {one['found']}"]
        reasons += [f"{name}: left out: {words}" for words in one.get("left_out", [])]
        if gpu and name == "layouts on one rank" and one.get("backends", ["nccl"]) != ["nccl"]:
            reasons.append(f"{name}: the rank used {', '.join(one['backends'])}, not nccl")
        if gpu and any(not device.startswith("cuda") for device in one.get("devices", [])):
            reasons.append(f"{name}: ranks computed on {', '.join(one['devices'])}")
    return reasons


def gpu_tests(place: Place, limit: float, workers: int) -> Found:
    """Run every test marked gpu except lesson 13's. Those run last, with the device tests, because
    DeepSpeed compiles extensions for them."""
    files = [str(file.relative_to(place.root)) for file in place.root.glob("tests/**/test_*.py")
             if "mark.gpu" in file.read_text(errors="replace")]  # fmt: skip
    files = sorted(file for file in files if not file.startswith("tests/course_lib/peers/ways"))
    return tests(place, limit, "-m", "gpu", *_workers(workers), *files)


def device_tests(place: Place, limit: float, workers: int) -> Found:
    return tests(place, limit, *_workers(workers), *DEVICE_TESTS)


def _workers(count: int) -> list[str]:
    there = importlib.util.find_spec("xdist") is not None
    return ["-n", str(count), "--dist", "loadfile"] if there and count > 1 else []


def micro(place: Place, limit: float, sizes: Sizes) -> Found:
    """Measure the GPU's rates, the loss as a share of them, and the hidden part of a copy."""
    numbers = (sizes.copied, sizes.product, sizes.tokens, sizes.vocabulary, sizes.transfer)
    ended = place.python(limit, "-m", "tools.accept_gpu.micro", *map(str, numbers))
    measured = last_json(ended.out) or {}
    words = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in measured.items()
              if isinstance(value, float)]  # fmt: skip
    for row in measured.get("rows", []):
        words.append(f"loss {row['loss']} {row['dtype']} {row['share_of_copy']:.0%} of the copy")
    for kind, one in measured.get("transfers", {}).items():
        words.append(f"{kind}: {one['words']}")
    if measured.get("device") == "CPU":
        words.append("copies from the host need a GPU")
    words.append(str(sizes) if ended.code == 0 else ended.how())
    return {"ok": ended.code == 0, "late": ended.code is None, "found": "; ".join(words),
            "sizes": str(sizes), "measured": measured}  # fmt: skip


def runs(place: Place, limit: float, sizes: Sizes) -> Found:
    """Run trainings with their speed and MFU, and check them against the formulas."""
    common = ["--ranks", "1", *COMMON.split(), *sizes.model.split()]
    found = trained(place, limit, {name: [*common, *argv] for name, argv in RUNS.items()})
    return {**found, "found": f"{found['found']}; {sizes}"}


def benches(place: Place, limit: float, sizes: Sizes) -> Found:
    """Run three benchmarks on one rank; a missing peer is named and is not an error."""
    loss = f"tokens={sizes.tokens} vocabulary={sizes.vocabulary} hidden={sizes.hidden}"
    settings = {
        "loss": loss.split(),
        "tp": [*sizes.tp.split(), "dtype=bfloat16"],
        "zero": [*sizes.zero.split(), PEERS],
    }
    jobs = {
        name: [*BENCH, name, "--runs", "7", "--limit", "40", "--json",
               *(word for one in ["ranks=1", *sets] for word in ("--set", one))]
        for name, sets in settings.items()
    }  # fmt: skip
    amiss, told = [], []
    left_out: dict[str, str] = {}
    for name, ended in place.together(limit, EACH, jobs):
        document = last_json(ended.out)
        if ended.left_out:
            left_out[name] = ended.left_out
        elif ended.code != 0:
            amiss.append(f"{name}: {ended.how()}")
        if document is not None:
            words = ", ".join(f"{row['name']} {row['ratio']:.2f}" for row in document["methods"])
            place.keep(name, {"ok": ended.code == 0, "found": words, "bench": document})
            told.append(name)
    found = "; ".join(amiss) or f"{', '.join(told)} measured"
    return {"ok": not amiss, "found": found, "left_out": grouped(left_out)}


def lessons(place: Place, limit: float, at_once: int) -> Found:
    """Run lessons on one rank and on two that share the GPU; list their errors by cell."""
    jobs = {}
    for number in LESSONS:
        for file in place.root.glob(f"notebooks/{number}_*.ipynb"):
            for world in (1, 2):
                folder = tempfile.mkdtemp(prefix="k-", dir=place.scratch)
                words = ["-m", "tools.accept_gpu.lesson", str(file), str(world), folder]
                jobs[f"lesson {number} on {world}"] = words
    amiss: list[str] = []
    left_out: dict[str, str] = {}
    for name, ended in place.together(limit, REST, jobs, at_once):
        found = last_json(ended.out) or {"cells": 0, "errors": [], "ended": False}
        words = f"{len(found['errors'])} errors in {found['cells']} cells"
        if ended.left_out:
            left_out[name] = ended.left_out
            words += f"; {ended.left_out}"
        elif not found["ended"]:
            words += f"; {ended.how()}"
        good = not found["errors"] and (found["ended"] or bool(ended.left_out))
        amiss += [] if good else [f"{name}: {words}"]
        if found["cells"]:
            place.keep(name, {"ok": good, **found, "found": words})
    told = "; ".join(amiss) or f"{len(jobs) - len(left_out)} of {len(jobs)} completed"
    return {"ok": not amiss, "found": told, "left_out": grouped(left_out)}
