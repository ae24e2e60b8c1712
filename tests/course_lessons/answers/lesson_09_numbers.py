"""Answers to `sixteen_bytes` of lesson 09: by hand, and misread in likely ways."""

from __future__ import annotations


def numbers(
    half=(2, 2), single=(4, 4), master=4, moments=8, n=32, whole=(1, 1), master_of_float=0,
    float_gradient=4 / 32, momentum=4, moves=(2, 2), of_a_move=31 / 32, sent=2, last=23,
) -> dict[str, float]:  # fmt: skip
    """The nine numbers by hand; each argument is something that may be misread."""
    kept = half[0] * whole[0] + half[1] * whole[1]
    wide = single[0] * whole[0] + single[1] * whole[1]
    return {
        "bytes a parameter": sum(half) + master + moments,
        "stage 0": 12 * (sum(half) + master + moments),
        "stage 1": 12 * (kept + (master + moments) / n),
        "stage 1, float32": 12 * (wide + (master_of_float + moments) / n),
        "before the update": 12 * (kept + (master + moments) / n + float_gradient),
        "momentum": 12 * (kept + (master + momentum) / n),
        "sent at stage 0": moves[0] * 12 * sent * of_a_move,
        "sent at stage 1": moves[1] * 12 * sent * of_a_move,
        "the last rank's moments": moments * last,
    }


NUMBERS = numbers()
# How an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("no master", numbers(master=0), "no master copy"),
    ("short moments", numbers(moments=4, momentum=2), "moments in 16 bits"),
    ("no gradients", {**numbers(half=(2, 0)), "stage 1, float32": NUMBERS["stage 1, float32"]},
     "gradients forgotten"),
    ("all sharded", numbers(whole=(1 / 32, 1 / 32)), "everything sharded"),
    ("stage 2", numbers(whole=(1, 1 / 32)), "gradients sharded"),
    ("not sharded", numbers(n=1), "nothing sharded"),
    ("master of float32", numbers(master_of_float=4), "a master copy of float32"),
    ("wide gradients", numbers(float_gradient=4), "float32 gradients not sharded"),
    ("none of them", numbers(float_gradient=0), "float32 gradients forgotten"),
    ("as Adam", numbers(momentum=8), "momentum counted as Adam"),
    ("no momentum", numbers(momentum=0), "no momentum at all"),
    ("one move", numbers(moves=(1, 1)), "all-reduce counted as one move"),
    ("half of it", numbers(moves=(2, 1)), "the half that carries parameters"),
    ("three moves", numbers(moves=(2, 3)), "three moves"),
    ("the limit", numbers(of_a_move=1), "limit for large N"),
    ("wide messages", numbers(sent=4), "sent in float32"),
    ("padding", numbers(last=26), "padding has moments"),
    ("equal", numbers(last=101 / 4), "equal shares"),
    ("down", numbers(last=25), "rounded down"),
    ("all moments", numbers(last=101), "moments of the full bucket"),
    ("18 bytes", numbers(half=(2, 4)) | {"stage 1, float32": NUMBERS["stage 1, float32"]},
     "gradients in float32"),
    ("20 bytes", {**NUMBERS, "bytes a parameter": 20, "stage 0": 240}, "gradients in both types"),
    ("copied in 16 bits", numbers(float_gradient=2 / 32), "float32 gradients of 2 bytes"),
    (
        "a master copy each",
        {**NUMBERS, "stage 1": 99, "momentum": 97.5},
        "master weights not sharded",
    ),
    ("no states", {**NUMBERS, "momentum": 48}, "states forgotten"),
    ("all 32", {**NUMBERS, "stage 0": 6144, "sent at stage 0": 1488}, "all ranks together"),
    ("an n-th", {**NUMBERS, "stage 0": 6}, "total divided by ranks"),
    ("GiB", {k: v / 1.073741824 if k not in ("bytes a parameter", "the last rank's moments") else v
             for k, v in NUMBERS.items()}, "GiB for GB"),
    ("one whole move", {**NUMBERS, "sent at stage 0": 24}, "one move, and all of it"),
    ("with the master copy", numbers() | {"the last rank's moments": 276},
     "the master copy is no moment"),
    ("megabytes", {k: v * 1e3 if k not in ("bytes a parameter", "the last rank's moments") else v
                   for k, v in NUMBERS.items()}, "unit"),
    ("two ideas", {**NUMBERS, "momentum": 12 * (4 + 12 / 32), "sent at stage 1": 12 * 2 * 31 / 32},
     "several ideas"),
    ("unforeseen", {**NUMBERS, "stage 0": 77}, "wrong number"),
]  # fmt: skip

RIGHT: dict = {"sixteen_bytes": {"by hand": NUMBERS}}
WRONG: dict = {"sixteen_bytes": {how: (given, called) for how, given, called in MISREAD}}
