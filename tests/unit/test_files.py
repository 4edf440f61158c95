"""Fleet files and health files: what is read, and the sentence for everything that is refused."""

from __future__ import annotations

import gc
import hashlib
import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from client.inputs import plain_yaml
from client.inputs.documents import read_fleet, read_policy
from client.inputs.health_samples import read_health
from models.cluster.fleet_file import MOST_QUOTAS, ClusterSpec, Fleet
from models.cluster.policy import Policy, Tier
from models.errors import BadFile, BadInput
from models.rollout.messages import LaunchRequest

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"
GOOD = """\
clusters:
- name: c
  islands:
  - {name: x, total_gpus: 10, healthy_gpus: 8}
  - {name: y, total_gpus: 10, healthy_gpus: 8}
  quotas:
  - {team: a, gpus: 5}
  - {team: b, gpus: 6}
- name: d
  islands: [{name: main, total_gpus: 4, healthy_gpus: 4}]
"""


def write(folder: Path, content: str | bytes, name: str = "f.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(folder: Path, content: str | bytes, name: str = "f.yaml") -> str:
    with pytest.raises(BadInput) as refused:
        read_fleet(write(folder, content, name))
    assert "\n" not in refused.value.message
    return refused.value.message.removeprefix(f"{folder}/")


# --- what is read --------------------------------------------------------------------------------


def test_yaml_and_json_of_one_fleet_are_the_same_fleet(tmp_path: Path) -> None:
    as_json = write(tmp_path, json.dumps(yaml.safe_load(EXAMPLE.read_text()), default=str), "fleet.json")
    assert read_fleet(as_json) == read_fleet(EXAMPLE)


@pytest.mark.parametrize("name", ["fleet.json", "fleet.yaml", "fleet", "fleet.txt"])
def test_json_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    assert read_fleet(write(tmp_path, json.dumps(yaml.safe_load(GOOD)), name)).cluster("d") is not None


def test_a_yaml_file_may_begin_with_a_brace(tmp_path: Path) -> None:
    content = "{clusters: [{name: c, islands: [{name: x, total_gpus: 1, healthy_gpus: 1}]}]}"
    assert read_fleet(write(tmp_path, content)).clusters[0].name == "c"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert len(read_fleet(write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())).clusters) == 2


def test_yaml_means_what_people_mean(tmp_path: Path) -> None:
    content = """\
policy: &careful {buffer: 0.1, notice: 1d}
clusters:
- name: no
  islands: &islands [{name: 0x10, total_gpus: 8, healthy_gpus: +8}]
  policy: {<<: *careful, buffer: 0.2}
- name: "8"
  islands: *islands
  quotas: [{team: !!str 12, gpus: 0, scheduled_gpus: null, idle_gpus: ~}]
  windows: [{kind: sev, starts: 2026-01-31T12:00:00Z, ends: 2026-01-31 14:00:00+01:00, reason: on}]
"""
    fleet = read_fleet(write(tmp_path, content))
    no, eight = fleet.clusters
    assert (no.name, eight.name) == ("no", "8")
    assert no.islands[0].name == "0x10"
    assert fleet.policy_of(no).buffer == Fraction(1, 5)
    assert fleet.policy_of(no).notice == timedelta(days=1)
    assert fleet.policy_of(eight).buffer == Fraction(1, 10)
    assert eight.quotas[0].team == "12"
    assert eight.windows[0].reason == "on"
    assert eight.windows[0].ends == datetime(2026, 1, 31, 13, tzinfo=UTC)


def test_plain_yaml_agrees_with_pyyaml_on_the_example() -> None:
    text = EXAMPLE.read_text()

    def with_times_as_text(value: object) -> object:
        return json.loads(json.dumps(value, default=lambda time: time.isoformat().replace("+00:00", "Z")))

    assert with_times_as_text(plain_yaml.load(text, "x")) == with_times_as_text(yaml.safe_load(text))


