"""Impossible runs, found before any rank waits: sizes, layouts, stages, and earlier checkpoints.

Each refusal names the option, its value and a replacement. Lesson 12.
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
NOWHERE = "offload"  # default folder name below --out


def resolve(options: Options, world: int) -> Options:
    """Resolve the options of a run of `world` ranks, with a checkpoint's options if it is resumed.

    Options that were not typed keep saved values; typed ones must not change the curve.
    """
    if options.ranks not in (0, world):
        raise Refused(
            f"--ranks {options.ranks} does not match this run of {world} rank(s). Omit it, or "
            "start the run with `course train`"
        )
    if not (options.resume and options.out):
        check(options, world)
        check_folder(options)
        return options
    if options.from_:
        raise Refused("--from starts a new run but --resume continues an old run; omit one of them")
    path, record = last(Path(options.out))
    saved = record["options"]
    for name in options.typed:
        value = getattr(options, name)
        if name not in FREE | LAYOUT and saved.get(name) != value:
            raise Refused(
                f"{flag(name)} {value} differs from {path}, which was trained with {flag(name)} "
                f"{saved.get(name)}; omit it to resume, or start a new run with --from {path}"
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
    """Return the saved options without the layout options that a different layout does not use."""
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
    """Refuse a folder of a different run, or of a run that has continued since the check."""
    top = Path(options.out) / FOLDER
    if options.checkpoint:
        path, _ = last(Path(options.out))
        if str(path) != options.checkpoint:
            raise Refused(
                f"--out {options.out}: a different run has continued from {options.checkpoint} to "
                f"{path} in the meantime. Start again"
            )
    elif options.out and ((top / LATEST).exists() or whole(top)):
        raise Refused(
            f"--out {options.out} holds a run with checkpoints; continue it (--resume), or name a "
            "different folder"
        )


def check(options: Options, world: int, *, tokenizer: bool = True) -> None:
    """Refuse impossible options for `world` ranks; with `tokenizer`, the run trains a tokenizer."""
    for name, least in AT_LEAST.items():
        value = getattr(options, name)
        if not (value >= least and math.isfinite(value)):
            kind = "a finite number, " if isinstance(least, float) else ""
            raise Refused(f"{flag(name)} {value} must be {kind}{least:g} or more")
    if not 0 < options.timeout <= LONGEST:
        raise Refused(
            f"--timeout {options.timeout} must be above 0 and at most {LONGEST} seconds (ten days)"
        )
    if not options.held_back < 1:
        raise Refused(f"--held-back {options.held_back} leaves nothing to train on; use 0.05")
    if not options.held_back and options.validate_every and "validate_every" in options.typed:
        raise Refused(
            f"--validate-every {options.validate_every} has no validation data, because "
            "--held-back is 0; use 0.05, or --validate-every 0"
        )
    if world % options.tp:
        fit = [n for n in range(1, world + 1) if world % n == 0]
        raise Refused(
            f"--tp {options.tp} does not divide the {world} rank(s) of this run into replicas. Use "
            f"one of {', '.join(map(str, fit))}, or start a different number of ranks"
        )
    if options.rows % options.accumulate:
        raise Refused(
            f"--rows {options.rows} cannot be divided into --accumulate {options.accumulate} "
            "micro-batches of equal size; use a multiple"
        )
    if options.micro_rows < world // options.tp:
        raise Refused(
            f"--rows {options.rows} in {options.accumulate} micro-batch(es) leaves some of the "
            f"{world // options.tp} replicas without a row; use more rows"
        )
    if options.resume and not options.out:
        raise Refused("--resume continues the run in a folder, so name the folder with --out")
    _check_stage(options)
    if not options.from_:
        if tokenizer and options.vocabulary <= BYTES + 1:
            raise Refused(
                f"--vocabulary {options.vocabulary} must be above {BYTES + 1}, because all bytes "
                "and the end of a document are entries before any merge"
            )
        _check_config(options.config(), options)


def _check_stage(options: Options) -> None:
    """Refuse a stage and an offload that cannot be combined."""
    stay = [name for name in ("parameters", "optimizer") if not getattr(options, f"offload_{name}")]
    flags = [f"--no-offload-{name}" for name in stay]
    of_three = ["--fast"] * options.fast + flags
    of_three += [f"--units {options.units}"] if options.units else []
    if options.stage != 3 and of_three:
        raise Refused(
            f"{of_three[0]} needs stage 3, where parameters are sharded, but this is --stage "
            f"{options.stage}; use --stage 3, or omit it"
        )
    if stay and (options.offload == "none" or len(stay) == 2):
        remedy = "use --offload cpu or nvme" if len(stay) == 1 else "omit one of the two"
        raise Refused(f"{' '.join(flags)} leaves nothing to offload; {remedy}")
    if options.offload_folder and options.offload != "nvme":
        raise Refused(
            f"--offload-folder {options.offload_folder} is for files, but this is --offload "
            f"{options.offload}; use --offload nvme, or omit the folder"
        )
    try:
        OffloadPlan.named(offload_of(options, Path("runs")), options.stage)
    except (ValueError, TypeError) as error:
        raise Refused(f"--stage {options.stage} --offload {options.offload}: {error}") from error


def offload_of(options: Options, out: Path) -> dict | None:
    """Return the offload= argument of zero.engine."""
    if options.offload == "none":
        return None
    plan: dict = {"optimizer": options.offload if options.offload_optimizer else None}
    if options.stage == 3 and options.offload_parameters:
        plan["parameters"] = options.offload
    if options.offload == "nvme":
        plan["folder"] = Path(options.offload_folder or out / NOWHERE)
        plan["take_over"] = True  # a killed run may have left its files; we hold the lock
    return plan


def make_folder(folder: Path) -> None:
    """Create the folder for an offload's files; if that fails on a rank, all ranks refuse."""
    with all_or_none([dist.group.WORLD], f"--offload-folder {folder}", error=Refused):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                f"--offload-folder {folder}: {error.strerror}. Name a folder on a local disk that "
                "this user can write into"
            ) from error


