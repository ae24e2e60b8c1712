"""Weights in 8 and 4 bits: rounding by hand, its error, and the scales of a sharded weight.

Reading order: refusals, absmax, llm_int8, codebooks, four_bit, gptq, awq, linear, adapters,
compare, sizes, parallel. Appendix E2, after Lesson 15.
"""

from course_lib.extras.quantization.absmax import Int8, quantize_int8
from course_lib.extras.quantization.awq import Scaled, awq
from course_lib.extras.quantization.four_bit import FourBit, quantize_4bit
from course_lib.extras.quantization.gptq import gptq, hessian
from course_lib.extras.quantization.linear import (
    Quantized,
    QuantizedLinear,
    check_quantized,
    dequantize,
    inputs_of,
    linears,
    quantize_model,
)
from course_lib.extras.quantization.llm_int8 import THRESHOLD, int8_product, outlier_columns

__all__ = ["THRESHOLD", "FourBit", "Int8", "Quantized", "QuantizedLinear", "Scaled", "awq"]
__all__ += ["check_quantized", "dequantize", "gptq", "hessian", "inputs_of", "int8_product"]
__all__ += ["linears", "outlier_columns", "quantize_4bit", "quantize_int8", "quantize_model"]
