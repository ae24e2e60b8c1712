"""Answers to `fill_batch` of lesson 13: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

FILL = """
def fill_batch(config, world):
    train = config.get("train_batch_size")
    micro = config.get("train_micro_batch_size_per_gpu")
    k = config.get("gradient_accumulation_steps")
    if train is None and micro is None:
        raise ValueError("name a batch or a micro-batch")
    if any(size is not None and size <= 0 for size in (train, micro, k)):
        raise ValueError("a size is above zero")
    if k is None:
        k = train // (micro * world) if train and micro else 1
    if micro is None:
        micro = train // (world * k)
    if train is None:
        train = micro * k * world
    if train <= 0 or micro <= 0 or k <= 0 or train != micro * k * world:
        raise ValueError(f"{train} is not {micro} * {k} * {world}")
    return {
        **config,
        "train_batch_size": train,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": k,
    }
"""
fill = partial(changed, FILL)
# Another style: a match over what is there, an error of its own that is a ValueError.
FILL_BY_CASES = """
import copy

KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


class NoBatch(ValueError):
    pass


def exact(a, b):
    if b == 0 or a % b:
        raise NoBatch(f"{a} does not divide by {b}")
    return a // b


def fill_batch(config, world):
    sizes = [config.get(key) for key in KEYS]
    match [size is not None for size in sizes]:
        case [True, True, False]:
            sizes[2] = exact(sizes[0], sizes[1] * world)
        case [True, False, True]:
            sizes[1] = exact(sizes[0], sizes[2] * world)
        case [False, True, True]:
            sizes[0] = sizes[1] * sizes[2] * world
        case [True, False, False]:
            sizes[1:] = [exact(sizes[0], world), 1]
        case [False, True, False]:
            sizes = [sizes[1] * world, sizes[1], 1]
        case [False, False, _]:
            raise NoBatch("no size")
    if min(sizes) < 1 or sizes[0] != sizes[1] * sizes[2] * world:
        raise NoBatch("does not multiply")
    out = copy.copy(config)
    out.update(zip(KEYS, sizes))
    return out
"""
GIVEN = """    if any(size is not None and size <= 0 for size in (train, micro, k)):
        raise ValueError("a size is above zero")
"""
CHECKED = """    if train <= 0 or micro <= 0 or k <= 0 or train != micro * k * world:
        raise ValueError(f"{train} is not {micro} * {k} * {world}")
"""
NONE = """    if train is None and micro is None:
        raise ValueError("name a batch or a micro-batch")
