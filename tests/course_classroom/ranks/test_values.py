"""What travels between a notebook and its ranks: data of every kind, and never a program."""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import json
import math
import pickle
import subprocess
import sys
import types
from fractions import Fraction
from typing import NamedTuple

import numpy
import pytest
import torch
from safetensors.torch import save

from course_classroom.ranks.values import CannotTravel, give, pack, unpack


class Span(NamedTuple):
    op: str
    bytes: int


@dataclasses.dataclass
class Record:
    op: str
    waits: list


@dataclasses.dataclass
class Closed:
    _inner: int


class Level(enum.IntEnum):
    HIGH = 3


class Words(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Row(list):
    def __len__(self):
        return 0


class Parameter(torch.nn.Parameter):
    pass


def there(value: object) -> object:
    return unpack(pack(value))


def text_of(node: object, tensors: bytes = b"") -> str:
    """What a rank could send by hand."""
    parts = (json.dumps(node).encode(), tensors)
    return ".".join(base64.b64encode(part).decode() for part in parts)


PLAIN = [
    None,
    2**53 + 1,
    -(10**500),
    -0.0,
    math.inf,
    "a 'quoted' \"text\"\n\\ ⌂ \ud800",
    b"\x00\xff",
    complex(math.inf, -0.0),
    Fraction(10**30, 7),
    range(2**60, -3, -7),
    types.SimpleNamespace(op="send", inner=[types.SimpleNamespace()]),
    ["list", 1, [2, (3,)], [], ()],
    {"a": 1, 2: "b", (0, 1): [None], None: {}, 1.5: True, False: 0},
    {1, (2, 3)},
    frozenset({"x"}),
    torch.bfloat16,
    torch.device("cuda", 1),
    torch.Size([2, 0, 3]),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda v: f"{type(v).__name__} {str(v)[:12]!a}")
def test_data_arrives_as_what_it_was(value):
    found = there(value)
    assert type(found) is type(value) and found == value
    assert str(found)[:99] == str(value)[:99], "the sign of a zero, and the order of a dictionary"


def test_numbers_that_equal_nothing_or_are_too_long_arrive():
    number, nan = there([10**5000, math.nan])
    assert number == 10**5000 and math.isnan(nan)


TENSORS = {
    **{
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (
            torch.float64, torch.bfloat16, torch.int64, torch.uint16, torch.bool,
            torch.float8_e4m3fn,
        )
    },
    "complex": torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex128),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "of no dim": torch.tensor(3.5),
    "of no element": torch.empty(0, 4, dtype=torch.int32),
    "expanded": torch.ones(1).expand(3),
    "not finite": torch.tensor([math.inf, -math.inf, -0.0]),
}  # fmt: skip


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_arrives_bit_for_bit(tensor):
    found = there({"x": [tensor]})["x"][0]
    assert type(found) is torch.Tensor
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert found.resolve_conj().contiguous().flatten().view(torch.uint8).tolist() == (
        tensor.resolve_conj().contiguous().flatten().view(torch.uint8).tolist()
    )


def test_tensors_that_share_memory_travel_as_copies_that_can_be_written():
    x = torch.arange(6.0)
    whole, view, again = there([x, x[1:3], x])
    assert view.untyped_storage().nbytes() == 8, "and not the storage that it is a view of"
    view += 10
    again.zero_()
    assert whole.tolist() == x.tolist() == [0, 1, 2, 3, 4, 5] and view.tolist() == [11, 12]


def test_a_tensor_leaves_its_history_and_its_class_behind():
    weight = Parameter(torch.ones(2))
    for value in (weight, weight * 2):
        found = there(value)
        assert type(found) is torch.Tensor and not found.requires_grad


def test_what_numpy_made_arrives_as_an_array_or_as_a_number():
    arrays = [
        numpy.arange(6).reshape(2, 3)[:, ::-1],
        numpy.array([1, 258], dtype=">i4"),
        numpy.array([1 + 2j]),
    ]
    for array, found in zip(arrays, there(arrays), strict=True):
        assert type(found) is numpy.ndarray and found.dtype == array.dtype.newbyteorder("=")
        assert found.shape == array.shape and (found == array).all()
    found = there([numpy.float32(0.5), numpy.int8(-3), numpy.bool_(False)])
    assert found == [0.5, -3, False] and [type(one) for one in found] == [float, int, bool]


