"""Slack's incoming webhooks, of its two clouds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

from activities.adapters.http import Asked, exchange
from activities.adapters.notify.route_types import ContactUrl, Message, Route, digits
from activities.notices.buttons import blocks_of, slack_text
from models.errors import Refusal, Unavailable

DOORS = {"hook": "https://hooks.slack.com/services", "gov-hook": "https://hooks.slack-gov.com/services"}
_HOSTS = {"hooks.slack.com": "hook", "hooks.slack-gov.com": "gov-hook"}
_CHANNEL = re.compile(r"[+#@]?[A-Za-z0-9_-]{1,32}")
"""A channel's name, a user (@) or an id (+)."""
_COLOURS = {"info": "#3AA3E3", "success": "#3AA337", "warning": "#CACF29", "failure": "#A32037"}


def is_slack(url: ContactUrl) -> bool:
    return url.host.lower() in _HOSTS


def native_slack_routes(url: ContactUrl) -> tuple[Route, ...]:
    """Parse the URL as Slack shows it: https://hooks.slack.com/services/A/B/C."""
    services, *tokens = url.segments() or [""]
    if services != "services" or len(tokens) != 3:
        raise url.malformed_refusal("use the URL of an incoming webhook of Slack")
    return _routes(url, _HOSTS[url.host.lower()], tokens)


def slack_routes(url: ContactUrl) -> tuple[Route, ...]:
    """Parse slack://A/B/C, as apprise writes it; channels behind it are addresses of their own."""
    return _routes(url, "", [url.host, *url.segments()])


def _routes(url: ContactUrl, cloud: str, segments: Sequence[str]) -> tuple[Route, ...]:
    settings = url.settings("mode", "to", "template", "image", "footer", "timestamp")
    if settings.plain.get("template"):
        raise Refusal(f"{url.shown} names a template: remove it, because Backstop writes the text of a notice itself")
    cloud = cloud or settings.plain.get("mode", "hook")
    tokens, channels = segments[:3], {*segments[3:], *re.split(r"[\s,#/]+", settings.plain.get("to", ""))} - {""}
    if cloud not in DOORS or not re.fullmatch("[A-Za-z0-9]+(/[A-Za-z0-9]+){2}", "/".join(tokens)):
        raise url.malformed_refusal()
    if not all(map(_CHANNEL.fullmatch, channels)):
        raise url.malformed_refusal("it names a channel that is not valid in Slack")
    secret = f"slack://***{digits(*tokens, None, [], cloud)}"

    def route(channel: str) -> Route:
        def send(message: Message) -> None:
            colour = _COLOURS[message.type]
            words = {"title": slack_text(message.subject), "text": slack_text(message.body), "color": colour}
            # Blocks cannot stand beside a title and a text: so the buttons are an attachment of their own.
            buttons = {"color": colour, "blocks": blocks_of(message.rows)}
            where = {"username": url.user, "channel": _channel_name(channel)}
            content = {
                "mrkdwn": False,
                "attachments": [words, *([buttons] if message.rows else [])],
                **{key: value for key, value in where.items() if value},
            }
            door = httpx.URL("/".join((DOORS[cloud], *tokens)))
            answer = exchange(Asked("POST", door, content, verify=settings.verify), url.reach)
            if answer.status != 200 or answer.text != "ok":  # Slack may say no with a 200
                raise Unavailable(f"answered HTTP {answer.status}")

        return Route("slack", f"{secret}/{channel}" if channel else secret, send)

    return tuple(route(channel) for channel in sorted(channels) or [""])


def _channel_name(channel: str) -> str:
    """Return the channel as Slack wants it: an id bare, a name with its #."""
    return channel[1:] if channel.startswith("+") else channel if channel[:1] in ("", "#", "@") else f"#{channel}"
