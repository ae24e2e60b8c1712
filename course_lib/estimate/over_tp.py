"""What tensor parallelism has a rank send for one forward and backward: closed forms.

A block takes 8Φ(N−1)/N, Φ = rows · length · hidden, and 12 where its forward is run again; table,
head, loss and shared key/value heads come to that. Lessons 04 to 07 derive the parts.
"""

from __future__ import annotations

from course_lib.gpt import Config
from course_lib.layout import cut
from course_lib.ledger import forms
from course_lib.tensor_parallel.embedding import check_vocabulary
from course_lib.tensor_parallel.qkv_layout import shares


def tensor_parallel_bytes(
    config: Config,
    rows: int,
    length: int,
    n: int,
    *,
    rank: int = 0,
    width: int = 4,
    products: int | None = None,
    sequence: bool = False,
    keep: bool = True,
    fused: bool = False,
) -> float:
    """Bytes that rank `rank` of `n` has to send for `rows` sequences of `length` tokens, embedding
    and loss included: exact for any config that can be cut so.

    `sequence` and `keep` are those of `parallelize`, `fused` that of the loss; `config.recompute`
    sends each block's forward twice. `width` is a weight's, and `products` that of what goes into a
    product, where autocast makes it narrower. How the vocabulary is padded, and whether messages
    overlap, changes no byte.
    """
    check_cut(config, length, n, rank)
    wide, narrow = width, width if products is None else products
    phi, part = rows * length * config.hidden, rows * cut(length, n)[rank] * config.hidden

    def both(item: int) -> float:  # an all-reduce of all tokens' states
        return forms.all_reduce(n, phi * item)

    def join(item: int) -> float:  # an all-gather of them
        return forms.all_gather(n, part * item)

    def scatter(item: int) -> float:  # a reduce-scatter
        return forms.reduce_scatter(phi * item, part * item)

    again = 0 if keep else join(narrow)  # a gathered input, gathered once more in the backward
    if sequence:
        pair = forward = join(narrow) + scatter(narrow)
        block, backward = 2 * forward, 2 * (pair + again)
        table = scatter(wide) + join(wide)
        head = join(narrow) + scatter(narrow) + again
        if fused:  # its states are gathered whole, and their gradient is summed on every rank
            head = join(wide) + both(narrow)
    else:
        block = backward = 2 * both(narrow)
        table, head = both(wide), both(narrow)
    if config.recompute:
        backward += block
    backward += _shared_heads(config, n, rank, wide)
    ends = table + head + _loss(rows * length, n, narrow)
    if sequence:
        ends += _summed_norms(config, n, wide)
        if config.position == "learned":  # the table's gradient is joined from all ranks' tokens
            ends += forms.all_gather(n, cut(length, n)[rank] * config.hidden * wide)
    return config.layers * (block + backward) + ends


def summed_bytes(
    config: Config, rows: int, length: int, n: int, *, width: int = 4, sequence: bool = False
) -> float:
    """What of these bytes all-reduces send; with `sequence` the rest are gathers and scatters."""
    if not sequence:
        return tensor_parallel_bytes(config, rows, length, n, width=width)
    return _loss(rows * length, n, width) + _summed_norms(config, n, width)


def check_cut(config: Config, length: int, n: int, rank: int) -> None:
    """Refuse what `parallelize` and the model refuse, and a rank that there is not."""
    if not 0 <= rank < n:
        raise ValueError(f"rank={rank} is none of the {n} ranks 0 to {n - 1}")
    if length > config.length:
        raise ValueError(
            f"a sequence of {length} tokens is longer than length={config.length} in the config"
        )
    shares(config.heads, config.kv_heads, n)  # refuses heads that cannot be shared out
    check_vocabulary(config.vocabulary, n)


def _shared_heads(config: Config, n: int, rank: int, width: int) -> float:
    """The gradients of key/value heads that several ranks hold, summed over those: a block's."""
    share = shares(config.heads, config.kv_heads, n)[rank]
    rows = 2 * share.kv_heads * config.head_size
    holders = len(share.holders)
    sums = forms.all_reduce(holders, rows * config.hidden * width)
    return sums + (forms.all_reduce(holders, rows * width) if config.bias else 0)


def _summed_norms(config: Config, n: int, width: int) -> float:
    """Each norm's weights on a rank's own tokens: their gradients are summed."""
    weights = 2 if config.norm == "layer" and config.bias else 1
    each = forms.all_reduce(n, weights * config.hidden * width)
    return (2 * config.layers + 1) * each


def _loss(tokens: int, n: int, width: int) -> float:
    """A token's largest logit and two sums, in float32 or better."""
    item = max(width, 4)
    return forms.all_reduce(n, tokens * item) + forms.all_reduce(n, 2 * tokens * item)
