"""Rubbish thrown at every command, on a turned clock. tests/hostile/test_commands.py does so on a real server."""

from __future__ import annotations

import pytest

from tests.e2e.world import PATIENCE, World
from tests.hostile.test_commands import harms_nobody


@pytest.mark.fuzzed
async def test_no_rubbish_in_a_command_harms_what_stands_beside(world: World) -> None:
    await harms_nobody(world, PATIENCE)
