"""How a GPT's weights lie on n ranks, by name: the right pieces, and those of wrong ideas.

The rules are the library's (`layout`, `qkv_layout`); nothing here needs ranks, so four can be
played by one process. Lesson 08.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.gpt import Config
from course_lib.layout import cut
from course_lib.tensor_parallel.qkv_layout import shares

Pieces = list[dict[str, Tensor]]  # of each rank, by name


def lengths(name: str, config: Config, n: int) -> tuple[int, list[list[int]]] | None:
    """(dim, and for each part that is fused there how long the ranks' pieces are); None: a copy."""
    own = shares(config.heads, config.kv_heads, n)
    q = [share.heads * config.head_size for share in own]
    kv = [share.kv_heads * config.head_size for share in own]
    inner = cut(config.inner, n)
    if ".qkv." in name:
        return 0, [q, kv, kv]
    if name.endswith("attention.out.weight"):
        return 1, [q]
    if ".gate_up." in name:
        return 0, [inner, inner]
    if ".up." in name:
        return 0, [inner]
    if name.endswith("mlp.down.weight"):
        return 1, [inner]
    if name in ("tokens.weight", "head.weight"):
        return 0, [cut(config.vocabulary, n)]
    return None


def fused(name: str) -> bool:
    return ".qkv." in name or ".gate_up." in name


def pieces_of(name: str, whole: Tensor, config: Config, n: int) -> list[Tensor]:
    """What each of n ranks holds of a dense parameter, in memory of its own."""
    told = lengths(name, config, n)
    if told is None:
        return [whole.clone() for _ in range(n)]
    dim, parts = told
    spans = zip(whole.split([sum(part) for part in parts], dim), parts, strict=True)
    by_part = [part.split(sizes, dim) for part, sizes in spans]
    return [torch.cat(own, dim) for own in zip(*by_part, strict=True)]


def shards(state: dict[str, Tensor], config: Config, n: int) -> Pieces:
    """The state dicts of n ranks; a tied head is the same tensor as the table."""
    found: Pieces = [{} for _ in range(n)]
    for name, whole in state.items():
        tied = name == "head.weight" and config.tied
        for one, piece in zip(found, pieces_of(name, whole, config, n), strict=True):
            one[name] = one["tokens.weight"] if tied else piece
    return found


def readings(
    name: str, given: list[Tensor], whole: Tensor, config: Config, n: int
) -> dict[str, list[list[Tensor]]]:
    """Wrong ideas and what they make of one parameter, each in every way in which it was seen."""
    found: dict[str, list[list[Tensor]]] = {}
    m, told = len(given), lengths(name, config, n)
    if told is None:
        found["copies added"] = [[whole * m] * n]
        joined = torch.cat(given)
        found["a copy cut"] = [list(whole.split(cut(len(whole), n)))]
        found["copies joined"] = [[joined] * n, list(joined.split(cut(len(joined), n)))]
        return found
    dim, parts = told
    right = pieces_of(name, whole, config, n)
    if fused(name):
        straight = torch.cat(given, dim)
        sizes = [len(piece) for piece in right]
        found["fused straight across"] = [
            list(straight.split(sizes, dim)),
            pieces_of(name, straight, config, n),
            list(whole.split(sizes, dim)),
            list(straight.split(cut(len(whole), n), dim)),
            list(whole.split(cut(len(whole), n), dim)),
        ]
    else:
        wrong = 1 - dim
        if whole.dim() > 1:
            rules = [cut(whole.shape[wrong], n)]
            rules += [part for part in parts if sum(part) == whole.shape[wrong]]
            found["the other dim"] = [list(whole.split(rule, wrong)) for rule in rules]
        size = whole.shape[dim]
        even = [size // n + (rank < size % n) for rank in range(n)]
        rules = [even, cut(size, n)]
        found["another rule"] = [list(whole.split(rule, dim)) for rule in rules]
    found["nothing cut"] = [[whole] * n]
    found["turned round"] = [right[::-1]]
    return found
