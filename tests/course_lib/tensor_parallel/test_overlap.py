"""When the sum of dX is under way: begun before dW is computed, waited for after it.

No clock: the order in which operations are launched says it. A dispatch mode writes down matrix
products and collectives, the handle of a verb its wait; the ledger shows the same as spans.
"""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.collectives import Handle
from course_lib.tensor_parallel import ColumnParallelLinear
from tests.course_lib.tensor_parallel.parts import made, randomized

H, F = 6, 8  # of X, and of W over all ranks


class Order(TorchDispatchMode):
    """Products by what they make, sums, and waits, in the order in which they are launched."""

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::mm", "aten::addmm_"):
            self.seen.append(f"product {'×'.join(map(str, result.shape))}")
        elif name == "c10d::allreduce_":
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            # A sum that is not asynchronous has come when the call returns.
            self.seen.append(
                "sum begins"
                if given.get("async_op", given.get("asyncOp", True))
                else "sum, waited for"
            )
        return result

    def __enter__(self):
        wait, seen = Handle.wait, self.seen

        def listening(handle):
            if handle._work is not None:
                seen.append("waited")
            return wait(handle)

        self._wait, Handle.wait = wait, listening
        return super().__enter__()

    def __exit__(self, *error):
        Handle.wait = self._wait
        return super().__exit__(*error)


def order_of_a_backward(me, overlap):
    group = dist.group.WORLD
    dense = randomized(nn.Linear(H, F, device=me.device), "w")
    layer = ColumnParallelLinear(dense, group, overlap=overlap)
    x = made("x", 5, H, device=me.device, grad=True)
    y = layer(x)
    with Order() as order:
        y.sum().backward()
    return order.seen


@pytest.mark.parametrize("world", [2, 3])
def test_the_sum_of_dx_travels_while_dw_is_computed(pool, world):
    width = [4, 4] if world == 2 else [3, 3, 2]
    under_way = pool.run(world, order_of_a_backward, True)
    one_by_one = pool.run(world, order_of_a_backward, False)
    for rank in range(world):
        dx, dw = f"product 5×{H}", f"product {width[rank]}×{H}"
        assert under_way[rank] == [dx, "sum begins", dw, "waited"]
        assert one_by_one[rank] == [dx, "sum, waited for", dw]
