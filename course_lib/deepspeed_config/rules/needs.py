"""Keys that another key of the file needs: a switch, a path, a number of steps.

Without them a section is read and does nothing, or is refused once the run has begun. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

SAMPLING = "data_efficiency.data_sampling"
DATA = "deepspeed/runtime/data_pipeline/config.py"
OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
CHECKPOINTING = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
PRECISIONS = (("fp16",), ("bf16",))


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


def _missing(config: Config, path: str, needed: str, source: str) -> Finding:
    name = path.rpartition(".")[2]
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
    """What DeepSpeed's parser of data_efficiency asserts."""
    for name, needed in (("dynamic_batching", "max_tokens"),
                         ("curriculum_learning", "curriculum_metrics")):  # fmt: skip
        path = f"{SAMPLING}.{name}"
        if config.get(f"{path}.enabled") is True and not config.has(f"{path}.{needed}"):
            yield _missing(config, path, f"{path}.{needed}", DATA)
