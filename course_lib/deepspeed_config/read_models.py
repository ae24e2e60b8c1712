"""A pydantic model → the keys, types, bounds, choices, defaults and old names that it declares.

Runs in the process that has DeepSpeed; a model's nested models become sections of their own.
Lesson 13.
"""

from __future__ import annotations

import enum
import inspect
import json
import pathlib
import types
import typing
from pathlib import Path

from course_lib.deepspeed_config.recording import within_package

BOUNDS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "object"}
PLAIN |= {list: "list", tuple: "list", pathlib.Path: "path", object: "any", typing.Any: "any"}


def section_of(model: type) -> dict:
    """The section of a config that `model` reads."""
    source = within_package(Path(inspect.getsourcefile(model) or ""))
    keys: dict[str, dict] = {}
    for name, field in model.model_fields.items():
        key = {"checked": True, **kind_of(field.annotation)}
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            key["required"] = True
        else:
            key["default"] = plain(default)
        for bound in field.metadata:
            for theirs, ours in BOUNDS.items():
                if getattr(bound, theirs, None) is not None:
                    key[ours] = getattr(bound, theirs)
        if field.exclude:
            key["own"] = True  # the program's, not the user's
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("deprecated"):
            key["deprecated"] = _replacement(model, extra)
        if field.alias and field.alias != name:
            keys[field.alias] = key
            keys[name] = {**key, "same_as": field.alias}
        else:
            keys[name] = key
    strict = model.model_config.get("extra") == "forbid"
    return {"strict": strict, "source": source, "keys": keys}


def kind_of(annotation: object) -> dict:
    """{"type": …, "null": …, "choices": …, "section": …} of an annotation."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(part) for part in parts if part is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else {"type": "union", "of": kinds}
        return {**kind, "null": True} if type(None) in parts else kind
    if origin is typing.Literal:
        return {"type": "choice", "choices": list(parts)}
    if origin in (list, tuple):
        inner = [part for part in parts if part is not Ellipsis]
        return {"type": "list", **({"items": kind_of(inner[0])} if len(inner) == 1 else {})}
    if origin is dict:
        return {"type": "object"}
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            values = [member.value for member in annotation]
            return {"type": "choice", "choices": values}
        if hasattr(annotation, "model_fields"):
            return {"type": "object", "section": section_of(annotation)}
    return {"type": PLAIN.get(annotation, "instance")}


def plain(value: object) -> object:
    """A default as JSON has it."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):  # their subclasses print themselves otherwise
        if isinstance(value, kind) and not isinstance(value, enum.Enum):
            return kind(value)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    try:
        return json.loads(json.dumps(value, default=str))
    except TypeError:
        return str(value)


def _replacement(model: type, extra: dict) -> dict:
    """Which key takes the place of an old one, under the name that a config spells it with."""
    new = extra.get("new_param", "")
    field = model.model_fields.get(new)
    known = field is not None
    replacement = {"new": (field.alias or new) if known else new, "alone": known}
    if known and kind_of(field.annotation).get("section"):
        replacement["section"] = True
    return replacement
