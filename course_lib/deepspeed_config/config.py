"""A config as the rules see it: its values, where each stands, what DeepSpeed makes of them.

Every rule is handed one of these; it answers what stage, offload or precision counts, and makes a
finding with the place of its key. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.json_reader import Place
from course_lib.deepspeed_config.kinds import judge
from course_lib.deepspeed_config.schema import Schema

ABSENT = object()
OPEN = {"strict": False, "open": True, "keys": {}, "source": ""}


@dataclass
class Config:
    """`value` is the file's, `resolved` the same with every `auto` filled in that can be."""

    value: dict
    places: dict[tuple, Place]
    schema: Schema
    resolved: dict = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why an "auto" stays, by its path
    world: int | None = None
    arguments: Mapping | None = None

    # ---- values

    def get(self, path: str, default: object = None) -> object:
        """What counts at a dotted path: as DeepSpeed converts it, or `default` where the file says
        nothing, null or "auto". Both spellings of a key are one."""
        value = self.stated(path)
        if value is ABSENT or value is None or value == "auto":
            return default
        key = self.schema.find(tuple(path.split(".")))
        if key is not None and key.get("type") != "object":
            verdict = judge(key, value)
            if not verdict.fits:
                return verdict.becomes if verdict.taken and verdict.becomes is not None else default
            if key.get("type") in ("integer", "choice") and isinstance(value, float):
                return int(value)
        return value

    def stated(self, path: str) -> object:
        """What the file has at a dotted path, filled in where it said "auto"; ABSENT."""
        names = tuple(path.split("."))
        value: object = self.resolved or self.value
        for depth, name in enumerate(names):
            if not isinstance(value, dict):
                return ABSENT
            spelled = self.spelling(names[:depth], name, value)
            if spelled is None:
                return ABSENT
            value = value[spelled]
        return value

    def spelling(self, above: tuple, name: str, holder: Mapping) -> str | None:
        """The spelling of a key that the file uses: its own, or the other one of a model."""
        if name in holder:
            return name
        key = self.schema.find((*above, name)) or {}
        twin = key.get("same_as") or self.twins(above).get(name)
        return twin if twin in holder else None

    def twins(self, above: tuple) -> dict[str, str]:
        section = (self.schema.find(above) or {}).get("section") if above else self.schema.root
        keys = (section or {}).get("keys", {})
        return {key["same_as"]: name for name, key in keys.items() if "same_as" in key}

    def has(self, path: str) -> bool:
        return self.stated(path) is not ABSENT

    def default(self, path: str) -> object:
        return (self.schema.find(tuple(path.split("."))) or {}).get("default")

    def on(self, path: str) -> bool:
        """Whether a switch is on: as the file says, or by default."""
        return bool(self.get(path, self.default(path) is True))

    def section_has(self, path: tuple) -> bool:
        """Whether a path is one of the release's, those of an optimizer's parameters included."""
        if path[:-1] in (("optimizer", "params"), ("scheduler", "params")):
            return True
        return self.schema.find(path) is not None

    # ---- what rules ask again and again

    @property
    def stage(self) -> int | None:
        """The ZeRO stage that counts; None where the file's is none, or is left to "auto"."""
        if self.stated("zero_optimization") is True:
            return 1
        if self.stated("zero_optimization.stage") is ABSENT:
            return 0
        stage = self.get("zero_optimization.stage")
        return stage if isinstance(stage, int) and 0 <= stage <= 3 else None

    def device(self, what: str) -> str:
        """Where "optimizer" or "param" is offloaded to: none, cpu or nvme."""
        section = f"zero_optimization.offload_{what}"
        old = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}[what]
        if not self.has(section) and self.get(f"zero_optimization.{old}") is True:
            return "cpu"
        device = self.get(f"{section}.device", "none")
        return device if isinstance(device, str) else "none"

    # ---- places and findings

    def place(self, path: tuple, *, value: bool = False) -> tuple[int, int]:
        """Line and column of the nearest key to a path that the file has."""
        for end in range(len(path), -1, -1):
            place = self.places.get(path[:end])
            if place is not None:
                return (place.value_line, place.value_column) if value else (
                    place.line, place.column)  # fmt: skip
        return 1, 1

    def spelled(self, path: str) -> tuple:
        """A path with the spellings of the file."""
        names, value, done = tuple(path.split(".")), self.value, ()
        for depth, name in enumerate(names):
            own = self.spelling(names[:depth], name, value) if isinstance(value, dict) else None
            done += (own or name,)
            value = value.get(own) if own is not None else None
        return done

    def finding(
        self,
        kind: str,
        level: str,
        path: str | tuple,
        message: str,
        reason: str,
        source: str,
        suggestion: str,
        *,
        value: bool = False,
        repair: tuple | None = None,
    ) -> Finding:
        """A finding at the key of `path`, or at its value."""
        names = self.spelled(path) if isinstance(path, str) else path
        line, column = self.place(names, value=value)
        dotted = ".".join(map(str, names)) if names != ("",) else ""
        known = self.schema.source(source)
        return Finding(
            dotted, line, column, level, message, reason, known, suggestion, kind, repair, names
        )

    # ---- the walk

    def entries(self) -> Iterator[tuple[tuple, dict | None, dict, object]]:
        """(path, what is known of the key or None, the section it stands in, its value) of every
        key of the file; below an unknown one nothing is known, and nothing is walked."""
        todo: list[tuple[tuple, dict, dict]] = [((), self.schema.root, self.value)]
        while todo:
            above, section, holder = todo.pop(0)
            for name, value in holder.items():
                key = section["keys"].get(name) or section["keys"].get("*")
                path = (*above, name)
                yield path, key, section, value
                inner = self.section_of(path, key)
                if isinstance(value, dict) and inner is not None:
                    todo.append((path, inner, value))

    def section_of(self, path: tuple, key: dict | None) -> dict | None:
        """The section that a key opens; that of an optimizer's parameters hangs on its type."""
        if path in (("optimizer", "params"), ("scheduler", "params")):
            kind = self.value[path[0]].get("type")
            if not isinstance(kind, str):
                return None
            found = (
                self.schema.optimizer(kind) if path[0] == "optimizer"
                else self.schema.data["schedulers"].get(kind)
            )  # fmt: skip
            return found or OPEN
        return (key or {}).get("section")
