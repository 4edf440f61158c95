"""A repository that holds the clusters' quotas while everything breaks, and what git itself says of it afterwards.

Colleagues push comments to the same files, so that Backstop's pushes are refused again and again. They leave the
numbers alone: each number that changes is Backstop's doing, and has to have its commit and its receipt.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.outcome import Row

FAULTS = {"repository_away": 2, "repository_slow": 2, "colleagues_push": 6}
"""How often each comes, relative to the site's own faults."""
_TRAILERS = "%(trailers:key=Backstop-{0},valueonly,separator=%x2C)"
_FORM = "%x00".join(("%H", *(_TRAILERS.format(name) for name in ("Cluster", "Rollout", "Fence", "Effect"))))


class Repository:
    def __init__(self, home: Path) -> None:
        self.bare, self._clone = home / "quotas.git", home / "colleague"
        self._away = home / "quotas.git.away"

    def hold(self, specs: list[dict[str, Any]]) -> None:
        """Begin with these clusters' quotas, and say so in the clusters."""
        self.bare.mkdir(parents=True)
        self._git(self.bare, "init", "--quiet", "--bare", "-b", "main", ".")
        self._git(self.bare.parent, "clone", "--quiet", str(self.bare), str(self._clone))
        self._git(self._clone, "checkout", "--quiet", "-B", "main")
        for spec in specs:
            teams = {quota["team"]: {"gpus": quota["gpus"]} for quota in spec["quotas"]}
            (self._clone / f"{spec['name']}.yaml").write_text(yaml.safe_dump({"teams": teams}))
            path, pointer = f"{spec['name']}.yaml", "/teams/{team}/gpus"
            spec["git"] = {"repository": str(self.bare), "path": path, "pointer": pointer}
        self._push("Begin")

    @staticmethod
    def _git(folder: Path, *arguments: str) -> str:
        who = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
        who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env={**os.environ, **who}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def _push(self, subject: str) -> None:
        self._git(self._clone, "add", "--all")
        self._git(self._clone, "commit", "--quiet", "-m", subject)
        self._git(self._clone, "push", "--quiet", "origin", "HEAD:main")

    def _comment(self, name: str) -> None:
        """A colleague adds a line to the end of a file that moves meanwhile."""
        try:
            self._git(self._clone, "fetch", "--quiet", "origin")
            self._git(self._clone, "reset", "--quiet", "--hard", "origin/main")
            with (self._clone / name).open("a") as file:
                file.write("# asked capacity@ again\n")
            self._push(f"Ask about {name}")
        except subprocess.CalledProcessError:
            return  # refused or away: colleagues try again some other time

    # --- faults ---------------------------------------------------------------------------------

    async def repository_away(self, rng: random.Random) -> None:
        """Its disk is not mounted for seconds."""
        self.bare.rename(self._away)
        await asyncio.sleep(rng.uniform(0.5, 6))
        self._away.rename(self.bare)

    async def repository_slow(self, rng: random.Random) -> None:
        """A hook takes its time, often longer than a worker's git waits: a push may land after that."""
        hook = self.bare / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\nsleep {rng.uniform(1, 9):.1f}\n")
        hook.chmod(0o755)
        await asyncio.sleep(rng.uniform(2, 8))
        hook.unlink(missing_ok=True)

    async def colleagues_push(self, rng: random.Random) -> None:
        """One comment after the other, for some seconds."""
        names = sorted(path.name for path in self._clone.glob("*.yaml"))
        for _ in range(rng.randint(3, 12)):
            if self.bare.exists():
                await asyncio.to_thread(self._comment, rng.choice(names))

    # --- evidence -------------------------------------------------------------------------------

    def commits(self) -> list[Row]:
        """{commit, cluster, rollout, counter, kind, before, after}, the oldest first: what changed in which file."""
        rows, values = list[Row](), dict[str, dict[str, int]]()
        for line in self._git(self.bare, "log", "--reverse", f"--format={_FORM}", "main").splitlines():
            commit, cluster, rollout, counter, kind = line.split("\0")
            names = self._git(self.bare, "show", "--format=", "--name-only", commit).split()
            row: Row = {"commit": commit, "cluster": cluster, "rollout": rollout, "counter": counter, "kind": kind}
            row["before"] = {name.removesuffix(".yaml"): values.get(name, {}) for name in names}
            for name in names:
                teams = yaml.safe_load(self._git(self.bare, "show", f"{commit}:{name}"))["teams"]
                values[name] = {team: quota["gpus"] for team, quota in teams.items()}
            row["after"] = {name.removesuffix(".yaml"): values[name] for name in names}
            rows.append(row)
        return rows