def test_fields_keep_their_names_and_bring_no_class_along():
    (found,) = there([Span("send", 8)])
    assert (found.op, found.bytes) == found == ("send", 8)
    assert type(found) is not Span and type(found).__bases__ == (tuple,)
    found = there(Record("send", [1]))
    assert (found.op, found.waits, type(found).__bases__) == ("send", [1], (tuple,))
    odd = collections.namedtuple("Odd", "class a", rename=True)(1, 2)
    assert there(odd) == (1, 2)


def test_a_subclass_arrives_as_the_plain_class():
    values = [
        Level.HIGH,
        Words("no"),
        Row([1]),
        collections.Counter("aab"),
        collections.OrderedDict(z=1, a=2),
        collections.defaultdict(list, k=[1]),
    ]
    found = there(values)
    assert [type(value) for value in found] == [int, str, list, dict, dict, dict]
    assert found == [3, "no", [1], {"a": 2, "b": 1}, {"z": 1, "a": 2}, {"k": [1]}]
    assert found[1] != "yes" and len(found[2]) == 1 and list(found[4]) == ["z", "a"]


class Foo:
    pass


def nested() -> list:
    found: list = []
    found.append(found)
    return found


REFUSED = {
    "an object": (Foo(), "a value of type Foo cannot be copied; "),
    "a dataclass itself": (Record, "a value of type type cannot be copied; "),
    "what is nobody's": (Closed(1), "a value of type Closed cannot be copied; "),
    "a key": ({Foo(): 1}, "a value of type Foo cannot be copied; "),
    "a model": ([torch.nn.Linear(1, 1)], "a value of type Linear cannot be copied; "),
    "a sparse tensor": (torch.eye(2).to_sparse(), "a Tensor (sparse_coo, cpu) cannot be copied; "),
    "an unknown dtype": (
        torch.zeros(2, dtype=torch.float8_e8m0fnu),
        "a tensor of dtype torch.float8_e8m0fnu cannot be copied; ",
    ),
    "an array of text": (numpy.array(["a"]), "an array of dtype <U1 cannot be copied; "),
    "what holds itself": (nested(), "a value that contains itself, or is nested too deeply, "),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_no_data_is_refused_by_its_name(how):
    value, words = REFUSED[how]
    for send, verb in ((pack, "push"), (give, "pull")):
        with pytest.raises(CannotTravel) as refused:
            send(value)
        assert str(refused.value).startswith(words) and f"; {verb} " in str(refused.value)


class Runs:
    def __reduce__(self):
        return (print, ("a program was run",))


MADE_UP = {
    "a pickle": base64.b64encode(pickle.dumps(Runs())).decode(),
    "a pickle in two parts": f"{base64.b64encode(pickle.dumps(Runs())).decode()}.",
    "a pickle for tensors": text_of(["tensor", 0], pickle.dumps(Runs())),
    "nothing": "",
    "a kind that is none": text_of(["eval", "print(1)"]),
    "a function of torch for a dtype": text_of(["dtype", "load"]),
    "a tensor that was not sent": text_of(["tensor", 0]),
    "a program for a field": text_of(["fields", "Span", ["a=print(1)"], 1]),
    "a hidden field": text_of(["fields", "Span", ["__class__"], 1]),
    "too deep": text_of(None).replace(
        base64.b64encode(b"null").decode(),
        base64.b64encode(b"[" * 100_000 + b"]" * 100_000).decode(),
    ),
}


@pytest.mark.parametrize("how", MADE_UP)
def test_a_text_that_nobody_packed_is_refused_and_runs_nothing(how, capfd):
    with pytest.raises(ValueError, match="the received text is not a packed value"):
        unpack(MADE_UP[how])
    assert capfd.readouterr() == ("", "")


def test_a_text_by_hand_is_otherwise_read():
    """So that the refusals above are of what is wrong in them, and not of the way they were made"""
    assert unpack(text_of(["dtype", "int8"])) is torch.int8
    assert unpack(text_of(["fields", "Span", ["a"], 1])).a == 1
    made = save({"0": torch.ones(2)})
    assert unpack(text_of(["list", ["tensor", 0]], made))[0].tolist() == [1, 1]


def test_without_a_tensor_neither_torch_nor_numpy_is_loaded():
    code = (
        "import sys; from course_classroom.ranks import crew, values;"
        "values.unpack(values.pack({'a': [1, (2.5, 'x')], 'b': {3}}));"
        "print({'torch', 'numpy', 'safetensors', 'pickle'} & set(sys.modules) - before)"
    )
    code = "import sys, threading, zmq, pickle; before = {'pickle'}; " + code
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout == "set()\n", said.stderr
