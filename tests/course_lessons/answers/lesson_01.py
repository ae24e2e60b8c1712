"""Answers to lesson 01's exercises: right ones, and likely wrong ones with the name of each.

More of them, with words that have to be said, stand in `test_checks_01_budget.py`.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import torch

from tests.course_lessons.answers import changed

RING = """
from course_lib.layout import cut


def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    chunks = [chunk.clone() for chunk in x.split(cut(len(x), n))]
    for step in range(2 * (n - 1)):
        out, into = (rank - step) % n, (rank - step - 1) % n
        arriving = torch.empty_like(chunks[into])
        sending = dist.isend(chunks[out], group=group, group_dst=(rank + 1) % n)
        dist.irecv(arriving, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        chunks[into] = chunks[into] + arriving if step < n - 1 else arriving
    return torch.cat(chunks)
"""
SPARING = """
from course_lib.layout import cut


def exchange(sent, arriving, group):
    n, rank = group.size(), group.rank()
    works = []
    if sent.numel():
        works.append(dist.isend(sent, group=group, group_dst=(rank + 1) % n))
    if arriving.numel():
        works.append(dist.irecv(arriving, group=group, group_src=(rank - 1) % n))
    for work in works:
        work.wait()


def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    total = x.clone()
    chunks = total.split(cut(len(x), n))
    for step in range(n - 1):
        arriving = torch.empty_like(chunks[(rank - step - 1) % n])
        exchange(chunks[(rank - step) % n], arriving, group)
        chunks[(rank - step - 1) % n].add_(arriving)
    for step in range(n - 1):
        exchange(chunks[(rank + 1 - step) % n], chunks[(rank - step) % n], group)
    return total
"""
PADDED = """
def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    size = -(-len(x) // n)
    rows = torch.zeros(n, size, dtype=x.dtype)
    rows.view(-1)[: len(x)] = x
    for step in range(2 * n - 2):
        sent, got = rows[(rank - step) % n], rows[(rank - step - 1) % n]
        arriving = torch.empty_like(got)
        calls = [
            dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        if step < n - 1:
            got += arriving
        else:
            got.copy_(arriving)
    return rows.flatten()[: len(x)]
"""
DIRECT = """
def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    parts = list(torch.tensor_split(x, n))
    others = [r for r in range(n) if r != rank]
    sends = [dist.isend(parts[r].contiguous(), group=group, group_dst=r) for r in others]
    own = parts[rank].clone()
    for r in others:
        arriving = torch.empty_like(own)
        dist.irecv(arriving, group=group, group_src=r).wait()
        own += arriving
    for send in sends:
        send.wait()
    sends = [dist.isend(own, group=group, group_dst=r) for r in others]
    sums = [own if r == rank else torch.empty_like(parts[r]) for r in range(n)]
    for r in others:
        dist.irecv(sums[r], group=group, group_src=r).wait()
    for send in sends:
        send.wait()
    return torch.cat(sums)
"""
REUSED = """
from course_lib.layout import cut


def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    sizes = cut(len(x), n)
    chunks = [chunk.clone() for chunk in x.split(sizes)]
    buffer = x.new_empty(sizes[0])
    for step in range(2 * (n - 1)):
        out, into = (rank - step) % n, (rank - step - 1) % n
        arriving = buffer[: sizes[into]]
        sending = dist.isend(chunks[out], group=group, group_dst=(rank + 1) % n)
        dist.irecv(arriving, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        chunks[into] = chunks[into] + arriving if step < n - 1 else arriving
    return torch.cat(chunks)
"""
STALE = """
from course_lib.layout import cut

TOTALS = {}


def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    total = TOTALS.setdefault((len(x), x.dtype), torch.empty_like(x))
    total.copy_(x)
    chunks = total.split(cut(len(x), n))
    for step in range(2 * (n - 1)):
        got = chunks[(rank - step - 1) % n]
        arriving = torch.empty_like(got)
        sending = dist.isend(chunks[(rank - step) % n], group=group, group_dst=(rank + 1) % n)
        dist.irecv(arriving, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        if step < n - 1:
            got += arriving
        else:
            got.copy_(arriving)
    return total
"""
THROUGH_RANK_0 = """
def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    total = x.clone()
    if rank == 0:
        for other in range(1, n):
            arrival = torch.empty_like(x)
            dist.recv(arrival, group=group, group_src=other)
            total += arrival
        for other in range(1, n):
            dist.send(total, group=group, group_dst=other)
    else:
        dist.send(x, group=group, group_dst=0)
        dist.recv(total, group=group, group_src=0)
    return total
"""
WHOLE_TENSORS = """
def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        arrival = torch.empty_like(x)
        sending = dist.isend(passing, group=group, group_dst=(rank + 1) % n)
        dist.irecv(arrival, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        total += arrival
        passing = arrival
    return total
"""
ONLY_A_REDUCE = """
def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    total = x.clone()
    if rank != n - 1:
        arrival = torch.empty_like(x)
        dist.recv(arrival, group=group, group_src=rank + 1)
        total += arrival
    if rank != 0:
        dist.send(total, group=group, group_dst=rank - 1)
    return total
"""
TWO_HALVES = """
def ring_all_reduce(x, group):
    front, back = x[: len(x) // 2], x[len(x) // 2 :]
    return torch.cat([ring(front, group), ring(back, group)])
""" + RING.replace("ring_all_reduce", "ring")
UNEVEN = """
def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()
    pieces = [piece if r == rank else None for r in range(n)]
    for step in range(n - 1):
        sent = pieces[(rank - step) % n]
        length = torch.zeros(1, dtype=torch.int64)
        first = dist.isend(torch.tensor([len(sent)]), group=group, group_dst=(rank + 1) % n)
        dist.irecv(length, group=group, group_src=(rank - 1) % n).wait()
        arriving = piece.new_empty(int(length))
        second = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.irecv(arriving, group=group, group_src=(rank - 1) % n).wait()
        first.wait()
        second.wait()
        pieces[(rank - step - 1) % n] = arriving
    return pieces
"""
GATHER = """
def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()

    def pass_on(going, room):
        sending = dist.isend(going, group=group, group_dst=(rank + 1) % n)
        dist.irecv(room, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        return room

    lengths, pieces = [None] * n, [None] * n
    lengths[rank], pieces[rank] = torch.tensor([len(piece)]), piece
    for step in range(n - 1):
        going, coming = (rank - step) % n, (rank - step - 1) % n
        lengths[coming] = pass_on(lengths[going], torch.empty(1, dtype=torch.long))
    lengths = [int(k) for k in lengths]
    for step in range(n - 1):
        going, coming = (rank - step) % n, (rank - step - 1) % n
        pieces[coming] = pass_on(pieces[going], piece.new_empty(lengths[coming]))
    return pieces
"""
SHIFT = """
def shift(sent, arriving, group):
    right, left = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    works = [dist.isend(sent, group=group, group_dst=right)] if len(sent) else []
    if len(arriving):
        works.append(dist.irecv(arriving, group=group, group_src=left))
    [work.wait() for work in works]
    return arriving
"""
LENGTHS_FIRST = """
def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()
    lengths = [torch.tensor([len(piece)])]
    for _ in range(n - 1):
        lengths.append(shift(lengths[-1], torch.empty(1, dtype=torch.long), group))
    pieces = [piece.clone()]
    for length in lengths[1:]:
        pieces.append(shift(pieces[-1], torch.empty(length.item(), dtype=piece.dtype), group))
    return [pieces[(rank - r) % n] for r in range(n)]
"""
ONE_FLAT = """
def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()
    lengths = [torch.tensor([len(piece)])]
    for _ in range(n - 1):
        lengths.append(shift(lengths[-1], torch.empty(1, dtype=torch.long), group))
    flat = piece.new_empty(sum(int(k) for k in lengths))
    parts = list(flat.split([int(k) for k in lengths]))
    parts[0].copy_(piece)
    for k in range(1, n):
        shift(parts[k - 1], parts[k], group)
    return [parts[(rank - r) % n] for r in range(n)]
"""
KEPT_LENGTHS = """
LENGTHS = {}


def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()
    if n not in LENGTHS:
        lengths = [torch.tensor([len(piece)])]
        for _ in range(n - 1):
            lengths.append(shift(lengths[-1], torch.empty(1, dtype=torch.long), group))
        LENGTHS[n] = [int(k) for k in lengths]
    pieces = [piece.clone()]
    for length in LENGTHS[n][1:]:
        pieces.append(shift(pieces[-1], piece.new_empty(length), group))
    return [pieces[(rank - r) % n] for r in range(n)]
"""
GROWING = """
def all_gather_uneven(piece, group, pieces=[]):
    n, rank = group.size(), group.rank()
    length = torch.tensor([len(piece)])
    pieces.append(piece.clone())
    for _ in range(n - 1):
        length = shift(length, torch.empty(1, dtype=torch.long), group)
        pieces.append(shift(pieces[-1], piece.new_empty(int(length)), group))
    return [pieces[(rank - r) % n] for r in range(n)]
"""

ROUND_OF_LENGTHS = GATHER[GATHER.index("    for step") : GATHER.index("    lengths = [int(")]
PIECES_ROUND = GATHER[GATHER.rindex("    for step") : GATHER.index("    return pieces")]
FILLED = (
    "    filler = max(lengths) - len(piece)\n"
    "    pieces[rank] = torch.cat([piece, piece.new_zeros(filler)])\n"
) + PIECES_ROUND.replace("lengths[coming]", "max(lengths)")
STRAIGHT = """
    flight = [dist.isend(piece, group=group, group_dst=r) for r in range(n) if r != rank]
    for r in range(n):
        if r != rank:
            pieces[r] = piece.new_empty(lengths[r])
            dist.recv(pieces[r], group=group, group_src=r)
    [one.wait() for one in flight]
"""
GATHERED_UP = """
    passing = piece
    for step in range(n - 1):
        owner = (rank + step + 1) % n
        pieces[owner] = passing = pass_on(passing, piece.new_empty(lengths[owner]))
"""
PIECES_THROUGH_0 = """
    if rank == 0:
        for r in range(1, n):
            pieces[r] = piece.new_empty(lengths[r])
            dist.recv(pieces[r], group=group, group_src=r)
        for r in range(1, n):
            dist.send(torch.cat(pieces), group=group, group_dst=r)
    else:
        dist.send(piece, group=group, group_dst=0)
        whole = piece.new_empty(sum(lengths))
        dist.recv(whole, group=group, group_src=0)
        pieces = list(whole.split(lengths))
"""
CLONES = "[chunk.clone() for chunk in x.split(cut(len(x), n))]"
OUT_INTO = "(rank - step) % n, (rank - step - 1) % n"
ADDED = "chunks[into] + arriving if step < n - 1 else arriving"
WAITS, CUT = "    for work in works:\n        work.wait()\n", "cut(len(x), n)"
KINDS = "(group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()"
TURNED = "(group.rank() - 1) % group.size(), (group.rank() + 1) % group.size()"
FROM_LEFT = "dist.irecv(arriving, group=group, group_src=(rank - 1) % n)"
ROOM, GIVES = "piece.new_empty(int(length))", "    return pieces\n"

BYTES = {2: 2_400_000, 3: 3_200_000, 4: 3_600_000, 8: 4_200_000}
B, MS = 2_400_000, 1e3
TREE = {
    "ring 1 kB": 3.7802, "tree 1 kB": 0.3612, "ring 100 MB": 23.4675, "tree 100 MB": 120.36,
    "they meet at": 3409.35,
}  # fmt: skip
RING_1, TREE_1, RING_100, TREE_100, MEET = TREE
HANGS = {"A": 2, "B": 1, "C": 0}


def tree(**fields: float) -> dict:
    """The right numbers, but for these: `ring_1=…` is for "ring 1 kB"."""
    names = dict(zip(("ring_1", "tree_1", "ring_100", "tree_100", "meet"), TREE, strict=True))
    return TREE | {names[name]: number for name, number in fields.items()}


def gather(*pairs: tuple[str, str]) -> str:
    return changed(GATHER, *pairs)


RIGHT: dict = {
    "ring_all_reduce": {
        "views, and no empty messages": SPARING,
        "padded to n equal rows": PADDED,
        "from each to each, in chunks": DIRECT,
        "another chunk first": changed(
            RING, (OUT_INTO, "(rank - step - 1) % n, (rank - step - 2) % n")
        ),
        "one arrival buffer, copied": changed(REUSED, ("else arriving", "else arriving.clone()")),
    },
    "all_gather_uneven": {
        "in turns, as a tuple": changed(UNEVEN, (GIVES, "    return tuple(pieces)\n")),
        "lengths first, no empty messages": [SHIFT, LENGTHS_FIRST],
        "one flat buffer": [SHIFT, ONE_FLAT],
        "the other way round": [
            changed(SHIFT, (KINDS, TURNED)),
            changed(LENGTHS_FIRST, ("(rank - r) % n", "(r - rank) % n")),
        ],
    },
    "ring_bytes": {
        "other types": {
            2: 2.4e6, 3: Fraction(3_200_000), 4: Decimal(3_600_000), 8: torch.tensor([4_200_000])
        },
    },
    "tree_or_ring": {
        "three digits": tree(ring_1=3.78, tree_1=Decimal("0.361"), ring_100=23.5, meet=3410),
    },
    "who_hangs": {"other types": {"A": 2.0, "B": Fraction(1), "C": torch.tensor([0])}},
}  # fmt: skip

WRONG: dict = {
    "ring_all_reduce": {
        "one arrival buffer": (REUSED, "one buffer"),
        "one buffer for every sum": (STALE, "one buffer"),
        "arrivals not waited for": (
            changed(SPARING, (WAITS, "    if sent.numel():\n        works[0].wait()\n")),
            "not waited for",
        ),
        "never added": (changed(RING, (ADDED, "arriving")), "never added"),
        "through float32": (
            changed(RING, ("cat(chunks)", "cat(chunks).float().to(x.dtype)")), "rounded on the way",
        ),
        "only float64": (
            changed(PADDED, ("dtype=x.dtype", "dtype=torch.float64")), "wrong shape",
        ),
        "room for float64 alone": (
            changed(RING, ("empty_like(chunks[into])", "zeros(len(chunks[into])).double()")),
            "buffer of wrong dtype",
        ),
        "a step short": (
            changed(RING, ("range(2 * (n - 1))", "range(2 * (n - 1) - 1)")), "one step too few",
        ),
        "the largest": (
            changed(RING, ("chunks[into] + arriving", "torch.maximum(chunks[into], arriving)")),
            "largest",
        ),
        "everything through rank 0": (THROUGH_RANK_0, "all through one rank"),
        "everybody's whole tensor round the ring": (WHOLE_TENSORS, "full tensors"),
        "torch's own": (
            "def ring_all_reduce(x, group):\n"
            "    y = x.clone()\n    dist.all_reduce(y, group=group)\n    return y\n",
            "ready-made collective",
        ),
        "a reduce": (ONLY_A_REDUCE, "not on every rank"),
        "only one round": (changed(RING, ("2 * (n - 1)", "n - 1")), "only one round"),
        "the remainder dropped": (
            changed(
                RING,
                ("x.split(cut(len(x), n))", "x[: len(x) // n * n].split([len(x) // n] * n)"),
                ("cat(chunks)", "cat([*chunks, x[len(x) // n * n :]])"),
            ),
            "remainder dropped",
        ),
        "added in both rounds": (
            changed(RING, (" if step < n - 1 else arriving", "")), "added twice",
        ),
        "counting up": (
            changed(RING, (OUT_INTO, "(rank + step) % n, (rank + step + 1) % n")),
            "right for two only",
        ),
        "in place": (
            changed(
                RING,
                (CLONES, f"x.split({CUT})"),
                (f"chunks[into] = {ADDED}", f"chunks[into].copy_({ADDED})"),
            ),
            "input changed",
        ),
        "the mean": (changed(RING, ("cat(chunks)", "cat(chunks) / n")), "mean"),
        "chunks all of one length": (changed(RING, (CUT, "-(-len(x) // n)")), "uneven lengths"),
        "twice as many pieces": (TWO_HALVES, "over budget"),
        "the notebook's own rank": (
            changed(RING, ("n, rank = group.size(), group.rank()", "n = group.size()")),
            "uses world numbers",
        ),
        "nothing returned": (changed(RING, ("return torch", "torch")), "nothing returned"),
        "padded and not trimmed": (
            changed(RING, ("cat(chunks)", "cat([*chunks, x[:1]])")), "wrong shape",
        ),
        "back to front": (changed(RING, ("cat(chunks)", "cat(chunks[::-1])")),
            "chunks in wrong order"),
        "torch.chunk": (changed(RING, (f"x.split({CUT})", "x.chunk(n)")), "uneven lengths"),
    },
    "all_gather_uneven": {
        "lengths of the first call": ([SHIFT, KEPT_LENGTHS], "wrong second call"),
        "a list by default": ([SHIFT, GROWING], "wrong second call"),
        "only float64": (
            changed(UNEVEN, (ROOM, "torch.empty(int(length), dtype=torch.float64)")),
            "buffer does not fit",
        ),
        "not waited for": (
            changed(UNEVEN, (f"{FROM_LEFT}.wait()", FROM_LEFT)), "not waited for",
        ),
        "an empty rank leaves": (
            changed(UNEVEN, ("    for", "    if not len(piece):\n        return pieces\n    for")),
            "empty piece",
        ),
        "through float32": (
            changed(UNEVEN, (GIVES, "    return [one.float().to(one.dtype) for one in pieces]\n")),
            "rounded on the way",
        ),
        "torch's own, with objects": (
            "def all_gather_uneven(piece, group):\n"
            "    pieces = [None] * group.size()\n"
            "    dist.all_gather_object(pieces, piece, group=group)\n    return pieces\n",
            "ready-made collective",
        ),
        "everybody's is as long as mine": (
            gather((ROUND_OF_LENGTHS, ""), ("    lengths = [int(k) for k in lengths]\n", ""))
            .replace("lengths[coming])", "len(piece))"),
            "lengths not sent",
        ),
        "the length of another": (
            gather(("piece.new_empty(lengths[coming])", "piece.new_empty(lengths[going])")),
            "wrong length",
        ),
        "padded to the longest": (
            gather(
                (PIECES_ROUND, FILLED),
                ("return pieces", "return [p[:k] for p, k in zip(pieces, lengths)]"),
            ),
            "padded",
        ),
        "padded and left so": (gather((PIECES_ROUND, FILLED)), "padding left in"),
        "sends to all ranks": (gather((PIECES_ROUND, STRAIGHT)), "sends to all ranks"),
        "all through rank 0": (gather((PIECES_ROUND, PIECES_THROUGH_0)), "all through one rank"),
        "all lengths in each message": (
            gather(
                (
                    ROUND_OF_LENGTHS,
                    "    known = torch.zeros(n, dtype=torch.long)\n"
                    "    known[rank] = len(piece)\n"
                    "    for step in range(n - 1):\n"
                    "        known += pass_on(known, torch.empty_like(known)) * (known == 0)\n"
                    "    lengths = known\n",
                )
            ),
            "over budget",
        ),
        "each piece in two halves": (
            gather(
                (
                    "pieces[coming] = pass_on(pieces[going], piece.new_empty(lengths[coming]))",
                    "k, room = lengths[going] // 2, piece.new_empty(lengths[coming])\n"
                    "        pass_on(pieces[going][:k], room[: len(room) // 2])\n"
                    "        pass_on(pieces[going][k:], room[len(room) // 2 :])\n"
                    "        pieces[coming] = room",
                )
            ),
            "too many messages",
        ),
        "in the order of arrival": (
            gather(
                ("return pieces", "return [pieces[(rank - step) % n] for step in range(n)]"),
            ),
            "order of arrival",
        ),
        "one buffer for all": (
            gather(
                ("    lengths = [int(", "    room = piece.new_empty(100)\n    lengths = [int("),
                ("piece.new_empty(lengths[coming])", "room[: lengths[coming]]"),
                ("pass_on(pieces[going],", "pass_on(pieces[going].clone(),"),
            ),
            "one buffer",
        ),
        "counting up": (gather((PIECES_ROUND, GATHERED_UP)), "right for two only"),
        "joined": (gather(("return pieces", "return torch.cat(pieces)")), "joined into one"),
        "without its own": (
            gather(("return pieces", "return pieces[:rank] + pieces[rank + 1 :]")),
            "not a piece of each rank",
        ),
        "nothing returned": (gather(("return pieces", "pieces")), "nothing returned"),
        "rounded to float32": (
            gather(("return pieces", "return [one.float() for one in pieces]")),
            "wrong dtype",
        ),
        "buffer of wrong dtype": (
            gather(("piece.new_empty(lengths[coming])", "torch.empty(lengths[coming])")),
            "buffer does not fit",
        ),
        "the input made longer": (
            gather(
                (
                    PIECES_ROUND,
                    "    piece.resize_(max(lengths))\n"
                    + PIECES_ROUND.replace("lengths[coming]", "max(lengths)"),
                ),
                ("return pieces", "return [p[:k].clone() for p, k in zip(pieces, lengths)]"),
            ),
            "input changed",
        ),
        "lengths in a byte": (
            gather(
                ("tensor([len(piece)])", "tensor([len(piece)]).byte()"),
                ("dtype=torch.long", "dtype=torch.uint8"),
            ),
            "wrong length",
        ),
        "lengths in the piece's own dtype": (
            gather(
                ("torch.tensor([len(piece)])", "piece.new_tensor([len(piece)])"),
                ("torch.empty(1, dtype=torch.long)", "piece.new_empty(1)"),
            ),
            "wrong length",
        ),
        "an empty one is not sent": (
            gather(
                ("        sending =", "        if len(going):\n            sending ="),
                ("        sending.wait", "        if len(going):\n            sending.wait"),
            ),
            "empty piece",
        ),
        "the notebook's own rank": (
            gather(("n, rank = group.size(), group.rank()", "n = group.size()")),
            "uses world numbers",
        ),
        "a dict": (changed(UNEVEN, (GIVES, "    return dict(enumerate(pieces))\n")),
            "not a piece of each rank"),
    },
    "ring_bytes": {
        "in MiB": ({n: sent / 2**20 for n, sent in BYTES.items()}, "unit"),
        "two messages": ({n: 2 * B / n for n in BYTES}, "one message"),
        "n tensors": ({n: n * B for n in BYTES}, "full tensors"),
        "a tree": ({n: 2 * (n - 1).bit_length() * B for n in BYTES}, "a tree"),
        "inverted factor": ({n: 2 * n / (n - 1) * B for n in BYTES}, "inverted factor"),
        "one step more": ({n: (2 * n - 1) / n * B for n in BYTES}, "one step too many"),
        "elements of one round": ({n: (n - 1) / n * B / 4 for n in BYTES}, "several ideas"),
    },
    "tree_or_ring": {
        "one α up the tree": (tree(tree_1=0.0312, tree_100=120.03), "one α for all"),
        "full tensors around the ring": (
            tree(ring_1=3.7926, ring_100=1263.78), "full tensors around the ring",
        ),
        "n steps a round": (tree(ring_1=3.8402, ring_100=23.84), "one step too many"),
        "seven levels": (
            tree(tree_1=0.4214, tree_100=140.42, meet=2791), "a level too many",
        ),
        "a natural logarithm": (
            tree(tree_1=0.25037, tree_100=83.43, meet=5569), "wrong logarithm",
        ),
        "halved from level to level": (
            tree(tree_1=0.3602, tree_100=20.0475), "halved at each level",
        ),
        "no latency": (
            tree(ring_1=1.96875e-4, tree_1=1.2e-3, ring_100=19.6875, tree_100=120),
            "latency left out",
        ),
        "swapped": (tree(ring_1=TREE[TREE_1], tree_1=TREE[RING_1]), "ring and tree swapped"),
        "100 kB": (tree(ring_100=3.79969, tree_100=0.48), "unit"),
        "added up": (tree(meet=2448.3), "half of the equation"),
    },
}  # fmt: skip
