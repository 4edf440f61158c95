"""Files that people hand in, fuzzed: a sentence or a fleet, never a traceback, and nothing is written in part."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.adapters.ledger.facade import Ledger
from cli.main import BAD_INPUT, run
from client.inputs.documents import MOST_PROBLEMS, read_fleet
from client.inputs.health_samples import read_health
from models.cluster.fleet_file import ClusterSpec, Fleet
from models.cluster.import_outcome import ImportTerms
from models.cluster.readings import HealthSample
from models.errors import BadInput, Refusal
from tests.integration.ledger.world import NOW, ForeignTool, fleet, minutes
from tests.mangling import spoilt, spoilt_files
from tests.tried import TRIED, examples

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"
DOCUMENTS: tuple[dict[str, Any], ...] = (
    json.loads(json.dumps(yaml.safe_load(EXAMPLE.read_text()), default=str)),
    fleet(),
)
FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def said_by(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@settings(FUZZ, max_examples=examples(250))
@given(content=st.sampled_from(DOCUMENTS).flatmap(spoilt_files), name=st.sampled_from(["f.yaml", "f.json"]))
def test_a_fleet_file_is_a_fleet_or_a_sentence_for_each_fault(folder: Path, content: bytes, name: str) -> None:
    path = folder / name
    path.write_bytes(content)
    code, out, err = said_by("plan", "--file", str(path))
    TRIED["fleet files"] += 1
    if code == BAD_INPUT:
        assert out == ""
        *faults, last = err.splitlines()
        assert len(faults) <= MOST_PROBLEMS
        for fault in faults or [last]:
            assert fault.startswith(f"backstop: {path}")
        for said in (*faults, last):
            assert_a_sentence(said)
        TRIED["fleet files that were refused"] += 1
        return
    assert (code, err) == (0, "")
    assert out
    read = read_fleet(path)
    wire = read.model_dump_json(exclude_unset=True, by_alias=True)
    again = folder / "again.json"
    again.write_text(wire, encoding="utf-8")
    assert read_fleet(again) == read == Fleet.model_validate_json(wire)


def assert_a_sentence(said: str) -> None:
    assert said.strip()
    assert len(said.splitlines()) == 1
    assert len(said) < 1000


COLUMNS = ["cluster", "island", "time", "total_gpus", "healthy_gpus", "block_gpus"]
CELLS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1.5",
        "NaN",
        "٣",
        "1e3",
        "999999999",
        "9999999999",
        "x" * 300,
        "a,b",
        'a"b',
        "a\nb",
        "\0",
        "\u202e",
    ),
    *("2026-01-31T12:00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"),
    *("20260131T120000Z", "2026-W05-6T00Z", "12:00", "1700000000", "2026-02-30T00:00:00Z", "alpha", "X", "Z", "beta"),
)
SPECS = Fleet.model_validate(fleet()).clusters


@st.composite
def health_files(draw: st.DrawFn) -> bytes:
    """A health history, with cells, rows, columns, quotes and bytes changed."""
    rows = [
        [cluster, island, f"2026-01-{day:02d}T{hour:02d}:00:00Z", str(total), str(total - day), ""]
        for cluster, island, total in (("alpha", "X", 200), ("alpha", "Y", 200), ("beta", "Z", 64))
        for day in (1, 2)
        for hour in (0, 12)
    ]
    table = [list(COLUMNS), *rows]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.integers(0, len(table) - 1))
        column = draw(st.integers(0, 5))
        match draw(st.sampled_from(["cell", "cell", "cell", "short", "long", "double", "drop", "column", "blank"])):
            case "cell":
                table[row][column : column + 1] = [draw(st.sampled_from(CELLS) | st.text(max_size=6))]
            case "short":
                table[row] = table[row][:column]
            case "long":
                table[row].append("1")
            case "double":
                table.insert(draw(st.integers(0, len(table))), list(table[row]))
            case "drop":
                table.pop(row)
                table = table or [[]]
            case "column":
                table = [cells[:column] + cells[column + 1 :] for cells in table]
            case "blank":
                table.insert(row, [])
    out = io.StringIO()
    ends = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoted = draw(st.booleans())
    writer = csv.writer(out, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL, lineterminator=ends)
    with contextlib.suppress(csv.Error):
        writer.writerows(table)
    text = out.getvalue()
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(['"', ",", "\n", "\0", '""', "\ufeff", ";"])) + text[at:]
    raw = text.encode(draw(st.sampled_from(["utf-8"] * 5 + ["utf-8-sig", "utf-16"])), errors="replace")
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


def read_or_refused(path: Path) -> tuple[HealthSample, ...] | None:
    try:
        return read_health(path, SPECS)
    except BadInput as refused:
        said = refused.message
    assert said.startswith(str(path))
    assert_a_sentence(said)
    return None


@settings(FUZZ, max_examples=examples(400))
@given(content=health_files())
def test_a_health_file_is_samples_or_one_sentence(folder: Path, content: bytes) -> None:
    path = folder / "h.csv"
    path.write_bytes(content)
    samples = read_or_refused(path)
    TRIED["health files"] += 1
    if samples is None:
        TRIED["health files that were refused"] += 1
        return
    written = folder / "again.csv"
    with written.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for sample in samples:
            for i in sample.islands:
                blocks = "" if i.block_gpus is None else i.block_gpus
                rows.writerow([sample.cluster, i.name, sample.at.isoformat(), i.total_gpus, i.healthy_gpus, blocks])
    assert read_health(written, SPECS) == samples


# --- the ledger, as an untyped client reaches it ---------------------------------------------------

TABLES = {
    "clusters": "name",
    "islands": "cluster, name",
    "quotas": "cluster, team",
    "fleet": "id",
    "teams": "name",
    "contacts": "team, position",
    "health_samples": "cluster, island, at",
    "usage_samples": "cluster, team, at",
    "imports": "import_id",
}
WINDOWS = "SELECT cluster, kind, starts, ends, reason, islands, gpus FROM windows ORDER BY 1, 2, 3, 4, 5, 6, 7"


def dump(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    """Everything an import may write; the parts that were staged for it lie beside."""
    found = {name: tool.rows(f"SELECT * FROM {name} ORDER BY {key}") for name, key in TABLES.items()}
    return {**found, "windows": tool.rows(WINDOWS)}


def standing(tool: ForeignTool) -> dict[str, list[tuple[Any, ...]]]:
    """Return the ledger's tables, without the samples and imports that each import adds."""
    return {
        name: rows for name, rows in dump(tool).items() if name not in ("health_samples", "usage_samples", "imports")
    }


