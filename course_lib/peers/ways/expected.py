"""A way's held and sent bytes in closed form, for Ψ parameters on N ranks in fp32.

If a way needs more than ZeRO's formula, `why` gives the reason. The forms are exact if N divides
every sharded dim; otherwise a shard is at most one piece longer. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from course_lib.peers.ways.ds_config import BUCKET
from course_lib.peers.ways.setting import WaySetting

OURS, DEEPSPEED, FSDP = "course_lib", "deepspeed", "fsdp2"
FAMILY = {"trainer+deepspeed": DEEPSPEED, "trainer+fsdp": FSDP}


@dataclass(frozen=True)
class Expected:
    """The expected bytes by kind, the maximum of other bytes, bytes per step, and the reasons."""

    held: dict[str, Fraction]
    beside: int  # maximum of "other": buckets and buffers of a fixed size
    must: Fraction
    why: tuple[str, ...] = ()


def expected(
    way: str, setting: WaySetting, parameters: int, world: int, *, tied: int = 0
) -> Expected:
    """Compute the closed form; `tied` counts parameters of a table that is read twice."""
    way = FAMILY.get(way, way)
    if setting.offload == "nvme" or setting.precision == "float16":
        raise ValueError(f"this module has no closed form for {setting}")
    whole, part = Fraction(parameters), Fraction(parameters, world)
    sent = Fraction(world - 1, world) * parameters  # elements of a gather or a reduce-scatter
    weight = 4 if setting.precision == "float32" else 2
    if way == "dense":
        return Expected(_kinds(weight * whole, _copied(weight, whole), 8 * whole), 0, Fraction(0))
    if way == FSDP:
        return _fsdp2(setting, part, sent, weight)
    if way == OURS:
        return _ours(setting, whole, part, sent, weight)
    if way == DEEPSPEED:
        return _deepspeed(setting, whole, part, sent, weight, tied)
    raise ValueError(f"there is no closed form for {way!r}")


def _kinds(parameters, masters, states, gradients=0) -> dict[str, Fraction]:
    named = ("parameters", "master weights", "optimizer states", "gradients")
    values = (parameters, masters, states, gradients)
    return {name: Fraction(value) for name, value in zip(named, values, strict=True)}


def _copied(weight: int, elements: Fraction) -> Fraction:
    """Return the bytes of fp32 master weights if weights have 16 bits."""
    return 4 * elements if weight == 2 else Fraction(0)


def _ours(setting: WaySetting, whole, part, sent, weight: int) -> Expected:
    stage, micro = setting.stage, setting.accumulate
    owner = whole if stage == 0 else part
    masters = 4 * owner if setting.offload == "optimizer" else _copied(weight, owner)
    gradients = weight * whole if stage < 2 else 0
    if stage == 3:
        return Expected(_kinds(weight * part, masters, 8 * part), 0, 3 * weight * sent * micro)
    reduced = sent * (micro if stage == 2 else 1)
    held = _kinds(weight * whole, masters, 8 * owner, gradients)
    return Expected(held, 0, weight * (reduced + sent))


def _fsdp2(setting: WaySetting, part, sent, weight: int) -> Expected:
    why, micro = (), setting.accumulate
    if weight == 2:
        why = (
            "its shards are fp32, so they are also the master weights; a gather casts them to bf16",
            "gradients are reduced in fp32 (reduce_dtype)",
        )
    if setting.stage == 2:
        why += ("parameters are also freed after the backward pass, so each micro-batch gathers",)
    gathers = weight * sent * micro * (2 if setting.stage == 3 else 1)
    return Expected(_kinds(4 * part, 0, 8 * part), 0, gathers + 4 * sent * micro, why)


def _deepspeed(setting: WaySetting, whole, part, sent, weight: int, tied: int) -> Expected:
    stage, micro = setting.stage, setting.accumulate
    if stage == 0:
        held = _kinds(weight * whole, _copied(weight, whole), 8 * whole)
        return Expected(held, 0, 2 * weight * sent)
    why = ["it keeps an fp32 master copy even of fp32 weights, so 4Ψ/N more"]
    bucket, gradients, beside = 4 * BUCKET, Fraction(0), 0
    if setting.offload is not None:
        gradients, beside = 4 * part, bucket + 12 * int(part)
        why.append("offload keeps the partition's gradients on the host, plus 12Ψ/N for staging")
    if stage < 3:
        why.append("gradients are all-reduced, which takes twice the bytes of a reduce-scatter")
        must = weight * (2 * sent * (1 if stage == 1 else micro) + sent)
        held = _kinds(weight * whole, 4 * part, 8 * part, gradients)
        return Expected(held, beside, must, tuple(why))
    why.append("the partition's gradients have a permanent buffer, so 4Ψ/N more and a bucket")
    if tied:
        why.append("a tied table is gathered at each use, twice in forward and in backward")
    must = weight * micro * (3 * sent + 2 * sent * tied / whole)
    held = _kinds(weight * part, 4 * part, 8 * part, weight * part)
    return Expected(held, bucket + beside, must, tuple(why))
