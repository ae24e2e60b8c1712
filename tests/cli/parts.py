"""What the tests of commands share: a model's config.json."""

from __future__ import annotations

LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}  # fmt: skip
