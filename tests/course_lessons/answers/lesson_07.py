"""Answers to lesson 07's losses by hand: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

ARGUMENTS = {
    "cut_loss": "logits, targets, start, group",
    "ignored_loss": "logits, targets, start, ignore_index, group",
    "padded_loss": "logits, targets, start, vocabulary, group",
    "smoothed_loss": "logits, targets, start, vocabulary, smoothing, group",
}
HEAD = """
import torch.nn.functional as F

from course_lib.collectives import all_gather, all_reduce
from course_lib.tensor_parallel.cross_entropy import cross_entropy

"""


def body(name: str, text: str) -> str:
    """An answer written from nothing."""
    return f"{HEAD}\ndef {name}({ARGUMENTS[name]}):\n{text}"


PLAIN = """    t, width = logits.shape
    m = all_reduce(logits.amax(-1), group, "max")
    e = (logits - m[:, None]).exp()
    S = all_reduce(e.sum(-1), group)
    local = targets - start
    here = (local >= 0) & (local < width)
    local = local.clamp(0, width - 1)
    own = torch.where(here, logits.gather(-1, local[:, None])[:, 0], 0.0)
    loss = (S.log() + m - all_reduce(own, group)).mean()
    d = e / S[:, None]
    d[torch.arange(t), local] -= here.double()
    return loss, d / t
"""
LOSS = "    loss = (S.log() + m - all_reduce(own, group)).mean()\n"
BODIES = {
    "cut_loss": PLAIN,
    "ignored_loss": changed(
        PLAIN,
        ("    m = ", "    counts = targets != ignore_index\n    m = "),
        ("(local < width)", "(local < width) & counts"),
        (LOSS, "    losses = torch.where(counts, S.log() + m - all_reduce(own, group), 0.0)\n"),
        (
            "    return loss, d / t",
            "    d[~counts] = 0.0\n    many = counts.sum().clamp(min=1)\n"
            "    return losses.sum() / many, d / many",
        ),
    ),
    "padded_loss": changed(
        PLAIN,
        (
            "    m = ",
            "    real = max(0, min(width, vocabulary - start))\n"
            "    x = torch.cat((logits[:, :real], torch.full((t, width - real), -torch.inf)"
            ".double()), -1)\n    m = ",
        ),
        ("logits.amax", "x.amax"),
        ("(logits - m", "(x - m"),
    ),
    "smoothed_loss": changed(
        PLAIN,
        (
            LOSS,
            "    y, every = all_reduce(own, group), all_reduce(logits.sum(-1), group)\n"
            "    losses = S.log() + m - (1 - smoothing) * y - smoothing / vocabulary * every\n",
        ),
        ("e / S[:, None]", "e / S[:, None] - smoothing / vocabulary"),
        ("here.double()", "(1 - smoothing) * here.double()"),
        ("return loss,", "return losses.mean(),"),
    ),
}
BASE = {name: body(name, text) for name, text in BODIES.items()}
PACKED = """    t, width = logits.shape
    own = logits.amax(-1)
    m = own.clone()
    dist.all_reduce(m, dist.ReduceOp.MAX, group=group)
    e = (logits - m[:, None]).exp()
    hot = torch.zeros_like(logits)
    for i, word in enumerate(targets.tolist()):
        if start <= word < start + width:
            hot[i, word - start] = 1
    numbers = torch.stack((e.sum(-1), torch.where(hot > 0, logits, 0.0).sum(-1)))
    dist.all_reduce(numbers, group=group)
    loss = (numbers[0].log() + m - numbers[1]).mean()
    return loss.item(), (e / numbers[0][:, None] - hot) / t
"""
# Whose autograd is the library's: who knows that it is there, and asks it, has read the lesson.
BY_LIBRARY = """    with torch.enable_grad():
        x = logits.clone().requires_grad_()
        loss = cross_entropy(x, targets, group, {})
        return loss.detach(), torch.autograd.grad(loss, x)[0]
