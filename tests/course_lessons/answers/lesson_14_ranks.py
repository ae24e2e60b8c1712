"""Answers to `from_old_ranks` of lesson 14: right, by another road, and wrong in likely ways."""

from __future__ import annotations

from tests.course_lessons.answers import changed

RANKS = """
def overlap(a, b):
    return max(a[0], b[0]), min(a[1], b[1])


def spans(group, size, base):
    # (name, rank, first element of the parameter, last, place in the rank's shard)
    found, at = [], 0
    for name, count in group:
        for rank in range(at // size, (at + count - 1) // size + 1):
            lo, hi = overlap((at, at + count), (rank * size, (rank + 1) * size))
            found.append((name, rank, lo - at, hi - at, base + lo - rank * size))
        at += count
    return found


def from_old_ranks(old, layout, group):
    n, r, m = group.size(), group.rank(), old.world
    kinds = ("master", "exp_avg", "exp_avg_sq")
    out = {kind: [] for kind in kinds}
    base = 0
    for before, after in zip(old.layout, layout):
        total = sum(size for _, size in after)
        piece, size = -(-total // m), -(-total // n)
        there = spans(before, piece, base)
        shard = {kind: torch.zeros(size, dtype=torch.float64) for kind in kinds}
        for name, rank, start, stop, to in spans(after, size, 0):
            if rank != r:
                continue
            for other, q, first, last, place in there:
                lo, hi = overlap((start, stop), (first, last))
                if other == name and lo < hi:
                    for kind in kinds:
                        got = old.read(q, kind, place + lo - first, place + hi - first)
                        shard[kind][to + lo - start : to + hi - start] = got
        for kind in kinds:
            out[kind].append(shard[kind])
        base += piece
    result = {kind: torch.cat(parts) for kind, parts in out.items()}
    result["step"] = old.step
    result["next"] = old.samples * m + r * (old.batch // n)
    return result
"""
# Element by element: slow, and right.
BY_ELEMENT = """
def places(layout, world):
    # name, element -> rank, place in that rank's shard
    found, base = {}, 0
    for group in layout:
        total = sum(size for _, size in group)
        piece = (total + world - 1) // world
        names = [(name, k) for name, size in group for k in range(size)]
        for at, key in enumerate(names):
            found[key] = at // piece, base + at % piece
        base += piece
    return found, base


def from_old_ranks(old, layout, group):
    there, _ = places(old.layout, old.world)
    here, length = places(layout, group.size())
    out = {"step": int(old.step)}
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        shard = torch.zeros(length).double()
        for key, (rank, place) in here.items():
            if rank == group.rank():
                q, at = there[key]
                shard[place] = old.read(q, kind, at, at + 1)[0]
        out[kind] = shard
    each = old.batch // group.size()
    return {**out, "next": old.samples * old.world + group.rank() * each}
"""
# All files, as if everything lay end to end without groups: how a reader begins that knows no name.
WHOLE = """
def from_old_ranks(old, layout, group):
    n, r, m = group.size(), group.rank(), old.world
    sizes = [sum(size for _, size in names) for names in layout]
    out = {"step": old.step, "next": old.samples * m + r * (old.batch // n)}
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        base, parts = 0, []
        for total in sizes:
            piece, size = -(-total // m), -(-total // n)
            flat = torch.cat([old.read(q, kind, base, base + piece) for q in range(m)])
            CUT
            parts.append(shard)
            base += piece
        out[kind] = torch.cat(parts)
    return out
"""
NAMED = """
            whole, at = {}, 0
            for name, size_of in old.layout[len(parts)]:
                whole[name], at = flat[at : at + size_of], at + size_of
            flat = torch.cat([whole[name] for name, _ in layout[len(parts)]])
            padded = torch.nn.functional.pad(flat, (0, size * n - total))
            shard = padded[r * size : (r + 1) * size].clone()
"""


def ranks(*changes: tuple[str, str]) -> str:
    return changed(RANKS, *changes)


def whole(cut: str) -> str:
    return changed(WHOLE, ("            CUT\n", cut.lstrip("\n")))