"""
ALL_THREE = "    if None not in (train, micro, k):\n"
WRONG_FILL = {
    "one rank": (
        fill(("def fill_batch(config, world):\n",
              "def fill_batch(config, world):\n    world = 1\n")),
        "world size left out",
    ),
    "not checked": (fill((GIVEN, ""), (CHECKED, "")), "not checked"),
    "contradiction accepted": (
        fill((NONE, NONE + ALL_THREE + "        return dict(config)\n")),
        "contradiction accepted",
    ),
    "accumulates by itself": (
        fill(
            ("    if k is None:\n",
             "    if k is None and micro is None:\n        micro = 1\n    if k is None:\n"),
        ),
        "accumulates by itself",
    ),
    "the batch made to fit": (
        fill((NONE, NONE + ALL_THREE + "        train = None\n")),
        "the batch changed in silence",
    ),
    "only accumulation named": (
        fill((NONE, "    if train is None and micro is None:\n        micro = 1\n")),
        "only accumulation named",
    ),
    "wants two": (
        fill(("    if train is None and micro is None:\n",
              "    if [train, micro, k].count(None) > 1:\n")),
        "wants two of three",
    ),
    "zero treated as missing": (
        fill(
            ('config.get("train_batch_size")', 'config.get("train_batch_size") or None'),
            ('config.get("train_micro_batch_size_per_gpu")',
             'config.get("train_micro_batch_size_per_gpu") or None'),
            ('config.get("gradient_accumulation_steps")',
             'config.get("gradient_accumulation_steps") or None'),
        ),
        "zero treated as missing",
    ),
    "sign not looked at": (
        fill(
            ("size <= 0 for", "size == 0 for"),
            ("train <= 0 or micro <= 0 or k <= 0 or train !=", "train !="),
        ),
        "sign not looked at",
    ),
    "rounded up": (
        fill(
            ("k = train // (micro * world)", "k = -(-train // (micro * world))"),
            ("micro = train // (world * k)", "micro = -(-train // (world * k))"),
            (CHECKED, ""),
            (NONE, NONE + ALL_THREE + "        if train != micro * k * world:\n"
                                      "            raise ValueError('no product')\n"),
        ),
        "rounded up",
    ),
    "rounded down": (
        fill((CHECKED, "    if min(micro, k) < 1:\n        raise ValueError('0')\n"),
             (NONE, NONE + ALL_THREE + "        if train != micro * k * world:\n"
                              "            raise ValueError('no product')\n")),
        "rounded down",
    ),
    "each divides by itself": (
        fill(
            ("        micro = train // (world * k)\n",
             "        if train % world or train % k:\n            raise ValueError('left over')\n"
             "        return config | dict(\n"
             "            train_micro_batch_size_per_gpu=train // (world * k),\n"
             "            gradient_accumulation_steps=k,\n"
             "        )\n"),
        ),
        "each divides by itself",
    ),
    "each of both by itself": (
        fill(
            (CHECKED, ""),
            (NONE, NONE + ALL_THREE + "        if train != micro * k * world:\n"
                                      "            raise ValueError('no product')\n"
                   "    if train and (train % world or train % (micro or k or 1)):\n"
                   "        raise ValueError('left over')\n"),
        ),
        "each divides by itself",
    ),
    "a share of 0": (
        fill((CHECKED, "    if micro and k and train != micro * k * world:\n"
                       "        raise ValueError('no product')\n")),
        "a share of 0",
    ),
    "accumulation worked out anew": (
        fill(("    if k is None:\n", "    if k is None or train and micro:\n")),
        "accumulation changed in silence",
    ),
    "no accumulation": (
        fill(("train // (micro * world) if train and micro else 1", "1")),
        "accumulation always 1",
    ),
    "None for an error": (
        fill(('raise ValueError(f"{train} is not', 'return None and (f"{train} is not')),
        "not a dictionary",
    ),
    "keys that stay": (
        "SEEN = {}\n" + fill(("    return {\n        **config,\n",
                             "    SEEN.update(config)\n    return {\n        **SEEN,\n")),
        "keys of a different config",
    ),
    "one dictionary for all": (
        "OUT = {}\n" + fill(("    return {\n        **config,\n",
                            "    OUT.clear()\n    OUT.update({\n        **config,\n"),
                            ('accumulation_steps": k,\n    }\n',
                             'accumulation_steps": k,\n    })\n    return OUT\n')),
        "not a new dictionary",
    ),
    "true division": (
        fill(
            ("k = train // (micro * world)", "k = train / (micro * world)"),
            ("micro = train // (world * k)", "micro = train / (world * k)"),
        ),
        "not a whole number",
    ),
    "an assertion": (
        fill(('raise ValueError("name a batch or a micro-batch")',
              'raise AssertionError("name a batch or a micro-batch")')),
        "wrong error",
    ),
    "divides by zero": (
        fill((GIVEN, ""), ("if train and micro else 1",
                           "if train is not None and micro is not None else 1")),
        "wrong error",
    ),
    "in place": (
        fill(("    return {\n        **config,\n", "    config |= {\n"),
             ('accumulation_steps": k,\n    }\n',
              'accumulation_steps": k,\n    }\n    return config\n')),
        "input changed",
    ),
    "the triple alone": (fill(("        **config,\n", "")), "other keys lost"),
    "two of three": (fill(('        "gradient_accumulation_steps": k,\n', "")), "a size missing"),
    "nothing": (fill(("    return {\n", "    {\n")), "nothing returned"),
    "a tuple": (
        "def fill_batch(config, world):\n    return (1, 1, 1)\n", "not a dictionary"),
}  # fmt: skip

# By equations: the one unknown that is left follows from the product.
FILL_BY_PRODUCT = """
from dataclasses import asdict, astuple, dataclass, fields
from fractions import Fraction


@dataclass
class Sizes:
    train_batch_size: object
    train_micro_batch_size_per_gpu: object
    gradient_accumulation_steps: object

    def solved(self, world):
        t, m, k = astuple(self)
        if t is m is None:
            raise ValueError("neither a batch nor a micro-batch")
        if k is None and None in (t, m):
            k = 1
        if 0 in (m, k) or t == 0:
            raise ValueError("a size of 0")
        if t is None:
            t = m * k * world
        rest = Fraction(t, world)
        for x in [Fraction(x) for x in (m, k) if x is not None]:
            rest /= x
        m, k = (rest if m is None else m), (rest if k is None else k)
        sizes = Sizes(t, m, k)
        if any(x < 1 or x != int(x) for x in (t, m, k)) or t != m * k * world:
            raise ValueError(f"no triple: {sizes}")
        return {name: int(x) for name, x in asdict(sizes).items()}


def fill_batch(config, world):
    named = [field.name for field in fields(Sizes)]
    return {**config, **Sizes(*(config.get(name) for name in named)).solved(world)}
"""
OUT = "    return {\n        **config,\n"
WRONG_FILL |= {
    "a multiple of the product": (
        fill(("train != micro * k * world:", "train % (micro * k * world):")),
        "contradiction accepted",
    ),
    "a multiple where three are named": (
        fill((CHECKED, CHECKED.replace("train != micro * k * world", "train < micro * k "
                                       "* world or train % (micro * k * world)"))),
        "contradiction accepted",
    ),
    "one rank is not checked": (
        fill(("or train != micro * k * world:", "or world > 1 and train != micro * k * "
              "world:")),
        "not checked",
    ),
    "without what is false": (
        fill((OUT, "    config = {key: x for key, x in config.items() if x}\n" + OUT)),
        "other keys lost",
    ),
    "without empty sections": (
        fill((OUT, "    config = {key: x for key, x in config.items() "
              "if x not in ({}, None, False)}\n" + OUT)),
        "other keys lost",
    ),
    "false is None": (
        fill(("        **config,\n", "        **{key: x or None for key, x in "
              "config.items()},\n")),
        "other keys lost",
    ),
}  # fmt: skip
RIGHT = {
    "fill_batch": {
        "filled, then checked": FILL,
        "by cases": FILL_BY_CASES,
        "by the product": FILL_BY_PRODUCT,
    }
}
WRONG = {"fill_batch": WRONG_FILL}
