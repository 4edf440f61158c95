"""Asks a worker, and reads the ledger if none answers.

A program of the workers' reads the ledger (workers/offline_status.py), because the command line imports no adapter. It
starts beside the question once an answer is late, so that a person reads something within three seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from backstop.program import program
from models.errors import Unavailable

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.status_questions import Overview

_LATE_SECONDS, _SILENT_SECONDS = 0.4, 2.0
"""When an answer counts as late, and when as missing, if no worker has answered by then."""
_PROGRAM = program("workers.offline_status")
_PROGRAM_SECONDS = 5
_T = TypeVar("_T")


class Silence(NamedTuple):
    """The reason for the silence. `sure`: waiting longer is of no use."""

    why: str
    sure: bool


class LastWord(NamedTuple):
    """The ledger's rows of open rollouts, by cluster, in place of an answer."""

    rollouts: tuple[Overview, ...]
    at: datetime
    why: str

    @property
    def sentence(self) -> str:
        return f"This is what the ledger had at {self.at:%H:%M:%SZ}: {self.why}"


def ask_or_read(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T | LastWord:
    """Return the answer; where no worker gives one, the ledger's rows, if this machine reaches it.

    Errors: Unavailable, saying what to start, where neither can be had; those of the question.
    """
    from cli.session import prepare_imports

    prepare_imports(actor)  # the time that imports take is no silence
    return asyncio.run(_ask_or_read(actor, question))


async def _ask_or_read(actor: str, question: Callable[[Backstop], Awaitable[_T]]) -> _T | LastWord:
    from cli.session import ask_inside

    opened: asyncio.Future[Backstop] = asyncio.get_running_loop().create_future()

    async def with_door(door: Backstop) -> _T:
        door.note = lambda _: None  # it is said below, beside the ledger's word
        opened.set_result(door)
        return await question(door)

    async def wait_until_heard() -> None:
        await (await asyncio.shield(opened)).heard.wait()

    answer = asyncio.ensure_future(ask_inside(actor, with_door))
    hearing, deserted = asyncio.ensure_future(wait_until_heard()), asyncio.ensure_future(_wait_until_deserted(opened))
    reading = asyncio.ensure_future(_read())
    try:
        silence = await _silence(answer, hearing, deserted, opened)
        word = await reading if silence is not None else None
        if silence is not None and word is not None:
            return LastWord(*word, silence.why)
        if silence is not None and silence.sure and not answer.done():
            raise Unavailable(silence.why)
        if silence is not None and not answer.done():
            from cli.output import complain

            complain(f"{silence.why} Waiting for an answer.")
        return await answer
    finally:
        for task in (answer, hearing, deserted, reading):
            task.cancel()


async def _silence(
    answer: asyncio.Task[_T],
    hearing: asyncio.Task[None],
    deserted: asyncio.Task[None],
    opened: asyncio.Future[Backstop],
) -> Silence | None:
    """Return why nobody answers; None once a worker has answered anything, or the question has failed by itself."""
    waits: set[asyncio.Task[Any]] = {answer, hearing, deserted}
    done, _ = await asyncio.wait(waits, timeout=_SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if hearing in done:
        return None
    if answer in done:
        failed = answer.exception()
        if isinstance(failed, Unavailable):
            return Silence(f"{failed.message}. It is unknown whether a worker guards the quotas.", sure=True)
        return None
    if deserted in done:
        return Silence(
            "no worker is running, so nobody guards the quotas. Start one: `backstop up` or `backstop worker`.",
            sure=True,
        )
    if opened.done():
        return Silence(
            "no worker has answered yet; if none is running, nobody guards the quotas (see `backstop doctor`).",
            sure=False,
        )
    return Silence("Temporal has not answered yet; it is unknown whether a worker guards the quotas.", sure=False)


async def _wait_until_deserted(opened: asyncio.Future[Backstop]) -> None:
    """Return once no worker polls, as far as Temporal knows; otherwise never."""
    door = await asyncio.shield(opened)
    await asyncio.sleep(_LATE_SECONDS)
    # By the way it is heard, over HTTP, whether a worker has answered the front.
    while not await door.unserved():  # noqa: ASYNC110 - another process is asked
        await asyncio.sleep(_LATE_SECONDS)


async def _read() -> tuple[tuple[Overview, ...], datetime] | None:
    """Return the ledger's open rollouts, and when it was asked; None if no ledger can be read from here."""
    await asyncio.sleep(_LATE_SECONDS)
    program = await asyncio.create_subprocess_exec(
        *_PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        output, _ = await asyncio.wait_for(program.communicate(), _PROGRAM_SECONDS)
    except TimeoutError:
        return None
    finally:
        if program.returncode is None:
            program.kill()
    if program.returncode:
        return None
    from models.status_questions import Overview

    document = json.loads(output)
    rows = tuple(Overview.model_validate(row) for row in document["rollouts"])
    return rows, datetime.fromisoformat(document["at"])
