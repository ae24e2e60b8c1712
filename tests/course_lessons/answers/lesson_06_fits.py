"""Numbers for `which_fits` of lesson 06: the right ones, and misreadings with the name of each."""

from __future__ import annotations

PLANS = ("tokens replicated", "X kept", "X gathered again")


def numbers(
    moves=(8, 8, 10), a_move=7 / 8, tokens=(1, 1 / 8, 1 / 8), xs=(1, 1, 1 / 8), norms=2, x=2,
    masks=2, mask=1, inside=12 / 8, item=2, layers=48, room=40e9, unit=1e9,
) -> dict[str, float]:  # fmt: skip
    """The nine numbers by hand; each argument is something that may be misread."""
    phi = 4096 * 6144 * layers
    sent = {f"sent, {p}": m * a_move * phi * item / unit for p, m in zip(PLANS, moves, strict=True)}
    kept, fit = {}, {}
    for plan, part, wide in zip(PLANS, tokens, xs, strict=True):
        bytes_ = phi * (item * (norms * part + x * wide + inside) + mask * masks * part)
        kept[f"kept, {plan}"] = bytes_ / unit
        fit[f"sequences, {plan}"] = room // bytes_
    return {**sent, **kept, **fit}


FITS = numbers()
MISREAD = {
    "half": (numbers(moves=(8, 4, 5)), "half of the moves with X kept"),
    "forward": (numbers(moves=(4, 4, 4)), "forward only"),
    "one pair": (numbers(moves=(4, 4, 5)), "one pair of layers"),
    "nine": (numbers(moves=(8, 8, 9)), "gathered again in one of two"),
    "twelve": (numbers(moves=(8, 8, 12)), "again as an all-reduce"),
    "eight": (numbers(moves=(8, 8, 8)), "again costs nothing"),
    "one move": (numbers(moves=(4, 8, 10)), "all-reduces counted as one move"),
    "the limit": (numbers(a_move=1), "limit for large N"),
    "wide masks": (numbers(mask=2), "masks in bfloat16"),
    "no masks": (numbers(masks=0), "no masks"),
    "half of the masks": (numbers(masks=1), "one mask"),
    "X cut": (numbers(xs=(1, 1 / 8, 1 / 8)), "X sharded although kept"),
    "X whole": (numbers(xs=(1, 1, 1)), "full X although gathered again"),
    "no X": (numbers(x=0), "X not counted"),
    "no norms": (numbers(norms=0), "norms not counted"),
    "heads and MLP not sharded": (numbers(inside=12), "heads and MLP not sharded"),
    "heads not sharded": (numbers(inside=5), "heads not sharded"),
    "MLP not sharded": (numbers(inside=8.5), "MLP not sharded"),
    "between alone": (numbers(inside=0), "only what is between the layers"),
    "narrow MLP": (numbers(inside=6 / 8), "MLP as wide as x"),
    "tokens replicated": (numbers(tokens=(1, 1, 1)), "tokens not sharded"),
    "float32": (numbers(item=4), "float32"),
    "elements": (numbers(item=1), "elements, not bytes"),
    "one layer": (numbers(layers=1), "one layer"),
    "GiB": (numbers(unit=2**30), "GiB"),
    "sent by all ranks": (numbers(moves=(64, 64, 80)), "all ranks"),
    "bits": (numbers(item=16, mask=8), "all ranks"),
    "an eighth for a move": (numbers(a_move=1 / 8), "a piece for a move"),
    "of its own tokens": (numbers(a_move=7 / 64), "a move of one shard"),
    "all of it an eighth": (numbers(tokens=[1 / 8] * 3, xs=[1 / 8] * 3), "everything sharded"),
    "an eighth of what is kept": (numbers(item=1 / 4, mask=1 / 8, moves=(64, 64, 80)),
     "divided by N twice"),
    "nothing sharded": (numbers(tokens=[1] * 3, xs=[1] * 3, inside=12), "nothing sharded"),
    "once for the GELU": (numbers(inside=1), "GELU counted once"),
    "no result": (numbers(inside=11 / 8), "result of the heads left out"),
    "with gradients": (numbers(item=4, mask=2, moves=(4, 4, 5)), "gradients counted"),
    "norms whole": ({**FITS, "kept, X kept": numbers(tokens=(1, 1, 1), masks=0)["kept, X kept"]
     + numbers(norms=0, x=0, inside=0)["kept, X kept"]}, "input of the norms not sharded"),
    "room of eight": ({**FITS, **{k: v for k, v in numbers(room=320e9).items() if "seq" in k}},
     "room of all ranks"),
    "megabytes": ({k: v * 1e3 if k[0] != "s" or "sent" in k else v for k, v in FITS.items()},
     "unit"),
    "not rounded": ({**FITS, **{k: 40 / FITS[f"kept, {k[11:]}"] for k in FITS if "seq" in k}},
     "not an integer"),
    "rounded up": ({k: v + 1 if "seq" in k else v for k, v in FITS.items()}, "one too many"),
    "three sequences": ({**FITS, "sequences, X kept": 3}, "wrong number"),
    "unforeseen": ({**FITS, "kept, X kept": 77}, "wrong number"),
}  # fmt: skip
RIGHT: dict = {"which_fits": {"by hand": FITS}}
WRONG: dict = {"which_fits": MISREAD}
