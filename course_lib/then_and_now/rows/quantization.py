"""Rows of the quantization page: AWQ, GPTQ, bitsandbytes.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import quantization as probes
from course_lib.then_and_now.row import CHANGED, OUTSIDE, Row

WHY = "Fewer bits for a weight at rest shard nothing over ranks, and their kernels need a GPU."
ROWS = (
    Row(
        "AWQ",
        "AwqConfig(do_fuse=True, fuse_max_seq_len=…) makes fused modules of a model's layers.",
        CHANGED,
        "transformers 5 takes both keys in silence and keeps neither: there are no fused modules.",
        (),
        probes.awq_fused_modules,
        "AwqConfig keeps ['bits']",
    ),
    Row(
        "GPTQ",
        "GPTQConfig(bits=4, dataset=…, tokenizer=…) quantizes with calibration texts; "
        "use_exllama picks the kernels.",
        CHANGED,
        "Calibration is the same, through optimum and GPTQModel. exllama is chosen by `backend`: "
        "use_exllama is taken in silence, and lost.",
        (),
        probes.gptq_exllama,
        "GPTQConfig keeps ['bits']",
    ),
    Row(
        "bitsandbytes 8-bit",
        "from_pretrained(…, load_in_8bit=True); columns above the threshold 6.0 stay in 16 bits, "
        "and llm_int8_skip_modules names skipped modules.",
        CHANGED,
        "The argument is gone: quantization_config=BitsAndBytesConfig(load_in_8bit=True), whose "
        "threshold is still 6.0.",
        ("tests/then_and_now/test_probes.py::test_eight_bits_have_the_pages_defaults",),
        probes.load_in_8bit,
        "unexpected keyword argument 'load_in_8bit'",
    ),
    Row(
        "bitsandbytes 8-bit: fp32 offload on the CPU",
        "llm_int8_enable_fp32_cpu_offload with a device map of one's own.",
        OUTSIDE,
        "The key is the same. " + WHY,
        ("Transformers: Quantization, bitsandbytes",),
    ),
    Row(
        "bitsandbytes 8-bit: what may be trained",
        "Not the quantized weights: an adapter beside them (PEFT).",
        OUTSIDE,
        "The same. Adapters are a course of their own; frozen parameters under ZeRO are ours.",
        ("PEFT: Quantization", "tests/zero/test_frozen.py"),
    ),
    Row(
        "bitsandbytes 4-bit",
        "load_in_4bit with bnb_4bit_quant_type fp4 or nf4, a compute dtype, and nested "
        "quantization (bnb_4bit_use_double_quant).",
        CHANGED,
        "from_pretrained has no argument load_in_4bit: all of these are BitsAndBytesConfig's.",
        ("tests/then_and_now/test_probes.py::test_four_bits_have_the_pages_words",),
        probes.load_in_4bit,
        "unexpected keyword argument 'load_in_4bit'",
    ),
    Row(
        "saving and pushing",
        "save_pretrained and push_to_hub of a quantized model, with its config.",
        OUTSIDE,
        "The same calls. " + WHY + " Pushing needs a network and an account.",
        ("Transformers: Quantization, Overview",),
    ),
    Row(
        "dequantizing",
        "model.dequantize() gives back a model in 16 bits.",
        OUTSIDE,
        "The same; a model that is not quantized is refused, with a sentence. " + WHY,
        ("Transformers: Quantization, bitsandbytes",),
        probes.dequantize,
        "You need to first quantize your model",
    ),
)
