"""The closed forms: the fewest bytes that one rank must send, for every verb.

n is the number of ranks, `payload` the bytes that this rank passes to the call, and `own` the bytes
of its piece. Lesson 01 derives the forms from a ring and a chain. A ledger books them as "must".
"""

from __future__ import annotations

Bytes = int | float  # int if the formula gives an integer


def all_reduce(n: int, payload: int) -> Bytes:
    """Return 2 (n-1)/n of the payload: a reduce-scatter and an all-gather of n pieces each."""
    return _divide(2 * (n - 1) * payload, n)


def all_gather(n: int, own: int) -> int:
    """Return the bytes of n-1 pieces: each rank of a ring sends one piece for each other rank."""
    return (n - 1) * own


def reduce_scatter(payload: int, own: int) -> int:
    """Return the payload minus this rank's piece; partial sums of other pieces are passed on."""
    return payload - own


def all_to_all(payload: int, own: int) -> int:
    """Return the payload minus the piece that this rank keeps."""
    return payload - own


def broadcast(n: int, rank: int, root: int, payload: int) -> int:
    """Return the payload, sent along a chain root, root+1, …; the last rank sends nothing."""
    last = (root - 1) % n
    return 0 if rank == last else payload


def reduce(rank: int, root: int, payload: int) -> int:
    """Return the payload, sent as a partial sum along the reverse chain to the root."""
    return 0 if rank == root else payload


def scatter(rank: int, root: int, payload: int, own: int) -> int:
    """Return the bytes of all pieces except the root's on the root, and 0 on other ranks."""
    return payload - own if rank == root else 0


def gather(rank: int, root: int, own: int) -> int:
    """Return the bytes of this rank's piece, or 0 on the root."""
    return 0 if rank == root else own


# Each verb's form as a function of (n, rank, payload, own, root), some of which it ignores.
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
    "barrier": lambda n, rank, payload, own, root: 0,  # its messages are empty
}
OPS = tuple(_FORMS)


def must(op: str, n: int, rank: int, payload: int, own: int = 0, root: int = 0) -> Bytes:
    """Evaluate the closed form for a call's verb on this rank."""
    if op not in _FORMS:
        raise ValueError(f"op={op!r} has no closed form; the ops are {', '.join(OPS)}")
    return _FORMS[op](n, rank, payload, own, root)


def _divide(bytes_: int, n: int) -> Bytes:
    whole, rest = divmod(bytes_, n)
    return whole if rest == 0 else bytes_ / n
