"""`backstop fleet` with a file: on the screen, as JSON, and by its exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from models.cluster.fleet_diff import ClusterNow
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import Team
from models.cluster.readings import Present
from models.cluster.sources import SlurmSource
from tests.unit.cli_fakes import FakeBackstop, answering
from tests.unit.test_cli_docs import validator

FILE = """\
clusters:
- name: h
  islands: [{name: main, total_gpus: 100, healthy_gpus: 90}]
  quotas:
  - {team: a, gpus: 40}
  - {team: b, gpus: 30}
teams:
- {name: a, contacts: ["#ml"]}
- {name: b, contacts: [log]}
"""

UNDO = (
    "To undo: import the previous file with --prune, which also removes what this import added. "
    "An import does not reverse what rollouts write from now on."
)
GONE = "health samples, usage samples, jobs, tallies, windows that no fleet file declares, and past rollouts"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def fake() -> Iterator[FakeBackstop]:
    quotas = (Present(team="a", gpus=40), Present(team="b", gpus=20), Present(team="c", gpus=9))
    h = ClusterNow(name="h", islands={"main": 100}, quotas=quotas)
    with answering(FakeBackstop(standing={"h": h, "old": ClusterNow(name="old")})) as fake:
        yield fake


def busy(fake: FakeBackstop) -> None:
    held = {"busy": "rollout h/1 is open (enforced)", "overwritten": {"b": (25,)}}
    fake.standing["h"] = fake.standing["h"].model_copy(update=held)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["fleet", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_diff_says_all_and_does_nothing(fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "diff", file)
    assert (code, out) == (
        0,
        (
            "+ team a: ***\n"
            "+ team b: log\n"
            "~ h quota b: gpus 20 -> 30\n"
            "1 quota and 1 cluster are in the ledger but not in the file: they stay; --prune removes them.\n"
            "  h quota c (9 GPUs)\n"
            "  cluster old (2 quotas, 9 GPUs in all)\n"
            f"{file}: differences: 2 added, 1 changed, 0 removed, 0 kept, 0 refused; "
            "unchanged: 0 clusters, 1 quota, 0 teams.\n"
        ),
    )
    assert err == (
        f"backstop: warning: {file}, line 8: a contact of a cannot receive notices: #ml looks like a channel; give "
        "the URL of a Slack webhook instead (docs/notices.md)\n"
    )
    ((_, _, terms),) = fake.asked
    assert (terms.dry_run, terms.prune, terms.file) == (True, False, file)


@pytest.mark.parametrize("differs", [True, False])
def test_an_exit_code_where_it_is_asked_for(
    differs: bool, fake: FakeBackstop, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not differs:
        quotas = (Present(team="a", gpus=40), Present(team="b", gpus=30))
        fake.standing = {"h": ClusterNow(name="h", islands={"main": 100}, quotas=quotas)}
        Path(file).write_text(FILE.partition("teams:")[0])
    assert told(capsys, "diff", file, "--exit-code")[0] == (1 if differs else 0)
    assert told(capsys, "diff", file)[0] == 0


def test_the_json_of_diff_and_import_fits_its_schema(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    busy(fake)
    code, out, _ = told(capsys, "diff", file, "--json")
    answer = json.loads(out)
    validator("fleet-diff").validate(answer)
    assert (code, answer["totals"]["refused"], answer["untouched"]) == (0, 1, {"clusters": 0, "quotas": 1, "teams": 0})
    (refused,) = answer["refused"]
    assert (refused["place"], refused["before"], refused["after"]) == (f"{file}, line 6", "20", "30")
    assert answer["warnings"][0]["place"] == f"{file}, line 8"
    code, out, _ = told(capsys, "import", file, "--json")
    whole = json.loads(out)
    validator("import").validate(whole)
    assert (code, whole["fleet"]) == (3, answer)


def test_an_import_with_a_refused_line_says_where_and_ends_with_3(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    busy(fake)
    code, out, _ = told(capsys, "import", file)
    assert code == 3
    assert out.splitlines()[1:] == [
        f"! {file}, line 6: h quota b: gpus 20 -> 30: cannot be changed while rollout h/1 is open (enforced)",
        "  Nothing changes in a cluster with a refused line: h.",
        "  To raise a quota during a rollout: `backstop request new`.",
        "  To end the rollout first: `backstop close` or, if that is refused, `backstop abort`.",
        "1 cluster is in the ledger but not in the file: it stays; --prune removes it.",
        "To undo: import a file without these additions, with --prune; or: backstop fleet remove CLUSTER",
    ]


def test_what_a_rollout_keeps_is_named_beside_what_is_refused_in_the_same_cluster(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The older value of b was dropped with its cluster, and the quota counted as unchanged."""
    busy(fake)
    Path(file).write_text(FILE.replace("gpus: 30", "gpus: 25").replace("gpus: 40", "gpus: 45"))
    _, out, _ = told(capsys, "diff", file)
    shown = out.splitlines()
    assert "= h quota b: gpus stays 20 (the file has 25): rollout h/1 is open (enforced)" in shown
    why = "cannot be changed while rollout h/1 is open (enforced)"
    assert f"! {file}, line 5: h quota a: gpus 40 -> 45: {why}" in shown
    counts = "differences: 2 added, 0 changed, 0 removed, 1 kept, 1 refused; unchanged: 0 clusters, 0 quotas, 0 teams"
    assert shown[-1] == f"{file}: {counts}."


