"""The decision to accept the course on this node, and every reason against it.

Accepted means that every stage ran and passed, and that NCCL really connected two or more GPUs. No
lesson derives it.
"""

from __future__ import annotations

from typing import Any


def why_not(
    results: list[dict[str, Any]], wanted: list[str], gpus: int, rehearsal: bool
) -> list[str]:
    """List every reason against acceptance; empty if the course is accepted."""
    reasons = []
    if rehearsal:
        reasons.append("this was a rehearsal")
    if gpus < 2:
        reasons.append(f"torch sees {gpus} GPU(s), but NCCL needs two or more")
    done = {one["name"]: one for one in results}
    reasons += [f"{name} was not run" for name in wanted if name not in done]
    for name, one in done.items():
        if not one["ok"]:
            reasons.append(f"{name}: {one['found']}")
        reasons += [f"{name}: left out: {words}" for words in one.get("left_out", [])]
        reasons += _without_nccl(name, one)
    return reasons


def _without_nccl(name: str, one: dict[str, Any]) -> list[str]:
    """List missing proof that NCCL connected the ranks of a stage."""
    if name == "gpu tests":
        return [
            f"{name}: {test['name']} was skipped ({test['why']})" for test in one.get("skipped", [])
        ]
    if name == "doctor" or name.startswith(("bandwidth", "training", "resuming", "scaling")):
        backends = one.get("backends") or ["nothing"]
        return (
            []
            if backends == ["nccl"]
            else [f"{name}: the ranks used {', '.join(backends)}, not nccl"]
        )
    if name.startswith("notebooks"):
        made = one.get("nccl_communicators", {}).get(str(one.get("world")), 0)
        if not made:
            return [f"{name}: NCCL made no communicator of {one.get('world')} ranks"]
    return []
