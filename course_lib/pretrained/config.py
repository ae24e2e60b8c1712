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
    return (_from_gpt2 if kind == "gpt2" else _from_llama)(keys, where)


def _from_gpt2(keys: Mapping, where: object) -> Config:
    activation = keys.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise CheckpointError(
            f"{where}: activation_function={activation!r} is none of {', '.join(ACTIVATIONS)}"
        )
    drops = keys.get("resid_pdrop", 0.1), keys.get("embd_pdrop", 0.1)
    if drops[0] != drops[1]:
        raise CheckpointError(
            f"{where}: resid_pdrop={drops[0]} and embd_pdrop={drops[1]} differ, and this model has "
            "one dropout for both; give both one value (they matter in training alone)"
        )
    return Config.gpt2(
        **_sizes(keys, where, "vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
        inner=keys.get("n_inner"),
        activation=ACTIVATIONS[activation],
        epsilon=keys.get("layer_norm_epsilon", 1e-5),
        tied=keys.get("tie_word_embeddings", True),
        dropout=drops[0],
        attention_dropout=keys.get("attn_pdrop", 0.1),
    )


def _from_llama(keys: Mapping, where: object) -> Config:
    biases = keys.get("attention_bias", False), keys.get("mlp_bias", False)
    if biases[0] != biases[1]:
        raise CheckpointError(
            f"{where}: attention_bias={biases[0]} and mlp_bias={biases[1]} differ, and this model "
            "has biases everywhere or nowhere"
        )
    config = Config.llama(
        **_sizes(
            keys, where, "vocab_size", "max_position_embeddings", "hidden_size",
            "num_hidden_layers", "num_attention_heads", "intermediate_size",
        ),
        kv_heads=keys.get("num_key_value_heads"),
        bias=biases[0],
        epsilon=keys.get("rms_norm_eps", 1e-6),
        tied=keys.get("tie_word_embeddings", False),
        rotary_base=_rotary_base(keys, where),
        dropout=keys.get("resid_pdrop", 0.0),  # a key of ours: Llama's own has no such dropout
        attention_dropout=keys.get("attention_dropout", 0.0),
    )  # fmt: skip
    if keys.get("head_dim") not in (None, config.head_size):
        raise CheckpointError(
            f"{where}: head_dim={keys['head_dim']}, and this model's heads are hidden_size / "
            f"num_attention_heads = {config.hidden} / {config.heads} = {config.head_size} wide"
        )
    return config


def _sizes(keys: Mapping, where: object, *names: str) -> dict[str, int]:
    """The sizes, in our order; no default stands in for one of them."""
    ours = ("vocabulary", "length", "hidden", "layers", "heads", "inner")
    lost = [name for name in names if name not in keys]
    if lost:
        raise CheckpointError(f"{where} does not say {', '.join(lost)}")
    return {own: keys[name] for own, name in zip(ours, names, strict=False)}


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
    shared = {
        "model_type": kind,
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.tied,
    }
    shared |= {"dtype": str(dtype).removeprefix("torch."), "resid_pdrop": config.dropout}
    # Their defaults are words of the published vocabularies, and here perhaps no words at all.
    ends = {"bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        own = {
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": config.length,
            "n_embd": config.hidden,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.inner,
            "activation_function": "gelu" if config.activation == "gelu" else "gelu_new",
            "layer_norm_epsilon": config.epsilon,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
        }
    else:
        own = {
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": config.length,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_size,
            "intermediate_size": config.inner,
            "hidden_act": "silu",
            "rms_norm_eps": config.epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
            "rope_theta": config.rotary_base,
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
            "attention_dropout": config.attention_dropout,
        }
    return {**ends, **more, **shared, **own}
