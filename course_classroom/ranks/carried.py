"""The part of a learner's cells that the judge gets: everything the answer needs, no trial runs.

A cell consists of statements. Definitions and imports are carried. A value is carried if the answer
reads its name and if it is computed only from carried parts. From lesson 01 on.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_VALUES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_BLOCKS = (ast.If, ast.Try, ast.For, ast.While, ast.With)
_HERE = frozenset({"rank", "world", "me", "group", "device"})  # only the learner's ranks have them
_READY = frozenset(vars(builtins)) | {"torch", "dist"}


def defined_names(cell: str) -> list[str]:
    """Return the names that a cell binds at its top level: functions, classes, imports, values. If
    the cell is not valid Python, return only names after `def` or `class`."""
    try:
        return sorted(bound_by(ast.parse(cell).body))
    except (SyntaxError, ValueError):  # a magic in a later line, or a null byte
        return re.findall(r"^(?:async\s+)?(?:def|class)\s+(\w+)", cell, re.MULTILINE)


class Definitions:
    """The definitions in the cells of one notebook, in execution order."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}  # a name → the last `%%ranks` cell that bound it
        self.elsewhere: set[str] = set()  # names that a later cell without `%%ranks` has bound
        self.older: set[str] = set()  # names that the last `%%ranks` cell did not bind

    def ran_on_ranks(self, cell: str) -> None:
        names = defined_names(cell)
        self.sources |= dict.fromkeys(names, cell)
        self.elsewhere -= set(names)
        self.older = set(self.sources) - set(names)

    def ran_in_notebook(self, result) -> None:
        """Record a cell that ran in the notebook, from IPython's result object."""
        cell = result.info.raw_cell or ""
        if result.error_before_exec is None and not cell.lstrip().startswith("%%"):
            self.elsewhere |= set(defined_names(cell))

    def remark(self, name: str) -> str:
        """Explain why the answer that was read may differ from the learner's intended answer."""
        if name in self.elsewhere:
            since = ", since the last `%%ranks` cell that had it" if name in self.sources else ""
            return (
                f"`{name}` is defined in the notebook's own process{since}: is `%%ranks` the first "
                "line of its cell?"
            )
        if name in self.older:
            return f"That is the last `%%ranks` cell with `{name}`: no later one has defined it."
        return ""


