"""Pack and unpack the values that travel between a notebook and its ranks: data, never a program.

JSON says what a value is made of; its tensors go beside it as the bytes of a safetensors file.
Neither can run anything where it is read. Lesson 00 pulls its first value.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace

_MOST = 2**53  # a larger int goes as hex: Python limits how many decimal digits it reads
_DTYPES = (  # that a safetensors file has a name for
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
_SEQUENCES = (list, tuple, set, frozenset)


class CannotTravel(TypeError):
    """A value that is not data, refused with the remedy."""


def take(text: str, namespace: dict) -> None:
    namespace.update(unpack(text))


def give(value: object) -> str:
    return pack(value, "pull")


def pack(value: object, verb: str = "push") -> str:
    """A value as text: its JSON and the bytes of its tensors, each in base64.

    A tensor on a GPU comes to the host, and its history stays behind. A subclass travels as what it
    is a subclass of; a dataclass and a NamedTuple as a tuple whose items have their names. What is
    not data raises CannotTravel, with `verb` in the remedy.
    """
    packing = _Packing(verb)
    try:
        kinds = json.dumps(packing.node(value)).encode()
    except RecursionError:
        raise CannotTravel(
            "a value that contains itself, or is nested too deeply, cannot travel; "
            f"{verb} a part of it"
        ) from None
    return ".".join(base64.b64encode(part).decode() for part in (kinds, packing.bytes()))


def unpack(text: str) -> object:
    """The value of a packed text; a ValueError where the text is not one."""
    try:
        kinds, tensors = (base64.b64decode(part, validate=True) for part in text.split("."))
        if tensors:
            from safetensors.torch import load
        return _value(json.loads(kinds), load(tensors) if tensors else {})
    except Exception as error:  # the text may be damaged, or made up by the sender
        raise ValueError(f"what arrived is not a packed value: {error}") from None


class _Packing:
    """One value on its way into text: its tensors are put aside and numbered."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.tensors: dict = {}

    def node(self, value: object) -> object:
        """What JSON can say by itself, or a list: the name of a kind, and what it is made of."""
        if isinstance(value, _numpy("generic")):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            number = int(value)
            return number if abs(number) < _MOST else ["int", hex(number)]
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)
        node = self._of_torch(value) or self._of_numpy(value)
        if node is not None:
            return node
        if isinstance(value, dict):
            return ["dict", *([self.node(k), self.node(v)] for k, v in value.items())]
        if isinstance(value, _SEQUENCES):
            items = [self.node(item) for item in value]
            if names := _names(getattr(value, "_fields", ())):  # a NamedTuple's
                return ["fields", type(value).__name__, names, *items]
            return [next(k for k in _SEQUENCES if isinstance(value, k)).__name__, *items]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", base64.b64encode(value).decode()]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, Fraction):
            return ["Fraction", hex(value.numerator), hex(value.denominator)]
        if isinstance(value, range):
            return ["range", hex(value.start), hex(value.stop), hex(value.step)]
        if isinstance(value, SimpleNamespace):  # a span of the ledger's, as lesson 09 copies it
            return ["namespace", self.node(vars(value))]
        names = _names(field.name for field in fields(value)) if is_dataclass(value) else []
        if names and not isinstance(value, type):
            items = [self.node(getattr(value, name)) for name in names]
            return ["fields", type(value).__name__, names, *items]
        raise self._refusal(f"a value of type {type(value).__name__[:80]}")

    def bytes(self) -> bytes:
        """The tensors as a safetensors file; nothing where there are none."""
        if not self.tensors:
            return b""
        from safetensors.torch import save

        return save(self.tensors)

    def _refusal(self, what: str) -> CannotTravel:
        return CannotTravel(
            f"{what} cannot travel; {self.verb} numbers, text, tensors, or lists, tuples and dicts "
            "of them"
        )

    def _of_torch(self, value: object) -> list | None:
        torch = sys.modules.get("torch")  # a process that never loaded torch has no value of it
        if torch is None:
            return None
        if isinstance(value, torch.Tensor):
            return self._tensor(value, torch)
        if isinstance(value, torch.Size):
            return ["Size", *map(int, value)]
        if isinstance(value, (torch.dtype, torch.device)):
            return [type(value).__name__, str(value).removeprefix("torch.")]
        return None

    def _tensor(self, value, torch) -> list:
        if value.layout != torch.strided or value.is_meta or hasattr(value, "to_local"):
            layout = str(value.layout).removeprefix("torch.")
            raise self._refusal(f"a {type(value).__name__} ({layout}, {value.device})")
        plain = value.detach().cpu().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        kind = "tensor"
        if plain.is_complex():
            kind, plain = "complex tensor", torch.view_as_real(plain)
        if str(plain.dtype).removeprefix("torch.") not in _DTYPES:
            raise self._refusal(f"a tensor of dtype {plain.dtype}")
        number = len(self.tensors)
        # A clone: a view would bring its whole storage along.
        self.tensors[str(number)] = plain.clone(memory_format=torch.contiguous_format)
        return [kind, number]

    def _of_numpy(self, value: object) -> list | None:
        if not isinstance(value, _numpy("ndarray")):
            return None
        import torch

        try:
            native = value.astype(value.dtype.newbyteorder("="), order="C")
            return ["array", self._tensor(torch.from_numpy(native), torch)]
        except TypeError:
            raise self._refusal(f"an array of dtype {value.dtype}") from None


def _names(names: Iterable[str]) -> list[str]:
    """The names that values can be asked for by, if all of them are such names."""
    names = list(names)
    return [] if any(name.startswith("_") for name in names) else names


def _numpy(name: str) -> type | tuple:
    """A class of numpy; none where this process has not loaded it, and so has no value of it."""
    return getattr(sys.modules.get("numpy"), name, ())


def _value(node: object, tensors: dict) -> object:
    """The value of a node. Nothing else is ever made than what is named in here."""
    if isinstance(node, dict):
        raise ValueError("an object of JSON stands for no value")
    if not isinstance(node, list):
        return node
    kind, *parts = node
    if kind in _TORCH:
        return _of_torch(kind, parts, tensors)
    if kind in _SMALL:
        return _SMALL[kind](*parts)
    if kind == "dict":
        return {_value(key, tensors): _value(item, tensors) for key, item in parts}
    if kind == "namespace":
        return SimpleNamespace(**_value(parts[0], tensors))
    if kind == "fields":
        name, names, *items = parts
        return _with_fields(name, tuple(names))(*(_value(item, tensors) for item in items))
    return _MADE[kind](_value(item, tensors) for item in parts)


_MADE = {kind.__name__: kind for kind in _SEQUENCES}
_TORCH = ("tensor", "complex tensor", "array", "Size", "dtype", "device")
_SMALL = {
    "int": lambda number: int(number, 16),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "complex": complex,
    "Fraction": lambda *parts: Fraction(*(int(part, 16) for part in parts)),
    "range": lambda *ends: range(*(int(end, 16) for end in ends)),
}


@lru_cache(maxsize=256)
def _with_fields(name: str, names: tuple[str, ...]) -> type:
    """A tuple class with these field names: the sender's own class is not looked for."""
    return namedtuple(name, names)


def _of_torch(kind: str, parts: list, tensors: dict) -> object:
    import torch

    if kind == "Size":
        return torch.Size(parts)
    (what,) = parts
    if kind == "array":
        return _value(what, tensors).numpy()
    if kind == "device":
        return torch.device(what)
    if kind == "dtype":
        found = getattr(torch, what)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"torch.{what} is no dtype")
        return found
    found = tensors[str(what)]
    return torch.view_as_complex(found) if kind == "complex tensor" else found