def test_garbage_collection_goes_on_after_reading(tmp_path: Path) -> None:
    read_fleet(write(tmp_path, GOOD))
    assert gc.isenabled()
    refusal(tmp_path, "a: [")
    assert gc.isenabled()


# --- what is refused -------------------------------------------------------------------------------

A, B = "{team: a, gpus: 5}", "{team: b, gpus: 6}"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (A, "{team: a, gpus: -5}", "line 7: clusters[0].quotas[0].gpus must be at least 0, not -5"),
        (A, "{team: a, gpus: 5.5}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not 5.5"),
        (A, "{team: a, gpus: 5.0}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not 5.0"),
        (A, "{team: a, gpus: many}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not 'many'"),
        (A, "{team: a, gpus: '5'}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not '5'"),
        (A, "{team: a, gpus: 005}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not '005'"),
        (A, "{team: a, gpus: true}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not True"),
        (A, "{team: a, gpus: .nan}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not nan"),
        (A, "{team: a, gpus: .inf}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not inf"),
        (A, "{team: a, gpus: 1e3}", "line 7: clusters[0].quotas[0].gpus must be a whole number, not 1000.0"),
        (A, "{team: a, gpus: 10000001}", "clusters[0].quotas[0].gpus must be at most 10000000, not 10000001"),
        (A, "{team: a, gpus: null}", "clusters[0].quotas[0].gpus must be a whole number, not None"),
        (A, "{team: a}", "line 7: clusters[0].quotas[0].gpus is missing"),
        (A, "{team: 7, gpus: 5}", "clusters[0].quotas[0].team must be text, not 7 (put it in quotes)"),
        (A, "{team: '', gpus: 5}", "clusters[0].quotas[0].team must not be empty"),
        (A, '{team: "a\\nb", gpus: 5}', "team must be one line without control characters, not 'a\\nb'"),
        (A, "[a, 5]", "line 7: clusters[0].quotas[0] must be a mapping of fields, not ['a', 5]"),
        (
            A,
            "{team: a, gpus: 5, scheduled_gpu: 3}",
            "quotas[0].scheduled_gpu is not a known field (its value is 3; did you mean scheduled_gpus?)",
        ),
        (A, "{team: a, gpus: 5, gpus: 6}", "line 7: gpus is given twice in one mapping"),
        (
            A,
            "{team: a, gpus: 5, scheduled_gpus: 3, idle_gpus: 4}",
            "line 7: clusters[0].quotas[0].idle_gpus is 4, above scheduled_gpus 3 (team a)",
        ),
        (
            "total_gpus: 10, healthy_gpus: 8}\n  - ",
            "total_gpus: 10, healthy_gpus: 11}\n  - ",
            "line 4: clusters[0].islands[0].healthy_gpus is 11, above total_gpus 10 (island x)",
        ),
        (
            B,
            "{team: b, gpus: 6, islands: [z]}",
            "line 8: clusters[0].quotas[1].islands names 'z', which this cluster does not have (team b)",
        ),
        (B, "{team: a, gpus: 6}", "line 8: clusters[0].quotas[1].team: team 'a' is given twice"),
        ("name: d", "name: c", "line 9: clusters[1].name: cluster 'c' is given twice"),
        (
            "name: y",
            'name: "y,z"',
            "line 5: clusters[0].islands[1]: island 'y,z' has a comma, which separates the names",
        ),
        ("name: y", "name: x", "line 5: clusters[0].islands[1]: island 'x' is given twice (cluster c)"),
        (
            B,
            "{team: b, gpus: 6, protected_blocks: [8]}",
            "line 8: clusters[0].quotas[1].protected_blocks has a block of 8, larger than the quota 6 (team b)",
        ),
        (B, "{team: b, gpus: 6, protected_blocks: [4, 4]}", "protected_blocks sum to 8, above the quota 6 (team b)"),
        (B, "{team: b, gpus: 6, protected_blocks: [0]}", "quotas[1].protected_blocks[0] must be at least 1, not 0"),
        (B, "{team: b, gpus: 6, minimum_gpus: 7}", "clusters[0].quotas[1].minimum_gpus is 7, above the quota 6"),
        (
            f"{A}\n  - {B}",
            "{team: a, gpus: 5, parent: b}\n  - {team: b, gpus: 6, parent: a}",
            "line 7: clusters[0].quotas[0]: the quota tree has a cycle: a -> b -> a",
        ),
        (
            f"{A}\n  - {B}",
            "{team: a, gpus: 5}\n  - {team: b, gpus: 6, minimum_gpus: 6, parent: a}",
            "line 8: clusters[0].quotas[1].minimum_gpus is 6, above the quota 5 of a, which team b is part of",
        ),
        (
            f"{A}\n  - {B}",
            "{team: b, gpus: 9, protected_blocks: [3, 3], parent: p}\n  - {team: p, gpus: 9, parent: a}\n  - " + A,
            "line 7: clusters[0].quotas[0].protected_blocks sum to 6, above the quota 5 of a, which team b is part of",
        ),
        (B, "{team: b, gpus: 6, parent: q}", "clusters[0].quotas[1].parent: 'q' of team 'b' is not a quota of this"),
        (
            f"{A}\n  - {B}",
            "{team: a, gpus: 5, scheduled_gpus: 3}\n  - {team: b, gpus: 6, parent: a}",
            "line 7: clusters[0].quotas[0].scheduled_gpus is 3 for team 'a', which has sub-quotas",
        ),
        ("  islands: [{name: main, total_gpus: 4, healthy_gpus: 4}]\n", "", "line 9: clusters[1].islands is missing"),
        (GOOD, "clusters: []", "line 1: clusters must have at least 1 entry"),
        (GOOD, "clusters: {a: 1}", "line 1: clusters must be a list, not {'a': 1}"),
        (GOOD, "teams: []", "clusters is missing"),
    ],
)
def test_a_bad_fleet_is_refused_by_line_field_and_value(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert GOOD.count(old) == 1
    assert sentence in refusal(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("{buffer: 1.5}", "policy.buffer must be at least 0 and below 1, not 1.5"),
        ("{buffer: .nan}", "policy.buffer must be a finite number, not nan"),
        ("{buffer: lots}", "policy.buffer must be a number, not 'lots'"),
        ("{buffer: {ramp: [0.2, 0.1]}}", "policy.buffer: a ramp must grow at each step: 0.1 follows 0.2"),
        ("{buffer: {ramp: [0.2, x]}}", "policy.buffer.ramp[1] must be a number, not 'x'"),
        ("{buffer: {health: {target: 2}}}", "policy.buffer.health.target must be at least 0 and below 1, not 2"),
        ("{buffer: {health: {target: 0.4}}}", "policy.buffer.health.target must be from 0.5 to 0.99999, not 0.4"),
        ("{buffer: {health: {horizon: 1d}}}", "policy.buffer.health.horizon must be from 1w to 52w, not 24h"),
        ("{buffer: {health: {floor: 0.6}}}", "policy.buffer.health.floor must be at most 0.5 (most), not 0.6"),
        ("{buffer: {health: {flor: 0.1}}}", "policy.buffer.health.flor is not a known field"),
        ("{buffer: health}", "policy.buffer must be a number, {ramp: [...]} or {health: {...}}, not 'health'"),
        (
            "{buffer: {health: {}, ramp: [0.1]}}",
            "policy.buffer must be a number, {ramp: [...]} or {health: {...}}, not {",
        ),
        ("{buffer: {health: {target: 0.9999999}}}", "target must be from 0.5 to 0.99999, not 0.9999999"),
        ("{buffer: {health: 3}}", "policy.buffer.health must be"),
        (
            "{buffer: {health: {}}, basis: healthy}",
            "policy.basis must be total if the buffer comes from health, not healthy",
        ),
        (
            "{buffer: {ramps: [0.2]}}",
            "policy.buffer must be a number, {ramp: [...]} or {health: {...}}, not {'ramps': [0.2]}",
        ),
        ("{notice: 3 days}", "policy.notice must be a duration such as 30s, 10m, 24h or 14d, not '3 days'"),
        ("{notice: 1.0e+20}", "policy.notice: a duration cannot be longer than ten years: 1e+20"),
        (
            "{notice: 100000000000000000}",
            "policy.notice: a duration cannot be longer than ten years: 100000000000000000",
        ),
        ("{notice: 1e25d}", "policy.notice: a duration cannot be longer than ten years: '1e25d'"),
        ("{notice: -1d}", "policy.notice: a duration cannot be negative: '-1d'"),
        ("{max_tier: deep}", "policy.max_tier must be 'unallocated', 'unscheduled', 'idle' or 'busy', not 'deep'"),
        ("{attempts: 0}", "policy.attempts must be at least 1, not 0"),
        (
            "{soak_bufferd: 3d}",
            "policy.soak_bufferd is not a known field (its value is '3d'; did you mean",
        ),
        ("{safety_poll: 0s}", "policy.safety_poll must be longer than zero"),
        ("{attempts: 0, notice: x}", "(and 1 more problem)"),
    ],
)
@pytest.mark.parametrize("where", ["", "clusters[1]."], ids=["default", "own"])
def test_a_bad_policy_names_whose_it_is(tmp_path: Path, policy: str, sentence: str, where: str) -> None:
    content = GOOD + (f"  policy: {policy}\n" if where else f"policy: {policy}\n")
    said = refusal(tmp_path, content)
    assert "f.yaml, line 11: " in said
    assert (where + sentence if sentence.startswith("policy") else sentence) in said