def bound_by(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that these statements bind, including those inside `if`, `try` and loops."""
    found: set[str] = set()
    for one in _leaves(statements):
        if isinstance(one, DEFINITIONS):
            found.add(one.name)
        elif isinstance(one, _IMPORTS):
            found |= {(a.asname or a.name).split(".")[0] for a in one.names}
        elif isinstance(one, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)):
            found |= {p.id for p in ast.walk(one) if _stored(p)}
    return found


def loop_variables(cell: str) -> set[str]:
    """Return the names that only a `for` loop binds at the top level of this cell."""
    try:
        leaves = list(_leaves(ast.parse(cell).body))
    except (SyntaxError, ValueError):
        return set()
    loops = bound_by([one for one in leaves if isinstance(one, ast.For)])
    return loops - bound_by([one for one in leaves if not isinstance(one, ast.For)])


def definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the last statement of a cell that binds `name`, which defines its meaning."""
    binding = [one for one in _leaves(tree.body) if name in bound_by([one])]
    return binding[-1] if binding else None


def carried(name: str, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the carried part of each cell that the answer `name` needs, helpers first.

    A cell that cannot be parsed raises the SyntaxError with the reason.
    """
    order: list[str] = []  # in the order of need: the answer's own cell first
    needed = {name}
    while True:
        before = len(order), len(needed)
        bound = {source: bound_by(ast.parse(source).body) for source in order}
        texts = {}
        for source in order:
            others = set().union(*(bound[other] for other in order if other != source))
            stale = {one for one in bound[source] if sources.get(one, source) != source}
            texts[source] = _kept_text(source, needed, others, stale)
            needed |= wanted_by(texts[source]) | _made_of(source, needed)
        have = set().union(*(bound_by(ast.parse(text).body) for text in texts.values()))
        for other in sorted(needed - have):
            source = sources.get(other)
            if source is not None and source not in order and _helps(source, other):
                order.append(source)
        if (len(order), len(needed)) == before:
            return dict(reversed(texts.items()))


def _made_of(source: str, needed: set[str]) -> set[str]:
    """Return the names from which the needed values are computed; other cells may bind them."""
    body = [n for n in ast.parse(source).body if bound_by([n]) & needed]
    made = (n for n in body if _may_be_carried(n) and not isinstance(n, DEFINITIONS))
    return set().union(*(loaded(n) for n in made if not _sends(n)))


def _helps(source: str, name: str) -> bool:
    tree = ast.parse(source)
    return any(name in bound_by([n]) and _may_be_carried(n) for n in tree.body)


def wanted_by(source: str) -> set[str]:
    """Return the global names that a cell reads, at its top level, in functions and in classes."""
    found: set[str] = set()
    tables = [symtable.symtable(source, "cell", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        read = (s for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        found |= {symbol.get_name() for symbol in read}
        tables.extend(table.get_children())
    return found


def _kept_text(source: str, needed: set[str], known: set[str], stale: set[str]) -> str:
    """Return the cell with all parts that are not carried blanked, line for line; `known` are names
    that other carried cells bind, and `stale` are names that a later cell has rebound."""
    text = source.splitlines()
    lines = [""] * len(text)
    body = [n for n in ast.parse(source).body if not bound_by([n]) or bound_by([n]) - stale]
    for node in _kept(body, needed, known):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        lines[first - 1 : node.end_lineno] = text[first - 1 : node.end_lineno]
    return "\n".join(lines) + "\n"


def _kept(body: list[ast.stmt], needed: set[str], known: set[str]) -> list[ast.stmt]:
    """Return the statements to keep, in order, including values that other kept statements need."""
    chosen = {i: n for i, n in enumerate(body) if isinstance(n, (*DEFINITIONS, *_IMPORTS))}
    needed = set(needed)
    while True:
        have = _READY | known | bound_by(chosen.values())
        more = {
            i: node
            for i, node in enumerate(body)
            if i not in chosen and (_is_constant(node, have) or _belongs(node, needed, have))
        }
        if not more:
            return [chosen[i] for i in sorted(chosen)]
        chosen |= more
        for node in more.values():
            needed |= loaded(node)


def _is_constant(node: ast.stmt, have: set[str]) -> bool:
    """Return True for a value without a call, which is carried with its cell, needed or not, unless
    it depends on an omitted part."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or _part_of_something(node):
        return False
    return not any(map(_runs, ast.walk(node))) and not _at_once(node) - have - _HERE


def _belongs(node: ast.stmt, needed: set[str], have: set[str]) -> bool:
    """Return True if a statement creates or completes a needed value from carried parts."""
    if isinstance(node, _BLOCKS):
        leaves = list(_leaves([node]))
        makes = bound_by([node]) | _completed(leaves)
        fits = all(_may_stand(leaf, have | makes) for leaf in leaves)
        return bool(makes & needed) and fits and not loaded(node) & _HERE
    makes = bound_by([node]) | _completed([node])
    return bool(makes & needed) and _may_stand(node, have | makes)


def _may_stand(node: ast.stmt, have: set[str]) -> bool:
    if isinstance(node, (*DEFINITIONS, *_IMPORTS, ast.Pass, ast.Raise, ast.For)):
        return True
    made_of_ours = not _at_once(node) - have and not _at_once(node) & _HERE and not _sends(node)
    if isinstance(node, ast.Expr):
        return bool(_completed([node])) and made_of_ours
    if not isinstance(node, _VALUES):
        return False
    bases = {p.value for p in ast.walk(node) if _stores_part(p)}
    ours = all(isinstance(b, ast.Name) and b.id in have - _READY for b in bases)
    return ours and made_of_ours


def _may_be_carried(node: ast.stmt) -> bool:
    return isinstance(node, (*DEFINITIONS, *_IMPORTS, *_VALUES, *_BLOCKS))


def _sends(node: ast.AST) -> bool:
    """Return True if a statement calls torch.distributed when it runs, as a trial does but a
    definition does not. A lambda does not call anything yet."""
    if isinstance(node, ast.Lambda):
        return False
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called.startswith(("dist.", "torch.distributed.")):
            return True
    return any(map(_sends, ast.iter_child_nodes(node)))


def _completed(nodes: Iterable[ast.stmt]) -> set[str]:
    """Return the names of objects that statements change, as in `T["a"] = …` or `T.append(…)`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            owner = getattr(node.value.func, "value", None)
            found |= {owner.id} if isinstance(owner, ast.Name) else set()
        elif isinstance(node, _VALUES):
            stored = (p.value for p in ast.walk(node) if _stores_part(p))
            found |= {base.id for base in stored if isinstance(base, ast.Name)}
    return found - _READY


def _leaves(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, with blocks replaced by their content; a loop also yields its target."""
    for one in statements:
        if not isinstance(one, _BLOCKS):
            yield one
            continue
        if isinstance(one, ast.For):
            yield ast.copy_location(ast.For(one.target, one.iter, [], []), one)
        for part in ("body", "handlers", "orelse", "finalbody"):
            for inner in getattr(one, part, []):
                yield from _leaves(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _part_of_something(node: ast.stmt) -> bool:
    """Return True if a value is assigned to part of an object, which may belong to the check."""
    return any(_stores_part(part) for part in ast.walk(node))


def _stores_part(part: ast.AST) -> bool:
    stored = isinstance(getattr(part, "ctx", None), ast.Store)
    return isinstance(part, (ast.Attribute, ast.Subscript)) and stored


def _stored(part: ast.AST) -> bool:
    return isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)


def _runs(node: ast.AST) -> bool:
    """Return True if a node runs code, as a call or an await does."""
    return isinstance(node, (ast.Call, ast.Await))


def loaded(tree: ast.AST) -> set[str]:
    """Return the names that a piece of code reads, at any depth."""
    nodes = ast.walk(tree)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _at_once(node: ast.AST) -> set[str]:
    """Return the names that are read when the statement runs, without names inside a lambda and a
    comprehension's own names."""
    if isinstance(node, ast.Lambda):
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        return set().union(*map(_at_once, defaults))
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    own: set[str] = set()
    for maker in getattr(node, "generators", []):
        own |= {p.id for p in ast.walk(maker.target) if _stored(p)}
    return set().union(*map(_at_once, ast.iter_child_nodes(node))) - own
