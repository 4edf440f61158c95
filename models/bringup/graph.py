"""The graph of steps: the steps that may run next, and the order in which they are undone.

Shapes: `after` maps each step to those that must be done before it. Results keep the order of `after`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

After = Mapping[str, Sequence[str]]


def find_circle(after: After) -> list[str]:
    """Return steps that wait for each other in a circle, the first one again at the end; empty if there are none."""
    done: set[str] = set()
    for start in after:
        path: list[str] = []
        stack = [(start, iter(after[start]))]
        while stack:
            step, rest = stack[-1]
            if not path or path[-1] != step:
                path.append(step)
            following = next((name for name in rest if name not in done), None)
            if following is None:
                done.add(step)
                path.pop()
                stack.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                stack.append((following, iter(after[following])))
    return []


def ready_steps(after: After, waiting: Collection[str], done: Collection[str]) -> list[str]:
    """Return the waiting steps whose `after` is done."""
    return [step for step, before in after.items() if step in waiting and all(other in done for other in before)]


def steps_before(after: After, steps: Iterable[str]) -> set[str]:
    """Return all steps that these depend on, directly or not, without themselves unless they depend on each other."""
    names: set[str] = set()
    open_ = [name for step in steps for name in after[step]]
    while open_:
        step = open_.pop()
        if step not in names:
            names.add(step)
            open_ += after[step]
    return names
