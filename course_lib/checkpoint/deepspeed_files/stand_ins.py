"""Harmless substitutes for the DeepSpeed classes that a DeepSpeed checkpoint may name.

`torch.load(weights_only=True)` refuses every unregistered name. The names below are registered for
one read, so DeepSpeed need not be installed, and none of its code runs. Lesson 14.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


class Attributes:
    """An object's saved attributes."""


class LossScaler(Attributes):
    """A constant loss scale, in `cur_scale`."""


class DynamicLossScaler(Attributes):
    """fp16's loss scale and its counters: `cur_scale`, `cur_iter`, `last_overflow_iter`, …"""


class FragmentAddress(Attributes):
    """The position of a parameter's elements in a rank's partition: `start` and `numel`."""


class ZeroStage(int):
    """A ZeRO stage, 0 to 3, which DeepSpeed saves as a member of an enumeration."""


# Name in the file: its substitute here. These are the names of DeepSpeed 0.19.8 at stages 1, 2 and
# 3 in float32, bfloat16 and float16. A test asks the installed release.
STAND_INS = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": LossScaler,
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": DynamicLossScaler,
    "deepspeed.runtime.zero.config.ZeroStageEnum": ZeroStage,
    "deepspeed.utils.tensor_fragment.fragment_address": FragmentAddress,
}


def allowed() -> AbstractContextManager:
    """Let `torch.load(weights_only=True)` accept the substitutes within this context."""
    pairs = [(stand_in, name) for name, stand_in in STAND_INS.items()]
    return torch.serialization.safe_globals(pairs)
