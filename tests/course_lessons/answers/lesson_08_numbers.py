"""Numbers for lesson 08's question about groups: the right ones, and misreadings by name."""

from __future__ import annotations

NUMBERS = {"a": 4, "b": 3, "c": 3, "d": 4, "e": 3, "f": 3, "g": 12, "h": 4, "i": 1, "j": 3, "k": 12}
MISREAD = {
    "turned over": ({"a": 6, "b": 1}, "mesh transposed"),
    "the groups exchanged": ({"a": 3, "b": 4}, "mesh transposed"),
    "coordinates": ({"a": 1, "b": 1}, "wrong kind of number"),
    "rows by tp rank": ({"c": 4}, "tp ranks read alike"),
    "rows by rank": ({"c": 12}, "tp ranks read alike"),
    "rows for all": ({"c": 1}, "tp ranks read alike"),
    "activations over dp": ({"d": 3}, "a partial sum within a replica"),
    "activations over all": ({"d": 12}, "a partial sum within a replica"),
    "shards' gradients over tp": ({"e": 4}, "shards are different elements"),
    "shards' gradients over all": ({"e": 12}, "shards are different elements"),
    "no sum over dp": ({"e": 1, "f": 1}, "no sum over replicas"),
    "copies summed over all": ({"f": 12}, "replicated gradient, same tokens"),
    "copies summed over tp": ({"f": 4}, "replicated gradient, same tokens"),
    "sequence forgotten": ({"g": 3}, "different tokens, partial sums"),
    "sequence over tp alone": ({"g": 4}, "different tokens, partial sums"),
    "norm of all shards": ({"h": 12}, "distinct shards"),
    "norm over dp": ({"h": 3}, "distinct shards"),
    "norm of one shard": ({"h": 1}, "distinct shards"),
    "copies in the norm": ({"i": 12}, "a copy counts once"),
    "copies in the norm by tp": ({"i": 4}, "a copy counts once"),
    "copies in the norm by dp": ({"i": 3}, "a copy counts once"),
    "tokens of all": ({"j": 12}, "tokens counted by tp ranks"),
    "tokens over tp": ({"j": 4}, "tokens counted by tp ranks"),
    "own tokens": ({"j": 1}, "tokens counted by tp ranks"),
    "masks by tp": ({"k": 4}, "heads differ per rank"),
    "masks by dp": ({"k": 3}, "heads differ per rank"),
    "the rank itself": ({"a": 7, "b": 7}, "wrong kind of number"),
    "the first of all": ({"a": 0, "b": 0}, "wrong group"),
    "no sum in sequence": ({"g": 1}, "no sum over replicas"),
    "nothing to sum": ({"d": 1}, "a partial sum within a replica"),
    "one mask": ({"k": 1}, "heads differ per rank"),
    "tp for dp throughout": ({"c": 4, "d": 3, "e": 4, "f": 4, "h": 3, "j": 4}, "several ideas"),
    "unforeseen": ({"d": 7}, "wrong number"),
}
RIGHT: dict = {"which_group": {"by hand": NUMBERS}}
WRONG: dict = {
    "which_group": {how: ({**NUMBERS, **wrong}, name) for how, (wrong, name) in MISREAD.items()}
}
