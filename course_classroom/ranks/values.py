"""Packing of values that are copied between a notebook and its ranks: data, never programs.

JSON describes the parts of a value; its tensors are added as the bytes of a safetensors file.
Neither can run code when it is read. Lesson 00 pulls its first value.
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

_MOST = 2**53  # larger ints are sent as hex, because Python limits the decimal digits that it reads
_DTYPES = (  # dtypes that the safetensors format names
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
_SEQUENCES = (list, tuple, set, frozenset)


class CannotTravel(TypeError):
    """An error for a value that is not plain data, with the remedy."""


def take(text: str, namespace: dict) -> None:
    namespace.update(unpack(text))


def give(value: object) -> str:
    return pack(value, "pull")


def pack(value: object, verb: str = "push") -> str:
    """value -> text with its JSON and the bytes of its tensors, both in base64.

    A GPU tensor is copied to the host without its autograd history. A subclass is sent as its base
    class, and a dataclass or NamedTuple as a tuple with named items. Other values raise
    CannotTravel, with `verb` in the remedy.
    """
    packing = _Packing(verb)
    try:
        kinds = json.dumps(packing.node(value)).encode()
    except RecursionError:
        raise CannotTravel(
            f"a value that contains itself, or is nested too deeply, cannot be copied; {verb} a "
            "part of it"
        ) from None
    return ".".join(base64.b64encode(part).decode() for part in (kinds, packing.bytes()))


def unpack(text: str) -> object:
    """text -> value; raises a ValueError if the text is not a packed value."""
    try:
        kinds, tensors = (base64.b64decode(part, validate=True) for part in text.split("."))
        if tensors:
            from safetensors.torch import load
        return _value(json.loads(kinds), load(tensors) if tensors else {})
    except Exception as error:  # the text may be damaged, or forged by the sender
        raise ValueError(f"the received text is not a packed value: {error}") from None


class _Packing:
    """A value being packed; its tensors are stored separately and numbered."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.tensors: dict = {}

    def node(self, value: object) -> object:
        """Return a JSON value, or a list with the name of the value's kind and its parts."""
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
            if names := _names(getattr(value, "_fields", ())):  # of a NamedTuple
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
        if isinstance(value, SimpleNamespace):  # a span of the ledger, as lesson 09 copies it
            return ["namespace", self.node(vars(value))]
        names = _names(field.name for field in fields(value)) if is_dataclass(value) else []
        if names and not isinstance(value, type):
            items = [self.node(getattr(value, name)) for name in names]
            return ["fields", type(value).__name__, names, *items]
        raise self._refusal(f"a value of type {type(value).__name__[:80]}")

    def bytes(self) -> bytes:
        """Return the tensors as a safetensors file, or empty bytes if there are none."""
        if not self.tensors:
            return b""
        from safetensors.torch import save

        return save(self.tensors)

    def _refusal(self, what: str) -> CannotTravel:
        return CannotTravel(
            f"{what} cannot be copied; {self.verb} numbers, text, tensors, or lists, tuples and "
            "dicts of them"
        )

    def _of_torch(self, value: object) -> list | None:
        torch = sys.modules.get("torch")  # a process that never loaded torch has no torch values
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
        # A clone, because a view would include its full storage.
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
    """Return the names, or an empty list if one begins with an underscore."""
    names = list(names)
    return [] if any(name.startswith("_") for name in names) else names


def _numpy(name: str) -> type | tuple:
    """Return a class of numpy, or an empty tuple if this process has not imported numpy."""
    return getattr(sys.modules.get("numpy"), name, ())


def _value(node: object, tensors: dict) -> object:
    """Return the value of a node. Only the types named here are ever created."""
    if isinstance(node, dict):
        raise ValueError("a JSON object does not represent a value")
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
    """Create a tuple class with these field names, without looking up the sender's class."""
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
            raise ValueError(f"torch.{what} is not a dtype")
        return found
    found = tensors[str(what)]
    return torch.view_as_complex(found) if kind == "complex tensor" else found
