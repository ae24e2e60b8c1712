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


def send(payload: int) -> int:
    """The message, once."""
    return payload


def recv() -> int:
    """Receiving sends nothing."""
    return 0


def barrier() -> int:
    """Meeting takes messages, but they carry nothing."""
    return 0


def must(op: str, n: int, rank: int, payload: int, own: int = 0, root: int = 0) -> Bytes:
    """The closed form of `op` for this rank; what a formula does not need, it does not read."""
    if op == "all_reduce":
        return all_reduce(n, payload)
    if op == "all_gather":
        return all_gather(n, payload)
    if op == "reduce_scatter":
        return reduce_scatter(payload, own)
    if op == "all_to_all":
        return all_to_all(payload, own)
    if op == "broadcast":
        return broadcast(n, rank, root, payload)
    if op == "reduce":
        return reduce(rank, root, payload)
    if op == "scatter":
        return scatter(rank, root, payload, own)
    if op == "gather":
        return gather(rank, root, payload)
    if op == "send":
        return send(payload)
    if op == "recv":
        return recv()
    if op == "barrier":
        return barrier()
    raise ValueError(f"op={op!r} has no closed form; the ops are {', '.join(OPS)}")


OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "send",
    "recv",
    "barrier",
)


def _divide(bytes_: int, n: int) -> Bytes:
    whole, rest = divmod(bytes_, n)
    return whole if rest == 0 else bytes_ / n
