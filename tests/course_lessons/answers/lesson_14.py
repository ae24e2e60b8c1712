"""Answers to `streamed_speed` and `generate_together` of lesson 14: right by another road, and
wrong in likely ways.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

SPEED = """
from math import ceil


def streamed_speed(case):
    N, b, s = case["ranks"], case["batch"], case["prompt"]
    W = case["item"] * case["parameters"]
    got = W * (N - 1) / N
    link = got / case["link"]
    work = 2 * case["parameters"] / case["flops"]
    read = W / case["memory"]
    step = max(link, read, work * b)
    ring = 2 * (N - 1) / N * case["item"] * N * b * case["hidden"] / case["link"]
    return {
        "bytes": got,
        "stage 3": step,
        "tokens/s": N * b / step,
        "dense": max(read, work * b),
        "tp": max(read / N, work * b) + 2 * case["layers"] * ring,
        "break-even": ceil(link / work),
        "prefill": max(link, read, work * b * s),
    }
"""


def speed(*changes: tuple[str, str]) -> str:
    return changed(SPEED, *changes)


WRONG_SPEED = {
    "(N-1)/N forgotten": (speed(("W * (N - 1) / N", "W")), "its own piece too"),
    "a gather for each prompt": (speed(("W * (N - 1) / N", "W * (N - 1) / N * b")),
                                 "the batch counted"),
    "two gathers": (speed(("W * (N - 1) / N", "2 * W * (N - 1) / N")), "a backward counted"),
    "one rank's prompts": (speed(("N * b / step", "b / step")), "one rank's prompts"),
    "three moves": (speed(("W * (N - 1) / N", "3 * W * (N - 1) / N")), "a backward counted"),
    "its own shard": (speed(("W * (N - 1) / N", "W / N")), "only its own piece"),
    "no bytes": (speed(("got = W * (N - 1) / N", 'got = case["parameters"] * (N - 1) / N')),
                 "parameters, not bytes"),
    "a sum of times": (speed(("max(link, read, work * b)\n", "link + max(read, work * b)\n")),
                       "one after the other"),
    "only the link": (speed(("max(link, read, work * b)\n", "link\n")), "only the link"),
    "weights charged per prompt": (
        speed(("max(link, read, work * b)\n", "max(link * b, read, work * b)\n")),
        "weights for every prompt",
    ),
    "six operations": (
        speed(("max(link, read, work * b)\n", "max(link, 3 * work * b)\n")), "a backward counted"
    ),
    "a product is one operation": (
        speed(("max(link, read, work * b)\n", "max(link, read, work * b / 2)\n")), "one operation"
    ),
    "arithmetic is cut": (
        speed(("max(link, read, work * b)\n", "max(link, read / N, work * b / N)\n")),
        "its share of the arithmetic",
    ),
    "one prompt": (speed(("N * b / step", "N / step")), "one prompt a rank"),
    "inverted factor": (speed(("N * b / step", "step / (N * b)")), "seconds per token"),
    "prompts made": (speed(("N * b / step", "N * b * s / step")), "tokens of the prompt"),
    "no memory": (speed(('"dense": max(read, work * b)', '"dense": work * b')), "only operations"),
    "no arithmetic": (speed(('"dense": max(read, work * b)', '"dense": read')), "only memory"),
    "dense in a row": (speed(('"dense": max(read, work * b)', '"dense": read + work * b')),
                       "one after the other"),
    "dense as streamed": (speed(('"dense": max(read, work * b)', '"dense": step')),
                          "the link in it"),
    "tp of one rank's prompts": (
        speed(("max(read / N, work * b)", "max(read / N, work * b / N)"),
              ('case["item"] * N * b * case', 'case["item"] * b * case')),
        "only its own prompts",
    ),
    "no sums": (speed((' + 2 * case["layers"] * ring', "")), "no all-reduce"),
    "one sum a layer": (speed((' + 2 * case["layers"]', ' + case["layers"]')),
                        "half of the sums"),
    "four sums a layer": (speed((' + 2 * case["layers"]', ' + 4 * case["layers"]')),
                          "four all-reduces"),
    "tp without a cut": (speed(("max(read / N, work * b)", "max(read, work * b * N)")),
                         "weights not sharded"),
    "break-even for all weights": (
        speed(("ceil(link / work)", 'ceil(W / case["link"] / work)')), "all weights sent"
    ),
    "break-even of the group": (speed(("ceil(link / work)", "N * ceil(link / work)")),
                                "prompts of all ranks"),
    "rounded down": (speed(("ceil(link / work)", "int(link / work)")), "rounded down"),
    "break-even of one operation": (speed(("ceil(link / work)", "ceil(2 * link / work)")),
                                    "one operation"),
    "break-even of training": (speed(("ceil(link / work)", "ceil(link / work / 3)")),
                               "a backward counted"),
    "the case's batch": (speed(("ceil(link / work)", "b")), "the batch of the case"),
    "weights for each token": (
        speed(('"prefill": max(link, read, work * b * s)', '"prefill": s * step')),
        "weights for every token",
    ),
    "prefill of one": (speed(("work * b * s", "work * s")), "one prompt"),
    "prefill of one token": (speed(("work * b * s", "work * b")), "a token step"),
    "prefill in a row": (
        speed(('"prefill": max(link, read, work * b * s)', '"prefill": link + max(read, '
               "work * b * s)")),
        "one after the other",
    ),
    "one more": (speed(("ceil(link / work)", "int(link / work) + 1")), "one more"),
    "the nearest": (speed(("ceil(link / work)", "round(link / work)")), "rounded to the nearest"),
    "no whole batch": (speed(("ceil(link / work)", "link / work")), "not a whole number"),
    "until the memory is quick": (
        speed(("ceil(link / work)", "ceil(max(link, read) / work)")), "the memory in it"
    ),
    "memory behind the link": (speed(("max(link, read, work * b)\n", "max(link, work * b)\n")),
                               "only operations"),
    "tp overlapped": (
        speed(('max(read / N, work * b) + 2 * case["layers"] * ring',
               'max(read / N, work * b, 2 * case["layers"] * ring)')),
        "the sums overlapped",
    ),
    "tp without a ring": (
        speed(('2 * (N - 1) / N * case["item"] * N', 'case["item"] * N')), "no ring"
    ),
    "tp of one layer": (speed((' + 2 * case["layers"] * ring', " + 2 * ring")), "one layer"),
    "nowhere near": (speed(("N * b / step", "1 / step + 3")), "tokens/s wrong"),
    "a tuple": (speed(("    return {", "    return 1, {")), "not a dictionary"),
    "one missing": (speed(('        "dense": max(read, work * b),\n', "")), "a key missing"),
    "a text": (speed(('"dense": max(read, work * b)', '"dense": "long"')), "a number as text"),
    "nothing": (speed(("    return {", "    made = {")), "nothing returned"),
    "the case written to": (speed(("    N, b", '    case["seen"] = True\n    N, b')),
                            "input changed"),
    "an unknown key": (speed(('case["prompt"]', 'case["tokens"]')), "stopped by an error"),
}  # fmt: skip

TOGETHER = """
from course_lib.collectives import all_gather, all_reduce


