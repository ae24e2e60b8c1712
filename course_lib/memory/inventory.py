"""The exact memory of a rank: distinct storages, sorted by use and by tier.

A tied weight counts once, a view counts with its full storage, and a placeholder of size 0 does not
count. Lesson 01 introduces the table. Lesson 09 compares it with sixteen bytes per parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, UntypedStorage, nn, optim

from course_lib.ledger.table import aligned
from course_lib.memory.formatting import rounded
from course_lib.memory.meter import Peak
from course_lib.memory.storages import alive, storages
from course_lib.memory.tiers import TIERS, tier_of
from course_lib.meta import memory_key

KINDS = ("parameters", "gradients", "optimizer states", "buffers", "activations", "tensors")


@dataclass(frozen=True)
class HeldRow:
    """The storages of one kind in one tier."""

    kind: str
    tier: str
    storages: int
    nbytes: int


@dataclass(frozen=True, repr=False)
class Held:
    """The result of `held(...)`: rows, and sums over them. It prints as a table."""

    rows: tuple[HeldRow, ...]

    @property
    def total(self) -> int:
        """The bytes in all tiers."""
        return sum(row.nbytes for row in self.rows)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes by kind; the five kinds of a training rank are always included."""
        sums = dict.fromkeys(KINDS[:5], 0)
        for row in self.rows:
            sums[row.kind] = sums.get(row.kind, 0) + row.nbytes
        return sums

    @property
    def by_tier(self) -> dict[str, int]:
        """Bytes by tier, for all three tiers."""
        return {tier: sum(r.nbytes for r in self.rows if r.tier == tier) for tier in TIERS}

    def table(self) -> str:
        """Format the rows as aligned text."""
        lines = [("kind", "tier", "storages", "bytes", "")]
        total = HeldRow("total", "", sum(row.storages for row in self.rows), self.total)
        for row in (*self.rows, total):
            sizes = str(row.storages), f"{row.nbytes:,}", rounded(row.nbytes)
            lines.append((row.kind, row.tier, *sizes))
        return "\n".join(aligned(lines, right=(2, 3, 4)))

    def __repr__(self) -> str:
        return self.table()


def held(
    *objects: object,
    activations: bool | Peak = False,
    kinds: Mapping[str, object] | None = None,
    computes_on: str | None = None,
) -> Held:
    """Count the distinct storages of models, optimizers, tensors, and dicts or lists of these.

    `kinds` names the use of tensors, such as `{"gradients": [bucket]}`, and takes precedence.
    `activations=True` adds every other tensor alive in the process and all tensors kept by
    autograd's graph; the `p` of `with peak() as p` adds only tensors that its region left alive. A
    storage with two uses counts under the first of them in KINDS. `computes_on="meta"` is for a dry
    run, where shapes count as if they had memory.
    """
    by_kind: dict[str, list[UntypedStorage]] = {kind: [] for kind in (*(kinds or {}), *KINDS)}
    meta = computes_on == "meta"
    for kind, value in (kinds or {}).items():
        _collect(value, by_kind, kind, meta)
    for value in objects:
        _collect(value, by_kind, "tensors", meta)
    if isinstance(activations, Peak):
        by_kind["activations"] += activations.made_and_alive()
    elif activations:
        by_kind["activations"] += alive(meta=meta)
    # Storages named by the caller come before "everything else alive".
    order = [*(kinds or {}), *(k for k in KINDS if k != "activations"), "activations"]
    seen: set[tuple[str, int]] = set()
    sums: dict[tuple[str, str], list[int]] = {}
    for kind in dict.fromkeys(order):
        for storage in by_kind[kind]:
            key = memory_key(storage)
            if storage.nbytes() == 0 or key in seen:
                continue
            seen.add(key)
            entry = sums.setdefault((kind, tier_of(storage, computes_on)), [0, 0])
            entry[0] += 1
            entry[1] += storage.nbytes()
    return Held(tuple(HeldRow(kind, tier, *entry) for (kind, tier), entry in sums.items()))


def _collect(
    value: object, by_kind: dict[str, list[UntypedStorage]], plain: str, meta: bool
) -> None:
    """Sort the storages of one object into kinds; tensors of unknown use are of kind `plain`."""
    parameters: list[Tensor] = []
    if isinstance(value, nn.Module):
        parameters += value.parameters()
        by_kind["buffers"] += storages(list(value.buffers()), meta=meta)
    elif isinstance(value, optim.Optimizer):
        parameters += [p for group in value.param_groups for p in group["params"]]
        by_kind["optimizer states"] += storages(list(value.state.values()), meta=meta)
    elif isinstance(value, nn.Parameter) and plain == "tensors":
        parameters += [value]
    elif isinstance(value, (Tensor, UntypedStorage)):
        by_kind[plain] += storages(value, meta=meta)
    elif isinstance(value, Mapping):
        for inner in value.values():
            _collect(inner, by_kind, plain, meta)
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "__next__"):
        for inner in value:
            _collect(inner, by_kind, plain, meta)
    elif value is not None and not isinstance(value, (int, float, str, bool)):
        raise TypeError(
            f"held() cannot look into a {type(value).__name__}: pass its model, its optimizer, "
            f"or kinds={{'a name': its tensors}}"
        )
    by_kind["parameters"] += storages(parameters, meta=meta)
    by_kind["gradients"] += storages([p.grad for p in parameters], meta=meta)
