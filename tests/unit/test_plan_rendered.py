"""`backstop plan --render`: what it prints is applied by git itself, and read by PyYAML and the published schemas."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from cli.main import run
from models.cluster.sources import GitDialect, GitSource
from tests.git.world import QUEUE
from tests.unit.cli_fakes import WORKED, FakeBackstop, answering
from tests.unit.test_git_dialects import CRDS, GOLDEN, published_schemas

Quotas = Mapping[str, tuple[int, str | None]]

KAI_SPEECH = """\
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: speech}
spec: {parentQueue: research, resources: {gpu: {quota: 161, limit: -1, overQuotaWeight: 1}}}
"""
VOLCANO_SPEECH = """\
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: speech}
spec: {parent: research, deserved: {nvidia.com/gpu: 161}}
"""
YUNIKORN_SPEECH = """\
              - name: speech
                resources: {guaranteed: {nvidia.com/gpu: 161}}
"""
PLAIN = """\
# Ask capacity@ before you change this.
teams:
  vision: {gpus: 200}   # until the next order
  speech: {gpus: 161}
"""
TREE = {"research": (361, None), "vision": (200, "research"), "speech": (161, "research")}
UNDER_ROOT = {
    "root.research": (361, None),
    "root.research.vision": (200, "root.research"),
    "root.research.speech": (161, "root.research"),
}
FLAVORS = {"vision": (200, None), "speech/island1": (96, None), "speech/island2": (65, None)}
FLAT = {"vision": (200, None), "speech": (161, None)}
BEFORE: dict[str, tuple[str, Quotas]] = {
    "yaml": (PLAIN, FLAT),
    "kueue": ((GOLDEN / "kueue.before.yaml").read_text(), FLAVORS),
    "kai": ((GOLDEN / "kai.before.yaml").read_text() + KAI_SPEECH, TREE),
    "volcano": ((GOLDEN / "volcano.before.yaml").read_text() + VOLCANO_SPEECH, TREE),
    "yunikorn": ((GOLDEN / "yunikorn.before.yaml").read_text() + YUNIKORN_SPEECH, UNDER_ROOT),
}
"""A file of each dialect, and the quotas that it has."""
POINTER = {"yaml": ["--pointer", "/teams/{team}/gpus"]}


def after(text: str) -> str:
    """37 of the 361 GPUs go, all from vision, of whose 200 only 100 are in use: C = floor(0.9 * 361) = 324."""
    assert "200" in text
    return text.replace(": 200", ": 163").replace("361", "324")


def fleet(folder: Path, quotas: Quotas, **more: Any) -> list[str]:
    """A fleet file with these quotas; returns the command that plans it."""
    rows = [
        {"team": team, "gpus": gpus, **({"parent": parent} if parent else {})}
        | (
            {}
            if any(team == above for _, above in quotas.values())
            else {"scheduled_gpus": min(gpus, 100) if "vision" in team else gpus, "idle_gpus": 0}
        )
        for team, (gpus, parent) in quotas.items()
    ]
    cluster = {"name": "h100", "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 361}], "quotas": rows}
    policy = {"buffer": 0.1, "spare_gpus": 0}
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"clusters": [{**cluster, "policy": policy, **more}]}))
    return ["plan", "--file", str(folder / "fleet.yaml")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_every_dialect_is_rendered() -> None:
    assert {*BEFORE} == set(GitDialect)


@pytest.mark.parametrize("dialect", BEFORE)
def test_git_applies_the_printed_diff_and_only_numbers_change(
    dialect: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, quotas = BEFORE[dialect]
    (folder / "queues").mkdir()
    (folder / "queues" / "all.yaml").write_text(text)
    (folder / "queues" / "notes.txt").write_text("200: [\n")
    diff = printed(
        capsys, *fleet(folder, quotas), "--render", dialect, "--manifests", "queues", *POINTER.get(dialect, [])
    )
    assert (folder / "queues" / "all.yaml").read_text() == text, "it changes nothing itself"
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=folder)
    assert (folder / "queues" / "all.yaml").read_text() == after(text)


def test_the_diff_says_what_each_stage_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "quotas.yaml").write_bytes(PLAIN.removesuffix("\n").replace("\n", "\r\n").encode())
    command = [*fleet(folder, FLAT), "--render", "yaml", *POINTER["yaml"], "--manifests", "quotas.yaml"]
    head, *lines = printed(capsys, *command).split("\n")
    assert head.startswith("# h100, plan ")
    assert lines == [
        "# buffered: no file changes; admitted jobs stay admitted",
        "# enforced: 1 quota changes",
        "--- a/quotas.yaml",
        "+++ b/quotas.yaml",
        "@@ -1,4 +1,4 @@",
        " # Ask capacity@ before you change this.\r",
        " teams:\r",
        "-  vision: {gpus: 200}   # until the next order\r",
        "+  vision: {gpus: 163}   # until the next order\r",
        "   speech: {gpus: 161}",
        "\\ No newline at end of file",
        "",
    ]


def test_a_clusters_own_git_says_where_its_numbers_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = {"repository": "/srv/q.git", "path": "q.yaml", "pointer": "/teams/{team}/gpus"}
    (folder / "quotas.yaml").write_text(PLAIN)
    diff = printed(capsys, *fleet(folder, FLAT, git=git), "--render", "yaml", "--manifests", "quotas.yaml")
    assert "+  vision: {gpus: 163}   # until the next order\n" in diff


@pytest.mark.skipif(not CRDS.exists(), reason="the published schemas are not beside this checkout")
@pytest.mark.parametrize("dialect", ["kueue", "kai", "volcano"])
def test_without_files_the_printed_objects_are_what_the_published_schemas_take(
    dialect: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, quotas = BEFORE[dialect]
    objects = list(yaml.safe_load_all(printed(capsys, *fleet(folder, quotas), "--render", dialect)))
    schemas = published_schemas()
    for one in objects:
        schema = schemas[one["apiVersion"], one["kind"]]
        assert [error.message for error in Draft202012Validator(schema).iter_errors(one)] == []
    assert [one["metadata"]["name"] for one in objects] == (
        ["vision"] if dialect == "kueue" else ["research", "vision"]
    )


NEW = {
    "yaml": {"teams": {"vision": {"gpus": 163}}},
    "kueue": {
        "resourceGroups": [
            {
                "coveredResources": ["amd.com/gpu"],
                "flavors": [{"name": "h100", "resources": [{"name": "amd.com/gpu", "nominalQuota": 163}]}],
            }
        ]
    },
    "kai": {"resources": {"gpu": {"quota": 163}}},
    "volcano": {"deserved": {"amd.com/gpu": 163}},
    "yunikorn": {
        "partitions": [
            {
                "name": "default",
                "queues": [
                    {
                        "name": "root",
                        "queues": [
                            {
                                "name": "research",
                                "resources": {"guaranteed": {"amd.com/gpu": 324}},
                                "queues": [{"name": "vision", "resources": {"guaranteed": {"amd.com/gpu": 163}}}],
                            }
                        ],
                    }
                ],
            }
        ]
    },
}


@pytest.mark.parametrize("dialect", NEW)
def test_without_files_the_objects_have_the_new_quotas_and_nothing_else(
    dialect: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = POINTER.get(dialect, ["--resource", "amd.com/gpu"])
    _, quotas = BEFORE[dialect]
    *_, last = yaml.safe_load_all(printed(capsys, *fleet(folder, quotas), "--render", dialect, *more))
    assert last.get("spec", last) == NEW[dialect]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--render slurm", "--render must be git, yaml, kueue, kai, volcano or yunikorn, not 'slurm'"),
        (
            "--render yaml",
            "--render yaml needs --pointer, the place of a team's number of GPUs, such as /teams/{team}/gpus",
        ),
        (
            "--render yaml --pointer /gpus",
            "--pointer must have {team} once between two slashes, as in /teams/{team}/gpus",
        ),
        ("--render kueue --pointer /{team}", "--render kueue takes no --pointer: leave it out"),
        ("--render kueue --json", "--render prints a change of files: leave out --json"),
        ("--render kueue --sort team", "--render prints a change of files: leave out --sort"),
        ("--manifests queues", "--manifests needs --render DIALECT"),
        ("--render kueue --manifests nowhere", "--manifests: nowhere cannot be read: No such file or directory"),
        ("--render kueue --manifests empty", "--manifests: empty has no .yaml, .yml or .json file"),
        (
            "--render kueue --manifests pod.yaml",
            "pod.yaml has no quota of speech, vision: it has no quotas in this dialect",
        ),
        (
            "--render yaml --pointer /{team}/g --manifests other.yaml",
            "other.yaml, line 2: vision has 199 GPUs in this file, but the plan begins with 200: make both equal first",
        ),
        (
            "--render yaml --pointer /{team}/g --manifests bad.yaml",
            "bad.yaml, line 1: a quota must be a whole number of GPUs, not 'many'",
        ),
        (
            "--render yaml --pointer /{team} --manifests shared.yaml",
            "shared.yaml, line 1: the quota of vision is an anchor or alias: write it out",
        ),
        ("--render kueue --manifests latin.yaml", "latin.yaml, line 1: not UTF-8 text (byte 0xe9)"),
    ],
)
def test_what_cannot_be_rendered_is_refused_in_one_sentence(
    words: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    (folder / "pod.yaml").write_text("kind: Pod\n")
    (folder / "other.yaml").write_text("speech: {g: 161}\nvision: {g: 199}\n")
    (folder / "bad.yaml").write_text("speech: {g: many}\n")
    (folder / "shared.yaml").write_text("vision: &v 200\nspeech: 161\nother: *v\n")
    (folder / "latin.yaml").write_bytes(b"caf\xe9: 1\n")
    assert run([*fleet(folder, FLAT), *words.split()]) == 2
    assert capsys.readouterr().err == f"backstop: {sentence}\n"


def test_a_fleet_is_rendered_cluster_by_cluster(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    command = fleet(folder, FLAT)
    path = folder / "fleet.yaml"
    one = yaml.safe_load(path.read_text())["clusters"][0]
    path.write_text(yaml.safe_dump({"clusters": [one, {**one, "name": "h200"}]}))
    assert run([*command, "--render", "kai"]) == 2
    assert capsys.readouterr().err == "backstop: --render takes one cluster: name one of h100, h200\n"
    assert printed(capsys, *command, "--render", "kai", "--cluster", "h200").startswith("# h200, plan ")


CLASSES = {
    "kueue": ("kueue.x-k8s.io/v1beta1", "WorkloadPriorityClass"),
    "kai": ("scheduling.k8s.io/v1", "PriorityClass"),
    "volcano": ("scheduling.k8s.io/v1", "PriorityClass"),
}


def classed(folder: Path, quotas: Quotas, policy: list[str], **own: list[str]) -> list[str]:
    """Return a fleet as `fleet` does, with classes in the cluster's policy and of some teams."""
    command, path = fleet(folder, quotas), folder / "fleet.yaml"
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["policy"]["classes"] = policy
    for quota in document["clusters"][0]["quotas"]:
        quota.update({"classes": own[quota["team"]]} if quota["team"] in own else {})
    path.write_text(yaml.safe_dump(document))
    return command


