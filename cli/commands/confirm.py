"""`backstop confirm`: confirm that a health source in doubt is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cli.lazy import command
from cli.list_options import tell
from cli.options import Actor, AsJson, NeededReason, actor_of, opt
from cli.session import ask
from models.errors import BadInput
from models.lifecycle.command_rows import DECIDE

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.cluster.implausible_falls import DoubtedSource


_UNDO = "It cannot be undone. If the source is wrong after all, correct it: its next sample counts."


@command(DECIDE, "backstop confirm --source prometheus/local --reason 'two halls lost power'")
def confirm(
    source: Annotated[
        str, opt("NAME", "The health source in doubt, as status and doctor name it.", show_default=False)
    ],
    reason: NeededReason,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Confirm that a health source is right about clusters whose health fell together.

    Until you confirm, or the clusters recover, Backstop does not believe their samples. After a confirmation the
    samples count: quotas without hardware are at risk, and in breach after `breach_after`.
    """
    from cli.json_answers import ConfirmedAnswer
    from views.words import count, line

    if not source.strip():
        raise BadInput("--source is empty: name a health source; `backstop doctor` shows the sources in doubt")
    if not reason.strip():
        raise BadInput("--reason must say why")

    async def question(door: Backstop) -> DoubtedSource:
        from models.questions import ConfirmSource

        return await door.ask(ConfirmSource(source=source, reason=reason))

    confirmed = ask(actor_of(actor), question)
    clusters = count(len(confirmed.clusters), "cluster")
    sentence = line((source, "bold"), f" is confirmed for {clusters}: {', '.join(confirmed.clusters)}")
    answer = ConfirmedAnswer(source=source, clusters=confirmed.clusters, undo=_UNDO)
    tell(answer, lambda: [sentence, line(_UNDO)], as_json=as_json)
