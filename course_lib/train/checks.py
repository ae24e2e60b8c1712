"""What a run cannot be, found before anybody waits: sizes, layouts, stages, what was saved before.

Each refusal names the option, its value and what to type in its place. Lesson 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course_lib.checkpoint.folder import LATEST, whole
from course_lib.collectives.agreement import all_or_none
from course_lib.data.corpus import BYTES
from course_lib.gpt import Config
from course_lib.pretrained.sketch import without_numbers
from course_lib.tensor_parallel.embedding import check_vocabulary
from course_lib.tensor_parallel.qkv_layout import shares
from course_lib.train.options import FREE, LAYOUT, Options, Refused, flag
from course_lib.train.record import FOLDER, last
from course_lib.zero.offload import OffloadPlan

AT_LEAST = dict.fromkeys(("tp", "steps", "rows", "length", "accumulate", "keep"), 1)
AT_LEAST |= {"log_every": 1, "corpus_bytes": 1, "warmup": 0, "save_every": 0, "kv_heads": 0}
AT_LEAST |= {"inner": 0, "lr": 0.0, "decay": 0.0, "clip": 0.0, "peak_tflops": 0.0, "seed": 0}
AT_LEAST |= {"validate_every": 0, "held_back": 0.0, "ranks": 0}
LONGEST = 10 * 24 * 60 * 60  # seconds; torch adds a timeout to a time in 64 bits of nanoseconds
NOWHERE = "offload"  # the folder's name below --out, where no other is named


def resolve(options: Options, world: int) -> Options:
    """The options of a run of `world` ranks; where it goes on, filled up from its checkpoint.

    What was not typed is as it was; what was typed and would give another curve is refused.
    """
    if options.ranks not in (0, world):
        raise Refused(
            f"--ranks {options.ranks}: this run was started with {world} rank(s); leave it out, or "
            "start it with `course train`"
        )
    if not (options.resume and options.out):
        check(options, world)
        check_folder(options)
        return options
    if options.from_:
        raise Refused(
            "--from begins a new run, and --resume goes on with one: leave one of them out"
        )
    path, record = last(Path(options.out))
    saved = record["options"]
    for name in options.typed:
        value = getattr(options, name)
        if name not in FREE | LAYOUT and saved.get(name) != value:
            raise Refused(
                f"{flag(name)} {value} is not what {path} was trained with, {flag(name)} "
                f"{saved.get(name)}; leave it out to go on, or begin a run of its own with --from "
                f"{path}"
            )
    typed = {name: getattr(options, name) for name in options.typed}
    resolved = Options(
        **{**_laid_out(saved, typed), "ranks": 0, "json": False, "plot": False, **typed},
        typed=options.typed,
        checkpoint=str(path),
    )
    check(resolved, world)
    return resolved


def _laid_out(saved: Mapping, typed: Mapping) -> dict:
    """What was saved, without the options of its layout that another one has no use for."""
    values, default = dict(saved), Options()
    stage = typed.get("stage", saved["stage"])
    if "stage" in typed and stage == 0:
        values["offload"] = default.offload
    offload = typed.get("offload", values["offload"])
    if stage != 3:
        values |= {"units": default.units, "fast": default.fast}
    if stage != 3 or offload == "none" or "offload" in typed:
        of_three = ("offload_parameters", "offload_optimizer")
        values |= {name: getattr(default, name) for name in of_three}
    if offload != "nvme":
        values["offload_folder"] = default.offload_folder
    return values


def check_folder(options: Options) -> None:
    """Refuse a folder that holds another run, or one that has gone on since it was looked at."""
    top = Path(options.out) / FOLDER
    if options.checkpoint:
        path, _ = last(Path(options.out))
        if str(path) != options.checkpoint:
            raise Refused(
                f"--out {options.out}: another run has gone on from {options.checkpoint} to {path} "
                "meanwhile; start again"
            )
    elif options.out and ((top / LATEST).exists() or whole(top)):
        raise Refused(
            f"--out {options.out} holds a run with checkpoints; go on with it (--resume), or "
            "name another folder"
        )


def check(options: Options, world: int, *, tokenizer: bool = True) -> None:
    """Refuse options that no run of `world` ranks can have; `tokenizer`: one is trained for it."""
    for name, least in AT_LEAST.items():
        value = getattr(options, name)
        if not (value >= least and math.isfinite(value)):
            kind = "a finite number, " if isinstance(least, float) else ""
            raise Refused(f"{flag(name)} {value} has to be {kind}{least:g} or more")
    if not 0 < options.timeout <= LONGEST:
        raise Refused(
            f"--timeout {options.timeout} has to be above 0 and at most {LONGEST} seconds, which "
            "is ten days"
        )
    if not options.held_back < 1:
        raise Refused(f"--held-back {options.held_back} leaves nothing to train on; take 0.05")
    if not options.held_back and options.validate_every and "validate_every" in options.typed:
        raise Refused(
            f"--validate-every {options.validate_every}: --held-back 0 leaves nothing to validate "
            "on; take 0.05, or --validate-every 0"
        )
    if world % options.tp:
        fit = [n for n in range(1, world + 1) if world % n == 0]
        raise Refused(
            f"--tp {options.tp} does not divide the {world} rank(s) of this run into replicas; "
            f"take one of {', '.join(map(str, fit))}, or start another number of ranks"
        )
    if options.rows % options.accumulate:
        raise Refused(
            f"--rows {options.rows} cannot be cut into --accumulate {options.accumulate} "
            "micro-batches of equally many rows; take a multiple"
        )
    if options.micro_rows < world // options.tp:
        raise Refused(
            f"--rows {options.rows} in {options.accumulate} micro-batch(es) leave some of the "
            f"{world // options.tp} replicas without a row; take more rows"
        )
    if options.resume and not options.out:
        raise Refused("--resume goes on with the run in a folder: name it with --out")
    _check_stage(options)
    if not options.from_:
        if tokenizer and options.vocabulary <= BYTES + 1:
            raise Refused(
                f"--vocabulary {options.vocabulary} has to be above {BYTES + 1}: every byte and "
                "the end of a document are entries before any is merged"
            )
        _check_config(options.config(), options)


def _check_stage(options: Options) -> None:
    """Refuse a stage and an offload that do not go together."""
    stay = [name for name in ("parameters", "optimizer") if not getattr(options, f"offload_{name}")]
    flags = [f"--no-offload-{name}" for name in stay]
    of_three = ["--fast"] * options.fast + flags
    of_three += [f"--units {options.units}"] if options.units else []
    if options.stage != 3 and of_three:
        raise Refused(
            f"{of_three[0]} is of stage 3, where parameters are sharded, and this is --stage "
            f"{options.stage}; take --stage 3, or leave it out"
        )
    if stay and (options.offload == "none" or len(stay) == 2):
        remedy = "name --offload cpu or nvme" if len(stay) == 1 else "leave one of the two out"
        raise Refused(f"{' '.join(flags)}: nothing is offloaded; {remedy}")
    if options.offload_folder and options.offload != "nvme":
        raise Refused(
            f"--offload-folder {options.offload_folder} is for files, and this is --offload "
            f"{options.offload}; take --offload nvme, or leave the folder out"
        )
    try:
        OffloadPlan.named(offload_of(options, Path("runs")), options.stage)
    except (ValueError, TypeError) as error:
        raise Refused(f"--stage {options.stage} --offload {options.offload}: {error}") from error


def offload_of(options: Options, out: Path) -> dict | None:
    """What zero.engine takes as offload=."""
    if options.offload == "none":
        return None
    plan: dict = {"optimizer": options.offload if options.offload_optimizer else None}
    if options.stage == 3 and options.offload_parameters:
        plan["parameters"] = options.offload
    if options.offload == "nvme":
        plan["folder"] = Path(options.offload_folder or out / NOWHERE)
        plan["take_over"] = True  # a run that was killed has left its files; the lock is ours
    return plan


def make_folder(folder: Path) -> None:
    """Make the folder for an offload's files; what is wrong with it all ranks refuse."""
    with all_or_none([dist.group.WORLD], f"--offload-folder {folder}", error=Refused):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                f"--offload-folder {folder}: {error.strerror}; name a folder on a local disk that "
                "this user can write into"
            ) from error


