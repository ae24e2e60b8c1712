"""Description of a decoder: its sizes and the traits of its family, which are all checked.

An unknown key raises an error, so that a misspelled key cannot leave a default in place. Lesson 08.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

_CHOICES = {
    "position": ("learned", "rotary"),
    "norm": ("layer", "rms"),
    "activation": ("gelu", "gelu_tanh", "swiglu"),
}


@dataclass(frozen=True)
class Config:
    """The sizes and the family traits of a decoder. `Config.gpt2()` and `Config.llama()` set the
    traits; `changed(hidden=…)` returns a config with other values."""

    vocabulary: int = 50257
    length: int = 1024  # the longest sequence
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    kv_heads: int | None = None  # None: as many as heads
    inner: int | None = None  # width of the MLP; by default 4 × hidden
    position: str = "learned"
    norm: str = "layer"
    activation: str = "gelu_tanh"
    bias: bool = True
    tied: bool = True  # the head shares the weight of the embedding table
    dropout: float = 0.0  # after the embedding and at the end of each branch
    attention_dropout: float = 0.0  # on the attention's weights
    epsilon: float = 1e-5  # in the norms
    rotary_base: float = 10000.0
    recompute: bool = False  # keep only each block's input and recompute in the backward

    def __new__(cls, *args, **keys):
        _known(keys)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        object.__setattr__(self, "inner", 4 * self.hidden if self.inner is None else self.inner)
        for name in ("vocabulary", "length", "hidden", "layers", "heads", "kv_heads", "inner"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of 1 or more")
        for name, valid in _CHOICES.items():
            if getattr(self, name) not in valid:
                raise ValueError(f"{name}={getattr(self, name)!r} is not among {', '.join(valid)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least 0 and below 1")
        if self.hidden % self.heads:
            near = [n for n in range(1, self.hidden + 1) if self.hidden % n == 0]
            near = sorted(near, key=lambda n: abs(n - self.heads))[:3]
            raise ValueError(
                f"hidden={self.hidden} does not divide into heads={self.heads}: each head would be "
                f"{self.hidden / self.heads:.2f} wide. Take hidden as a multiple of {self.heads}, "
                f"such as {-(-self.hidden // self.heads) * self.heads}, or one of these numbers of "
                f"heads: {', '.join(map(str, sorted(near)))}"
            )
        if self.heads % self.kv_heads:
            fit = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ValueError(
                f"heads={self.heads} cannot be divided among kv_heads={self.kv_heads}: each key/"
                f"value head serves equally many heads. Take one of {', '.join(map(str, fit))}"
            )
        if self.position == "rotary" and self.head_size % 2:
            raise ValueError(
                f"rotary positions rotate pairs of elements, but a head of {self.hidden} / "
                f"{self.heads} = {self.head_size} is odd; take other sizes, or position='learned'"
            )

    @classmethod
    def gpt2(cls, **keys) -> Config:
        """Set GPT-2's traits: learned positions, LayerNorm, GELU by tanh, biases, a tied head."""
        return cls(**keys)

    @classmethod
    def llama(cls, **keys) -> Config:
        """Set Llama's traits: rotary positions, RMSNorm, SwiGLU, no biases, an untied head."""
        _known(keys)
        traits = {
            "position": "rotary",
            "norm": "rms",
            "activation": "swiglu",
            "bias": False,
            "tied": False,
        }
        return cls(**{**traits, **keys})

    @classmethod
    def read(cls, keys: Mapping) -> Config:
        """Build a config from a mapping, such as a JSON file's; an unknown key raises an error."""
        return cls(**keys)

    def changed(self, **keys) -> Config:
        """Return this config with other values. Values derived from a size must be passed again."""
        _known(keys)
        return replace(self, **keys)

    def as_dict(self) -> dict:
        return asdict(self)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def _known(keys: Mapping) -> None:
    """Raise on an unknown config key, which would silently leave a default in place."""
    names = [field.name for field in fields(Config)]
    for key in keys:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"a config has no key {key!r}{meant} Its keys: {', '.join(names)}")
