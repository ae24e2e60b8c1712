"""Keys that another key of the file needs: a switch, a path, a number of steps.

Without them a section is read and does nothing, or is refused once the run has begun. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

SAMPLING = "data_efficiency.data_sampling"
DATA = "deepspeed/runtime/data_pipeline/config.py"
SCHEDULE = "deepspeed/runtime/data_pipeline/curriculum_scheduler.py"
ROUTING = "deepspeed/runtime/data_pipeline/data_routing/scheduler.py"
LTD = "data_efficiency.data_routing.random_ltd"
OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
CHECKPOINTING = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
PRECISIONS = (("fp16",), ("bf16",))

# What a schedule of a curriculum metric asks its settings for.
OF_A_SCHEDULE = {
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_discrete": ("difficulty", "max_step"),
}


def check(config: Config) -> Iterator[Finding]:
    """A finding for every section that waits for a key which is not there."""
    yield from _switches(config)
    yield from _offload(config)
    yield from _data(config)
    contiguous = "activation_checkpointing.contiguous_memory_optimization"
    for name in ("partition_activations", "number_checkpoints"):
        needed = f"activation_checkpointing.{name}"
        if config.get(contiguous) is True and not config.get(needed):
            yield config.finding(
                "needs", "warning", contiguous, f'"contiguous_memory_optimization" needs "{name}"',
                "It is asserted where DeepSpeed's own checkpointing is used; Hugging Face's models "
                "use torch's, and read nothing of this section.", CHECKPOINTING, f'add "{needed}"',
            )  # fmt: skip


def _missing(config: Config, path: str | tuple, needed: str, source: str) -> Finding:
    name = path.rpartition(".")[2] if isinstance(path, str) else path[-1]
    return config.finding(
        "needs", "error", path, f'"{name}" needs "{needed}"',
        "DeepSpeed asks for it where this is used, and stops.", source, f'add "{needed}"',
    )  # fmt: skip


def _switches(config: Config) -> Iterator[Finding]:
    """Sections that are off unless they say that they are on."""
    for path, key, _, value in config.entries():
        inner = config.section_of(path, key)
        if not isinstance(value, dict) or not inner or "enabled" not in inner["keys"]:
            continue
        switch = inner["keys"]["enabled"]
        settings = [name for name in value if name in inner["keys"]]
        empty = not value and path in PRECISIONS
        if (settings or empty) and "enabled" not in value and switch.get("default") is False:
            section, idle = ".".join(path), ", ".join(settings[:3])
            yield config.finding(
                "needs", "warning", path, f'"{section}" is off: it has no "enabled"',
                'The default of "enabled" is false'
                + (f", and nothing of {idle} counts." if idle else ": the run is in 32 bits."),
                inner.get("source", ""), f'add "{section}.enabled": true',
            )  # fmt: skip


def _offload(config: Config) -> Iterator[Finding]:
    zero = config.stated("zero_optimization")
    if isinstance(zero, dict) and zero and not config.has("zero_optimization.stage"):
        yield config.finding(
            "needs", "warning", "zero_optimization", '"zero_optimization" has no "stage"',
            "By default it is 0: nothing is sharded, and nothing of "
            f"{', '.join(list(zero)[:3])} counts.",
            "deepspeed/runtime/zero/config.py", 'add "zero_optimization.stage"',
        )  # fmt: skip
    for what in ("optimizer", "param"):
        section = f"zero_optimization.offload_{what}"
        value = config.stated(section)
        if not isinstance(value, dict):
            continue
        device = config.device(what)
        if device == "nvme" and not config.get(f"{section}.nvme_path"):
            yield _missing(config, f"{section}.device" if "device" in value else section,
                           f"{section}.nvme_path", OFFLOAD)  # fmt: skip
        if value and "device" not in value:
            yield config.finding(
                "needs", "warning", section, f'"offload_{what}" has no "device"',
                'The default of "device" is "none": nothing is offloaded.', OFFLOAD,
                f'add "{section}.device": "cpu", or take the section out',
            )  # fmt: skip
    path = "aio"
    devices = config.device("optimizer"), config.device("param")
    if isinstance(config.stated(path), dict) and "nvme" not in devices:
        yield config.finding(
            "effect", "hint", path, '"aio" does nothing: nothing is offloaded to NVMe',
            "It sets how files are read and written, and there is no nvme_path that says where.",
            "deepspeed/runtime/swap_tensor/aio_config.py",
            'take it out, or offload with "device": "nvme" and "nvme_path"',
        )  # fmt: skip


def _data(config: Config) -> Iterator[Finding]:
    learning, batching = f"{SAMPLING}.curriculum_learning", f"{SAMPLING}.dynamic_batching"
    if config.get(f"{batching}.enabled") is True and not config.has(f"{batching}.max_tokens"):
        yield _missing(config, batching, f"{batching}.max_tokens", DATA)
    metrics = config.stated(f"{learning}.curriculum_metrics")
    if config.get(f"{learning}.enabled") is True and not isinstance(metrics, dict):
        yield _missing(config, learning, f"{learning}.curriculum_metrics", DATA)
    for name, metric in metrics.items() if isinstance(metrics, dict) else ():
        above = (*learning.split("."), "curriculum_metrics", name)
        if isinstance(metric, dict) and config.get(f"{learning}.enabled") is True:
            yield from _metric(config, above, metric)
    if config.get(f"{LTD}.enabled") is True:
        section = config.stated(LTD)
        for name in ("total_layer_num", "random_ltd_layer_num", "random_ltd_schedule"):
            if name not in section:
                yield _missing(config, LTD, f"{LTD}.{name}", ROUTING)
        schedule = section.get("random_ltd_schedule")
        for name in ("min_value", "max_value", "schedule_type", "schedule_config"):
            if isinstance(schedule, dict) and name not in schedule:
                path = f"{LTD}.random_ltd_schedule"
                yield _missing(config, path, f"{path}.{name}", ROUTING)
        settings = schedule.get("schedule_config") if isinstance(schedule, dict) else None
        for name in ("require_steps", "seq_per_step"):
            if isinstance(settings, dict) and name not in settings:
                path = f"{LTD}.random_ltd_schedule.schedule_config"
                yield _missing(config, path, f"{path}.{name}", ROUTING)


def _metric(config: Config, above: tuple, metric: dict) -> Iterator[Finding]:
    for name in ("min_difficulty", "max_difficulty", "schedule_type"):
        if name not in metric:
            yield _missing(config, above, ".".join((*above, name)), SCHEDULE)
    kind, settings = metric.get("schedule_type"), metric.get("schedule_config")
    asked = OF_A_SCHEDULE.get(kind, ()) if isinstance(kind, str) else ()
    if asked and not isinstance(settings, dict):
        yield _missing(config, above, ".".join((*above, "schedule_config")), SCHEDULE)
        return
    for name in asked:
        if name not in settings:
            path = (*above, "schedule_config")
            yield _missing(config, path, ".".join((*path, name)), SCHEDULE)
