"""`backstop watch`: one rollout, live."""

from __future__ import annotations

from cli.lazy import command
from cli.options import LOOK, Actor, AsJson, Cluster, EverySeconds, Once, actor_of, number
from cli.session import ask


@command(LOOK, "backstop watch h100-worked")
def watch(
    cluster: Cluster, once: Once = False, every: EverySeconds = "2", as_json: AsJson = False, actor: Actor = ""
) -> None:
    """Follow a rollout live until it ends; in a pipe, one line for each change.

    If the server or the worker does not answer, the command waits.
    """
    from cli.watching import follow

    seconds = number("--every", every, 0.1, 3600)
    ask(actor_of(actor), lambda door: follow(door, cluster, every=seconds, once=once, as_json=as_json))
