"""Observation of any model's forward pass: the tensors that autograd keeps, by block and layer.

A tensor between a column-parallel layer and the next row-parallel layer is sharded over the ranks.
All other tensors, including the input of the column-parallel layer, are replicated. Lesson 12.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# Column-parallel and row-parallel layers of families for which Transformers has no plan.
BY_NAME = {
    "gpt2": ("c_attn c_fc", "c_proj"),
    "opt": ("q_proj k_proj v_proj fc1", "out_proj fc2"),
    "bloom": ("query_key_value dense_h_to_4h", "dense dense_4h_to_h"),
    "falcon": ("query_key_value dense_h_to_4h", "dense dense_4h_to_h"),
    "t5": ("q k v wi wi_0 wi_1", "o wo"),
}
REST, JOINED, CUT, WORDS = "rest", "joined", "cut", "words"
ENDS = "ends"  # tensors kept before the first block and after the last
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_dot_product")


def stacks(model: nn.Module) -> list[nn.ModuleList]:
    """Find the outermost lists of blocks."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    inside = {inner for outer in lists for inner in outer.modules() if inner is not outer}
    return [found for found in lists if found not in inside]


def head_of(model: nn.Module) -> nn.Module | None:
    """Return the layer that computes the logits, or None if there is none."""
    head = model.get_output_embeddings()
    return None if isinstance(head, nn.Embedding) else head


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """List the linear layers of the blocks, including Transformers' Conv1D layers."""
    blocks = (module for stack in stacks(model) for module in stack.modules())
    return [m for m in blocks if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]


def kind_of(block: nn.Module) -> tuple:
    """Make a key that is equal for blocks of the same class and parameter shapes."""
    return type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())


def cut_layers(model: nn.Module) -> dict[nn.Module, str]:
    """Map the layers that tensor parallelism shards to "columns", "rows" or, for a layer of
    experts, "both". The map is empty for an unknown family."""
    config = model.config.get_text_config()
    plan = getattr(config, "base_model_tp_plan", None) or {}
    ways = {}
    for pattern, style in plan.items():
        name = re.escape(pattern).replace(r"\*", r"\d+")
        if style == "moe_tp_experts":
            ways[name] = "both"
        elif "colwise" in style or "rowwise" in style:
            ways.setdefault(name, "columns" if "colwise" in style else "rows")
    for names, way in zip(BY_NAME.get(config.model_type, ()), ("columns", "rows"), strict=False):
        ways |= {rf".*\.{name}": way for name in names.split()}
    found = {}
    for name, module in model.named_modules():
        for pattern, way in ways.items():
            if re.fullmatch(rf"(.*\.)?{pattern}", name):
                found[module] = way
    return found


class ForwardWatch:
    """A count of the tensors kept by a forward pass, by block and region. Each kind of block runs
    twice, because its first run may keep tensors that all blocks use, such as position angles."""

    def __init__(self, model: nn.Module):
        self.model, self.stacks = model, stacks(model)
        self.kinds = [[kind_of(block) for block in stack] for stack in self.stacks]
        self._layers = cut_layers(model)
        own = [*model.parameters(), *model.buffers()]
        self._known = {x.untyped_storage()._cdata for x in own}
        self._held: list[Tensor] = []  # so that no storage's address is reused
        self._where: object = ENDS
        self._region = REST
        self._bytes: dict[object, Counter] = {}
        self._times: Counter = Counter()
        self._products: Counter = Counter()

    def keep(self, x: Tensor) -> Tensor:
        """Count x's storage when it is first saved. This is a hook for `saved_tensors_hooks`."""
        storage = x.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._held.append(x)
            self._bytes.setdefault(self._where, Counter())[self._region] += storage.nbytes()
        return x

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Reduce the model to two blocks of each kind, and observe a forward pass with hooks."""
        whole = [list(stack) for stack in self.stacks]
        hooks = []
        for stack, kinds in zip(self.stacks, self.kinds, strict=True):
            firsts = dict(zip(reversed(kinds), reversed(list(stack)), strict=True))
            del stack[:]
            for kind in dict.fromkeys(kinds):
                stack.extend([firsts[kind]] * 2)
                place = id(stack), kind
                hooks.append(firsts[kind].register_forward_pre_hook(self._enter(place)))
                hooks.append(firsts[kind].register_forward_hook(self._at(ENDS, REST)))
        for layer, way in self._layers.items():
            before = CUT if way == "rows" else JOINED
            hooks.append(layer.register_forward_pre_hook(self._at(None, before)))
            after = CUT if way == "columns" else REST
            hooks.append(layer.register_forward_hook(self._at(None, after)))
        head = head_of(self.model)
        if head is not None:
            hooks.append(head.register_forward_pre_hook(self._at(ENDS, JOINED)))
            hooks.append(head.register_forward_hook(self._at(ENDS, WORDS)))
        try:
            with _Outputs(self._add):
                yield
        finally:
            for hook in hooks:
                hook.remove()
            for stack, blocks in zip(self.stacks, whole, strict=True):
                del stack[:]
                stack.extend(blocks)

    def _enter(self, place: object):
        def hook(*_):
            self._times[place] += 1
            self._where, self._region = (place, self._times[place]), REST

        return hook

    def _at(self, where: object, region: str):
        def hook(*_):
            self._where = self._where if where is None else where
            self._region = region

        return hook

    def _add(self, output: Tensor) -> None:
        self._products[self._where] += output.nbytes

    def found(self) -> tuple[list[Counter], Counter, list[int]]:
        """Return (regions of each block of the model, regions of the ends, bytes of the product
        outputs of each block)."""
        ends = Counter(self._bytes.get(ENDS, {}))
        blocks, products = [], []
        for stack, kinds in zip(self.stacks, self.kinds, strict=True):
            for kind in dict.fromkeys(kinds):
                first, second = (
                    self._bytes.get(((id(stack), kind), time), Counter()) for time in (1, 2)
                )
                ends += first - second  # kept only by the first block
            blocks += [self._bytes.get(((id(stack), kind), 2), Counter()) for kind in kinds]
            products += [self._products[(id(stack), kind), 2] for kind in kinds]
        return blocks, ends, products


class _Outputs(TorchDispatchMode):
    """A dispatch mode that reports the outputs of products and of attention."""

    def __init__(self, tell: Callable[[Tensor], None]):
        super().__init__()
        self.tell = tell

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in PRODUCTS or name.startswith(PRODUCTS[-1]):
            for output in found if isinstance(found, tuple) else (found,):
                if isinstance(output, Tensor):
                    self.tell(output)
        return found
