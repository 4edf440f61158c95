"""A bare repository, somebody with a clone of it, and a ledger. What is there is read by git and PyYAML alone."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.adapters.git.command_line import GitTerms
from activities.adapters.git.quotas import GitQuotas
from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.errors import AwaitsMerge
from models.rollout.effects import EffectKind, Receipt
from tests.integration.ledger.world import ForeignTool
from tests.quota_contract import System

CLUSTER = "h100"
PATH = "clusters/h100/quotas.yaml"
QUOTAS = """\
# Whoever changes this: ask capacity@ first.
teams:
  a:
    gpus: 24   # until the next order
    contact: 'a@example.org'
  b: {gpus: 16, contact: "b@example.org"}

limits:      # no quotas
  a: 24
"""

QUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  cohort: research
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{{name: h100, resources: [{{name: nvidia.com/gpu, nominalQuota: {gpus}}}]}}]  # ours
"""


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    who = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
    who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **who},
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Forge:
    """A repository that others push to."""

    def __init__(self, folder: Path, files: dict[str, str] | None = None) -> None:
        self.bare = folder / "quotas.git"
        self.clone = folder / "person"
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--bare", "-b", "main", str(self.bare))
        git(folder, "clone", "--quiet", str(self.bare), str(self.clone))
        git(self.clone, "checkout", "--quiet", "-B", "main")
        self.write(files or {PATH: QUOTAS}, "Begin")

    @property
    def url(self) -> str:
        return str(self.bare)

    def write(self, files: dict[str, str], subject: str = "Change quotas", *options: str) -> str:
        """Somebody pushes these files; answers the commit."""
        if self.commits():
            git(self.clone, "fetch", "--quiet", "origin")
            git(self.clone, "reset", "--quiet", "--hard", "origin/main")
        for path, text in files.items():
            (self.clone / path).parent.mkdir(parents=True, exist_ok=True)
            (self.clone / path).write_bytes(text.encode())
        git(self.clone, "add", "--all")
        git(self.clone, "commit", "--quiet", "-m", subject)
        git(self.clone, "push", "--quiet", *options, "origin", "HEAD:main")
        return git(self.clone, "rev-parse", "HEAD")

    def text(self, path: str = PATH, commit: str = "main") -> str:
        done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=self.bare, capture_output=True, check=True)
        return done.stdout.decode()

    def edit(self, old: str, new: str, path: str = PATH) -> str:
        """Somebody replaces one text in a file."""
        text = self.text(path)
        assert text.count(old) == 1
        return self.write({path: text.replace(old, new)})

    def branches(self) -> list[str]:
        """The branches other than main."""
        return [name for name in git(self.bare, "branch", "--format=%(refname:short)").splitlines() if name != "main"]

    def merge(self, how: str = "merge", *, delete: bool = False) -> str:
        """Somebody merges the one branch that waits, as forges do; answers its name."""
        (branch,) = self.branches()
        git(self.clone, "fetch", "--quiet", "--prune", "origin")
        git(self.clone, "reset", "--quiet", "--hard", "origin/main")
        match how:
            case "merge":
                git(self.clone, "merge", "--quiet", "--no-ff", "-m", f"Merge {branch}", f"origin/{branch}")
            case "squash":
                git(self.clone, "merge", "--quiet", "--squash", f"origin/{branch}")
                git(self.clone, "commit", "--quiet", "-m", "Change quotas as agreed")
            case "rebase":
                git(self.clone, "cherry-pick", "--no-commit", f"origin/{branch}")
                git(self.clone, "commit", "--quiet", "--reuse-message", f"origin/{branch}")
        git(self.clone, "push", "--quiet", "origin", "HEAD:main")
        if delete:
            git(self.bare, "branch", "--quiet", "-D", branch)
        return branch

    def gpus(self, path: str = PATH) -> dict[str, int]:
        return {team: quota["gpus"] for team, quota in yaml.safe_load(self.text(path))["teams"].items()}

    def commits(self) -> list[str]:
        """Subjects, the oldest first."""
        return git(self.bare, "log", "--reverse", "--format=%s", "--all").splitlines()

    def message(self, commit: str = "main") -> str:
        return git(self.bare, "log", "-1", "--format=%B", commit)

    def hook(self, name: str, script: str) -> None:
        hook = self.bare / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)


