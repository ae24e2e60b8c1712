"""The conversion between config.json and our Config: transformers' names, and refused traits.

A trait that is silently dropped changes the logits without an error, so every trait that this model
lacks is refused by name. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from course_lib.gpt import Config
from course_lib.pretrained.header import CheckpointError, read_json

TRAITS = {
    "gpt2": {"position": ("learned",), "norm": ("layer",), "activation": ("gelu_tanh", "gelu")},
    "llama": {"position": ("rotary",), "norm": ("rms",), "activation": ("swiglu",)},
}
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
# Their key → our trait, and its default if a file omits the key; sizes have no default.
KEYS = {
    "gpt2": {
        "vocab_size": ("vocabulary",),
        "n_positions": ("length",),
        "n_embd": ("hidden",),
        "n_layer": ("layers",),
        "n_head": ("heads",),
        "n_inner": ("inner", None),
        "layer_norm_epsilon": ("epsilon", 1e-5),
        "tie_word_embeddings": ("tied", True),
        "resid_pdrop": ("dropout", 0.1),
        "embd_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("attention_dropout", 0.1),
    },
    "llama": {
        "vocab_size": ("vocabulary",),
        "max_position_embeddings": ("length",),
        "hidden_size": ("hidden",),
        "num_hidden_layers": ("layers",),
        "num_attention_heads": ("heads",),
        "intermediate_size": ("inner",),
        "num_key_value_heads": ("kv_heads", None),
        "rms_norm_eps": ("epsilon", 1e-6),
        "rope_theta": ("rotary_base", 10000.0),
        "tie_word_embeddings": ("tied", False),
        "attention_bias": ("bias", False),
        "mlp_bias": ("bias", False),
        "attention_dropout": ("attention_dropout", 0.0),
        "resid_pdrop": ("dropout", 0.0),  # a key of ours: Llama's own has no such dropout
    },
}
# The only supported value of these keys, and the meaning of any other value.
PLAIN = {
    "gpt2": {
        "scale_attn_weights": (True, "attention scores without their division by √d"),
        "scale_attn_by_inverse_layer_idx": (False, "scores divided by the layer's number"),
        "reorder_and_upcast_attn": (False, "scores in float32, whatever the weights are"),
        "add_cross_attention": (False, "attention to an encoder's states"),
    },
    "llama": {"hidden_act": ("silu", "an activation other than SwiGLU's")},
}


def family(config: Config) -> str:
    """Return 'gpt2' or 'llama', the family whose checkpoints have this config's traits."""
    own = config.as_dict()
    off = {
        name: {trait: valid for trait, valid in traits.items() if own[trait] not in valid}
        for name, traits in TRAITS.items()
    }
    if not config.bias:
        off["gpt2"]["bias"] = (True,)
    if config.kv_heads != config.heads:
        off["gpt2"]["kv_heads"] = (config.heads,)
    for name, wrong in off.items():
        if not wrong:
            return name
    near = min(off, key=lambda name: len(off[name]))
    wrong = ", ".join(
        f"{trait}={getattr(config, trait)!r} (there {' or '.join(map(repr, valid))})"
        for trait, valid in off[near].items()
    )
    raise CheckpointError(
        f"this config is neither GPT-2's nor Llama's; it differs from {near}'s in {wrong}. Only "
        "these two have checkpoints that transformers reads"
    )


def read_config(path: Path) -> Config:
    """Read the config that a config.json describes."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing, but it describes the weights")
    return from_transformers(read_json(path.read_bytes(), path), path)


def from_transformers(keys: Mapping, where: object = "config.json") -> Config:
    """Build our config from transformers' keys, with their defaults for missing optional keys."""
    kind = keys.get("model_type")
    if kind not in TRAITS:
        raise CheckpointError(
            f"{where}: model_type={kind!r} is not a model of this course, which reads "
            f"{' and '.join(TRAITS)}"
        )
    if keys.get("quantization_config"):
        raise CheckpointError(
            f"{where}: quantization_config shows that the weights are quantized. Use the original "
            "checkpoint"
        )
    for key, (plain, meaning) in PLAIN[kind].items():
        if keys.get(key, plain) != plain:
            raise CheckpointError(
                f"{where}: {key}={keys[key]!r} means {meaning}, which this model lacks. Use "
                f"checkpoints with {key}={plain!r}"
            )
    lost = [name for name, entry in KEYS[kind].items() if len(entry) == 1 and name not in keys]
    if lost:
        raise CheckpointError(f"{where} lacks {', '.join(lost)}")
    traits: dict = {}
    said_by: dict[str, str] = {}
    for name, (trait, *default) in KEYS[kind].items():
        value = keys[name] if name in keys else default[0]
        if traits.setdefault(trait, value) != value:
            raise CheckpointError(
                f"{where}: {said_by[trait]}={traits[trait]} and {name}={value} differ, but this "
                f"model has one {trait} for both. Give both the same value"
            )
        said_by.setdefault(trait, name)
    if kind == "gpt2":
        activation = keys.get("activation_function", "gelu_new")
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{where}: activation_function={activation!r} is not in {', '.join(ACTIVATIONS)}"
            )
        return Config.gpt2(**traits, activation=ACTIVATIONS[activation])
    config = Config.llama(**{**traits, "rotary_base": _rotary_base(keys, where)})
    if keys.get("head_dim") not in (None, config.head_size):
        raise CheckpointError(
            f"{where}: head_dim={keys['head_dim']}, but this model's head size is hidden_size / "
            f"num_attention_heads = {config.hidden} / {config.heads} = {config.head_size}"
        )
    return config


def _rotary_base(keys: Mapping, where: object) -> float:
    """Read the rotary base from rope_parameters (transformers 5) or rope_theta (transformers 4)."""
    for key in ("rope_parameters", "rope_scaling"):
        told = keys.get(key) or {}
        kind = told.get("rope_type", told.get("type", "default"))
        nested = any(isinstance(value, Mapping) for value in told.values())
        if kind != "default" or nested or told.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(
                f"{where}: {key}={dict(told)} scales the rotary positions or rotates only a part "
                "of each head, but this model rotates full heads without scaling. Use a checkpoint "
                "with rope_type 'default'"
            )
    new = (keys.get("rope_parameters") or {}).get("rope_theta")
    return float(new if new is not None else keys.get("rope_theta", 10000.0))


def to_transformers(config: Config, dtype: torch.dtype, more: Mapping | None = None) -> dict:
    """Build the keys of a config.json. `more` are additional keys, for example those of the
    original checkpoint; the model's own values override them."""
    kind, more = family(config), dict(more or {})
    if more.get("model_type", kind) != kind:
        raise CheckpointError(
            f"these keys are a {more['model_type']}'s, but the saved model is a {kind}"
        )
    more.pop("torch_dtype", None)  # the older name of dtype
    own = {name: getattr(config, trait) for name, (trait, *_) in KEYS[kind].items()}
    own |= {"model_type": kind, "dtype": str(dtype).removeprefix("torch.")}
    if kind == "gpt2":
        own["architectures"] = ["GPT2LMHeadModel"]
        own["activation_function"] = "gelu" if config.activation == "gelu" else "gelu_new"
    else:
        own |= {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
        own["head_dim"] = config.head_size
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
    # Their defaults are tokens of the published vocabularies, which may not exist here.
    ends = {"bos_token_id": None, "eos_token_id": None}
    return {**ends, **more, **own}