def _check_config(config: Config, options: Options) -> None:
    """What the plan of a sharded model would refuse, before a rank is started."""
    try:
        shares(config.heads, config.kv_heads, options.tp)
        check_vocabulary(config.vocabulary, options.tp)
    except ValueError as error:
        raise Refused(f"--tp {options.tp}: {error}") from error
    if options.units:
        units_of(without_numbers(config), options.units)


def units_of(model: nn.Module, patterns: str) -> list[nn.Module] | None:
    """The modules that --units names, in the model's order; of a list of modules, its members.

    A pattern has as many parts as the name, with * and ? in each: blocks.*.mlp, or blocks.[01].
    """
    if not patterns:
        return None
    named = {name: module for name, module in model.named_modules() if name}
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        parts = pattern.strip().split(".")
        if parts == [""]:
            raise Refused(
                f"--units {patterns}: a pattern is empty; leave out the comma that has none beside "
                "it, or the option"
            )
        hits = [name for name in named if _fits(name.split("."), parts)]
        if not hits:
            tops = sorted({name.split(".")[0] for name in named})
            raise Refused(
                f"--units {pattern.strip()}: no module of the model has that name. It has "
                f"{', '.join(tops)}, and in them such as {_deepest(named)}; *, ? and [01] stand "
                "for parts of a name"
            )
        for name in hits:
            inside = named[name]
            members = inside if isinstance(inside, nn.ModuleList) else None
            chosen |= {name} if members is None else {f"{name}.{i}" for i in range(len(members))}
    nested = [a for a in chosen for b in chosen if a.startswith(f"{b}.")]
    if nested:
        raise Refused(
            f"--units {patterns}: {min(nested)} lies inside another of the named modules, and a "
            "parameter belongs to one unit; name the outer or the inner one"
        )
    return [module for name, module in named.items() if name in chosen]


def _fits(name: list[str], parts: list[str]) -> bool:
    return len(name) == len(parts) and all(map(fnmatchcase, name, parts))


def _deepest(named: dict[str, nn.Module]) -> str:
    return max(named, key=lambda name: name.count("."))


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a dtype in which this device cannot run a layer forward and backward."""
    dtype = getattr(torch, precision)
    if dtype == torch.bfloat16 and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise Refused(
                f"--precision bfloat16: {torch.cuda.get_device_name(device)} has no arithmetic in "
                "it; take float16 or float32"
            )
        return
    try:
        x = torch.ones(2, 4, 8, dtype=dtype, device=device, requires_grad=True)
        y = nn.functional.layer_norm(x @ x.transpose(1, 2), (4,))
        y = nn.functional.scaled_dot_product_attention(y[None], y[None], y[None], is_causal=True)
        nn.functional.gelu(y).sum().backward()
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise Refused(
            f"--precision {precision}: the {device.type} of this rank lacks it ({first}); take "
            "another"
        ) from error
