"""A config as the rules see it: its values, their positions, and DeepSpeed's reading of them.

Every rule receives a DeepSpeedConfig. This object answers questions about the effective stage and
offload, and creates findings at the position of a key. Lesson 13.
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
Row = tuple  # a rule's result: the arguments of `Config.finding`
PARAMS = (("optimizer", "params"), ("scheduler", "params"))


@dataclass
class DeepSpeedConfig:
    """The file's `value`, and in `auto` a copy with every resolvable "auto" filled in."""

    value: dict
    places: dict[tuple, KeyPlace]
    schema: Schema
    auto: Resolved
    world: int | None = None
    arguments: Mapping | None = None

    # ---- values

    def get(self, path: str, default: object = None) -> object:
        """Return the effective value at a dotted path, converted as DeepSpeed does, or `default` if
        the file has nothing, null or "auto". Both spellings of a key count."""
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
        """Return the file's value at a dotted path, with "auto" filled in, or ABSENT."""
        return at(self.auto.config, self.spelled(path), ABSENT)

    def spelled(self, path: str) -> tuple[str, ...]:
        """Translate a path into the file's spellings, which may be aliases in a config model."""
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

    # ---- questions that rules ask often

    @property
    def stage(self) -> int | None:
        """The effective ZeRO stage; None if the file's stage is invalid or remains "auto"."""
        if self.stated("zero_optimization") is True:
            return 1
        if not self.has("zero_optimization.stage"):
            return 0
        stage = self.get("zero_optimization.stage")
        return stage if isinstance(stage, int) and 0 <= stage <= 3 else None

    def device(self, what: str) -> str:
        """Return the offload device of "optimizer" or "param": none, cpu or nvme."""
        section = f"zero_optimization.offload_{what}"
        old = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}[what]
        if not self.has(section) and self.get(f"zero_optimization.{old}") is True:
            return "cpu"
        device = self.get(f"{section}.device", "none")
        return device if isinstance(device, str) else "none"

    # ---- findings

    def place(self, path: tuple) -> tuple[int, int]:
        """Return line and column of the nearest key to a path that the file has."""
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
        """Create a finding at the key of `path`; `source` defaults to the section's reader."""
        keys = self.spelled(path) if isinstance(path, str) else path
        where = (".".join(map(str, keys)), *self.place(keys))
        source = self.schema.source(source or self._reader(keys))
        texts = (level, message, reason, source, suggestion)
        return Finding(*where, *texts, repair=repair, keys=keys)

    def _reader(self, keys: tuple) -> str:
        """Return the DeepSpeed source file that reads a key or, if unknown, its section."""
        source, section = "", self.schema.root
        for depth in range(len(keys)):
            source = section.get("source") or source
            key = section["keys"].get(keys[depth]) or section["keys"].get("*")
            source = (key or {}).get("source") or source
            section = self.section_of(keys[: depth + 1], key) or OPEN
        return source

    # ---- the walk

    def entries(self) -> Iterator[tuple[tuple, dict | None, dict, object]]:
        """Yield (path, schema of the key or None, its section, its value) for every key of the
        file. The content of an unknown key is skipped."""
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
        """Return the section's schema; for optimizer or scheduler parameters, that of the type."""
        if path not in PARAMS:
            return (key or {}).get("section")
        holder = self.value.get(path[0])
        kind = holder.get("type") if isinstance(holder, dict) else None
        if not isinstance(kind, str):
            return None
        schedulers = self.schema.data["schedulers"]
        known = self.schema.optimizer(kind) if path[0] == "optimizer" else schedulers.get(kind)
        return known or OPEN
