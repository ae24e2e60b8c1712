"""One readable dense decoder, GPT-2 or Llama depending on its config, for all later lessons.

`config.py` describes a model and `model.py` defines it. Lesson 05.
"""

from course_lib.gpt.config import Config
from course_lib.gpt.model import GPT, MLP, Attention, Block, Cache, Heads, RMSNorm

__all__ = ["GPT", "MLP", "Attention", "Block", "Cache", "Config", "Heads", "RMSNorm"]