"""
ALSO_RIGHT = {
    "cut_loss, packed, with torch's own verbs": ("cut_loss", body("cut_loss", PACKED)),
    "ignored_loss, by weights": (
        "ignored_loss",
        changed(
            BASE["ignored_loss"],
            ("torch.where(counts, S.log() + m - all_reduce(own, group), 0.0)",
             "(S.log() + m - all_reduce(own, group)) * counts"),
            ("    d[~counts] = 0.0\n", "    d *= counts[:, None]\n"),
        ),
    ),
    "padded_loss, by a mask": (
        "padded_loss",
        changed(
            BASE["padded_loss"],
            ("    x = torch.cat((logits[:, :real], torch.full((t, width - real), -torch.inf)"
             ".double()), -1)\n",
             "    x = torch.where(torch.arange(width) < real, logits, -torch.inf)\n"),
        ),
    ),
    "smoothed_loss, by the library": (
        "smoothed_loss",
        body("smoothed_loss",
             BY_LIBRARY.format("vocabulary=vocabulary, label_smoothing=smoothing")),
    ),
    "smoothed_loss, by probabilities": (
        "smoothed_loss",
        changed(
            BASE["smoothed_loss"],
            ("S.log() + m - (1 - smoothing) * y - smoothing / vocabulary * every",
             "(1 - smoothing) * (S.log() + m - y) "
             "+ smoothing * (S.log() + m - every / vocabulary)"),
        ),
    ),
}  # fmt: skip

WHERE = "own = torch.where(here, logits.gather(-1, local[:, None])[:, 0], 0.0)"
ANY_WORD = (WHERE, "own = logits.gather(-1, local[:, None])[:, 0]")
HERE = "here = (local >= 0) & (local < width)"
MOVED = (  # every rank below its own largest logit
    '    m = all_reduce(logits.amax(-1), group, "max")\n    e = (logits - m[:, None]).exp()\n',
    '    m_r = logits.amax(-1)\n    m = all_reduce(m_r, group, "max")\n'
    "    e = (logits - m_r[:, None]).exp()\n",
)
GATHERED = """    n = group.size()
    t, width = logits.shape
    widths = torch.zeros(n)
    widths[group.rank()] = width
    sizes = [int(w) for w in all_reduce(widths, group)]
    whole = all_gather(logits, group, -1, sizes)
    d = whole.softmax(-1)
    d[torch.arange(t), targets] -= 1
    loss = (whole.logsumexp(-1) - whole[torch.arange(t), targets]).mean()
    return loss, d[:, start : start + width] / t
