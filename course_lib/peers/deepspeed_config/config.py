"""A config as the rules see it: its values, where each stands, what DeepSpeed makes of them.

Every rule is handed one of these; it answers what stage, offload or precision counts, and makes a
finding with the place of its key. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from course_lib.peers.deepspeed_config.auto import Resolved, at
from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.json_reader import KeyPlace
from course_lib.peers.deepspeed_config.kinds import judge
from course_lib.peers.deepspeed_config.schema import Schema

ABSENT = object()
OPEN = {"strict": False, "open": True, "keys": {}, "source": ""}
Row = tuple  # what a rule says of a config: the arguments of `Config.finding`
PARAMS = (("optimizer", "params"), ("scheduler", "params"))


@dataclass
class DeepSpeedConfig:
    """`value` is the file's; `auto` has the same with every "auto" filled in that can be."""

    value: dict
    places: dict[tuple, KeyPlace]
    schema: Schema
    auto: Resolved
    world: int | None = None
    arguments: Mapping | None = None

    # ---- values

    def get(self, path: str, default: object = None) -> object:
        """What counts at a dotted path: as DeepSpeed converts it, or `default` where the file says
        nothing, null or "auto". Both spellings of a key are one."""
        value = self.stated(path)
        if value is ABSENT or value is None or value == "auto":
            return default
        key = self.schema.find(path)
        if key is None or key.get("type") == "object":
            return value
        verdict = judge(key, value)
        if not verdict.fits:
            return verdict.becomes if verdict.taken and verdict.becomes is not None else default
        whole = key.get("type") in ("integer", "choice") and isinstance(value, float)
        return int(value) if whole else value

    def stated(self, path: str) -> object:
        """What the file has at a dotted path, filled in where it said "auto"; ABSENT."""
        return at(self.auto.config, self.spelled(path), ABSENT)

    def spelled(self, path: str) -> tuple[str, ...]:
        """A path with the spellings of the file: each key's own, or the other one of a model."""
        done, value = (), self.value
        for name in path.split("."):
            if isinstance(value, dict) and name not in value:
                twin = self.schema.twin((*done, name))
                name = twin if twin in value else name
            value = value.get(name) if isinstance(value, dict) else None
            done += (name,)
        return done

    def has(self, path: str) -> bool:
        return self.stated(path) is not ABSENT

    def default(self, path: str) -> object:
        return (self.schema.find(path) or {}).get("default")

    # ---- what rules ask again and again

    @property
    def stage(self) -> int | None:
        """The ZeRO stage that counts; None where the file's is none, or is left to "auto"."""
        if self.stated("zero_optimization") is True:
            return 1
        if not self.has("zero_optimization.stage"):
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

    # ---- findings

    def place(self, path: tuple) -> tuple[int, int]:
        """Line and column of the nearest key to a path that the file has."""
        nearest = (self.places.get(path[:end]) for end in range(len(path), -1, -1))
        return next(filter(None, nearest), (1, 1))

    def finding(
        self,
        level: str,
        path: str | tuple,
        message: str,
        reason: str,
        suggestion: str,
        source: str = "",
        repair: tuple | None = None,
    ) -> Finding:
        """A finding at the key of `path`; by default its source is the reader of that section."""
        keys = self.spelled(path) if isinstance(path, str) else path
        where = (".".join(map(str, keys)), *self.place(keys))
        source = self.schema.source(source or self._reader(keys))
        texts = (level, message, reason, source, suggestion)
        return Finding(*where, *texts, repair=repair, keys=keys)

    def _reader(self, keys: tuple) -> str:
        """DeepSpeed's file that reads a key, or else the section which it stands in."""
        source, section = "", self.schema.root
        for depth in range(len(keys)):
            source = section.get("source") or source
            key = section["keys"].get(keys[depth]) or section["keys"].get("*")
            source = (key or {}).get("source") or source
            section = self.section_of(keys[: depth + 1], key) or OPEN
        return source

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
        if path not in PARAMS:
            return (key or {}).get("section")
        holder = self.value.get(path[0])
        kind = holder.get("type") if isinstance(holder, dict) else None
        if not isinstance(kind, str):
            return None
        schedulers = self.schema.data["schedulers"]
        known = self.schema.optimizer(kind) if path[0] == "optimizer" else schedulers.get(kind)
        return known or OPEN
