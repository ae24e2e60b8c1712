"""A tensor-parallel rank's share of a model, and the bytes that it sends, in closed form.

A block sends 8Φ(N−1)/N elements with Φ = rows · length · hidden, and 12Φ(N−1)/N with recomputation.
Embedding, head, loss and shared key/value heads send more. Lessons 04 to 08 derive the parts.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.collectives.agreement import SENT
from course_lib.gpt import Config
from course_lib.layout import cut
from course_lib.ledger import forms
from course_lib.tensor_parallel.embedding import check_vocabulary
from course_lib.tensor_parallel.qkv_layout import shares

OFFER = 16  # bytes of an entry that a rank offers: value and id, in float64


class RankShare(NamedTuple):
    """A rank's share of a model: `tokens` between the sharded layers, heads, columns of the MLP,
    and entries of the vocabulary."""

    tokens: int
    heads: int
    kv_heads: int
    inner: int
    words: int


def part_of(
    config: Config, rows: int, length: int, tp: int, rank: int, *, sequence: bool = False
) -> RankShare:
    """Compute the share of rank `rank` of `tp`, with `rows` sequences of `length` tokens."""
    check_cut(config, length, tp, rank)
    share = shares(config.heads, config.kv_heads, tp)[rank]
    inner, words = (cut(size, tp)[rank] for size in (config.inner, config.vocabulary))
    tokens = rows * (cut(length, tp)[rank] if sequence else length)
    return RankShare(tokens, share.heads, share.kv_heads, inner, words)


def tensor_parallel_bytes(
    config: Config,
    rows: int,
    length: int,
    n: int,
    *,
    rank: int = 0,
    width: int = 4,
    sequence: bool = False,
    keep: bool = True,
    fused: bool = False,
) -> float:
    """Count the bytes that rank `rank` of `n` sends for `rows` sequences of `length` tokens,
    including embedding and loss. The count is exact for any config that can be sharded this way.

    `sequence` and `keep` are arguments of `parallelize`, `fused` is an argument of the loss, and
    `width` is the bytes of an element. With `config.recompute`, each block sends its forward
    messages twice. Vocabulary padding and overlap change no byte.
    """
    check_cut(config, length, n, rank)
    each = config.hidden * width  # bytes of a token's states
    phi, own = rows * length * each, rows * cut(length, n)[rank] * each
    both, join = forms.all_reduce(n, phi), forms.all_gather(n, own)
    scatter = forms.reduce_scatter(phi, own)
    pair = join + scatter if sequence else both  # at both ends of a layer, in each pass
    again = join if sequence and not keep else 0  # an input gathered again in the backward pass
    block, backward = 2 * pair, 2 * (pair + again)
    if config.recompute:
        backward += block
    backward += _shared_heads(config, n, rank, width)
    head = pair + again
    if sequence and fused:  # every rank gathers the states and sums their gradient
        head = join + both
    ends = pair + head + loss_bytes(rows * length, n, width)  # the embedding table's pair is first
    if sequence:
        ends += _summed_norms(config, n, width)
        if config.position == "learned":  # the table's gradient is gathered from all ranks' tokens
            ends += forms.all_gather(n, cut(length, n)[rank] * each)
    return config.layers * (block + backward) + ends


def summed_bytes(
    config: Config, rows: int, length: int, n: int, *, width: int = 4, sequence: bool = False
) -> float:
    """Count the bytes of all-reduces; with `sequence`, gathers and scatters send the rest."""
    if not sequence:
        return tensor_parallel_bytes(config, rows, length, n, width=width)
    return loss_bytes(rows * length, n, width) + _summed_norms(config, n, width)


def check_cut(config: Config, length: int, n: int, rank: int) -> None:
    """Refuse a rank that does not exist, and configs that `parallelize` or the model refuses."""
    if not 0 <= rank < n:
        raise ValueError(f"rank={rank} is none of the {n} ranks 0 to {n - 1}")
    if length > config.length:
        raise ValueError(
            f"a sequence of {length} tokens is longer than length={config.length} in the config"
        )
    shares(config.heads, config.kv_heads, n)  # refuses heads that cannot be distributed
    check_vocabulary(config.vocabulary, n)


def _shared_heads(config: Config, n: int, rank: int, width: int) -> float:
    """Count a block's bytes for summing gradients of key/value heads that several ranks hold."""
    share = shares(config.heads, config.kv_heads, n)[rank]
    rows = 2 * share.kv_heads * config.head_size
    holders = len(share.holders)
    sums = forms.all_reduce(holders, rows * config.hidden * width)
    return sums + (forms.all_reduce(holders, rows * width) if config.bias else 0)


def _summed_norms(config: Config, n: int, width: int) -> float:
    """Count the bytes for summing the norms' gradients, which come from each rank's tokens."""
    return (2 * config.layers + 1) * forms.all_reduce(n, norm_bytes(config, width))


def norm_bytes(config: Config, width: int) -> int:
    """Count the bytes of one norm's weights."""
    return (2 if config.norm == "layer" and config.bias else 1) * config.hidden * width


def loss_bytes(tokens: int, n: int, width: int) -> float:
    """Count the bytes sent to reduce each token's largest logit and two sums, at least float32."""
    item = max(width, 4)
    return forms.all_reduce(n, tokens * item) + forms.all_reduce(n, 2 * tokens * item)


def generation_bytes(
    config: Config,
    n: int,
    rank: int,
    *,
    rows: int,
    prompt: int,
    count: int,
    item: int,
    offered: int = 1,
    sequence: bool = False,
) -> int | float:
    """Count the bytes that rank `rank` of `n` sends for `count` new tokens in each of `rows` rows.

    A forward pass of s tokens completes 1 + 2·layers partial sums of b·s·h elements, `item` bytes
    each. The prompt passes once, then each new token except the last. Each choice of a token
    gathers `offered` entries of every rank. With `sequence` the tokens are sharded, so a single
    token is on one rank, which sends it to the others.
    """
    sums, times_n = 1 + 2 * config.layers, 0
    for s in [prompt] + [1] * (count - 1) if count else []:
        token = rows * config.hidden * item
        if sequence:
            own = cut(s, n)[rank]
            times_n += n * sums * token * ((s - own) + (n - 1) * own)
        else:
            times_n += sums * 2 * (n - 1) * token * s
    times_n += n * (n - 1) * (count * OFFER * rows * offered + SENT)
    quotient, rest = divmod(times_n, n)
    return times_n / n if rest else quotient
