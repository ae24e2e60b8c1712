"""The choice of units, that is, of the parameters that are gathered and freed together.

Larger units mean fewer messages, but the peak includes the largest unit. Lesson 11 compares both
effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import nn

# Their forward uses the weights of inner modules without calling these.
CALLED_AS_ONE = (nn.MultiheadAttention,)


def choose_units(
    model: nn.Module, units: Sequence[nn.Module] | None = None
) -> list[tuple[str, nn.Module, list[tuple[str, nn.Parameter]]]]:
    """Return (name, module, its parameters) of every unit, in the order of the model's parameters.

    By default, units are the members of every ModuleList, such as a decoder's blocks. All other
    modules with parameters form one unit each. The parameters of a ParameterList, which is never
    called, belong to its owner.
    """
    names = {module: name for name, module in model.named_modules()}
    if units is None:
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
        chosen = [m for members in lists for m in members if is_called(m)]
    else:
        chosen = list(units)
        strange = [type(m).__name__ for m in chosen if m not in names]
        if strange:
            raise ValueError(f"units= names modules that are not the model's: {', '.join(strange)}")
        mute = [names[m] or type(m).__name__ for m in chosen if not is_called(m)]
        if mute:
            raise ValueError(
                f"units= names {', '.join(mute)}, which has no forward before which to gather: "
                "name the module that calls its parameters or members"
            )
    wanted = set(chosen)
    entries: list[tuple[str, nn.Module, list]] = []
    taken: set[nn.Parameter] = set()

    def walk(name: str, module: nn.Module) -> None:
        if module in wanted or isinstance(module, CALLED_AS_ONE):
            entries.append((name, module, _new(module.named_parameters(name), taken)))
            return
        own = _new(_of(name, module, wanted), taken) if is_called(module) else []
        if own:
            entries.append((name or type(model).__name__, module, own))
        for child, inner in module.named_children():
            walk(f"{name}.{child}" if name else child, inner)

    walk("", model)
    return [entry for entry in entries if entry[2]]


def is_called(module: nn.Module) -> bool:
    """Return True for a module with a forward; a ParameterList, for example, has none."""
    return type(module).forward is not nn.Module.forward


def _of(name: str, module: nn.Module, units: set[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a module's own parameters, and those of members that it holds without calling."""
    yield from module.named_parameters(name, recurse=False)
    for child, inner in module.named_children():
        if inner not in units and not is_called(inner):
            yield from _of(f"{name}.{child}" if name else child, inner, units)


def _new(
    named: Iterable[tuple[str, nn.Parameter]], taken: set[nn.Parameter]
) -> list[tuple[str, nn.Parameter]]:
    """Return parameters that no unit has yet; a tied weight belongs to its first unit."""
    fresh = [(name, p) for name, p in named if p not in taken and p.numel()]
    taken.update(p for _, p in fresh)
    return fresh