@pytest.mark.parametrize("dialect", BEFORE)
def test_classes_are_objects_of_which_the_stronger_has_the_larger_value(
    dialect: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, quotas = BEFORE[dialect]
    command = classed(folder, quotas, ["training", "engines"])
    text = printed(capsys, *command, "--render", dialect, *POINTER.get(dialect, []))
    objects = {
        one["metadata"]["name"]: one
        for one in yaml.safe_load_all(text)
        if one.get("kind", "").endswith("PriorityClass")
    }
    if dialect not in CLASSES:
        assert objects == {}
        assert "classes" not in text
        return
    assert list(objects) == ["training", "engines"]
    assert objects["training"]["value"] > objects["engines"]["value"] > 0
    for one in objects.values():
        assert (one["apiVersion"], one["kind"]) == CLASSES[dialect]
        if dialect == "kueue" and CRDS.exists():
            schema = published_schemas()[CLASSES[dialect]]
            assert [error.message for error in Draft202012Validator(schema).iter_errors(one)] == []
        assert dialect != "kai" or one["value"] < 100, "KAI takes a job of 100 or more for one that never yields"
    assert "# Rollouts do not write classes: apply them once" in text


def test_a_cluster_queue_with_classes_lets_the_weaker_yield(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = classed(folder, FLAT, [], speech=["training", "engines"], vision=["training"])
    objects = list(yaml.safe_load_all(printed(capsys, *command, "--render", "kueue")))
    yields = {one["metadata"]["name"]: one["spec"].get("preemption") for one in objects if "spec" in one}
    assert yields == {"vision": None, "speech": {"withinClusterQueue": "LowerPriority"}}, "speech itself keeps its GPUs"


def test_teams_with_other_orders_of_other_classes_share_one_scale(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = classed(folder, FLAT, [], vision=["training", "tuning"], speech=["tuning", "engines"])
    objects = list(yaml.safe_load_all(printed(capsys, *command, "--render", "kai")))
    values = {one["metadata"]["name"]: one["value"] for one in objects if one["kind"] == "PriorityClass"}
    assert values == {"training": 99, "tuning": 66, "engines": 33}


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (
            {"vision": ["training", "engines"], "speech": ["engines", "training"]},
            "teams disagree about the order of classes (engines before training before engines): a WorkloadPriority",
        ),
        ({"vision": ["Big Training"]}, "--render kueue: class 'Big Training' cannot be the name of a Workload"),
        ({"vision": ["system-x"]}, "--render kueue: class 'system-x' cannot be the name of a WorkloadPriorityClass"),
    ],
)
def test_classes_that_no_object_can_have_are_refused(
    own: dict[str, list[str]], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*classed(folder, FLAT, [], **own), "--render", "kueue"]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the quotas in a folder of its branch `fleet`."""
    work, bare = tmp_path / "work", tmp_path / "quotas.git"
    (work / "h100").mkdir(parents=True)
    (work / "h100" / "all.yaml").write_text(BEFORE["kueue"][0])
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-b", "fleet"], ["add", "."], [*who, "commit", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=work, check=True, capture_output=True)
    subprocess.run(["git", "clone", "--bare", work, bare], check=True, capture_output=True)
    return bare


def in_git(repository: Path, **more: str) -> dict[str, Any]:
    return {"repository": str(repository), "branch": "fleet", "path": "h100", "dialect": "kueue", **more}


def test_the_diff_of_the_clusters_own_branch_needs_no_checkout(
    folder: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diff = printed(capsys, *fleet(folder, FLAVORS, git=in_git(repository)), "--render", "git")
    assert "--- a/h100/all.yaml\n+++ b/h100/all.yaml\n" in diff
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=repository.parent / "work")
    assert (repository.parent / "work" / "h100" / "all.yaml").read_text() == after(BEFORE["kueue"][0])


@pytest.mark.parametrize(
    ("more", "words", "sentence"),
    [
        ({"branch": "none"}, [], "--render git: git cannot clone /"),
        ({"path": "h200"}, [], "quotas.git: h200 cannot be read: No such file or directory"),
        (
            {},
            ["--manifests", "h100"],
            "--render git reads the files, pointer and resource from the cluster's field `git`",
        ),
        (None, [], "--render git: no Git repository holds the quotas of h100; give another DIALECT"),
    ],
)
def test_a_branch_that_cannot_be_rendered_is_one_sentence(
    folder: Path,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    more: dict[str, str] | None,
    words: list[str],
    sentence: str,
) -> None:
    of_git = {} if more is None else {"git": in_git(repository, **more)}
    assert run([*fleet(folder, FLAVORS, **of_git), "--render", "git", *words]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert sentence in text
    assert "backstop-plan-" not in text, "a folder of ours says nothing to people"


def test_a_cluster_of_the_ledger_has_its_repository_from_there(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BACKSTOP_ACTOR", "tpm")
    text = QUEUE.format(name=WORKED.quotas[0].team, gpus=WORKED.quotas[0].gpus)
    own = GitSource.model_validate(in_git(repository))
    work = repository.parent / "work"
    (work / "h100" / "all.yaml").write_text(text)
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *who, "commit", "-qam", "Change"], cwd=work, check=True)
    subprocess.run(["git", "push", "-q", str(repository), "HEAD"], cwd=work, check=True)
    with answering(FakeBackstop(specs=(WORKED.model_copy(update={"git": own}),))):
        diff = printed(capsys, "plan", WORKED.name, "--render", "git")
    assert "-      flavors: [{name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 345}]}]" in diff
    assert "+      flavors: [{name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 306}]}]" in diff
    with answering(FakeBackstop()):
        assert run(["plan", WORKED.name, "--render", "git"]) == 2
    assert "no Git repository holds the quotas of h100-worked" in capsys.readouterr().err
