"""Numbers for lesson 08's question about groups: the right ones, and misreadings by name."""

from __future__ import annotations

NUMBERS = {"a": 4, "b": 3, "c": 3, "d": 4, "e": 3, "f": 3, "g": 12, "h": 4, "i": 1, "j": 3, "k": 12}
MISREAD = {
    "turned over": ({"a": 6, "b": 1}, "the mesh turned over"),
    "the groups exchanged": ({"a": 3, "b": 4}, "the mesh turned over"),
    "coordinates": ({"a": 1, "b": 1}, "a number, not a rank"),
    "rows by tp rank": ({"c": 4}, "tp ranks read alike"),
    "rows by rank": ({"c": 12}, "tp ranks read alike"),
    "rows for all": ({"c": 1}, "tp ranks read alike"),
    "activations over dp": ({"d": 3}, "a partial sum within a replica"),
    "activations over all": ({"d": 12}, "a partial sum within a replica"),
    "shards' gradients over tp": ({"e": 4}, "shards are different numbers"),
    "shards' gradients over all": ({"e": 12}, "shards are different numbers"),
    "no sum over dp": ({"e": 1, "f": 1}, "replicas never met"),
    "copies summed over all": ({"f": 12}, "a copy that saw the same"),
    "copies summed over tp": ({"f": 4}, "a copy that saw the same"),
    "sequence forgotten": ({"g": 3}, "other tokens, so a sum"),
    "sequence over tp alone": ({"g": 4}, "other tokens, so a sum"),
    "norm of all shards": ({"h": 12}, "distinct shards"),
    "norm over dp": ({"h": 3}, "distinct shards"),
    "norm of one shard": ({"h": 1}, "distinct shards"),
    "copies in the norm": ({"i": 12}, "a copy counts once"),
    "copies in the norm by tp": ({"i": 4}, "a copy counts once"),
    "copies in the norm by dp": ({"i": 3}, "a copy counts once"),
    "tokens of all": ({"j": 12}, "tokens counted by tp ranks"),
    "tokens over tp": ({"j": 4}, "tokens counted by tp ranks"),
    "own tokens": ({"j": 1}, "tokens counted by tp ranks"),
    "masks by tp": ({"k": 4}, "heads are a rank's own"),
    "masks by dp": ({"k": 3}, "heads are a rank's own"),
    "the rank itself": ({"a": 7, "b": 7}, "a number, not a rank"),
    "the first of all": ({"a": 0, "b": 0}, "another rank's group"),
    "no sum in sequence": ({"g": 1}, "replicas never met"),
    "nothing to sum": ({"d": 1}, "a partial sum within a replica"),
    "one mask": ({"k": 1}, "heads are a rank's own"),
    "tp for dp throughout": ({"c": 4, "d": 3, "e": 4, "f": 4, "h": 3, "j": 4}, "several ideas"),
    "unforeseen": ({"d": 7}, "wrong number"),
}
RIGHT: dict = {"which_group": {"by hand": NUMBERS}}
WRONG: dict = {
    "which_group": {how: ({**NUMBERS, **wrong}, name) for how, (wrong, name) in MISREAD.items()}
}