def test_a_dry_run_and_the_import_count_the_same(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """42 added, said the dry run, and the import 87 quotas changed, of an empty ledger: new ones counted as changed."""
    fake.standing.clear()
    _, tried, _ = told(capsys, "import", file, "--dry-run")
    _, done, _ = told(capsys, "import", file)
    counted = re.compile(r"\d+ added, \d+ changed, \d+ removed, \d+ kept, \d+ refused; unchanged: .*? teams?")
    (before,), (after,) = counted.findall(tried), counted.findall(done)
    assert before == after
    plus = [text for text in tried.splitlines() if text.startswith("+ ")]
    assert after.startswith(f"{len(plus)} added, 0 changed")
    assert "changed" not in done.replace(after, "")


def test_an_import_says_what_it_changed_beside_quotas_and_how_it_is_undone(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`0 changed` was said of an import that changed a policy and contacts: only quotas are counted."""
    fake.standing["h"] = fake.standing["h"].model_copy(update={"policy": {"notice": "7d"}})
    more = "  policy: {notice: 3d, soak_buffered: 1d}\n"
    Path(file).write_text(FILE.replace("- name: h\n", f"- name: h\n{more}").replace("gpus: 30", "gpus: 20"))
    code, out, _ = told(capsys, "import", file)
    assert code == 0
    shown = out.splitlines()
    unchanged = "unchanged: 0 clusters, 2 quotas, 0 teams"
    differences = "differences: 3 added, 1 changed, 0 removed, 0 kept, 0 refused"
    assert shown[0] == f"Imported {file}: 1 cluster, 1 of 2 quotas; {differences}; {unchanged}."
    assert shown[1:3] == ["+ h policy soak_buffered: 1d", "~ h policy notice: 7d -> 3d"]
    assert shown[-1].startswith("To undo: import the previous file")


def test_an_older_file_is_taken_and_what_the_rollout_wrote_stays(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    busy(fake)
    Path(file).write_text(FILE.replace("gpus: 30", "gpus: 25"))
    code, out, _ = told(capsys, "import", file)
    assert (code, out.splitlines()[1]) == (
        0,
        "= h quota b: gpus stays 20 (the file has 25): rollout h/1 is open (enforced)",
    )


def test_what_slurm_says_itself_is_named_in_the_dry_run_and_in_the_import(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.standing["h"] = fake.standing["h"].model_copy(update={"slurm": SlurmSource()})
    quotas = FILE.replace("gpus: 30", "gpus: 25, minimum_gpus: 4").replace("team: a", "team: new")
    Path(file).write_text(quotas.replace("- name: h\n", "- name: h\n  slurm: {}\n"))
    no_account = (
        "Slurm had no account of this name with a limit when Backstop last read it: create it in Slurm, with a limit"
    )
    theirs = "Slurm holds this value, so a file cannot set it: change it in Slurm"
    lines = [
        f"= h quota new stays none (the file has 40 GPUs): {no_account}",
        f"= h quota b: gpus stays 20 (the file has 25): {theirs}",
    ]
    for options in (["--dry-run"], []):
        code, out, _ = told(capsys, "import", file, *options)
        assert (code, [text for text in out.splitlines() if text.startswith("= ")]) == (0, lines)
        assert "2 added, 1 changed, 0 removed, 2 kept, 0 refused" in out


@pytest.mark.parametrize(
    ("source", "title"), [("slurm: {}", "Slurm"), ("git: {repository: /srv/q, path: q, pointer: '/{team}'}", "Git")]
)
def test_the_first_import_of_a_cluster_says_who_holds_the_quotas_that_the_file_has_too(
    source: str, title: str, fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del fake.standing["h"]
    Path(file).write_text(FILE.replace("- name: h\n", f"- name: h\n  {source}\n"))
    added = (
        "+ cluster h: 1 island, 100 GPUs installed; 2 quotas, 70 GPUs in all: "
        f"{title} holds the cluster's quotas, so those in the file apply only until Backstop reads {title}"
    )
    for options in (["--dry-run"], []):
        code, out, _ = told(capsys, "import", file, *options)
        assert (code, [text for text in out.splitlines() if "cluster h" in text]) == (0, [added])
    without = {"quotas.yaml": FILE[: FILE.index("  quotas")], "ledger.yaml": FILE}
    for name, text in without.items():  # the file says no quotas, or nobody else holds them
        other = Path(file).with_name(name)
        other.write_text(text.replace("- name: h\n", f"- name: h\n  {source}\n") if "quotas:" not in text else text)
        assert "apply only until" not in told(capsys, "import", str(other), "--dry-run")[1]


def test_a_dry_run_says_what_the_import_would_say(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, "import", file, "--dry-run", "--health", str(health(Path(file).parent)))
    assert (code, [what for what, *_ in fake.asked]) == (0, ["take_fleet"])
    assert out.endswith("unchanged: 0 clusters, 1 quota, 0 teams. Nothing was changed.\n")


def health(folder: Path) -> Path:
    path = folder / "health.csv"
    path.write_text("cluster,time,total_gpus,healthy_gpus\nh,2026-01-31T12:00:00Z,100,90\n")
    return path


def test_pruning_asks_and_is_refused_where_nobody_can_be_asked(
    fake: FakeBackstop, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = told(capsys, "import", file, "--prune")
    assert (code, out) == (2, "")
    assert (
        err == "backstop: Remove 2 entries? There is no terminal to ask on, so nothing was changed: give --yes if "
        "you mean it\n"
    )
    assert [terms.dry_run for _, _, terms in fake.asked] == [True]
    code, out, _ = told(capsys, "import", file, "--prune", "--yes")
    assert (code, out.splitlines()[1:]) == (
        0,
        [
            "- h quota c: 9 GPUs",
            "- cluster old: 2 quotas, 9 GPUs in all",
            f"  deleted for good with it: {GONE}",
            UNDO,
            "Undo: backstop fleet export --removed old | backstop fleet import -",
        ],
    )
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question: True)
    assert told(capsys, "import", file, "--prune")[0] == 0
    seen, done = (terms for _, _, terms in fake.asked[-2:])
    assert (seen.dry_run, done.dry_run, bool(done.agreed)) == (True, False, True)


@pytest.mark.parametrize("option", ["--prune", "--reset", "--whole", "--dry-run"])
def test_what_speaks_of_a_file_is_refused_without_one(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told(capsys, "import", "--health", str(health(tmp_path)), option) == (
        2,
        "",
        f"backstop: {option} needs a fleet file: give FILE, or leave {option} out\n",
    )


def test_nothing_is_pruned_of_a_slurm_whose_limits_are_the_quotas(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "import", "--slurm", "h100", "--prune")
    assert (code, out) == (2, "")
    assert err == (
        "backstop: --prune is given together with --slurm: leave --prune out, because the import already removes the "
        "quotas that Slurm no longer has (to remove a whole cluster: backstop fleet remove)\n"
    )


def test_files_of_two_kinds_are_refused_and_faults_come_one_a_line(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "diff", file, "x.csv")[2] == f"backstop: x.csv is a table and {file} is not: give only tables\n"
    assert "2 fleet files are given" in told(capsys, "diff", file, file)[2]
    Path(file).write_text(FILE.replace("40", "many").replace("30", "more"))
    assert told(capsys, "diff", file) == (
        2,
        "",
        (
            f"backstop: {file}, line 5: clusters[0].quotas[0].gpus must be a whole number, not 'many'\n"
            f"backstop: {file}, line 6: clusters[0].quotas[1].gpus must be a whole number, not 'more'\n"
        ),
    )


# --- export, remove, rename, template ---------------------------------------------------------------------


def page(*names: str, last: str = "", **more: Any) -> FleetPage:
    islands = [{"name": "main", "total_gpus": 8, "healthy_gpus": 8}]
    clusters = tuple({"name": n, "islands": islands, "quotas": [{"team": "a", "gpus": 4}]} for n in names)
    return FleetPage(
        **{"clusters": clusters, "wrong": {}, "cut_floors": {}, "policy": {}, "teams": (), "last": last, **more}
    )


def test_an_export_is_a_file_and_says_what_it_could_not_write(
    fake: FakeBackstop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teams = (Team(name="a", contacts=("slack://***",)), Team(name="z"))
    first = page("h", last="h", policy={"buffer": 0.2}, teams=teams, wrong={"i": "makes no sense"})
    fake.pages = [first, page("k", cut_floors={"k": ("a",)})]
    assert told(capsys, "export") == (
        0,
        "policy: {buffer: 0.2}\nclusters:\n"
        + "".join(
            f"- name: {n}\n  islands:\n  - {{name: main, total_gpus: 8, healthy_gpus: 8}}\n"
            "  quotas:\n  - {team: a, gpus: 4}\n"
            for n in ("h", "k")
        )
        + "teams:\n- {name: a, contacts: ['slack://***']}\n- {name: z}\n",
        (
            "backstop: contacts of 1 team contain secrets, which the file shows as ***; an import into this "
            "ledger keeps the secrets\n"
            "backstop: left out: i: makes no sense\n"
            "backstop: k: minimums are written smaller than in the ledger, because these teams' quotas, or their "
            "parent quotas, are below the minimums: a\n"
        ),
    )
    out = tmp_path / "out.yaml"
    assert told(capsys, "export", str(out), "--cluster", "k")[:2] == (0, "")
    assert out.read_text().count("name: a") == 1
    assert "policy" not in out.read_text()
    assert told(capsys, "export", "--cluster", "x")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "undo", "done"),
    [
        (("remove", "h"), "backstop fleet export --removed h | backstop fleet import -", "removed"),
        (("rename", "h", "h 2"), "backstop fleet rename 'h 2' h", "renamed to h 2"),
    ],
)
def test_a_cluster_goes_or_is_called_otherwise_after_a_yes(
    arguments: tuple[str, ...], undo: str, done: str, fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, *arguments)
    assert (code, out, [q[-1] for q in fake.asked]) == (2, "", [True])
    assert "give --yes if you mean it" in err
    assert told(capsys, *arguments, "--yes") == (0, f"h: {done} (1 island).\nUndo: {undo}\n", "")
    code, out, _ = told(capsys, *arguments, "--yes", "--json")
    validator("fleet-undone").validate(json.loads(out))
    assert json.loads(out)["undo"] == undo
    unknown = (arguments[0], "busy", *arguments[2:], "--yes")
    assert told(capsys, *unknown)[::2] == (
        3,
        "backstop: busy stays as it is: rollout h100-worked/1 is open (buffered)\n",
    )


@pytest.mark.parametrize("what", ["fleet", "clusters", "quotas", "teams"])
def test_a_template_is_what_an_import_takes(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "template", what)
    assert (code, out.splitlines()[0][:2]) == (0, "# " if what == "fleet" else "te" if what == "teams" else "cl")
    assert told(capsys, "template", "sheet")[0] == 2


def test_what_was_removed_is_written_whole(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "export", "--removed", "b", "--cluster", "a") == (
        2,
        "",
        "backstop: --cluster a is given together with --removed b: give one of them\n",
    )
    assert fake.asked == []


@pytest.mark.parametrize(
    "words", [["remove", "h"], ["rename", "h", "h2"], ["import", "FILE", "--prune"]], ids=["remove", "rename", "import"]
)
def test_json_on_a_terminal_is_not_asked_beside(
    fake: FakeBackstop,
    file: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A document for a program has nothing beside it: without --yes it is bad input there too."""
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _: pytest.fail("nobody is to be asked"))
    code, out, err = told(capsys, *[file if word == "FILE" else word for word in words], "--json")
    assert (code, out) == (2, "")
    assert "give --yes if you mean it" in err
