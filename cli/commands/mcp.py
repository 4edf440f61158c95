"""`backstop mcp`: serve agents."""

from __future__ import annotations

from cli.lazy import command
from cli.options import LOOK, Actor, actor_of
from models.errors import Refusal


@command(LOOK, "backstop mcp")
def mcp(actor: Actor = "") -> None:
    """Serve agents over the Model Context Protocol: they read, and ask for quota; they approve nothing.

    The agent's program starts this command and talks to it over standard input and output. docs/agents.md names the
    package that it needs.
    """
    try:
        from cli.agents.server import server_for
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise Refusal("the Model Context Protocol is not installed: pip install 'backstop[mcp]'") from None
    server_for(actor_of(actor)).run("stdio")
