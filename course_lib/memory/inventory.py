"""What a rank holds, to the byte: distinct storages, sorted by use and by tier.

A tied weight is held once, a view holds its whole storage, a placeholder of size 0 holds nothing.
Lesson 01 introduces the table; lesson 09 sets sixteen bytes per parameter against it.
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
    """The answer of `held(...)`: rows, and sums over them. Prints as a table."""

    rows: tuple[HeldRow, ...]

    @property
    def total(self) -> int:
        """All bytes, in every tier."""
        return sum(row.nbytes for row in self.rows)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes by kind; the five kinds of a training rank are always there, others if met."""
        sums = dict.fromkeys(KINDS[:5], 0)
        for row in self.rows:
            sums[row.kind] = sums.get(row.kind, 0) + row.nbytes
        return sums

    @property
    def by_tier(self) -> dict[str, int]:
        """Bytes by tier, all three."""
        return {tier: sum(r.nbytes for r in self.rows if r.tier == tier) for tier in TIERS}

    def table(self) -> str:
        """The rows as aligned text."""
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
    """Count the distinct storages behind models, optimizers, tensors, and dicts or lists of them.

    `kinds`: names for what no model or optimizer shows, `{"gradients": [bucket]}`; they win.
    `activations`: True adds every other tensor alive in the process, and what only autograd's
    graph keeps; a region `p` of `with peak() as p` adds what that region made and left alive.
    A storage with two uses is counted under the first in the order of KINDS. `computes_on="meta"`:
    of a rank of a dry run, whose shapes without memory are counted as if they had it.
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
    # What was handed over by hand comes before "everything else alive".
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
    """Sort the storages of one object into kinds; tensors without a role go under `plain`."""
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
            f"held() cannot look into a {type(value).__name__}: hand over its model, "
            f"its optimizer, or kinds={{'a name': its tensors}}"
        )
    by_kind["parameters"] += storages(parameters, meta=meta)
    by_kind["gradients"] += storages([p.grad for p in parameters], meta=meta)