DONE = '    result["next"] = old.samples * m + r * (old.batch // n)\n'
WRONG_RANKS = {
    "padding leaks in": (
        whole("            both = torch.nn.functional.pad(flat, (0, size * n))\n"
              "            shard = both[r * size : (r + 1) * size].clone()\n"),
        "padding leaks in",
    ),
    "moments forgotten": (
        ranks(("    result[\"step\"]", "    result[\"exp_avg\"].zero_(), "
               "result[\"exp_avg_sq\"].zero_()\n    result[\"step\"]")),
        "moments forgotten",
    ),
    "rounded down": (
        ranks(("piece, size = -(-total // m), -(-total // n)",
               "piece, size = max(1, total // m), -(-total // n)"),
              ("            for other, q, first, last, place in there:\n",
               "            for other, q, first, last, place in there:\n"
               "                q = min(q, m - 1)\n")),
        "old pieces rounded down",
    ),
    "everything is read": (whole(NAMED), "everything is read"),
    "step forgotten": (ranks(('result["step"] = old.step', 'result["step"] = 0')),
                       "step forgotten"),
    "the next step": (ranks(('result["step"] = old.step', 'result["step"] = old.step + 1')),
                      "wrong step"),
    "data from the start": (
        ranks((DONE, '    result["next"] = r * (old.batch // n)\n')), "data from the start"
    ),
    "one rank's samples": (
        ranks((DONE, '    result["next"] = old.samples + r * (old.batch // n)\n')),
        "one old rank's count",
    ),
    "samples times the new ranks": (
        ranks((DONE, '    result["next"] = old.samples * n + r * (old.batch // n)\n')),
        "counted with the new ranks",
    ),
    "the same samples for all": (
        ranks((DONE, '    result["next"] = old.samples * m\n')), "the same for all ranks"
    ),
    "one sample apart": (
        ranks((DONE, '    result["next"] = old.samples * m + r\n')), "parts of one sample"
    ),
    "samples of nowhere": (
        ranks((DONE, '    result["next"] = 10**6 + r * (old.batch // n)\n')), "wrong sample"
    ),
    "the first one's shard": (
        ranks(("n, r, m = group.size(), group.rank(), old.world",
               "n, r, m = group.size(), 0, old.world")),
        "every rank has the first one's",
    ),
    "the old order": (
        ranks(("spans(after, size, 0)", "spans(before, size, 0)")), "the old order"
    ),
    "padding between groups": (
        ranks(("        base += piece\n", "        base += total // m\n")),
        "padding between the groups",
    ),
    "masters in the moments": (
        ranks(("old.read(q, kind, place", 'old.read(q, "exp_avg" if kind == "exp_avg_sq" else kind,'
               " place")),
        "kinds mixed up",
    ),
    "read twice": (
        ranks(("                        got = old.read(", "                        old.read(q, "
               "kind, place + lo - first, place + hi - first)\n"
               "                        got = old.read(")),
        "read twice",
    ),
    "whole parameters read": (
        ranks(("got = old.read(q, kind, place + lo - first, place + hi - first)",
               "got = old.read(q, kind, place, place + last - first)[lo - first : hi - first]")),
        "too much is read",
    ),
    "sent between ranks": (
        ranks(('    result["step"]', '    dist.all_reduce(torch.zeros(3), group=group)\n'
               '    result["step"]')),
        "sent between ranks",
    ),
    "no padding of its own": (
        ranks(("            out[kind].append(shard[kind])",
               "            held = max(0, min(total, (r + 1) * size) - r * size)\n"
               "            out[kind].append(shard[kind][:held])")),
        "own padding forgotten",
    ),
    "new pieces rounded down": (
        ranks(("            out[kind].append(shard[kind])",
               "            out[kind].append(shard[kind][: total // n])")),
        "rounded down",
    ),
    "all of the model": (
        whole("            shard = flat[:total]\n"), "not sharded"
    ),
    "one cut for all groups": (
        ranks(('    result["step"]', '    result["master"] = result["master"][:-3]\n'
               '    result["step"]')),
        "wrong length",
    ),
    "turned round": (
        ranks(('    result["step"]', '    result["exp_avg"] = result["exp_avg"].flip(0)\n'
               '    result["step"]')),
        "wrong order",
    ),
    "a matrix": (
        ranks(('    result["step"]', '    result["master"] = result["master"][None]\n'
               '    result["step"]')),
        "not a shard",
    ),
    "half a sample": (ranks(("r * (old.batch // n)", "r * old.batch / n")), "not a whole number"),
    "a key missing": (ranks(('    result["step"] = old.step\n', "")), "a key missing"),
    "a list": (ranks(("    return result", "    return list(result)")), "not a dictionary"),
    "nothing": (ranks(("    return result", "    result")), "nothing returned"),
    "kept between calls": (
        "KEPT = {}\n" + ranks(("    return result", "    size = len(result['master'])\n"
                              "    return {\n        key: KEPT.setdefault((key, size, r), value)"
                              " if key in kinds else value\n"
                              "        for key, value in result.items()\n    }")),
        "values of an earlier call",
    ),
    "one buffer": (
        ranks(("    result = {kind: torch.cat(parts) for kind, parts in out.items()}\n",
               "    flat = torch.zeros(sum(map(len, out['master'])), dtype=torch.float64)\n"
               "    result = {kind: flat.copy_(torch.cat(x)) for kind, x in out.items()}\n")),
        "one buffer",
    ),
    "the layout emptied": (ranks(("    return result", "    layout.clear()\n    return result")),
                           "input changed"),
    "through float32": (
        ranks(("dtype=torch.float64) for", "dtype=torch.float32) for"),
              ("torch.cat(parts) for", "torch.cat(parts).double() for")),
        "rounded on the way",
    ),
    "the first file of a run": (
        ranks(("        for name, rank, start, stop, to in spans(after, size, 0):\n"
               "            if rank != r:\n                continue\n",
               "        for name, rank, start, stop, to in spans(after, size, 0):\n"
               "            if rank != r:\n                continue\n            got = None\n"),
              ("if other == name and lo < hi:", "if other == name and lo < hi and got is None:")),
        "some left zero",
    ),
    "padding that is not zero": (ranks(("{kind: torch.zeros(", "{kind: torch.ones(")),
                                 "padding not zero"),
    "the old ranks' part": (ranks(("r * (old.batch // n)", "r * (old.batch // m)")),
                            "the old ranks' part"),
    "a batch each": (ranks(("r * (old.batch // n)", "r * old.batch")), "a batch for each rank"),
}  # fmt: skip

RIGHT = {"from_old_ranks": {"by spans": RANKS, "by element": BY_ELEMENT}}
WRONG = {"from_old_ranks": WRONG_RANKS}
