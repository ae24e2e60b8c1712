"""config.json and our Config, both ways: what transformers calls a trait, and what we refuse.

A trait that is dropped without a word gives other logits and no error, so each one that this model
does not have is refused by its name. Lesson 08.
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
# Their key: our trait, and its value where a file leaves the key out; a size has no such value.
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
# What a config.json may say of these, and what else it would mean.
PLAIN = {
    "gpt2": {
        "scale_attn_weights": (True, "attention scores without their division by √d"),
        "scale_attn_by_inverse_layer_idx": (False, "scores divided by the layer's number"),
        "reorder_and_upcast_attn": (False, "scores in float32, whatever the weights are"),
        "add_cross_attention": (False, "attention to an encoder's states"),
    },
    "llama": {"hidden_act": ("silu", "another activation than SwiGLU's")},
}


def family(config: Config) -> str:
    """'gpt2' or 'llama': whose checkpoints have this config's traits."""
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
        f"this config is neither GPT-2's nor Llama's; from {near}'s it differs in {wrong}. Only "
        "these two have checkpoints that transformers reads"
    )


def read_config(path: Path) -> Config:
    """The config that a config.json describes."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; it says what the weights mean")
    return from_transformers(read_json(path.read_bytes(), path), path)


def from_transformers(keys: Mapping, where: object = "config.json") -> Config:
    """Our config from transformers' keys; the ones that a file may leave out have its defaults."""
    kind = keys.get("model_type")
    if kind not in TRAITS:
        raise CheckpointError(
            f"{where}: model_type={kind!r} is not a model of this course, which reads "
            f"{' and '.join(TRAITS)}"
        )
    if keys.get("quantization_config"):
        raise CheckpointError(
            f"{where}: quantization_config says that the weights are stored in another form; take "
            "the checkpoint that was not quantized"
        )
    for key, (plain, meaning) in PLAIN[kind].items():
        if keys.get(key, plain) != plain:
            raise CheckpointError(
                f"{where}: {key}={keys[key]!r} means {meaning}, which this model does not have; it "
                f"takes checkpoints with {key}={plain!r}"
            )
    lost = [name for name, entry in KEYS[kind].items() if len(entry) == 1 and name not in keys]
    if lost:
        raise CheckpointError(f"{where} does not say {', '.join(lost)}")
    traits: dict = {}
    said_by: dict[str, str] = {}
    for name, (trait, *default) in KEYS[kind].items():
        value = keys[name] if name in keys else default[0]
        if traits.setdefault(trait, value) != value:
            raise CheckpointError(
                f"{where}: {said_by[trait]}={traits[trait]} and {name}={value} differ, and this "
                f"model has one {trait} for both; give both one value"
            )
        said_by.setdefault(trait, name)
    if kind == "gpt2":
        activation = keys.get("activation_function", "gelu_new")
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{where}: activation_function={activation!r} is none of {', '.join(ACTIVATIONS)}"
            )
        return Config.gpt2(**traits, activation=ACTIVATIONS[activation])
    config = Config.llama(**{**traits, "rotary_base": _rotary_base(keys, where)})
    if keys.get("head_dim") not in (None, config.head_size):
        raise CheckpointError(
            f"{where}: head_dim={keys['head_dim']}, and this model's heads are hidden_size / "
            f"num_attention_heads = {config.hidden} / {config.heads} = {config.head_size} wide"
        )
    return config


def _rotary_base(keys: Mapping, where: object) -> float:
    """transformers 5 keeps it in rope_parameters, transformers 4 as rope_theta."""
    for key in ("rope_parameters", "rope_scaling"):
        told = keys.get(key) or {}
        kind = told.get("rope_type", told.get("type", "default"))
        nested = any(isinstance(value, Mapping) for value in told.values())
        if kind != "default" or nested or told.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(
                f"{where}: {key}={dict(told)} scales the rotary positions or turns a part of each "
                "head, and this model turns all of them plainly; take a checkpoint whose "
                "rope_type is 'default'"
            )
    new = (keys.get("rope_parameters") or {}).get("rope_theta")
    return float(new if new is not None else keys.get("rope_theta", 10000.0))


def to_transformers(config: Config, dtype: torch.dtype, more: Mapping | None = None) -> dict:
    """The keys of a config.json. `more` are further ones, such as those of the checkpoint that the
    model came from; where both speak, the model does."""
    kind, more = family(config), dict(more or {})
    if more.get("model_type", kind) != kind:
        raise CheckpointError(
            f"these keys are a {more['model_type']}'s, and the model that is saved is a {kind}"
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
    # Their defaults are words of the published vocabularies, and here perhaps no words at all.
    ends = {"bos_token_id": None, "eos_token_id": None}
    return {**ends, **more, **own}
