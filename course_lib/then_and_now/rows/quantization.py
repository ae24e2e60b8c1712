"""Rows of the quantization page: AWQ, GPTQ, bitsandbytes.

Lesson 13; what is run here is derived and run in appendix E2.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import quantization as probes
from course_lib.then_and_now.row import CHANGED, RUN, Row

NOTEBOOK = "notebooks/appendix_e2_quantization.ipynb § "
EIGHT = NOTEBOOK + "Eight bits: absmax"
FOUR = NOTEBOOK + "Four bits: 16 levels"
CHOSEN = NOTEBOOK + "GPTQ and AWQ: errors that matter less"
BYTES = NOTEBOOK + "Which of the sixteen bytes"
LIBRARIES = NOTEBOOK + "The same with libraries, on this CPU"
TESTS = "tests/quantization/test_libraries.py::"
ROWS = (
    Row(
        "AWQ",
        "AwqConfig(do_fuse=True, fuse_max_seq_len=…) makes fused modules of a model's layers.",
        CHANGED,
        "transformers 5 takes both keys in silence and keeps neither: there are no fused modules. "
        "It loads what is quantized already and refuses the rest; the search is run by hand here.",
        (CHOSEN, TESTS + "test_awq_takes_only_what_is_quantized_already"),
        probes.awq_fused_modules,
        "AwqConfig keeps ['bits']",
    ),
    Row(
        "GPTQ",
        "GPTQConfig(bits=4, dataset=…, tokenizer=…) quantizes with calibration texts; "
        "use_exllama picks the kernels.",
        CHANGED,
        "Calibration is the same, through optimum and GPTQModel; by hand here. exllama is chosen "
        "by `backend`: use_exllama is taken in silence, and lost.",
        (CHOSEN, TESTS + "test_gptq_asks_for_optimum"),
        probes.gptq_exllama,
        "GPTQConfig keeps ['bits']",
    ),
    Row(
        "bitsandbytes 8-bit",
        "from_pretrained(…, load_in_8bit=True); columns above the threshold 6.0 stay in 16 bits, "
        "and llm_int8_skip_modules names skipped modules.",
        CHANGED,
        "The argument is gone: quantization_config=BitsAndBytesConfig(load_in_8bit=True), whose "
        "threshold is still 6.0. It runs on a CPU.",
        (
            EIGHT,
            "tests/then_and_now/test_probes.py::test_eight_bits_have_the_pages_defaults",
            TESTS + "test_a_model_is_saved_and_loaded_with_its_codes_and_dequantized",
        ),
        probes.load_in_8bit,
        "unexpected keyword argument 'load_in_8bit'",
    ),
    Row(
        "bitsandbytes 8-bit: fp32 offload on the CPU",
        "llm_int8_enable_fp32_cpu_offload with a device map of one's own.",
        RUN,
        "The key is the same: without it a map that names the disk, or the host beside a GPU, is "
        "refused.",
        (TESTS + "test_a_map_to_the_disk_needs_the_key_of_fp32_offload",),
    ),
    Row(
        "bitsandbytes 8-bit: what may be trained",
        "Not the quantized weights: an adapter beside them (PEFT).",
        RUN,
        "The same: the Trainer refuses a model of codes alone. An adapter is written by hand here; "
        "frozen parameters under ZeRO are run too.",
        (BYTES, TESTS + "test_codes_are_not_trained_without_adapters", "tests/zero/test_frozen.py"),
    ),
    Row(
        "bitsandbytes 4-bit",
        "load_in_4bit with bnb_4bit_quant_type fp4 or nf4, a compute dtype, and nested "
        "quantization (bnb_4bit_use_double_quant).",
        CHANGED,
        "from_pretrained has no argument load_in_4bit: all of these are BitsAndBytesConfig's.",
        (
            FOUR,
            "tests/then_and_now/test_probes.py::test_four_bits_have_the_pages_words",
            TESTS + "test_nf4_is_theirs_byte_by_byte",
        ),
        probes.load_in_4bit,
        "unexpected keyword argument 'load_in_4bit'",
    ),
    Row(
        "saving and pushing",
        "save_pretrained and push_to_hub of a quantized model, with its config.",
        RUN,
        "The same calls: codes and scales are saved, and loaded without a config. Pushing stays "
        "outside: it needs a network and an account.",
        (
            LIBRARIES,
            TESTS + "test_a_model_is_saved_and_loaded_with_its_codes_and_dequantized",
        ),
    ),
    Row(
        "dequantizing",
        "model.dequantize() gives back a model in 16 bits.",
        RUN,
        "The same, in the dtype that the model was loaded in; a model that is not quantized is "
        "refused, with a sentence.",
        (
            LIBRARIES,
            TESTS + "test_a_model_is_saved_and_loaded_with_its_codes_and_dequantized",
        ),
        probes.dequantize,
        "You need to first quantize your model",
    ),
)
