"""A filter for plain answers: code that cannot reach or change the code that measures it.

A check measures an answer in the answer's own process. Because Python has many ways from any object
to any other, this is a list of what is allowed, not of what is forbidden. A person reads any other
answer, which loses no points.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator

from course_classroom.grading.worked_out import base_of

_IMPORTS = {
    *("torch", "numpy", "math", "cmath", "typing", "functools", "itertools", "collections"),
    *("dataclasses", "contextlib", "fractions", "statistics", "operator", "copy", "time", "random"),
    *("__future__", "abc", "enum", "numbers", "datetime", "heapq", "bisect", "warnings"),
    "re",
}
_LIBRARY = {
    *("ranks", "collectives", "ledger", "memory", "layout", "norms", "gpt", "data"),
    *("generate", "tensor_parallel", "pretrained", "zero", "checkpoint", "estimate", "step"),
    "train",
}
# Modules of the course that the exercises themselves import.
GIVEN = {
    "course_classroom": {"pull"},
    "course_classroom.judge": {"check", "hint"},
    "course_lessons.lesson_02": {"mystery_cut"},
    "course_lessons.lesson_06": {"decoder"},
    "course_lessons.lesson_13": {"broken"},
    "course_classroom.notebook.extra": {"extra_ranks"},
}
# Modules that an answer may pass through, as in torch.nn.functional.relu.
_THROUGH = {
    *("torch", "nn", "functional", "distributed", "dist", "optim", "utils", "checkpoint", "F"),
    *("autograd", "linalg", "special", "fft", "cuda", "random", "modules", "parameter", "math"),
    *("tensor", "device_mesh", "functional_collectives", "lr_scheduler", "graph", "abc", "time"),
    *("clip_grad", "init", "amp", "grad_mode", "function", "profiler", "data", "np", "numpy"),
    "fsdp",
}
_THROUGH |= _LIBRARY | (_IMPORTS - {"warnings"})
_WHOLE = {"nn", "functional", "distributed", "optim", "utils", "autograd", "linalg"}
# Calls that reach an attribute, module or object by its name as text, or that run text.
_BY_TEXT = {
    *("eval", "exec", "compile", "globals", "locals", "vars", "breakpoint", "input", "help"),
    *("setattr", "delattr", "getattr", "hasattr", "open", "memoryview", "get_ipython"),
}
_CLOSED = {
    *("attrgetter", "methodcaller", "get_type_hints", "make_dataclass", "singledispatch"),
    *("singledispatchmethod", "import_module", "load", "loads", "save", "from_file", "freeze"),
    *("load_library", "load_inline", "script", "trace", "trace_module", "package", "hub", "jit"),
    *("ops", "library", "tofile", "fromfile", "memmap", "loadtxt", "genfromtxt"),
    *("f_back", "f_globals", "f_locals", "f_builtins", "tb_frame", "gi_frame", "cr_frame"),
    *("ag_frame", "gi_code", "settrace", "setprofile", "addaudithook", "showwarning", "lib"),
    *("ctypeslib", "register_module_forward_hook", "register_module_forward_pre_hook"),
    *("register_module_full_backward_hook", "set_default_tensor_type", "TorchFunctionMode"),
    *("TorchDispatchMode", "patch", "rpc", "set_debug_level", "savetxt", "dump", "dumps"),
    *("Store", "TCPStore", "FileStore", "HashStore", "PrefixStore"),  # channels outside the ledger
}
# Names under which a module exposes a module of Python: torch.os, collections._sys.
_PYTHONS = (sys.stdlib_module_names | {"bltns", "path", "modules"}) - _THROUGH
_PYTHONS -= {
    "chunk",
    "select",
    "copy",
    "queue",
    "trace",
    "token",
    "code",
    "string",
    "test",
    "types",
    "site",
}
_METHODS = {
    *("init", "post_init", "call", "enter", "exit", "len", "getitem", "setitem", "iter", "next"),
    *("repr", "str", "eq", "ne", "lt", "le", "gt", "ge", "hash", "add", "sub", "mul", "bool"),
    "contains",
}
_OBJECTS = re.compile(r"object")  # all_gather_object and similar calls unpickle data of others


def odd(cells: Iterable[str]) -> list[str]:
    """Return descriptions of everything in these cells that is not plain, or an empty list.

    The cells must be the Python that will run, without notebook magics, because any line that runs
    but is missing here would escape the filter.
    """
    found: set[str] = set()
    for source in cells:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the check reports that it cannot run
        found |= {name for kind, name in _uses(tree) if not _is_plain(kind, name)}
    return sorted(found)


def _uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield every name that the code imports, reads, writes or calls, as (kind, name)."""
    plain_calls, followed = set(), set()
    imported = {"torch", "dist"}  # modules; `taken` are names imported from one
    taken: set[str] = set()
    pythons_re = _binds_re_alone(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            followed.add(node.value)
        if isinstance(node, ast.Import):
            imported.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            yield from (("import", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = {alias.name: alias.asname or alias.name for alias in node.names}
            if GIVEN.get(module, set()).issuperset(names):
                continue
            yield "import", module
            taken.update(names.values())
            whole = _LIBRARY if module == "course_lib" else _WHOLE
            imported.update(names[name] for name in names if name in whole)
            if module == "course_lib":
                yield from (("import", f"course_lib.{name}") for name in names)
            if module.split(".")[0] in _IMPORTS | {"course_lib"}:
                yield from (("attribute", alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _by_a_plain_text(node):
            plain_calls.add(node.func)
            yield "attribute", node.args[1].value
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node not in plain_calls:
            yield "name", node.id
            if node.id in imported and node not in followed:
                yield "whole", f"{node.id} as a value"
        elif isinstance(node, ast.Attribute):
            if pythons_re and ast.unparse(node) == "re.compile":
                continue  # a pattern, which runs nothing
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "ctx", "cls")
            yield ("own" if own else "attribute"), node.attr
            root = base_of(node)
            if not isinstance(node.ctx, ast.Load) and root in imported | taken:
                yield "whole", f"{root}.….{node.attr} ="
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield "defined", node.name
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from (("name", name) for name in node.names)
        elif isinstance(node, ast.arg):
            yield "name", node.arg
        elif isinstance(node, ast.keyword) and node.arg:
            yield "name" if node.arg.startswith("__") else "keyword", node.arg
        elif isinstance(node, (ast.MatchClass,)):
            yield from (("attribute", name) for name in node.kwd_attrs)


def _is_plain(kind: str, name: str) -> bool:
    if kind == "import":
        first, *rest = name.split(".")
        if first == "course_lib":
            return not rest or rest[0] in _LIBRARY or rest[:2] == ["peers", "deepspeed_config"]
        through = all(part in _THROUGH or part.startswith("distributed") for part in rest)
        return first in _IMPORTS and through
    if kind == "keyword":
        return True
    if name.startswith("__"):
        inner = name.strip("_")
        called = kind in ("own", "attribute") and inner in ("init", "enter", "exit", "name")
        return called or (kind == "defined" and inner in _METHODS)
    if kind == "name":
        return name not in _BY_TEXT and name not in _CLOSED
    if kind == "defined":
        return name not in dir(builtins)
    if kind == "whole":
        return False
    if name in _CLOSED or name in _BY_TEXT or _OBJECTS.search(name):
        return False
    if name.lstrip("_") in _PYTHONS:
        return False
    return kind == "own" or not name.startswith("_") or name.startswith("_foreach_")


def _binds_re_alone(tree: ast.AST) -> bool:
    """Return True if `re` is Python's module: imported as `re`, with no other use of the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "re" and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.alias) and node.asname == "re":
            return False
        named = getattr(node, "name", None), getattr(node, "arg", None), getattr(node, "rest", None)
        if "re" in named and not isinstance(node, (ast.alias, ast.keyword)):
            return False  # a function, class, argument, exception or capture
        if isinstance(node, ast.ImportFrom) and any(one.name in ("re", "*") for one in node.names):
            return False
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    return any(alias.name == "re" for node in imports for alias in node.names)


def _by_a_plain_text(call: ast.Call) -> bool:
    """Return True for getattr or hasattr with a literal string, because getattr(x, "w") is x.w."""
    second = call.args[1] if len(call.args) > 1 else None
    text = isinstance(second, ast.Constant) and isinstance(second.value, str)
    named = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
    return named and text
