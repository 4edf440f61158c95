"""Managers of fields, and server-side apply, as far as a ClusterQueue needs it. Pure.

Kubernetes merges by the schema: the fields of `spec` that are atomic lists are one field each, and so is each
annotation and label. Written after https://kubernetes.io/docs/reference/using-api/server-side-apply/.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]
_MAPS: tuple[Path, ...] = (("metadata", "annotations"), ("metadata", "labels"), ("spec",))
"""Maps whose entries are fields of their own."""


class Conflicts(Exception):
    def __init__(self, of: Mapping[str, list[Path]]) -> None:
        self.of = of


def fields(raw: Mapping[str, Any]) -> dict[Path, Any]:
    leaves = dict[Path, Any]()
    for path in _MAPS:
        at: Any = raw
        for key in path:
            at = (at or {}).get(key)
        leaves |= {(*path, key): value for key, value in (at or {}).items()}
    return leaves


def put(raw: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        raw = raw.setdefault(key, {})
    raw[path[-1]] = copy.deepcopy(value)


def drop(raw: dict[str, Any], path: Path) -> None:
    for key in path[:-1]:
        raw = raw.get(key) or {}
    raw.pop(path[-1], None)


def _tree(paths: set[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        at = tree
        for key in path:
            at = at.setdefault(f"f:{key}", {})
    return tree


def _paths(tree: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for key, below in tree.items():
        path = (*above, key.removeprefix("f:"))
        if not below or path[:-1] in _MAPS:
            yield path
        else:
            yield from _paths(below, path)


def owned(raw: Mapping[str, Any]) -> dict[tuple[str, str], set[Path]]:
    entries = raw.get("metadata", {}).get("managedFields") or []
    return {(one["manager"], one["operation"]): set(_paths(one.get("fieldsV1") or {})) for one in entries}


def own(raw: dict[str, Any], old: Mapping[str, Any], owners: Mapping[tuple[str, str], set[Path]], now: str) -> None:
    """Write the managers; one whose fields are as before keeps its time."""
    times = {(one["manager"], one["operation"]): one for one in old.get("metadata", {}).get("managedFields") or []}
    entries = []
    for (manager, operation), paths in owners.items():
        tree, before = _tree(paths), times.get((manager, operation))
        kept = before is not None and before["fieldsV1"] == tree
        if paths:
            entry = {"manager": manager, "operation": operation, "apiVersion": raw["apiVersion"], "time": now}
            entries.append(before if kept else {**entry, "fieldsType": "FieldsV1", "fieldsV1": tree})
    raw["metadata"]["managedFields"] = entries


def updated(old: Mapping[str, Any], new: dict[str, Any], manager: str, now: str) -> dict[str, Any]:
    """The object after a PUT, or a patch other than apply, to `new`: who changes a field has it alone.

    A PUT may change who manages what, too: by hand, as people do to hand a field over.
    """
    owners = owned(new if "managedFields" in new.get("metadata", {}) else old)
    before, after = fields(old), fields(new)
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    for paths in owners.values():
        paths -= changed
    owners.setdefault((manager, "Update"), set()).update(changed & after.keys())
    own(new, old, owners, now)
    return new


def applied(
    old: Mapping[str, Any], config: Mapping[str, Any], manager: str, now: str, *, force: bool
) -> dict[str, Any]:
    """The object after a server-side apply of `config`. Errors: Conflicts."""
    owners, new = owned(old), copy.deepcopy(dict(old))
    before, wanted = fields(old), fields(config)
    mine = owners.pop((manager, "Apply"), set())
    changed = {path for path, value in wanted.items() if before.get(path) != value}
    clashes = {who: sorted(paths & changed) for (who, _), paths in owners.items() if paths & changed}
    if clashes and not force:
        raise Conflicts(clashes)
    for paths in owners.values():
        paths -= changed
    for path, value in wanted.items():
        put(new, path, value)
    for path in mine - wanted.keys() - set[Path]().union(*owners.values()):
        drop(new, path)
    own(new, old, {**owners, (manager, "Apply"): set(wanted)}, now)
    return new


def conflict_status(conflicts: Conflicts, api: str) -> dict[str, Any]:
    """The Status with which a server refuses an apply."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}" using {api}',
            "field": f".{'.'.join(path)}",
        }
        for manager, paths in conflicts.of.items()
        for path in paths
    ]
    many = "1 conflict" if len(causes) == 1 else f"{len(causes)} conflicts"
    texts = "\n".join(f"{one['message']}: {one['field']}" for one in causes)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Conflict",
        "code": 409,
        "message": f"Apply failed with {many}: {texts}",
        "details": {"causes": causes},
    }


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def json_patched(old: Any, operations: list[dict[str, Any]]) -> Any:
    """A JSON patch (RFC 6902), of `replace`, `add`, `remove` and `test`. Errors: ValueError for a failed test."""
    new = json.loads(json.dumps(old))
    for one in operations:
        *above, last = (token.replace("~1", "/").replace("~0", "~") for token in one["path"].split("/")[1:])
        at: Any = new
        for token in above:
            at = at[int(token)] if isinstance(at, list) else at[token]
        key: Any = int(last) if isinstance(at, list) else last
        if one["op"] == "test":
            if at[key] != one["value"]:
                raise ValueError("the server rejected our request due to an error in our request")
        elif one["op"] == "remove":
            del at[key]
        else:
            at[key] = one["value"]
    return new