"""
CUT = {
    "nothing shared": (
        [
            ('all_reduce(logits.amax(-1), group, "max")', "logits.amax(-1)"),
            ("all_reduce(e.sum(-1), group)", "e.sum(-1)"),
            ("all_reduce(own, group)", "own"),
        ],
        "nothing shared",
    ),
    "the sum not shared": (
        [("all_reduce(e.sum(-1), group)", "e.sum(-1)")],
        "sum not shared",
    ),
    "the target not shared": ([("all_reduce(own, group)", "own")], "target not shared"),
    "each below its own": ([MOVED], "sums below different logits"),
    "each below its own, and back": (
        [('all_reduce(logits.amax(-1), group, "max")', "logits.amax(-1)")],
        "sums below different logits",
    ),
    "the largest not put back": ([("S.log() + m - all", "S.log() - all")], "largest not put back"),
    "target counted on every rank": ([ANY_WORD], "target counted on every rank"),
    "the word behind the last": (
        [(HERE, "here = (local >= 0) & (local <= width)")],
        "the edge of a shard",
    ),
    "the first word left out": (
        [(HERE, "here = (local > 0) & (local < width)")],
        "the edge of a shard",
    ),
    "the sum of the losses": (
        [("group)).mean()", "group)).sum()")],
        "sum for mean",
    ),
    "summed over the ranks": (
        [("loss = (S.log() + m - all_reduce(own, group)).mean()",
          "loss = all_reduce((S.log() + m - all_reduce(own, group)).mean(), group)")],
        "n times",
    ),
    "the mean over the ranks": (
        [("return loss, d", "return loss / group.size(), d")],
        "n times too small",
    ),
    "the sign": ([("return loss, d / t", "return -loss, d / t")], "sign"),
    "no largest": (
        [('m = all_reduce(logits.amax(-1), group, "max")', "m = torch.zeros(t).double()")],
        "overflow",
    ),
    "the largest of rank 0": (
        [('m = all_reduce(logits.amax(-1), group, "max")',
          "m = all_reduce(logits.amax(-1) if group.rank() == 0 else torch.zeros(t).double(), "
          "group)")],
        "overflow",
    ),
    "the sum of the largest": ([(', "max")', ")")], "overflow"),
    "no one-hot": (
        [("    d[torch.arange(t), local] -= here.double()\n", "")],
        "no one-hot",
    ),
    "one-hot on every rank": (
        [("-= here.double()", "-= 1")],
        "target counted on every rank",
    ),
    "softmax of one rank": (
        [("d = e / S[:, None]", "d = logits.softmax(-1)"),
         # a shard of -inf has no softmax; here it comes after ordinary numbers
         ],
        "softmax of one rank",
    ),
    "not divided": ([("return loss, d / t", "return loss, d")], "gradient of the sum"),
    "divided by the ranks too": (
        [("return loss, d / t", "return loss, d / t / group.size()")],
        "n times too small",
    ),
    "the edge in the gradient": (
        [("-= here.double()", "-= ((targets >= start) & (targets <= start + width)).double()")],
        "the edge of a shard",
    ),
    "the gradient's sign": ([("return loss, d / t", "return loss, -d / t")], "sign"),
    "the gradient summed as well": (
        [("    return loss, d / t",
          "    grown = torch.zeros(t, 2 * width).double()\n"
          "    all_reduce(torch.zeros(4 * t).double(), group)\n    return loss, d / t")],
        "over budget",
    ),
    "in place": ([("e = (logits - m[:, None]).exp()", "e = logits.sub_(m[:, None]).exp()")],
                 "input changed"),
    "the loss alone": ([("return loss, d / t", "return loss")], "not a pair"),
    "nothing": ([("return loss, d / t", "loss, d / t")], "nothing returned"),
    "a loss a token": ([("group)).mean()", "group))")], "no single loss"),
    "float32": ([("return loss, d / t", "return loss, (d / t).float()")], "wrong shape"),
    "the notebook's group": (
        [("    t, width = logits.shape\n",
          "    t, width = logits.shape\n    group = dist.group.WORLD\n")],
        "group left out",
    ),
    "something is kept": (
        [("    S = all_reduce(e.sum(-1), group)",
          "    S = KEPT.setdefault(group.group_name, all_reduce(e.sum(-1), group))")],
        "wrong second step",
    ),
}  # fmt: skip
IGNORED = {
    "another rank's word": (
        [("torch.where(counts, S.log() + m - all_reduce(own, group), 0.0)",
          "S.log() + m - all_reduce(own, group)")],
        "target assumed on a different rank",
    ),
    "another rank's word, a plain mean": (
        [("torch.where(counts, S.log() + m - all_reduce(own, group), 0.0)",
          "S.log() + m - all_reduce(own, group)"), ("losses.sum() / many", "losses.mean()")],
        "target assumed on a different rank",
    ),
    "a mean over all tokens": ([("losses.sum() / many", "losses.mean()")], "mean over all tokens"),
    "counted on every rank": (
        [("many = counts.sum()", "many = all_reduce(counts.sum().double(), group)")],
        "counted on every rank",
    ),
    "only what is negative": ([("targets != ignore_index", "targets >= 0")],
                              "only a negative label"),
    "only -100": ([("targets != ignore_index", "targets != -100")], "only a negative label"),
    "nothing over nothing": ([("counts.sum().clamp(min=1)", "counts.sum()")],
                             "nothing over nothing"),
    "two at the least": ([("clamp(min=1)", "clamp(min=2)")], "wrong token count"),
    "nothing over nothing, by torch's mean": (
        [("losses.sum() / many", "losses[counts].mean()")],
        "nothing over nothing",
    ),
    "a gradient all the same": ([("    d[~counts] = 0.0\n", "")], "ignored tokens still learn"),
    "a gradient over all tokens": ([("d / many", "d / t")], "gradient over all tokens"),
    "nobody's target": ([("torch.where(here, logits.gather", "torch.where(here * 0 > 1, logits."
                                                             "gather")], "wrong loss"),
    "labels set to 0": (
        [("    local = targets - start\n",
          "    targets[~counts] = 0\n    local = targets - start\n")],
        "input changed",
    ),
}  # fmt: skip
CAT = ("    x = torch.cat((logits[:, :real], torch.full((t, width - real), -torch.inf)"
       ".double()), -1)\n")  # fmt: skip
PADDED = {
    "padding takes part": ([(CAT, "    x = logits\n")], "padding takes part"),
    "zeros for logits": ([("-torch.inf)", "0.0)")], "zero is a logit"),
    "padding multiplied away": (
        [(CAT, "    x = logits * (torch.arange(width) < real)\n")],
        "zero is a logit",
    ),
    "the sum without it, the gradient with": (
        [("d = e / S[:, None]", "d = (logits - m[:, None]).exp() / S[:, None]")],
        "padded rows learn",
    ),
    "real words counted on every rank": (
        [("vocabulary - start)", "vocabulary)")],
        "padding takes part",
    ),
    "a rank without a word": (
        [("    m = all_reduce(x.amax(-1), group, \"max\")\n    e = (x - m[:, None]).exp()\n",
          "    own_m = x.amax(-1)\n    m = all_reduce(own_m, group, \"max\")\n"
          "    e = (x - own_m[:, None]).exp() * (own_m - m).exp()[:, None]\n")],
        "rank without real entries",
    ),
    "masked in place": ([(CAT, "    x = logits\n    x[:, real:] = -torch.inf\n")],
                        "input changed"),
    "one entry too few": (
        [("width, vocabulary - start))", "width, vocabulary - start - 1))"),
         ("torch.where(here, logits.gather", "torch.where(here, x.gather")],
        "the border of the padding",
    ),
    "columns left out": ([("return loss, d / t", "return loss, d[:, :real] / t")], "wrong shape"),
    "the edge": ([(HERE, "here = (local >= 0) & (local <= width)")], "the edge of a shard"),
}  # fmt: skip
LOSSES = "S.log() + m - (1 - smoothing) * y - smoothing / vocabulary * every"
SMOOTHED = {
    "no smoothing": ([(LOSSES, "S.log() + m - y")], "no smoothing"),
    "its own words' logits": (
        [("all_reduce(logits.sum(-1), group)", "logits.sum(-1)")],
        "sum of logits not shared",
    ),
    "its own words' mean": (
        [("all_reduce(logits.sum(-1), group)", "logits.sum(-1)"),
         ("smoothing / vocabulary * every", "smoothing / width * every")],
        "share of one rank's entries",
    ),
    "the share of its own words": (
        [("smoothing / vocabulary * every", "smoothing / width * every")],
        "share of one rank's entries",
    ),
    "the mean of the means": (
        [("all_reduce(logits.sum(-1), group)",
          "vocabulary * all_reduce(logits.mean(-1), group) / group.size()")],
        "share of one rank's entries",
    ),
    "the others alone": (
        [("smoothing / vocabulary * every", "smoothing / (vocabulary - 1) * (every - y)")],
        "other entries only",
    ),
    "a logarithm of the softmax": (
        [("all_reduce(logits.sum(-1), group)",
          "all_reduce((e / S[:, None]).log().sum(-1), group) + vocabulary * (S.log() + m)")],
        "overflow",
    ),
    "one entry less, below the largest": (
        [(LOSSES, "S.log() - (1 - smoothing) * (y - m) "
          "- smoothing / (vocabulary - 1) * (every - vocabulary * m)")],
        "ε over v − 1",
    ),
    "the target in full, below the largest": (
        [(LOSSES, "S.log() - (y - m) - smoothing / vocabulary * (every - vocabulary * m)")],
        "target in full",
    ),
    "its own logits, below the largest": (
        [(LOSSES, "S.log() - (1 - smoothing) * (y - m) - smoothing / vocabulary * every"),
         ("all_reduce(logits.sum(-1), group)", "(logits - m[:, None]).sum(-1)")],
        "sum of logits not shared",
    ),
    "the uniform part added": (
        [("y - smoothing / vocabulary * every", "y + smoothing / vocabulary * every")],
        "sign of the uniform part",
    ),
    "half of the uniform part": (
        [("S.log() + m - (1 - smoothing) * y", "(1 - smoothing) * (S.log() + m - y)")],
        "only the target's log-sum-exp",
    ),
    "on top": (
        [(LOSSES, "S.log() + m - y + smoothing * (S.log() + m - every / vocabulary)")],
        "target in full",
    ),
    "logits below the largest in one sum": (
        [("all_reduce(logits.sum(-1), group)", "all_reduce((logits - m[:, None]).sum(-1), group)")],
        "mixed reference logits",
    ),
    "plain logits in one sum": (
        [("S.log() + m - (1 - smoothing) * y", "S.log() - (1 - smoothing) * (y - m)")],
        "mixed reference logits",
    ),
    "not divided by v": (
        [("smoothing / vocabulary * every", "smoothing * every")],
        "factor of the sum",
    ),
    "epsilon left out": (
        [(LOSSES, "S.log() + m - (1 - smoothing) * y - every / vocabulary")],
        "factor of the sum",
    ),
    "not divided by v, below the largest": (
        [(LOSSES, "S.log() - (1 - smoothing) * (y - m) - smoothing * (every - vocabulary * m)")],
        "factor of the sum",
    ),
    "not divided by v, as losses": (
        [(LOSSES, "(1 - smoothing) * (S.log() + m - y) "
          "+ smoothing * (vocabulary * (S.log() + m) - every)")],
        "factor of the sum",
    ),
    "the gradient's share not divided by v": (
        [("e / S[:, None] - smoothing / vocabulary", "e / S[:, None] - smoothing")],
        "factor of the sum",
    ),
    "the plain gradient": (
        [("e / S[:, None] - smoothing / vocabulary", "e / S[:, None]"),
         ("-= (1 - smoothing) * here", "-= here")],
        "gradient without smoothing",
    ),
    "nobody gets the rest": (
        [("e / S[:, None] - smoothing / vocabulary", "e / S[:, None]")],
        "uniform share left out",
    ),
    "all of it smaller": (
        [("e / S[:, None] - smoothing / vocabulary", "(1 - smoothing) * e / S[:, None]")],
        "uniform share left out",
    ),
    "the label in full": ([("-= (1 - smoothing) * here", "-= here")], "target in full"),
    "the gradient's share": (
        [("e / S[:, None] - smoothing / vocabulary", "e / S[:, None] - smoothing / width")],
        "share of one rank's entries",
    ),
    "the gradient's other words": (
        [("    d[torch.arange(t), local] -= (1 - smoothing) * here.double()\n",
          "    d += smoothing / vocabulary - smoothing / (vocabulary - 1)\n"
          "    d[torch.arange(t), local] -= (1 - smoothing - smoothing / (vocabulary - 1)) "
          "* here.double()\n")],
        "other entries only",
    ),
    "far away": ([('all_reduce(logits.amax(-1), group, "max")', "torch.zeros(t).double()")],
                 "overflow"),
    "a one-hot as wide as the vocabulary": (
        [("    d[torch.arange(t), local] -= (1 - smoothing) * here.double()\n",
          "    hot = F.one_hot(targets, vocabulary)[:, start : start + width]\n"
          "    d -= (1 - smoothing) * hot.double()\n")],
        "not sharded",
    ),
    "a bool times a number": ([("* here.double()", "* here")], "rounded on the way"),
    "two sums too many": (
        [("    losses = ", "    all_reduce(torch.zeros(2, t).double(), group)\n    losses = ")],
        "over budget",
    ),
}  # fmt: skip
ROWS = [
    (name, how, changed(BASE[name], *pairs), called)
    for name, mistakes in (
        ("cut_loss", CUT),
        ("ignored_loss", IGNORED),
        ("padded_loss", PADDED),
        ("smoothed_loss", SMOOTHED),
    )
    for how, (pairs, called) in mistakes.items()
]
ROWS.append(("cut_loss", "gathered", body("cut_loss", GATHERED), "logits on the way"))
ROWS.append(
    (
        "cut_loss",
        "the gradient of all",
        body("cut_loss", GATHERED.replace("d[:, start : start + width] / t", "d / t")),
        "gradient of all entries",
    )
)
FIRST = {  # the likelier ones
    "cut_loss": ("nothing shared", "target counted on every rank", "no largest", "gathered"),
    "smoothed_loss": (
        "no smoothing",
        "its own words' mean",
        "the plain gradient",
        "a one-hot as wide as the vocabulary",
    ),
}
KEPT = "KEPT = {}\n"
RIGHT: dict = {name: {"three sums": text} for name, text in BASE.items()}
for _how, (_name, _text) in ALSO_RIGHT.items():
    RIGHT[_name][_how.split(", ", 1)[1]] = _text
WRONG: dict = {name: {} for name in BASE}
for _name, _how, _text, _called in sorted(
    ROWS, key=lambda row: row[1] not in FIRST.get(row[0], ())
):
    WRONG[_name][_how] = (KEPT + _text if "KEPT." in _text else _text, _called)
