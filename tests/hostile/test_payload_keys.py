"""Files of payload keys of all kinds: one sentence each, with no piece of a key; nothing is sent in clear instead."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from client.payload_keys import configured_ring
from models.errors import BadInput
from tests.encrypted import keys_of
from tests.hostile import Rubbish, table, threw
from tests.waiting import PATIENCE

KEY = keys_of().keys[0]
GOOD: dict[str, Any] = json.loads(keys_of().model_dump_json())


def with_key(**fields: Any) -> str:
    return json.dumps({**GOOD, "keys": [{**GOOD["keys"][0], **fields}]})


FILES = [
    Rubbish("nothing", ""),
    Rubbish("no JSON", "{"),
    Rubbish("a key alone", KEY.key),
    Rubbish("a list", "[]"),
    Rubbish("no keys", json.dumps({**GOOD, "keys": []})),
    Rubbish("no date", json.dumps({"keys": GOOD["keys"]})),
    Rubbish("a date without a zone", json.dumps({**GOOD, "since": "2026-01-01"})),
    Rubbish("an unknown field", json.dumps({**GOOD, "more": 1})),
    Rubbish("a short key", with_key(key=KEY.key[:20])),
    Rubbish("a long key", with_key(key=KEY.key + KEY.key)),
    Rubbish("a key that is no Base64", with_key(key="*" * 44)),
    Rubbish("a key that is a number", with_key(key=7)),
    Rubbish("an id with a newline", with_key(key_id="a\nb")),
    Rubbish("one id twice", json.dumps({**GOOD, "keys": GOOD["keys"] * 2})),
    Rubbish("deep", "[" * 100_000),
    Rubbish("large", "x" * 1_000_001),
]


@table(FILES)
def test_a_file_that_is_none_is_one_sentence(rubbish: Rubbish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "payload.json"
    path.write_text(rubbish.value)
    path.chmod(0o600)
    monkeypatch.setenv("BACKSTOP_PAYLOAD_KEYS", str(path))
    with pytest.raises(BadInput) as refused:
        configured_ring()
    said = refused.value.message
    assert said.startswith(str(path))
    assert KEY.key[:10] not in said
    assert len(said) < 600
    threw("files of payload keys")


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "loop"])
def test_what_is_no_file_is_one_sentence(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "payload.json"
    monkeypatch.setenv("BACKSTOP_PAYLOAD_KEYS", str(path))
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path.name)
    with pytest.raises(BadInput, match=str(path)):
        configured_ring()
    threw("files of payload keys")
