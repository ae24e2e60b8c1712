"""Text from a model, whole or cut: each rank offers its best words, and the logits never meet.

The largest of all words is the largest of the ranks' largest. Noise that is drawn alike on every
rank, for every word, makes a sample out of a largest. Lesson 08 derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from course_lib.collectives import all_gather
from course_lib.collectives.agreement import SENT, same_everywhere
from course_lib.collectives.call import Group, check_member
from course_lib.gpt import GPT, Cache, Config
from course_lib.layout import cut

OFFER = 16  # bytes of a word that a rank offers: its value and its number, in float64


@torch.no_grad()
def generate(
    model: GPT,
    ids: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    top: int | None = None,
    seed: int = 0,
    stop: int | None = None,
    group: Group | None = None,
) -> Tensor:
    """(b, s) prompts to (b, s + count): at temperature 0 the likeliest word each time, else drawn.

    `top` draws among that many likeliest words. A row that has met the word `stop` is filled up
    with it. A model that is cut over tp is called by every rank of that group (`group`, or the one
    that its head was cut over), with the same arguments, and all get the same words; other dp ranks
    may ask for other prompts. Without `stop` every rank makes `count` forwards, whatever it writes.

    Chosen in float64 out of the logits as they come: cut or not, float64 draws the same words. In
    float32 a cut model's logits differ in the last digits, so where two words are that close, it
    may take the other, and what follows is another text.

    What it sends is in `in_bytes`: for each new word what one token's forward sends, and an
    all-gather of 16·b·k bytes from each rank, where k is `top`, or 1.
    """
    group = _group_of(model, group)
    if group is not None:  # first of all, so that what is refused is refused on every rank
        settings = tuple(ids.shape), count, temperature, top, seed, stop
        same_everywhere(
            (settings, ids.tolist()),
            [group],
            "{ranks} of the group that holds this model was given other prompts or settings than "
            "{first}",
            f"here (shape, count, temperature, top, seed, stop) = {settings}. Pass the same on "
            "every one of them",
            error=ValueError,
        )
    _check(model.config, ids, count, temperature, top, stop)
    noise = torch.Generator().manual_seed(seed)
    past = [Cache() for _ in model.blocks]
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # (b,)
    words, new = [ids], ids
    with _evaluating(model):
        for _ in range(count):
            logits = _last_logits(model, new, past)  # (b, v/tp)
            chosen = _choose(model, logits, temperature, top, noise, group)  # (b,)
            if stop is not None:
                chosen = torch.where(done, stop, chosen)
                done = done | (chosen == stop)
            new = chosen[:, None].to(ids.dtype)  # (b, 1)
            words.append(new)
            if stop is not None and bool(done.all()):
                break
    made = torch.cat(words, 1)
    rest = ids.shape[1] + count - made.shape[1]
    return made if not rest else torch.cat((made, made.new_full((len(ids), rest), stop)), 1)


def _choose(
    model: GPT,
    logits: Tensor,
    temperature: float,
    top: int | None,
    noise: torch.Generator,
    group: Group | None,
) -> Tensor:
    """(b, v/tp) logits of this rank's words to the word of all that is taken, (b,)."""
    vocabulary, own_rows = model.config.vocabulary, logits.shape[-1]
    start, widest = (0, own_rows) if group is None else _cut_of(model, group)
    values = logits.double()
    words = torch.arange(start, start + own_rows, device=logits.device)  # (v/tp,)
    values = values.masked_fill(words >= vocabulary, -math.inf)  # padding is no word
    if not temperature:
        return _largest(values, words, 1, vocabulary, group)[1][:, 0]
    # Drawn for all words on every rank: whoever holds a word gives it the same noise.
    uniform = torch.rand((len(logits), vocabulary), generator=noise, dtype=torch.float64)
    if top is None:
        own = uniform[:, start : start + own_rows].to(logits.device)
        values[:, : own.shape[1]] = values[:, : own.shape[1]] / temperature + _gumbel(own)
        return _largest(values, words, 1, vocabulary, group)[1][:, 0]
    offered = min(top, widest)
    values, words = _largest(values, words, offered, vocabulary, group, min(top, vocabulary))
    theirs = uniform.gather(1, words.cpu().clamp(max=vocabulary - 1))  # (b, k)
    best = (values / temperature + _gumbel(theirs).to(values.device)).argmax(1, keepdim=True)
    return words.gather(1, best)[:, 0]


