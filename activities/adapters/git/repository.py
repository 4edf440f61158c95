"""A branch of a Git repository: its newest commit, files as they are there, and commits on top of it.

A commit is made without a working tree, on the commit that was read, and pushed without force. So the push is a
compare-and-set: the server takes it only while the branch is where it was when its values were read.
"""

from __future__ import annotations

import fcntl
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from activities.adapters.git.command_line import Git, GitTerms
from models.errors import Refusal, Unavailable
from models.hashes import hash_of

_DEPTH = "200"
"""Commits of a branch to fetch first: Backstop looks for its newest ones."""
OWN_BRANCHES = "backstop/"
"""The prefix of our branches' names."""
_MERGES = "refs/backstop/merges/"
_FIELDS = ("Backstop-Rollout", "Backstop-Fence", "Backstop-Effect", "Backstop-Cluster")
_SPECIAL = re.compile(r"([\\.*\[\]^$])")


class OurCommit(NamedTuple):
    """A commit that Backstop has made, by its trailers."""

    oid: str
    rollout: str
    counter: int
    kind: str


class File(NamedTuple):
    mode: str
    oid: str


class Repository:
    """A branch of one repository. Errors of all calls: Unavailable, Refusal if we lack the right."""

    def __init__(self, url: str, branch: str, folder: Path, terms: GitTerms, *, proposes: bool = False) -> None:
        """`folder`: keeps the fetched commits of all repositories. `proposes`: fetch Backstop's own branches, too."""
        self._url = url
        self._branch = branch
        self._proposes = proposes
        self._committer = terms.committer
        self._git = Git(folder / hash_of(f"{url}\n{branch}" + "\npropose" * proposes), terms.timeout)
        self._fetching = threading.Lock()
        self._fetches = 0
        """The number of fetches begun so far; they run one after the other."""
        self._newest: str | Unavailable | Refusal = ""
        """The result of the last fetch."""

    def fetch(self) -> str:
        """Fetch the branch; return its newest commit.

        A fetch that began after this call, for others, answers it too.
        """
        wanted = self._fetches + 1
        with self._lock_folder():
            if self._fetches < wanted:
                self._fetches = wanted
                try:
                    self._newest = self._fetch()
                except (Unavailable, Refusal) as error:
                    self._newest = error
            newest = self._newest
        if isinstance(newest, str):
            return newest
        raise type(newest)(newest.message)

    def _fetch(self) -> str:
        git, ref = self._git, "refs/backstop/tip"
        is_new = not git.run("for-each-ref", ref)
        depth = ["--depth", _DEPTH] if is_new else []
        try:
            ours = ["--prune"] if self._proposes else []
            wanted = [
                f"+refs/heads/{self._branch}:{ref}",
                *([f"+refs/heads/{OWN_BRANCHES}*:{_MERGES}*"] if ours else []),
            ]
            git.run("fetch", "--quiet", "--no-tags", *ours, *depth, "--", self._url, *wanted)
        except Unavailable as error:
            if "couldn't find remote ref" in error.message:
                raise Unavailable(f"{self._url} has no branch {self._branch}") from None
            raise
        return git.run("rev-parse", ref).strip()

    def own_branches(self, under: str) -> dict[str, str]:
        """Return the newest commit of each of our branches with this beginning, as last fetched."""
        rows = self._git.run("for-each-ref", "--format=%(refname) %(objectname)", _MERGES).splitlines()
        branches = {OWN_BRANCHES + name.removeprefix(_MERGES): oid for name, oid in (row.split(" ") for row in rows)}
        return {name: oid for name, oid in branches.items() if name.startswith(under)}

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Keep others from fetching into the folder meanwhile, in this process or another one."""
        with self._fetching:
            self._git.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._git.folder / "backstop.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (self._git.folder / "HEAD").exists():
                    self._git.run("init", "--quiet", "--bare", ".")
                yield

    def files(self, commit: str, path: str) -> dict[str, File]:
        """Return the file of this path, or those in the folder of this path."""
        lines = self._git.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", path).split("\0")
        rows = (line.split("\t", 1) for line in lines if line)
        # A symbolic link's text is a path, and no YAML.
        return {name: File(*about.split(" ")[::2]) for about, name in rows if about.startswith("100")}

    def texts(self, files: Mapping[str, File]) -> dict[str, str]:
        printed = self._git.read(
            "cat-file", "--batch", stdin="".join(f"{file.oid}\n" for file in files.values()).encode()
        )
        texts, at = dict[str, str](), 0
        for path in files:
            end = printed.index(b"\n", at)
            size = int(printed[at:end].rsplit(b" ", 1)[-1])
            texts[path] = printed[end + 1 : end + 1 + size].decode("utf-8", "surrogateescape")
            at = end + size + 2
        return texts

    def newest_of_ours(self, commit: str, cluster: str) -> OurCommit | None:
        """Return the newest commit up to this one with which Backstop wrote this cluster's quotas."""
        pattern = "^Backstop-Cluster: " + _SPECIAL.sub(r"\\\1", cluster) + "$"
        form = "%x00".join(("%H", *(f"%(trailers:key={field},valueonly,separator=%x2C)" for field in _FIELDS)))
        printed = self._git.run("log", "-n", "5", f"--grep={pattern}", f"--format={form}", commit)
        for line in printed.splitlines():
            oid, rollout, counter, kind, named = line.split("\0")
            if named == cluster and counter.isascii() and counter.isdigit():
                return OurCommit(oid, rollout, int(counter), kind)
        return None

    def authors(self, commit: str, path: str, lines: Sequence[int]) -> dict[int, str]:
        """Return who wrote these lines of a file, and in which commit."""
        spans = [option for line in lines for option in ("-L", f"{line},{line}")]
        names, here, authors = dict[str, str](), "", dict[int, str]()
        for text in self._git.run("blame", "--porcelain", *spans, commit, "--", path).splitlines():
            words = text.split(" ")
            if len(words) in (3, 4) and re.fullmatch("[0-9a-f]{40,64}", words[0]):
                here = words[0]
                authors[int(words[2])] = here
            elif words[0] == "author":
                names[here] = text.removeprefix("author ")
        return {line: f"{names.get(oid, 'somebody')}, commit {oid[:8]}" for line, oid in authors.items()}

    def author(self, commit: str, path: str) -> str:
        """Return who changed a file or folder last, and in which commit."""
        return self._git.run("log", "-n", "1", "--format=%an, commit %h", "--abbrev=8", commit, "--", path).strip()

    def commit(
        self, parent: str, files: Mapping[str, File], texts: Mapping[str, str], message: str, at: datetime
    ) -> str:
        """Make a commit on top of this one in which these files have these texts; nobody else has it yet."""
        body = [
            b"commit refs/backstop/new\nmark :1\n",
            f"committer {self._committer} {int(at.timestamp())} +0000\n".encode(),
        ]
        body += [_data(message), f"from {parent}\n".encode()]
        for path, text in sorted(texts.items()):
            quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            body += [f'M {files[path].mode} inline "{quoted}"\n'.encode(), _data(text)]
        return self._git.run("fast-import", "--quiet", "--force", stdin=b"".join([*body, b"get-mark :1\n"])).strip()

    def push(self, commit: str) -> bool:
        """Push the commit; return False if the branch has moved on meanwhile. Errors: Refusal if a hook refuses it."""
        return self._git.push(self._url, f"{commit}:refs/heads/{self._branch}")

    def propose(self, commit: str, branch: str) -> bool:
        """Push the commit to a new branch; return False if there is one of this name. Errors: as `push`."""
        return self._git.push(self._url, f"{commit}:refs/heads/{branch}", options=[_lease(branch, "")])

    def withdraw(self, branch: str, commit: str) -> bool:
        """Delete the branch; return False if it does not end with this commit any more. Errors: as `push`."""
        return self._git.push(self._url, f":refs/heads/{branch}", options=[_lease(branch, commit)])

    def can_merge(self, tip: str, commit: str) -> bool:
        """Return whether git merges the two without a conflict; True if it cannot say."""
        try:
            return self._git.succeeds("merge-tree", "--write-tree", "--no-messages", tip, commit)
        except Unavailable:
            return True

    def barred_reason(self, commit: str, branch: str = "") -> str:
        """Return why we may not push to the branch; empty if we may, as far as the server says before somebody does."""
        try:
            self._git.push(self._url, f"{commit}:refs/heads/{branch or self._branch}", options=["--dry-run"])
        except Refusal as error:
            return error.message
        return ""


def _lease(branch: str, commit: str) -> str:
    return f"--force-with-lease=refs/heads/{branch}:{commit}"


def _data(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return f"data {len(raw)}\n".encode() + raw + b"\n"