def meant(spec: ClusterSpec) -> dict[str, Any]:
    """A cluster without its usage and health, of which the ledger keeps a history."""
    return {
        "model": (spec.gpu_model, spec.gpus_per_node, spec.policy),
        "islands": {(i.name, i.total_gpus) for i in spec.islands},
        "windows": {w.model_copy(update={"islands": w.islands and tuple(sorted(w.islands))}) for w in spec.windows},
        "quotas": {
            (
                q.team,
                q.gpus,
                None if q.islands is None else tuple(sorted(q.islands)),
                q.protected_blocks,
                q.minimum_gpus,
                q.parent,
            )
            for q in spec.quotas
        },
    }


def valid(draw: st.DrawFn) -> dict[str, Any]:
    """Another fleet that is right, with names that need care in SQL, JSON and on paper."""
    names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=9)
    made = fleet(a=draw(st.integers(0, 400)), c=draw(st.integers(0, 400)))
    alpha, beta = made["clusters"]
    alpha["quotas"] = [q for q in alpha["quotas"] if draw(st.integers(0, 3)) or "org" in q["team"]]
    beta["quotas"].append({"team": draw(names), "gpus": draw(st.integers(0, 10**7))})
    beta["gpu_model"] = draw(st.none() | names)
    window = {"kind": draw(st.sampled_from(["maintenance", "sev", "freeze"])), "reason": draw(names)}
    far = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))]))
    starts, ends = sorted((draw(far), draw(far)))
    beta["windows"] = [{**window, "starts": starts.isoformat(), "ends": ends.isoformat()}]
    made["teams"].append({"name": draw(names), "contacts": draw(st.lists(names, max_size=2))})
    return made


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A fleet as it comes over the wire: JSON, compressed, most of it right."""
    # One change, and seldom a second: what is taken in part would be taken by mistake only.
    made = draw(spoilt(fleet(), draw(st.sampled_from([1, 1, 1, 2])))) if draw(st.integers(0, 3)) else valid(draw)
    raw = json.dumps(made).encode()
    match draw(st.sampled_from(["right"] * 12 + ["plain", "cut", "noise", "twice"])):
        case "plain":
            return raw
        case "cut":
            return zlib.compress(raw)[: draw(st.integers(0, 300))]
        case "noise":
            return zlib.compress(draw(st.binary(max_size=50)))
        case "twice":
            return zlib.compress(raw + raw)
        case _:
            return zlib.compress(raw)


def test_the_ledger_takes_a_fleet_whole_or_not_at_all(ledger_url: str) -> None:
    numbers = itertools.count(1)

    @settings(FUZZ, max_examples=examples(60))
    @given(payload=documents())
    def tries(payload: bytes) -> None:
        number = next(numbers)
        at = NOW + minutes(number)
        before = dump(tool)
        ledger.fleet.stage_import(f"i{number}", 0, payload)
        TRIED["documents for the ledger"] += 1
        try:
            terms = ImportTerms(prune=True, whole=True)  # what stood before is no part of the question
            ledger.fleet.take_import(f"i{number}", 1, terms, "tpm", at)
        except (BadInput, Refusal) as refused:
            said = refused.message
        else:
            said = ""
        if said:
            assert_a_sentence(said)
            assert dump(tool) == before
            TRIED["documents for the ledger that were refused"] += 1
            return
        given_fleet = Fleet.model_validate_json(zlib.decompress(payload))
        shown = {spec.name: spec for spec, _ in _all(ledger)}
        assert {c.name: meant(shown[c.name]) for c in given_fleet.clusters} == {
            c.name: meant(c) for c in given_fleet.clusters
        }
        after = standing(tool)
        ledger.fleet.stage_import(f"i{number}-again", 0, payload)
        counts = ledger.fleet.commit_import(f"i{number}-again", 1, "tpm", at + timedelta(seconds=1))
        assert (counts["changed"], counts["removed"]) == (0, 0)
        assert standing(tool) == after

    with Ledger(ledger_url) as ledger, contextlib.closing(ForeignTool(ledger_url)) as tool:
        tries()


def _all(ledger: Ledger) -> Iterator[tuple[ClusterSpec, Any]]:
    after = ""
    while page := ledger.fleet.clusters(after, 200):
        yield from page
        after = page[-1][0].name