def _largest(
    values: Tensor,
    words: Tensor,
    offered: int,
    vocabulary: int,
    group: Group | None,
    kept: int = 1,
) -> tuple[Tensor, Tensor]:
    """The `kept` largest values of all ranks and their words, (b, kept) each, out of the `offered`
    largest of each rank; of equal values the lowest words, as torch.argmax takes them."""
    if offered == 1 and values.shape[1]:  # no need to sort: max gives the first of equals
        values, at = values.max(1, keepdim=True)
    else:
        values, at = values.sort(dim=1, descending=True, stable=True)
    values, words = values[:, :offered], words[at[:, :offered]]
    missing = offered - values.shape[1]  # this rank holds fewer words
    values = nn.functional.pad(values, (0, missing), value=-math.inf)
    words = nn.functional.pad(words, (0, missing), value=vocabulary)
    if group is not None:
        pairs = torch.stack((values, words.double()), -1)  # (b, offered, 2): a word is exact there
        pairs = all_gather(pairs, group, dim=1)  # (b, n·offered, 2), lower words first
        values, words = pairs[..., 0], pairs[..., 1].long()
        values, at = values.sort(dim=1, descending=True, stable=True)
        words = words.gather(1, at)
    values, words = values[:, :kept], words[:, :kept]
    if bool(values.isnan().any()):
        raise ValueError("the model's logits are NaN: no word is the likeliest")
    return values, words


def _gumbel(uniform: Tensor) -> Tensor:
    """What makes the largest of (logits + noise) a draw from their softmax."""
    return -(-uniform.log()).log()


def _last_logits(model: GPT, ids: Tensor, past: list[Cache]) -> Tensor:
    """(b, s) new ids to the logits after the last of them, (b, v/tp)."""
    if hasattr(model.head, "tokens"):  # cut tokens: the head itself gathers them
        return model(ids, past)[:, -1]
    return model.head(model.states(ids, past)[:, -1:])[:, 0]


def _cut_of(model: GPT, group: Group) -> tuple[int, int]:
    """(the first word of this rank, the most words that a rank holds)."""
    return model.tokens.start, cut(model.tokens.padded, group.size())[0]


def _group_of(model: GPT, group: Group | None) -> Group | None:
    """The group that the model is cut over; None for a whole one."""
    own = getattr(model.head, "group", None)
    if own is None and group is not None and group.size() > 1:
        raise ValueError(
            f"this model is whole, and a group of {group.size()} ranks was passed: each rank has "
            "all logits already. Leave group out, or cut the model with parallelize"
        )
    if own is not None and group is not None and group.group_name != own.group_name:
        raise ValueError(
            f"rank {own.rank()}: the model is cut over another group than the one passed: pass "
            'mesh.get_group("tp"), or leave group out'
        )
    if own is not None:
        check_member(own)
    return own


def _check(
    config: Config,
    ids: Tensor,
    count: int,
    temperature: float,
    top: int | None,
    stop: int | None,
) -> None:
    if ids.dim() != 2 or not ids.numel() or ids.is_floating_point():
        raise ValueError(
            f"prompts are (b, s) token ids, and here is {ids.dtype} {tuple(ids.shape)}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocabulary:
        raise ValueError(
            f"the prompts hold ids from {int(ids.min())} to {int(ids.max())}, and words are 0 to "
            f"{config.vocabulary - 1}"
        )
    if count < 0:
        raise ValueError(f"count={count} new words cannot be made; it has to be 0 or more")
    if ids.shape[1] + count > config.length:
        raise ValueError(
            f"a prompt of {ids.shape[1]} tokens and count={count} new ones are "
            f"{ids.shape[1] + count}, above length={config.length} in the config; take a shorter "
            f"prompt, or count={max(0, config.length - ids.shape[1])} at most"
        )
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} has to be 0 (the likeliest word) or more")
    if top is not None and top < 1:
        raise ValueError(f"top={top} leaves no word to choose from; take 1 or more, or None")
    if stop is not None and not 0 <= stop < config.vocabulary:
        raise ValueError(f"stop={stop} is no word: words are 0 to {config.vocabulary - 1}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def in_bytes(
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
    """What rank `rank` of n has to send for `count` words, by formula; `item` is in bytes.

    A forward of s tokens completes 1 + 2·layers sums of b·s·h numbers. The prompt goes through
    once, then each new word but the last. Every word is chosen out of `offered` words of each rank.
    Where the tokens are cut, one token is one rank's: that rank tells it to all the others.
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
    whole, rest = divmod(times_n, n)
    return times_n / n if rest else whole