@pytest.mark.parametrize(
    ("policy", "classes", "refused"),
    [
        ("{}", "", ""),  # the ledger may know some
        ("{classes: [training, engine]}", "", ""),
        ("{}", ", classes: [engine]", ""),
        ("{classes: [training, engines]}", "", "training, engines"),
        ("{classes: [training]}", ", classes: [engines]", "training, engines"),
    ],
)
@pytest.mark.parametrize("where", ["fleet", "cluster", "beside another fault"])
def test_what_yields_says_of_a_class_that_nobody_has_is_refused(
    tmp_path: Path, where: str, policy: str, classes: str, refused: str
) -> None:
    of_fleet, of_cluster = (policy, "{}") if where != "cluster" else ("{}", policy)
    another = "\n  - name: other\n    islands: [{name: i, total_gpus: 8, healthy_gpus: 9}]"
    text = f"""\
policy: {of_fleet}
clusters:
  - name: lab
    islands: [{{name: i, total_gpus: 24, healthy_gpus: 24}}]
    policy: {of_cluster}
    slurm:
      classes: write
      yields:
        engine: {{how: cancel}}
    quotas: [{{team: vision, gpus: 16{classes}}}]{another if where == "beside another fault" else ""}
"""
    sentence = f"clusters[0].slurm.yields.engine: no quota of cluster lab has this class; its classes are {refused}"
    if where == "beside another fault":
        said = refusal(tmp_path, text)
        assert (sentence in said) == bool(refused), said
    elif refused:
        assert sentence in refusal(tmp_path, text)
    else:
        assert read_fleet(write(tmp_path, text)).cluster("lab") is not None


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        ("starts: tomorrow, ends: 2026-01-02T00:00:00Z", "starts must be a time such as 2026-01-31T12:00:00Z, not"),
        ("starts: 2026-01-01T00:00:00, ends: 2026-01-02T00:00:00Z", "starts needs a time zone"),
        ("starts: 2026-01-03T00:00:00Z, ends: 2026-01-02T00:00:00Z", "ends: 2026-01-02T00:00:00+00:00 is not after"),
        (
            "starts: 0001-01-01T00:00:00+14:00, ends: 2026-01-02T00:00:00Z",
            "starts must lie between the years 1 and 9999",
        ),
        ("starts: 2026-01-01T00:00:00Z, ends: 9999-12-31T23:00:00-05:00", "ends must lie between the years 1 and 9999"),
        ("starts: 2026-01-01T00:00:00Z, ends: 2026-01-02T00:00:00Z, islands: []", "islands must have at least 1 entry"),
        ('starts: 2026-01-01T00:00:00Z, ends: 2026-01-02T00:00:00Z, reason: "a\\0b"', "reason must not contain a NUL"),
    ],
)
def test_a_bad_window_is_refused(tmp_path: Path, window: str, sentence: str) -> None:
    reason = "" if "reason" in window else "reason: r, "
    content = f"{GOOD}  windows: [{{kind: sev, {reason}{window}}}]\n"
    assert f"line 11: clusters[1].windows[0].{sentence}" in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        ("", "f.yaml", "f.yaml is empty: a fleet file needs at least the field clusters"),
        ("# nothing\n", "f.yaml", "f.yaml is empty"),
        ("  \n", "f.json", "f.json is empty"),
        ("- a\n", "f.yaml", "f.yaml must be a mapping with the field clusters, not ['a']"),
        ("[1]", "f.json", "f.json must be a mapping with the field clusters, not [1]"),
        ("null", "f.json", "f.json is empty"),
        (b"clusters:\n- \xff\xfe", "f.yaml", "f.yaml, line 2: not UTF-8 text (byte 0xff)"),
        ("clusters: [\n", "f.yaml", "f.yaml, line 2: not valid YAML: while parsing a flow"),
        ("a: 1\n\tb: 2\n", "f.yaml", "f.yaml, line 2: not valid YAML: "),
        ("a: \x00", "f.yaml", "f.yaml: not valid YAML: "),
        ("a: 1\n--- \nb: 2\n", "f.yaml", "f.yaml, line 2: a second document begins here; a file may have only one"),
        (
            "a: !!python/object:os.system {}",
            "f.yaml",
            "line 1: the tag tag:yaml.org,2002:python/object:os.system is not",
        ),
        ("a: !!int '5'", "f.yaml", "line 1: the tag tag:yaml.org,2002:int is not supported"),
        ("? [a]\n: 1", "f.yaml", "line 1: a field's name must be plain text"),
        ("a: *b", "f.yaml", "line 1: *b refers to an anchor that is not defined before it"),
        ("a: &a [*a]", "f.yaml", "line 1: *a refers to an anchor that is not defined before it"),
        ("a: {<<: 5}", "f.yaml", "line 1: << takes a mapping or a list of mappings"),
        ("a: " + "[" * 200, "f.yaml", "line 1: nested more than 100 levels deep"),
        ('{"clusters": [\n{"name" "c"}]}', "f.json", "f.json, line 2: not valid JSON: Expecting ':' delimiter"),
        (
            '{\n\t"a": 1,\n\t"b": {\n\t\t"gpus": 1,\n\t\t"gpus": 2}}',
            "f.json",
            "f.json, line 5: gpus is given twice in one mapping",
        ),
        ('{"a": "\\ud83d\\ude00", "b": 1, "b": 2}', "f.json", "f.json: b is given twice in one object"),  # no YAML
        ("[" * 100_000, "f.json", "f.json: not valid JSON: nested too deeply"),
    ],
)
def test_what_is_no_fleet_at_all_is_refused(tmp_path: Path, content: str | bytes, name: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, content, name)