def _check_config(config: Config, options: Options) -> None:
    """Refuse, before a rank is started, configs that the sharding plan would refuse."""
    try:
        shares(config.heads, config.kv_heads, options.tp)
        check_vocabulary(config.vocabulary, options.tp)
    except ValueError as error:
        raise Refused(f"--tp {options.tp}: {error}") from error
    if options.units:
        units_of(without_numbers(config), options.units)


def units_of(model: nn.Module, patterns: str) -> list[nn.Module] | None:
    """Return the modules that --units names, in the model's order; a ModuleList means its members.

    A pattern has as many parts as the name, with wildcards, such as blocks.*.mlp or blocks.[01].
    """
    if not patterns:
        return None
    named = {name: module for name, module in model.named_modules() if name}
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        parts = pattern.strip().split(".")
        if parts == [""]:
            raise Refused(
                f"--units {patterns} contains an empty pattern; remove the extra comma, or the "
                "option"
            )
        hits = [name for name in named if _fits(name.split("."), parts)]
        if not hits:
            tops = sorted({name.split(".")[0] for name in named})
            raise Refused(
                f"--units {pattern.strip()} matches no module of the model. It has "
                f"{', '.join(tops)}, and submodules such as {_deepest(named)}; *, ? and [01] match "
                "parts of a name"
            )
        for name in hits:
            inside = named[name]
            members = inside if isinstance(inside, nn.ModuleList) else None
            chosen |= {name} if members is None else {f"{name}.{i}" for i in range(len(members))}
    nested = [a for a in chosen for b in chosen if a.startswith(f"{b}.")]
    if nested:
        raise Refused(
            f"--units {patterns}: {min(nested)} is inside a different named module, but a "
            "parameter belongs to one unit. Name the outer or the inner module"
        )
    return [module for name, module in named.items() if name in chosen]


def _fits(name: list[str], parts: list[str]) -> bool:
    return len(name) == len(parts) and all(map(fnmatchcase, name, parts))


def _deepest(named: dict[str, nn.Module]) -> str:
    return max(named, key=lambda name: name.count("."))


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a dtype in which this device cannot run a layer's forward and backward pass."""
    dtype = getattr(torch, precision)
    if dtype == torch.bfloat16 and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise Refused(
                f"--precision bfloat16: {torch.cuda.get_device_name(device)} has no bfloat16 "
                "arithmetic. Use float16 or float32"
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
            f"--precision {precision} is not supported by the {device.type} of this rank "
            f"({first}); use a different precision"
        ) from error
