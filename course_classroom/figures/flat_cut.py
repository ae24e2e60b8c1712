"""Flat buckets sharded over the ranks: strips of parameters in the colours of their ranks.

A parameter on two ranks has two colours below one line with its name; padding is white. Lesson 09
draws the bucket of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.colours import INK, QUIET, Picture, draw, of_rank, rank_look
from course_classroom.figures.shapes import label

WIDE, HIGH, LETTER = 8.0, 1.15, 0.062  # inches: a strip's width, its height, a letter's height
Lengths = Sequence[tuple[str, int]]  # the parameters of a bucket in order


def flat_cut(buckets: Mapping[str, tuple[Lengths, int]], *, world: int, title: str = "") -> Picture:
    """Draw each bucket: `buckets[name]` holds its parameters with their lengths, and the length of
    one shard."""
    for name, (lengths, shard) in buckets.items():
        total = sum(length for _, length in lengths)
        if not total or not total <= shard * world < total + world:
            raise ValueError(
                f"{name}: {world} shards of {shard} hold {world * shard} elements, but its "
                f"parameters have {total}. A shard must be that over {world}, rounded up"
            )
    longest = max(len(p) for lengths, _ in buckets.values() for p, _ in lengths)
    high = HIGH + LETTER * longest
    size, alt = (WIDE, high * len(buckets) + 0.1), _in_words(buckets, world)
    return draw(size, alt, lambda figure: _paint(figure, buckets, world), title)


def _paint(figure, buckets, world: int) -> None:
    rows = figure.subplots(len(buckets), 1, squeeze=False)[:, 0]
    for axis, (name, (lengths, shard)) in zip(rows, buckets.items(), strict=True):
        padded = shard * world
        for rank, pieces in enumerate(held(lengths, shard, world)):
            for _, start, stop in pieces:
                look = {**rank_look(rank), "linewidth": 0.8}
                axis.barh(0, stop - start, left=start, height=1.0, **look)
            look = {"on": of_rank(rank), "fontweight": "bold"}
            label(axis, (rank + 0.5) * shard, 0.0, f"rank {rank}", **look)
            if rank:
                axis.plot([rank * shard] * 2, [-0.56, 0.72], color=INK, linewidth=1.6)
        at = 0
        for parameter, length in lengths:
            if length > 0.018 * padded:  # otherwise there is no room for its name
                flat = WIDE * length / padded > LETTER * len(parameter) + 0.1
                ends = [at + 0.003 * padded, at + length - 0.003 * padded]
                axis.plot(ends, [-0.62] * 2, color=QUIET, linewidth=1.0)
                look = {"ha": "center", "va": "bottom", "fontsize": 7}
                axis.text(at + length / 2, -0.68, parameter, rotation=0 if flat else 90, **look)
            at += length
        axis.set(
            xlim=(-0.005 * padded, 1.005 * padded),
            ylim=(0.8, -0.8),
            yticks=[],
            xticks=[rank * shard for rank in range(world + 1)],
        )
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axis.set_xlabel(f"{name}: element of the bucket")
        axis.tick_params(axis="x", color=QUIET)
        axis.spines[:].set_visible(False)


def held(lengths: Lengths, shard: int, world: int) -> list[list[tuple[str, int, int]]]:
    """Return each rank's pieces as (parameter, start, stop), with positions in the bucket."""
    found: list[list[tuple[str, int, int]]] = [[] for _ in range(world)]
    at = 0
    for parameter, length in lengths:
        for rank in range(world):
            start, stop = max(at, rank * shard), min(at + length, (rank + 1) * shard)
            if start < stop:
                found[rank].append((parameter, start, stop))
        at += length
    return found


def _in_words(buckets, world: int) -> str:
    told = []
    for name, (lengths, shard) in buckets.items():
        whole = dict(lengths)
        for rank, pieces in enumerate(held(lengths, shard, world)):
            elements = sum(stop - start for _, start, stop in pieces)
            parts = [
                f"{stop - start:,} of the {whole[parameter]:,} of {parameter}"
                for parameter, start, stop in pieces
                if stop - start < whole[parameter]
            ]
            ends = f", {pieces[0][0]} to {pieces[-1][0]}" if pieces else ""
            cut = f", {' and '.join(parts)}" if parts else ""
            told.append(f"{name}, rank {rank}: {elements:,} elements{ends}{cut}.")
    return f"The parameters of a bucket, end to end. {' '.join(told)}"
