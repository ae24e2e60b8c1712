"""The Trainer's argument defaults and the models' hidden sizes of the installed Transformers.

`python -m tools.trainer_table` writes the table for course_lib.peers.deepspeed_config.auto, so that
"auto" is resolved without importing Transformers. Lesson 13.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "course_lib/peers/deepspeed_config/trainer.json"
# Arguments that the DeepSpeed integration reads.
READ = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "learning_rate",
    "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "save_on_each_node", "fp16",
    "fp16_full_eval", "bf16", "bf16_full_eval", "warmup_steps", "max_steps",
)  # fmt: skip


def table() -> dict:
    """Return the release, the argument defaults, and the size key of each kind of model."""
    import transformers

    defaults = {one.name: one.default for one in dataclasses.fields(transformers.TrainingArguments)}
    sizes: dict[str, list] = {}
    texts: dict[str, list] = {}
    for kind, config in configs():
        name = config.attribute_map.get("hidden_size", "hidden_size")
        size = getattr(config, "hidden_size", None)
        if isinstance(size, int):
            sizes[kind] = [name, size]
            continue
        text = getattr(config, "text_config", None)
        size = getattr(text, "hidden_size", None)
        if isinstance(size, int):
            texts[kind] = [text.model_type, size]
    return {
        "transformers": transformers.__version__,
        "arguments": {name: defaults[name] for name in READ},
        "hidden_size": sizes,
        "text": texts,
    }


def configs():
    """Yield (model_type, default config) for every kind that needs no arguments."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for kind in sorted(CONFIG_MAPPING.keys()):
        try:
            yield kind, CONFIG_MAPPING[kind]()
        except Exception:  # a kind that is composed of others has no defaults
            continue


def text(found: dict) -> str:
    """Format the table with a line for each model, so that changes are readable."""
    parts = []
    for key, value in found.items():
        if isinstance(value, dict):
            rows = (f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n  }")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(table()))
