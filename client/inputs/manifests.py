"""A plan as the change of quota files that people hand in, as `git diff` would show it."""

from __future__ import annotations

import codecs
import difflib
import io
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from pydantic import ValidationError

from activities.quota_files.dialects import SUFFIXES, changed_files, places_in
from activities.quota_files.objects import CLASSES, objects_with
from client.inputs.documents import decode_text
from client.inputs.sentences import first_problem
from models.cluster.sources import GitDialect, GitSource
from models.errors import BadInput
from models.planning.plan import Plan
from models.texts import count_text, gpus_text, some_of, verb_of

OWN = "git"
"""`--render git`: use the dialect of the cluster's own `git`, and the files of its branch."""
_CLONE_SECONDS = 60
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def source_for(dialect: str, pointer: str, resource: str, own: GitSource | None) -> GitSource:
    """Return how the files hold quotas: by the options, else by the cluster's own `git`. Errors: BadInput."""
    if dialect not in list(GitDialect):
        *most, last = GitDialect
        raise BadInput(f"--render must be {OWN}, {', '.join(most)} or {last}, not {dialect!r}")
    fields = (
        {} if own is None or own.dialect != dialect else own.model_dump(include={"resource", "pointer", "pointers"})
    )
    if pointer:
        fields |= {"pointer": pointer, "pointers": {}}
    if resource:
        fields["resource"] = resource
    if dialect == GitDialect.YAML and not fields.get("pointer") and not fields.get("pointers"):
        raise BadInput(
            "--render yaml needs --pointer, the place of a team's number of GPUs, such as /teams/{team}/gpus"
        )
    if pointer and dialect != GitDialect.YAML:
        raise BadInput(f"--render {dialect} takes no --pointer: leave it out")
    data = {"repository": "/-", "path": "-", "dialect": dialect, **fields}
    try:
        return GitSource.model_validate(data)
    except ValidationError as error:
        raise BadInput(f"--{first_problem(error, data).text}") from None


def render_diff(
    plan: Plan, source: GitSource, where: str, texts: Mapping[str, str] | None, classes: Mapping[str, Sequence[str]]
) -> str:
    """Return the diff that the plan would commit to these files; without files, the objects with the new values.

    `classes`: of the teams' jobs. No effect writes them, so only objects have them. Errors: BadInput, if the files do
    not have the values that the plan was made from, or no object can have the classes.
    """
    gpus = {quota.team: quota.after_gpus for quota in plan.quotas if quota.cut_gpus}
    stages = (
        f"# {plan.cluster}, plan {plan.hash}\n"
        "# buffered: no file changes; admitted jobs stay admitted\n"
        f"# enforced: {count_text(len(gpus), 'quota')} {verb_of(len(gpus), 'changes', 'change')}\n"
    )
    if texts is None:
        return stages + (_objects(plan, source, gpus, classes) if gpus or any(classes.values()) else "")
    try:
        places = places_in(texts, source)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if absent := sorted(quota.team for quota in plan.quotas if quota.team not in places):
        there = f"it has quotas of {some_of(sorted(places), 10)}" if places else "it has no quotas in this dialect"
        raise BadInput(f"{where} has no quota of {some_of(absent, 10)}: {there}")
    for quota in plan.quotas:
        place = places[quota.team]
        if place.gpus != quota.before_gpus:
            raise BadInput(
                f"{place.path}, line {place.line}: {quota.team} has {gpus_text(place.gpus)} in this file, but the "
                f"plan begins with {quota.before_gpus:,}: make both equal first"
            )
    try:
        written = changed_files(texts, places, gpus)
    except ValueError as error:
        raise BadInput(str(error)) from None
    return stages + "".join(line for path in sorted(written) for line in _diff(path, texts[path], written[path]))


def _objects(plan: Plan, source: GitSource, gpus: Mapping[str, int], classes: Mapping[str, Sequence[str]]) -> str:
    try:
        objects = objects_with(gpus, source, plan.cluster, classes)
    except ValueError as error:
        raise BadInput(f"--render {source.dialect}: {error}") from None
    if not objects:
        return ""
    note = "# Merge these fields into your objects; leave all other fields as they are.\n"
    if source.dialect is GitDialect.KUEUE and any("/" not in team for team in gpus):
        note += f"# Replace {plan.cluster} with the name of your flavor.\n"
    if source.dialect in CLASSES and any(classes.values()):
        note += "# Rollouts do not write classes: apply them once, and name one in each job (docs/git.md, Classes).\n"
    return f"{note}---\n{yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=False, allow_unicode=True)}"


def branch_files(source: GitSource) -> dict[str, str]:
    """Return the quota files of the branch, by their paths in the repository. Errors: BadInput.

    The user's own git clones it, with the user's own credentials: a user who may not read it gets nothing.
    """
    with TemporaryDirectory(prefix="backstop-plan-") as folder:
        options = ("--quiet", "--depth=1", "--single-branch", f"--branch={source.branch}")
        environment = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:https:ssh", "LC_ALL": "C.UTF-8"}
        command = ["git", "-c", "core.symlinks=false", "clone", *options, "--", source.repository, folder]
        try:
            done = subprocess.run(
                command, env=os.environ | environment, capture_output=True, timeout=_CLONE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadInput(f"--render {OWN}: git cannot clone {source.repository}: {error}") from None
        if done.returncode:
            why = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:]
            raise BadInput(f"--render {OWN}: git cannot clone {source.repository}: {why}")
        try:
            texts = read_manifests(f"{folder}/{source.path}")
        except BadInput as error:
            words = error.message.replace(f"{folder}/", "").removeprefix("--manifests: ")
            raise BadInput(f"--render {OWN}: {source.branch} of {source.repository}: {words}") from None
        return {path.removeprefix(f"{folder}/"): text for path, text in texts.items()}


def read_manifests(manifests: str) -> dict[str, str]:
    """Return the texts of a file, or of a folder's YAML and JSON files, by path. Errors: BadInput."""
    place = Path(manifests)
    paths = [place]
    if place.is_dir():
        paths = sorted(p for p in place.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file() and not p.is_symlink())
        if not paths:
            raise BadInput(f"--manifests: {manifests} has no .yaml, .yml or .json file")
    try:
        raws = {path.as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        raise BadInput(f"--manifests: {error.filename} cannot be read: {error.strerror}") from None
    boms = {path: "\ufeff" * raw.startswith(codecs.BOM_UTF8) for path, raw in raws.items()}
    return {path: boms[path] + decode_text(path, raw) for path, raw in raws.items()}


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    name = path.lstrip("/")
    old, new = (list(io.StringIO(text, newline="\n")) for text in (before, after))
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else line + _NO_NEWLINE