def test_a_json_file_is_refused_by_line_too(tmp_path: Path) -> None:
    content = json.dumps(yaml.safe_load(GOOD.replace("gpus: 5}", "gpus: -5}")), indent=1)
    line = next(n for n, text in enumerate(content.splitlines(), 1) if "-5" in text)
    assert refusal(tmp_path, content, "f.json") == (
        f"f.json, line {line}: clusters[0].quotas[0].gpus must be at least 0, not -5"
    )


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("log:\ud800", "must be valid Unicode text, not 'log:\\ud800'"),
        ("log:\0", "must not contain a NUL character: 'log:\\x00'"),
        ("x" * 2001, "must be at most 2000 characters long; it begins 'xxxx"),
    ],
)
def test_an_address_that_no_database_can_hold_is_refused(tmp_path: Path, address: str, sentence: str) -> None:
    content = json.dumps(yaml.safe_load(GOOD) | {"teams": [{"name": "a", "contacts": [address]}]})
    assert f"teams[0].contacts[0] {sentence}" in refusal(tmp_path, content, "f.json")


def test_a_value_as_deep_as_a_document_may_be_is_refused_by_its_field(tmp_path: Path) -> None:
    content = json.dumps(yaml.safe_load(GOOD)).replace('"gpus": 5', f'"gpus": {"[" * 900}{"]" * 900}')
    said = refusal(tmp_path, content, "f.json")
    assert "clusters[0].quotas[0].gpus must be a whole number, not [[[" in said
    assert len(said) < 200


