"""What transformers says today to the quantization page's calls.

The probes of the table need no kernel of bitsandbytes, GPTQ or AWQ: what the configs keep is looked
at. Those that load a model say what is missing. Lesson 13, appendix E2.
"""

from __future__ import annotations

from course_lib.then_and_now.asking import folder, left_as_found, refusal


def load_in_8bit() -> str:
    return _argument("load_in_8bit")


def load_in_4bit() -> str:
    return _argument("load_in_4bit")


def awq_fused_modules() -> str:
    """`AwqConfig(do_fuse=True, …)`: taken in silence, and kept nowhere."""
    from transformers import AwqConfig

    return _lost(AwqConfig, bits=4, do_fuse=True, fuse_max_seq_len=512)


def gptq_exllama() -> str:
    """`GPTQConfig(use_exllama=False)`: taken in silence, and kept nowhere."""
    from transformers import GPTQConfig

    return _lost(GPTQConfig, bits=4, use_exllama=False)


def threshold() -> str:
    """LLM.int8()'s outlier threshold where nobody names one, and what else 8 bits may carry."""
    from transformers import BitsAndBytesConfig

    with left_as_found():
        made = BitsAndBytesConfig(load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=True)
    return f"llm_int8_threshold is {made.llm_int8_threshold}"


def dequantize() -> str:
    """`model.dequantize()` on a model that is not quantized."""
    return refusal(lambda: _gpt2().dequantize(), ValueError)


def gptq_loaded() -> str:
    """from_pretrained with a GPTQConfig: what it wants installed."""
    from transformers import GPTQConfig

    return _loaded(GPTQConfig(bits=4, dataset=["a text"], tokenizer=None))


def awq_loaded() -> str:
    """from_pretrained with an AwqConfig, of a model that is not quantized."""
    from transformers import AwqConfig

    return _loaded(AwqConfig(bits=4))


def torchao_loaded() -> str:
    """The config of torch's own quantization, which lives in a package of its own."""
    from transformers import TorchAoConfig

    return refusal(lambda: TorchAoConfig("int8_weight_only"))


def disk_without_the_key() -> str:
    """8 bits and a device map with a module on the disk; needs bitsandbytes."""
    from transformers import BitsAndBytesConfig

    eight = BitsAndBytesConfig(load_in_8bit=True)
    return _loaded(eight, device_map={"transformer": "cpu", "lm_head": "disk"})


def codes_trained() -> str:
    """A Trainer for a model of codes without adapters; needs bitsandbytes."""
    from transformers import BitsAndBytesConfig, GPT2LMHeadModel, Trainer, TrainingArguments

    with folder() as path, left_as_found():
        _gpt2().save_pretrained(path)
        four = BitsAndBytesConfig(load_in_4bit=True)
        model = GPT2LMHeadModel.from_pretrained(path, quantization_config=four)
        arguments = TrainingArguments(path, use_cpu=True, report_to=[])
        return refusal(lambda: Trainer(model, arguments), ValueError)


def saved_and_loaded(config: object) -> str:
    """A small model quantized while it is loaded, saved, loaded without a config and dequantized;
    the kinds of its block's layers. Needs bitsandbytes."""
    import torch
    from transformers import GPT2LMHeadModel

    ids = torch.arange(6)[None]
    with folder() as path, left_as_found(), torch.no_grad():
        _gpt2(64).save_pretrained(f"{path}/float")  # in 4 bits a CPU may want multiples of 32
        load = GPT2LMHeadModel.from_pretrained(f"{path}/float", quantization_config=config)
        load.save_pretrained(f"{path}/codes")
        again = GPT2LMHeadModel.from_pretrained(f"{path}/codes")
        if not torch.equal(again(ids.to(again.device)).logits, load(ids.to(load.device)).logits):
            return "the saved model gives other logits"
        block = again.transformer.h[0]
        kinds = {
            name: type(block.get_submodule(name)).__name__ for name in ("attn.c_attn", "mlp.c_fc")
        }
        plain = again.dequantize().transformer.h[0].attn.c_attn
    return f"{kinds}, dequantized {type(plain).__name__} of {plain.weight.dtype}"


def _loaded(config: object, **more: object) -> str:
    """How from_pretrained ends with this config on a small model without quantization."""
    from transformers import GPT2LMHeadModel

    with folder() as path, left_as_found():
        _gpt2().save_pretrained(path)
        return refusal(
            lambda: GPT2LMHeadModel.from_pretrained(path, quantization_config=config, **more)
        )


def _argument(name: str) -> str:
    """A quantization argument of from_pretrained itself, without a config for it."""
    from transformers import BitsAndBytesConfig, GPT2LMHeadModel

    with folder() as path, left_as_found():
        _gpt2().save_pretrained(path)
        said = refusal(lambda: GPT2LMHeadModel.from_pretrained(path, **{name: True}), TypeError)
        BitsAndBytesConfig(**{name: True})  # its place today
    return said


def _lost(kind: type, **keys: object) -> str:
    with left_as_found() as heard:
        made = kind(**keys)
    kept = [name for name in keys if name in made.to_dict()]
    return f"{kind.__name__} keeps {kept} of {sorted(keys)} and says {heard}"


def _gpt2(width: int = 8):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": width, "n_layer": 1, "n_head": 1, "vocab_size": 8, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
