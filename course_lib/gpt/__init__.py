"""One dense, readable decoder, GPT-2 or Llama by its config: what all later lessons cut.

`config.py` says what a model is, `model.py` is the model. Lesson 05.
"""

from course_lib.gpt.config import Config
from course_lib.gpt.model import GPT, MLP, Attention, Block, Cache, Heads, RMSNorm

__all__ = ["GPT", "MLP", "Attention", "Block", "Cache", "Config", "Heads", "RMSNorm"]
