"""Writes a fleet document as YAML that plain_yaml reads back unchanged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import yaml

from client.inputs import plain_yaml

EXAMPLE = """\
# A fleet file: docs/fleet-file.md has all its fields.
policy: {buffer: 0.15}
clusters:
  - name: h100-worked
    gpu_model: H100
    islands:
      - {name: main, total_gpus: 361, healthy_gpus: 319}
    quotas:
      - {team: research, gpus: 345, scheduled_gpus: 310}
teams:
  - {name: research, contacts: [research-leads@example.org]}
"""


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes ambiguous texts, writes no aliases, and puts a leaf of the tree into one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # A line break of any kind (U+0085 is one) would be read as a blank outside quotation marks.
    plain = value.isprintable() and plain_yaml.is_plain_text(value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=_is_flat(value.values()))


def _is_flat(values: Collection[Any]) -> bool:
    """Return whether these go into one line: values, and lists of values."""
    return not any(isinstance(v, dict) or (isinstance(v, list) and any(map(_is_nested, v))) for v in values)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=not any(map(_is_nested, value)))


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)
_Dumper.add_representer(list, _list)


def fleet_yaml(document: dict[str, Any]) -> str:
    """Return the document, made of texts, numbers, booleans, None, lists and mappings, as YAML in its order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
