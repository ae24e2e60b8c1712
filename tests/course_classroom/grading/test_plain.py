"""Which answers are run and which a person reads: every way beyond plain code is named, and no
honest answer is suspected."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from course_classroom.grading import plain
from course_classroom.grading.worked_out import leading_to

ROOT = Path(__file__).resolve().parents[3]

BEYOND = {  # what an answer may say on the way to points that it has not earned, and what is named
    "the judge's pipe": ("import os\nos.write(7, b'right')", "os"),
    "its parent's descriptors": ("open('/proc/1/fd/7', 'w').write('right')", "open"),
    "a file above": ("open('../../solutions/x.ipynb').read()", "open"),
    "a file of its own": ("open('one.txt').read()", "open"),
    "a module of its own": ("from mine import divide", "mine"),
    "a file by a computed name": ("open('/' + 'etc/passwd').read()", "open"),
    "the measuring": ("import course_classroom.judge.bench as b", "course_classroom"),
    "the measuring, from above": ("from course_classroom import judge", "course_classroom"),
    "the measuring, by a text": ("__import__('course_' + 'class' + 'room')", "__import__"),
    "importlib": ("import importlib\nimportlib.import_module('o' + 's')", "importlib"),
    "frames": ("import sys\nsys._getframe(1).f_locals['book'].clear()", "sys"),
    "frames of an error": ("try: 1\nexcept Exception as e: e.__traceback__.tb_frame", "tb_frame"),
    "frames of a generator": ("(i for i in x).gi_frame", "gi_frame"),
    "globals": ("globals()['__report__'] = 1", "globals"),
    "a function's globals": ("dist.all_reduce.__globals__", "__globals__"),
    "classes of all kinds": ("().__class__.__base__.__subclasses__()", "__subclasses__"),
    "torch's own sys": ("torch.sys.modules", "sys"),
    "a module's private one": ("import collections\ncollections._sys", "_sys"),
    "a method on a module": (
        "class A:\n    def f(self):\n        return self._sys\nimport collections\n"
        "A().f\nA.f(collections)",
        "collections as a value",
    ),
    "a patch of torch": ("torch.equal = lambda a, b: True", "torch"),
    "a patch of a call": ("dist.all_reduce = lambda *a, **k: None", "dist"),
    "a patch of a class": ("from torch import Tensor\nTensor.clone = lambda self: self", "Tensor"),
    "a patch of FSDP2": ("from torch.distributed import fsdp\nfsdp.fully_shard = print", "fsdp"),
    "a patch by another name": ("d = dist\nd.all_reduce = print", "dist as a value"),
    "a patch by setattr": ("setattr(dist, 'all_reduce', print)", "setattr"),
    "a patch of json": ("import json\njson.dumps = print", "json"),
    "an attribute by a text": ("getattr(torch, 'sy' + 's')", "getattr"),
    "an attribute by a plain text": ("getattr(torch, 'sys')", "sys"),
    "an attribute by an operator": ("import operator\noperator.attrgetter('sys')(x)", "attrgetter"),
    "getattr as a value": ("import functools\nfunctools.reduce(getattr, ['sys'], x)", "getattr"),
    "what runs text": ("exec('import os')", "exec"),
    "what is evaluated": ("eval('1')", "eval"),
    "an annotation that is run": ("import typing\ntyping.get_type_hints(f)", "get_type_hints"),
    "a thread for later": ("import threading\nthreading.Thread(target=f).start()", "threading"),
    "what is done at the end": ("import atexit\natexit.register(f)", "atexit"),
    "a process": ("import subprocess\nsubprocess.run(['ls'])", "subprocess"),
    "memory": ("import ctypes\nctypes.string_at(1)", "ctypes"),
    "all objects": ("import gc\ngc.get_objects()", "gc"),
    "code in a file of torch's": ("torch.load('x.pt', weights_only=False)", "load"),
    "code of C": ("torch.utils.cpp_extension.load_inline('a', 'b')", "load_inline"),
    "a neighbour's pickle": ("dist.all_gather_object([], x, group=group)", "all_gather_object"),
    "a mode of all calls": ("from torch.overrides import TorchFunctionMode", "torch.overrides"),
    "a tensor that lies": (
        "class T(torch.Tensor):\n    def __torch_function__(self, *a): return 1",
        "__torch_function__",
    ),
    "the notebook": ("get_ipython().user_ns", "get_ipython"),
    "the report": ("global __report__\n__report__ = 1", "__report__"),
    "a line like a magic": ("y = (5\n%__import__('os').getpid())", "__import__"),
    "a builtin of its own": ("def isinstance(a, b): return True", "isinstance"),
    "warnings that call": ("import warnings\nwarnings.showwarning = print", "warnings"),
    "inspect": ("import inspect\ninspect.currentframe()", "inspect"),
    "a socket": ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "socket"),
    "a pickle": ("import pickle\npickle.loads(b'')", "pickle"),
    "a way past the ledger": ("store = dist.TCPStore('127.0.0.1', 1)", "TCPStore"),
    "numpy's memory": ("import numpy as np\nnp.memmap('x')", "memmap"),
    "a patch of re": ("import re\nre.search = print", "re"),
    "a compiler called re": ("import torch as re\nre.compile(f)", "compile"),
    "a compiler put in re's place": ("import re\nre = torch\nre.compile(f)", "compile"),
    "a compiler as an argument": ("import re\ndef g(re):\n    re.compile(f)", "compile"),
    "a compiler out of a module": ("import re\nfrom torch import re\nre.compile(f)", "compile"),
    "a compiler of text": ("import re\nre.sub('a', compile, 'a')", "compile"),
    "numpy's pickles": ("import numpy as np\nnp.load('x', allow_pickle=True)", "load"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_more_than_plain_code_is_named(name):
    source, named = BEYOND[name]
    for cell in (source, f"def f(x, group):\n{indented(source)}\n    return x\n"):
        found = plain.odd([cell])
        assert any(named in one for one in found), (cell, found)


def indented(source: str) -> str:
    return "\n".join(f"    {line}" for line in source.splitlines())


def _is_answer(cell) -> bool:
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def _python(source: str) -> str:
    return "\n".join("" if line[:1] == "%" else line for line in source.splitlines())


def answers() -> list[tuple[str, list[str]]]:
    found = []
    for path in sorted((ROOT / "solutions").glob("*/*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        solved = [_python(c.source) for c in cells if _is_answer(c)]
        found.append((path.stem, solved + leading_to(path.stem, [c.source for c in cells])))
    return found


def test_what_the_exercises_import_from_the_classroom_is_given_and_nothing_else():
    found: dict[str, set[str]] = {}
    for path in (ROOT / "exercises").glob("*/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            for line in cell.source.splitlines() if cell.cell_type == "code" else ():
                if line.strip().startswith(("from course_classroom", "from course_lessons")):
                    (node,) = ast.parse(line.strip()).body
                    found.setdefault(node.module, set()).update(a.name for a in node.names)
    assert found == plain.GIVEN


def test_no_reference_answer_is_suspected():
    assert len(answers()) > 50
    assert {name: odd for name, cells in answers() if (odd := plain.odd(cells))} == {}


# One kills its rank, and one reads what others have pickled.
READ_BY_A_PERSON = {"['os', 'signal']", "['all_gather_object']"}


def test_no_answer_that_the_checks_are_tried_on_is_suspected():
    found, suspected = 0, set()
    places = ("tests/course_lessons/test_*.py", "tests/course_lessons/answers/*.py")
    for path in (path for place in places for path in ROOT.glob(place)):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and "def " in text:
                found += 1
                if odd := plain.odd([_python(text)]):
                    suspected.add(str(odd))
    assert found > 100 and suspected <= READ_BY_A_PERSON, suspected


HONEST = [
    "class Ring:\n    def __init__(self, n):\n        self.n, self._kept = n, []\n"
    "    def __call__(self, x):\n        self._kept.append(x)\n        return x\n",
    "from dataclasses import dataclass\n\n@dataclass\nclass Part:\n    start: int = 0\n",
    "import torch.nn.functional as F\nfrom torch import nn\n\ndef f(x):\n    return F.relu(x)\n",
    "class Sum(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    "        ctx.save_for_backward(x)\n        ctx.n = 3\n        return x\n",
    "def f(p):\n    p.grad = torch.zeros_like(p)\n    p.data = p.data * 2\n    return p\n",
    "def f(x):\n    with torch.no_grad():\n        return getattr(x, 'grad', None)\n",
    "print(f'{x.shape=}')\nhandles = [dist.isend(x, group_dst=1, group=group)]\nhandles[0].wait()",
    "from course_lib import collectives, ranks\nfrom course_lib.ledger import ledger\n"
    "with ledger() as book:\n    collectives.copy(x, group)\n",
    "import re\nLINE = re.compile('a(b)')\n\ndef f(x):\n    return LINE.search(x).group(1)\n",
    "import math, itertools\nfrom functools import partial\nf = partial(math.gcd, 4)",
]


@pytest.mark.parametrize("source", HONEST)
def test_what_honest_answers_say_is_plain(source):
    assert plain.odd([source]) == []


def test_what_cannot_be_parsed_is_the_check_s_to_refuse():
    assert plain.odd(["def f(x)\n"]) == []