def generate_together(prompt, forward, most, stop, group):
    out = list(prompt)
    left = most
    while all_reduce(torch.tensor([float(left > 0)]), group).item():
        token = forward(out)
        if left > 0:
            out.append(token)
            left = 0 if token == stop else left - 1
    return out
"""
# The limits once, before the loop; then each rank's flag, gathered.
BY_GATHER = """
def generate_together(prompt, forward, most, stop, group):
    ids, going = list(prompt), most > 0
    while True:
        flags = [torch.zeros(1) for _ in range(group.size())]
        dist.all_gather(flags, torch.tensor([1.0 if going else 0.0]), group=group)
        if not any(flag.item() for flag in flags):
            break
        if going:
            ids += [forward(ids)]
            going = ids[-1] != stop and len(ids) - len(prompt) < most
        else:
            forward([stop])
    return ids
"""


def together(*changes: tuple[str, str]) -> str:
    return changed(TOGETHER, *changes)


LOOP = "while all_reduce(torch.tensor([float(left > 0)]), group).item():"
KEEP = "        if left > 0:\n            out.append(token)\n"
WRONG_TOGETHER = {
    "the loop of the question": (
        together((LOOP, "while left > 0:")), "a rank stops early"
    ),
    "tokens after the stop": (
        together((KEEP, "        out.append(token)\n        if left > 0:\n")),
        "tokens after the stop",
    ),
    "to the largest limit": (
        together((LOOP, 'rounds = all_reduce(torch.tensor([most]), group, "max").item()\n'
                  "    for _ in range(rounds):")),
        "on to the limit",
    ),
    "ends with the first": (
        together((LOOP, 'while all_reduce(torch.tensor([float(left > 0)]), group, "min").item():')),
        "cut short",
    ),
    "a rank that wants nothing leaves": (
        together(("    left = most\n", "    left = most\n    if not most:\n        return out\n")),
        "a rank stops early",
    ),
    "leaves after its stop": (
        together(("            left = 0 if token == stop else left - 1\n",
                  "            left -= 1\n            if token == stop:\n"
                  "                return out\n")),
        "a rank stops early",
    ),
    "its limit forgotten": (
        together(("0 if token == stop else left - 1", "0 if token == stop else left")),
        "more than was asked for",
    ),
    "new tokens alone": (
        together(("    return out", "    return out[len(prompt):]")), "prompt left out"
    ),
    "without the stop": (
        together(("    return out", "    return [i for i in out if i != stop]")),
        "the stop left out",
    ),
    "company goes into the text": (
        together(("        if left > 0:\n", "        if left <= 0:\n"
                  "            out.insert(1, token)\n        else:\n")),
        "wrong text",
    ),
    "one forward more": (
        together(("    return out", "    forward(out)\n    return out")), "on to the limit"
    ),
    "two messages": (
        together(("        token = ", "        all_reduce(torch.zeros(1), group)\n"
                  "        token = ")),
        "many messages",
    ),
    "texts sent round": (
        together(("        token = forward(out)\n", "        token = forward(out)\n"),
                 (LOOP, "while all_gather(torch.tensor([float(left > 0)] + [0.0] * 90), group)"
                  ".any():")),
        "texts sent",
    ),
    "into the prompt": (together(("    out = list(prompt)", "    out = prompt")),
                        "input changed"),
    "ends at a stop of the prompt": (
        together(("    left = most\n", "    left = 0 if stop in prompt else most\n")),
        "a stop in the prompt",
    ),
    "a message after the forward": (
        together((LOOP, "going = True\n    while going:"),
                 ("            left = 0 if token == stop else left - 1\n",
                  "            left = 0 if token == stop else left - 1\n        going = all_reduce("
                  "torch.tensor([float(left > 0)]), group).item()\n")),
        "on to the limit",
    ),
    "the stop by identity": (together(("token == stop", "token is stop")), "tokens after the stop"),
    "a tuple": (together(("    return out", "    return tuple(out)")), "not a list"),
    "a tensor": (together(("    return out", "    return torch.tensor(out)")), "not a list"),
    "nothing": (together(("    return out", "    out")), "nothing returned"),
}  # fmt: skip

RIGHT = {
    "streamed_speed": {"one count": SPEED},
    "generate_together": {"a sum of flags": TOGETHER, "flags gathered": BY_GATHER},
}
WRONG = {"streamed_speed": WRONG_SPEED, "generate_together": WRONG_TOGETHER}
