"""The closed forms: the fewest bytes that one rank has to send, for every verb.

In each, n ranks talk; `payload` is what this rank hands over, `own` its own piece of that, in
bytes. Lesson 01 derives them from a ring and a chain; a ledger books them in its column "must".
"""

from __future__ import annotations

Bytes = int | float  # whole wherever the formula gives a whole number


def all_reduce(n: int, payload: int) -> Bytes:
    """A reduce-scatter and an all-gather of the n pieces: 2 (n-1)/n of the tensor."""
    return _divide(2 * (n - 1) * payload, n)


def all_gather(n: int, own: int) -> int:
    """Round a ring every rank passes on n-1 pieces, as many as there are other ranks to tell."""
    return (n - 1) * own


def reduce_scatter(payload: int, own: int) -> int:
    """All of it but the piece that stays here: the other ranks' pieces go on, summed on the way."""
    return payload - own


def all_to_all(payload: int, own: int) -> int:
    """All of it but the piece addressed to this rank itself."""
    return payload - own


def broadcast(n: int, rank: int, root: int, payload: int) -> int:
    """A chain root, root+1, … round the ring: everybody passes it on, the last has nobody to."""
    last = (root - 1) % n
    return 0 if rank == last else payload


def reduce(rank: int, root: int, payload: int) -> int:
    """The same chain backwards: everybody sends a partial sum on, the root keeps the last."""
    return 0 if rank == root else payload


def scatter(rank: int, root: int, payload: int, own: int) -> int:
    """The root sends every piece but its own; nobody else sends."""
    return payload - own if rank == root else 0


def gather(rank: int, root: int, own: int) -> int:
    """Everybody but the root sends its piece."""
    return 0 if rank == root else own


# By verb, of (n, rank, payload, own, root): what a formula does not need, it does not read.
_FORMS = {
    "all_reduce": lambda n, rank, payload, own, root: all_reduce(n, payload),
    "all_gather": lambda n, rank, payload, own, root: all_gather(n, payload),
    "reduce_scatter": lambda n, rank, payload, own, root: reduce_scatter(payload, own),
    "all_to_all": lambda n, rank, payload, own, root: all_to_all(payload, own),
    "broadcast": lambda n, rank, payload, own, root: broadcast(n, rank, root, payload),
    "reduce": lambda n, rank, payload, own, root: reduce(rank, root, payload),
    "scatter": lambda n, rank, payload, own, root: scatter(rank, root, payload, own),
    "gather": lambda n, rank, payload, own, root: gather(rank, root, payload),
    "send": lambda n, rank, payload, own, root: payload,  # the message, once
    "recv": lambda n, rank, payload, own, root: 0,
    "barrier": lambda n, rank, payload, own, root: 0,  # its messages carry nothing
}
OPS = tuple(_FORMS)


def must(op: str, n: int, rank: int, payload: int, own: int = 0, root: int = 0) -> Bytes:
    """The closed form of `op` for this rank."""
    if op not in _FORMS:
        raise ValueError(f"op={op!r} has no closed form; the ops are {', '.join(OPS)}")
    return _FORMS[op](n, rank, payload, own, root)


def _divide(bytes_: int, n: int) -> Bytes:
    whole, rest = divmod(bytes_, n)
    return whole if rest == 0 else bytes_ / n
