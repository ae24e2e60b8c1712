"""A launcher's variables, set for a way: DeepSpeed and Accelerate read a rank's identity from them.

The group of these ranks already exists. The variables are set only while a way runs, and the state
that both packages keep about them is reset afterwards. Lesson 13.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from course_lib import ranks

# An unused port, because the existing process group is reused.
UNUSED_PORT = "29500"


def variables(me: ranks.Me) -> dict[str, str]:
    """Return the six variables that torchrun sets and that all ways read.

    DeepSpeed and Accelerate use LOCAL_RANK as a GPU's number, and ranks may share a GPU.
    """
    gpu = me.device.index  # None on a CPU
    return {
        "RANK": str(me.rank),
        "LOCAL_RANK": str(me.local_rank if gpu is None else gpu),
        "WORLD_SIZE": str(me.world),
        "LOCAL_WORLD_SIZE": str(me.local_world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": UNUSED_PORT,
    }


@contextmanager
def launched(me: ranks.Me) -> Iterator[None]:
    """Run the body as if a launcher had started this rank."""
    before = dict(os.environ)
    os.environ.update(variables(me))
    forget()
    try:
        yield
    finally:
        forget()
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of Python and of loggers, which are about deliberate choices of a way."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def forget() -> None:
    """Reset Accelerate's shared state, and Transformers' config for `from_pretrained`."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "transformers.integrations.deepspeed" in sys.modules:
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
