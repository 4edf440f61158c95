"""Runs git as a program: in a clean environment, without a prompt, and never longer than its time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from models.errors import Refusal, Unavailable


class GitTerms(NamedTuple):
    """The time limit of a call to git, and the name in which a worker commits."""

    timeout: timedelta = timedelta(seconds=20)
    committer: str = "Backstop <backstop@localhost>"


_KEPT = ("GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_PROXY_SSL")
"""Prefixes of git's own variables that are passed on: those on how git reaches servers, not those of a repository."""
_OPTIONS = ("--literal-pathspecs", "-c", "core.hooksPath=/dev/null", "-c", "gc.autoDetach=false")
_SSH = "ssh -oBatchMode=yes -oConnectTimeout=10"
_FORBIDDEN = (
    *("permission denied", "authentication failed", "could not read username", "terminal prompts disabled"),
    *("access denied", "host key verification failed", "dubious ownership", "protected branch", "returned error: 403"),
)
_MOVED = ("cannot lock ref", "failed to update ref", "incorrect old value")
"""Words in a server's answer when two pushes collide."""
_PASSING = ("no space left", "disk quota", "unable to write", "could not write", "timed out", "connection")
"""Words in a server's answer, or in its hook's, when the server has trouble of its own."""


class Git:
    """git in one bare repository of ours."""

    def __init__(self, folder: Path, timeout: timedelta) -> None:
        self.folder = folder
        self._seconds = timeout.total_seconds()

    def run(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run git and return its output as text. Errors: as `read`."""
        return self.read(*arguments, stdin=stdin).decode("utf-8", "surrogateescape")

    def succeeds(self, *arguments: str) -> bool:
        """Return False if git answers no, by exit code 1. Errors: Unavailable."""
        code, _, err = self._result(arguments, b"")
        if code > 1:
            raise failure(arguments[0], err)
        return not code

    def read(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run git and return its output as bytes.

        Errors: Unavailable, also after too long; Refusal without the right.
        """
        code, out, err = self._result(arguments, stdin)
        if code:
            raise failure(arguments[0], err or out.decode("utf-8", "replace"))
        return out

    def push(self, url: str, *refs: str, options: Sequence[str] = ()) -> bool:
        """Push; False: the branch has moved on and nothing was pushed. Errors: as `read`, Refusal by a hook."""
        code, out, err = self._result(("push", "--porcelain", *options, "--", url, *refs), b"")
        if not code:
            return True
        lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("!")]
        refused = lines[0].rsplit("\t", 1)[-1] if lines else ""
        if refused.startswith("[rejected]") or any(word in refused for word in _MOVED):
            return False
        words = f"{refused} {err}".lower()
        if refused.startswith("[remote rejected]") and not any(word in words for word in _PASSING):
            raise Refusal(f"the repository refuses the push: {_last_words(refused, err)}")
        raise failure("push", f"{err}\n{refused}")

    def _result(self, arguments: tuple[str, ...], stdin: bytes) -> tuple[int, bytes, str]:
        try:
            process = subprocess.Popen(
                ["git", *_OPTIONS, *arguments],
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"git cannot be run: {error.strerror}") from None
        with process:
            try:
                out, err = process.communicate(stdin, self._seconds)
            except BaseException as error:
                # Its children too: an ssh that hangs would hold the pipes open, and could push later.
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise Unavailable(f"git {arguments[0]} did not end within {self._seconds:g} s") from None
                raise
        return process.returncode, out, err.decode("utf-8", "replace")


def failure(what: str, words: str) -> Refusal | Unavailable:
    """Return git's error as one of ours."""
    if any(word in words.lower() for word in _FORBIDDEN):
        return Refusal(f"git {what} is not allowed: {_last_words(words)}")
    return Unavailable(f"git {what} failed: {_last_words(words)}")


def _last_words(*texts: str) -> str:
    lines = [line.strip().removeprefix("remote:").strip() for text in texts for line in text.splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(("hint:", "error: failed to push")))
    return text[-300:] or "it does not say why"


def environment() -> dict[str, str]:
    """Return our environment without variables that would lead git to another repository, or make it ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)}
    return {
        "GIT_SSH_COMMAND": _SSH,
        **kept,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "file:https:ssh",
        "LC_ALL": "C.UTF-8",
        "LANGUAGE": "C",
        "TZ": "UTC",
    }
