"""All pages, by the first word of their paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from web.console.pages.access import access
from web.console.pages.audit import audit
from web.console.pages.calendar import calendar
from web.console.pages.cluster import cluster
from web.console.pages.fleet import fleet
from web.console.pages.fleet_rollout import fleet_rollout
from web.console.pages.flex import flex
from web.console.pages.launch import launch
from web.console.pages.leader import leader
from web.console.pages.requests import requests
from web.console.pages.teams import teams
from web.console.visit import Download, Elsewhere, Page, Visit

MakePage = Callable[[Visit], Awaitable[Page | Elsewhere | Download]]
PAGES: Mapping[str, MakePage] = {
    "fleet": fleet,
    "clusters": cluster,
    "rollout": fleet_rollout,
    "launch": launch,
    "teams": teams,
    "flex": flex,
    "requests": requests,
    "calendar": calendar,
    "audit": audit,
    "access": access,
    "leader": leader,
}
NAVIGATION = [
    ("/", "Fleet"),
    ("/teams", "Teams"),
    ("/flex", "Flex"),
    ("/requests", "Requests"),
    ("/calendar", "Calendar"),
    ("/audit", "Audit"),
    ("/access", "Access"),
    ("/leader", "Leader"),
]
"""The links at the top of every page, each with its label."""