def spec(forge: Forge, name: str = CLUSTER, quotas: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """Return a cluster of a fleet file, whose quotas the forge holds."""
    return {
        "name": name,
        "islands": [{"name": "main", "total_gpus": 48, "healthy_gpus": 48}],
        "quotas": list(quotas) or [{"team": "a", "gpus": 24}, {"team": "b", "gpus": 16}],
        "git": {"repository": forge.url, "path": PATH, "pointer": "/teams/{team}/gpus", **more},
    }


def take(ledger: Ledger, *clusters: dict[str, Any], number: str = "1", **terms: Any) -> Any:
    """The clusters stand in the ledger."""
    fleet = Fleet.model_validate({"clusters": clusters})
    packed = zlib.compress(json.dumps(json.loads(fleet.model_dump_json(exclude_unset=True))).encode())
    ledger.fleet.stage_import(f"import {number}", 0, packed)
    return ledger.fleet.take_import(f"import {number}", 1, ImportTerms(**terms), "tpm", ledger.now())


def worker(
    ledger: Ledger, folder: Path, timeout: timedelta = timedelta(seconds=20), every: timedelta = timedelta(0)
) -> GitQuotas:
    """Return the quotas as a worker process reads them before this ledger; each process has a folder of its own."""
    slurms = Slurms(ledger, ledger.schedulers)
    terms = GitTerms(timeout, "Fleet bot <bot@example.org>")
    return GitQuotas(ledger, SlurmQuotas(slurms), slurms, folder, terms, every)


class GitSystem(System):
    def __init__(self, forge: Forge, ledger: Ledger, folder: Path, **source: Any) -> None:
        self.forge = forge
        self.git = worker(ledger, folder)
        take(ledger, spec(forge, **source))
        super().__init__(ledger, self.git, CLUSTER)

    def there(self) -> tuple[int, int]:
        gpus = self.forge.gpus()
        return gpus["a"], gpus["b"]

    def somebody_sets(self, letter: str, gpus: int) -> None:
        self.forge.edit(
            f"gpus: {self.forge.gpus()[letter]}{'   #' if letter == 'a' else ','}",
            f"gpus: {gpus}{'   #' if letter == 'a' else ','}",
        )


class ProposeSystem(GitSystem):
    """People merge each branch at once."""

    how = "merge"

    def __init__(self, forge: Forge, ledger: Ledger, folder: Path) -> None:
        super().__init__(forge, ledger, folder, mode="propose")

    def propose(self, kind: EffectKind, counter: int, *writes: tuple[str, int, int], **more: Any) -> str:
        """Deliver the effect; answers what it waits for."""
        with pytest.raises(AwaitsMerge) as waits:
            super().apply(kind, counter, *writes, **more)
        return waits.value.message

    def apply(self, kind: EffectKind, counter: int, *writes: tuple[str, int, int], **more: Any) -> Receipt:
        try:
            return super().apply(kind, counter, *writes, **more)
        except AwaitsMerge:
            self.forge.merge(self.how)
        return super().apply(kind, counter, *writes, **more)


def ask_for_more(url: str, request: str = "q-1") -> None:
    """The ledger has an open request for quota."""
    row = (request, CLUSTER, "a", "granting", False, "2026-03-01 12:00:00", "{}")
    ForeignTool(url).run(
        "INSERT INTO requests (id, cluster, team, stage, ended, asked_at, state) VALUES (?,?,?,?,?,?,?)", *row
    )


class KueueSystem(GitSystem):
    """A file for each ClusterQueue, among files that are none."""

    def __init__(self, forge: Forge, ledger: Ledger, folder: Path) -> None:
        files = {"queues/notes.txt": "none: [", "queues/flavor.yaml": "kind: ResourceFlavor\n"}
        files |= {f"queues/{name}.yaml": QUEUE.format(name=name, gpus=gpus) for name, gpus in (("a", 24), ("b", 16))}
        forge.write(files, "Add queues")
        super().__init__(forge, ledger, folder, path="queues", dialect="kueue", pointer=None)

    def there(self) -> tuple[int, int]:
        a, b = (yaml.safe_load(self.forge.text(f"queues/{name}.yaml")) for name in "ab")
        return _nominal(a), _nominal(b)

    def somebody_sets(self, letter: str, gpus: int) -> None:
        self.forge.write({f"queues/{letter}.yaml": QUEUE.format(name=letter, gpus=gpus)})


def _nominal(queue: dict[str, Any]) -> int:
    ((flavor,),) = (group["flavors"] for group in queue["spec"]["resourceGroups"])
    (resource,) = flavor["resources"]
    return int(resource["nominalQuota"])
