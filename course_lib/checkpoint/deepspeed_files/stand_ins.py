"""What a DeepSpeed checkpoint may name beside torch's own: our stand-ins, which do nothing.

`torch.load(weights_only=True)` refuses every name that it was not told of. These few are told to it
for the time of one read, so DeepSpeed need not be installed, and nothing of it runs. Lesson 14.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


class Attributes:
    """An object's attributes as they were saved."""


class LossScaler(Attributes):
    """A loss scale that stays: `cur_scale`."""


class DynamicLossScaler(Attributes):
    """fp16's loss scale and its counters: `cur_scale`, `cur_iter`, `last_overflow_iter`, …"""


class FragmentAddress(Attributes):
    """Where a parameter's elements lie in a rank's partition: `start` and `numel`."""


class ZeroStage(int):
    """0 to 3. DeepSpeed saves a member of an enumeration, which is called with its value."""


# The name in the file: what stands for it here. As DeepSpeed 0.19.8 writes them at stages 1, 2 and
# 3, in float32, bfloat16 and float16; a test asks the installed release.
STAND_INS = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": LossScaler,
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": DynamicLossScaler,
    "deepspeed.runtime.zero.config.ZeroStageEnum": ZeroStage,
    "deepspeed.utils.tensor_fragment.fragment_address": FragmentAddress,
}


def allowed() -> AbstractContextManager:
    """While it is entered, `torch.load(weights_only=True)` knows the stand-ins."""
    pairs = [(stand_in, name) for name, stand_in in STAND_INS.items()]
    return torch.serialization.safe_globals(pairs)
