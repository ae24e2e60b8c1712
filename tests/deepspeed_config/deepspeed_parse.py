"""DeepSpeed's own parse of configs, in a process of its own: configs in, answers out, JSON.

`python -m tests.deepspeed_config.deepspeed_parse` reads a list of configs from standard input.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings


def answer(config: dict) -> dict:
    """What became of it: an error's text, the stage, what was warned of, the top-level keys that
    DeepSpeed's constants do not name."""
    from deepspeed.runtime import config as parse
    from deepspeed.runtime.swap_tensor import constants as aio_constants
    from deepspeed.runtime.zero import config as zero_constants
    from deepspeed.utils import logger

    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    modules = (parse, zero_constants, aio_constants)
    known = {v for module in modules for v in vars(module).values() if isinstance(v, str)}
    unknown = sorted(set(config) - known)
    try:
        found = parse.DeepSpeedConfig(config)
        zero = found.zero_config
        where = [
            None if one is None else str(getattr(one.device, "value", one.device))
            for one in (zero.offload_optimizer, zero.offload_param)
        ]
        return {
            "error": "", "stage": int(zero.stage), "offload": where, "said": said,
            "unknown": unknown,
        }  # fmt: skip
    except Exception as error:  # pydantic's, or a sanity check's: all are an answer
        return {"error": f"{type(error).__name__}: {error}", "said": said, "unknown": unknown}
    finally:
        logger.removeHandler(handler)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([answer(config) for config in json.load(sys.stdin)]))
