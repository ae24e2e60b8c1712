"""Our own engine, as the methods of `course bench zero` with the names course_lib-…

Each stage with the settings that were best of those tried; `--set tune=1` tries them again.
"""

from __future__ import annotations

from collections.abc import Callable

from _zero_task import Task

from course_lib import zero

MB = 1 << 20
KEEP = 1 << 60  # bytes: everything stays from forward to backward
# For each method the settings tried, the one that is used first.
SETTINGS: dict[str, list[dict]] = {
    "course_lib-0": [{"bucket_bytes": 25 * MB}, {"bucket_bytes": 10 * MB}],
    "course_lib-1": [{"bucket_bytes": size * MB} for size in (10, 50, 25)],
    "course_lib-2": [{"bucket_bytes": size * MB} for size in (10, 25, 50)],
    "course_lib-3-fast": [{"keep": KEEP, "prefetch": 1}, {"keep": KEEP, "prefetch": 2}],
    "course_lib-3-lean": [{"prefetch": 1}, {"prefetch": 2}, {"prefetch": 0}],
    "course_lib-3-cpu": [{"prefetch": 1}],
    "course_lib-3-nvme": [{"prefetch": 1, "io": "threads"}, {"prefetch": 1, "io": "aio"}],
}


def there(name: str) -> bool:
    """Whether a method can run here."""
    return True


def build(task: Task, name: str, settings: dict) -> Callable[[], float]:
    model = task.model()
    place = name.rpartition("-")[2]
    if place in ("cpu", "nvme"):
        offload = {"optimizer": place, "parameters": place}
        if place == "nvme":
            folder = task.folder / "ours"
            folder.mkdir(exist_ok=True)
            offload["folder"] = folder
            offload["io"] = settings["io"]
        settings = {k: v for k, v in settings.items() if k != "io"} | {"offload": offload}
    engine = zero.engine(
        model,
        task.adamw(model.parameters()),
        stage=int(name.split("-")[1]),
        mesh=task.mesh,
        check=False,  # no peer looks at every gradient either
        **settings,
    )
    task.ending.callback(engine.close)
    if place == "nvme":
        task.notes.append(f"{name}: files by {engine.home.io.name}, past the page cache")
    return task.training(engine, engine.backward, engine.step)