def test_a_key_that_no_text_can_hold_hides_no_other_fault(tmp_path: Path) -> None:
    content = json.dumps(yaml.safe_load(GOOD) | {"\ud800": 1}).replace('"gpus": 5', '"gpus": -5')
    with pytest.raises(BadFile) as refused:
        read_fleet(write(tmp_path, content, "f.json"))
    key, gpus = refused.value.sentences
    assert key.endswith(r"must be valid Unicode text, not '\ud800'")
    assert gpus.endswith("clusters[0].quotas[0].gpus must be at least 0, not -5")


def test_nan_in_json_is_refused(tmp_path: Path) -> None:
    content = json.dumps(yaml.safe_load(GOOD)).replace('"gpus": 5', '"gpus": NaN')
    assert "clusters[0].quotas[0].gpus must be a whole number, not nan" in refusal(tmp_path, content, "f.json")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path, sentence in ((tmp_path, "is a directory, not a file"), (tmp_path / "no", "there is no such file")):
        with pytest.raises(BadInput, match=sentence):
            read_fleet(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_fleet("a\0b")


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "its aliases expand to too much" in refusal(tmp_path, "\n".join(["a0: &a0 [x, x]", *rows]))


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    for new in ("gpus: 5, note: {}", "gpus: {}", "gpus: 5, {}: 1"):
        assert len(refusal(tmp_path, GOOD.replace("gpus: 5}", new.replace("{}", "x" * 900) + "}"))) < 600


# --- settings from the command line ----------------------------------------------------------------


def test_single_settings_lie_over_a_policy() -> None:
    made = read_policy(Policy(), {"buffer": "0.1", "max_tier": "idle", "notice": "1m"}, {})
    assert (made.buffer, made.max_tier, made.notice) == (Fraction(1, 10), Tier.IDLE, timedelta(minutes=1))


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        ({"buffer": "x"}, {"buffer": "--buffer"}, "--buffer must be a number, not 'x'"),
        ({"notice": "x"}, {}, "--policy notice must be a duration"),
        ({"sok": 1}, {}, "--policy sok is not a known field"),
    ],
)
def test_a_bad_setting_is_named_as_it_was_spelt(settings: dict, options: dict, sentence: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(BadInput) as refused:
        read_policy(Policy(), settings, options)
    assert refused.value.message.startswith(sentence)


# --- health ------------------------------------------------------------------------------------------

FLEET = Fleet.model_validate(yaml.safe_load(GOOD))
HEADER = "cluster,island,time,total_gpus,healthy_gpus\n"


def test_rows_become_samples_by_time_and_cluster(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER
        + "c,y,2026-01-01T01:00:00Z,10,7\n"
        + "d,main,2026-01-01T00:00:00Z,4,4\n"
        + "\n"
        + "c,x,2026-01-01T02:00:00+01:00,10,9\n"
        + "d,,2026-01-01T01:00:00Z,4,3\n",
    )
    found = read_health(path, FLEET.clusters)
    assert [(s.cluster, s.at.hour, [(i.name, i.healthy_gpus) for i in s.islands]) for s in found] == [
        ("d", 0, [("main", 4)]),
        ("c", 1, [("x", 9), ("y", 7)]),
        ("d", 1, [("main", 3)]),
    ]


def test_the_island_column_may_be_absent_and_columns_may_change_places(tmp_path: Path) -> None:
    path = write(tmp_path, "time,cluster,healthy_gpus,total_gpus,block_gpus\r\n2026-01-01T00:00:00Z,d,3,4,2\r\n")
    (sample,) = read_health(path, FLEET.clusters)
    assert sample.islands[0].model_dump() == {"name": "main", "total_gpus": 4, "healthy_gpus": 3, "block_gpus": 2}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty: its first line must name the columns cluster, time, total_gpus, healthy_gpus"),
        (HEADER, "has no rows below its header"),
        (
            "cluster,time,total_gpus\n",
            "line 1: column healthy_gpus is missing; the file has the columns cluster, time, total_gpus",
        ),
        ("cluster,time,total_gpus,healthy\n", "line 1: column 'healthy' is unknown"),
        ("cluster,time,time,total_gpus,healthy_gpus\n", "line 1: column time is given twice"),
        (HEADER + "d,main,2026-01-01T00:00:00Z,4\n", "line 2: 4 values for 5 columns"),
        (HEADER + "e,main,2026-01-01T00:00:00Z,4,4\n", "line 2: cluster 'e' is not in the fleet"),
        (HEADER + "d,z,2026-01-01T00:00:00Z,4,4\n", "line 2: island 'z' is not in cluster d, whose islands are main"),
        (
            HEADER + "c,,2026-01-01T00:00:00Z,4,4\n",
            "line 2: island is missing, but cluster c has several: name one of x, y",
        ),
        (HEADER + "d,,2026-01-01T00:00:00,4,4\n", "line 2: time needs a time zone"),
        (
            HEADER + "d,,yesterday,4,4\n",
            "line 2: time must be a date and time such as 2026-01-31T12:00:00Z, not 'yesterday'",
        ),
        (HEADER + "d,,0001-01-01T00:00:00+23:00,4,4\n", "line 2: time must be a date and time such as"),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,\n", "line 2: healthy_gpus is missing"),
        (
            HEADER + "d,,2126-01-01T00:00:00Z,4,4\n",
            "line 2: time is more than a day ahead of now: '2126-01-01T00:00:00Z'",
        ),
        (
            HEADER + "d,,2026-01-01T00:00:00Z,4,-1\n",
            "line 2: healthy_gpus must be a whole number, zero or more, not '-1'",
        ),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,3.5\n", "healthy_gpus must be a whole number, zero or more, not '3.5'"),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,NaN\n", "line 2: healthy_gpus is unknown, so leave the row out: 'NaN'"),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,٣\n", "healthy_gpus must be a whole number, zero or more, not '٣'"),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,03\n", "healthy_gpus must be a whole number, zero or more, not '03'"),
        (HEADER + "d,,2026-01-01T00:00:00Z,9999999999,3\n", "total_gpus must be at most 10000000, not 9999999999"),
        (HEADER + "d,,2026-01-01T00:00:00Z,4,5\n", "line 2: healthy_gpus is 5, above total_gpus 4 (island main)"),
        (
            HEADER + "d,,2026-01-01T00:00:00Z,4,4\nd,main,2026-01-01T01:00:00+01:00,4,3\n",
            "line 3: island 'main' of d at 2026-01-01T01:00:00+01:00 is given twice, first in line 2",
        ),
        (HEADER + '"d,,\n', "not valid CSV"),
        (b"\xff\n", "line 1: not UTF-8 text"),
    ],
)
def test_bad_health_is_refused_by_line_and_value(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_health(write(tmp_path, content, "h.csv"), FLEET.clusters)
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message


def test_a_cluster_larger_than_was_ever_tried_is_refused(tmp_path: Path) -> None:
    quotas = [{"team": f"t{n}", "gpus": 0} for n in range(MOST_QUOTAS + 1)]
    islands = [{"name": "x", "total_gpus": 4, "healthy_gpus": 4}]
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"clusters": [{"name": "c", "islands": islands, "quotas": quotas}]}))
    with pytest.raises(BadInput) as refused:
        read_fleet(str(path))
    said = f"{path}, line 1: clusters[0].quotas must have at most {MOST_QUOTAS} entries, not {MOST_QUOTAS + 1}"
    assert refused.value.message == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["\N{FIRE}" * 150], ""),
        (["\N{FIRE}" * 151], "must be at most 600 bytes long, but its 151 characters take 604 bytes"),
        ([f"team-{number:05}" for number in range(10_000)], ""),
        ([hashlib.sha512(bytes([n % 256, n // 256])).hexdigest() for n in range(2_000)], "shorten the names"),
    ],
    ids=["600 bytes", "604 bytes", "10,000 regular names", "2,000 names that do not compress"],
)
def test_names_are_as_long_as_temporal_and_a_rollouts_state_can_carry(names: list[str], said: str) -> None:
    def spec(name: str, teams: list[str]) -> ClusterSpec:
        island = {"name": name, "total_gpus": 8, "healthy_gpus": 8}
        quotas = [{"team": team, "gpus": 1} for team in teams]
        return ClusterSpec.model_validate({"name": "c", "islands": [island], "quotas": quotas})

    if not said:
        assert len(spec("main", names).quotas) == len(names)
        return
    with pytest.raises(ValidationError, match=said):
        spec("main", names)
    if len(names) == 1:
        for wrong in (lambda: spec(names[0], ["a"]), lambda: LaunchRequest(cluster=names[0], rollout="r", owner="o")):
            with pytest.raises(ValidationError, match=said):
                wrong()


# --- all that is wrong, at once --------------------------------------------------------------------------


def test_all_faults_of_a_file_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    content = (
        GOOD.replace("{team: a, gpus: 5}", "{team: a, gpus: many}")
        .replace("{team: b, gpus: 6}", "{team: b, gpus: 6, idle_gpus: 7}")
        .replace("- name: d\n", "- name: d\n  policy: {nap: 1d}\n")
        + "- name: d\n  islands: [{name: main, total_gpus: 4, healthy_gpus: 5}]\nteams: [{name: t}, {name: t}]\n"
    )
    path = write(tmp_path, content)
    with pytest.raises(BadFile) as refused:
        read_fleet(path)
    assert [sentence.removeprefix(f"{path}, ") for sentence in refused.value.sentences] == [
        "line 7: clusters[0].quotas[0].gpus must be a whole number, not 'many'",
        "line 8: clusters[0].quotas[1].idle_gpus is 7, above scheduled_gpus 6 (team b)",
        "line 10: clusters[1].policy.nap is not a known field (its value is '1d')",
        "line 13: clusters[2].islands[0].healthy_gpus is 5, above total_gpus 4 (island main)",
        "line 12: clusters[2].name: cluster 'd' is given twice",
        "line 14: teams[1].name: team 't' is given twice",
    ]
    assert refused.value.message == f"{refused.value.sentences[0]} (and 5 more problems)"


def test_of_very_many_faults_the_first_twenty_are_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    teams = "".join(f"- {{name: t{n}, mail: x}}\n" for n in range(50))
    with pytest.raises(BadFile) as refused:
        read_fleet(write(tmp_path, f"{GOOD}teams:\n{teams}"))
    assert (len(refused.value.sentences), refused.value.sentences[-1]) == (21, "and 30 more problems")


def test_policies_of_several_clusters_are_told_together(tmp_path: Path) -> None:
    content = GOOD.replace("- name: c\n", "- name: c\n  policy: {buffer: 2}\n").replace(
        "- name: d\n", "- name: d\n  policy: {acks: some}\n"
    )
    with pytest.raises(BadFile) as refused:
        read_fleet(write(tmp_path, content))
    assert [s.split(": ")[1].split(" ")[0] for s in refused.value.sentences] == [
        "clusters[0].policy.buffer",
        "clusters[1].policy.acks",
    ]
