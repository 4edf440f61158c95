"""A contact becomes addresses, or says why not: without a token, without a password."""

from __future__ import annotations

import re

import pytest

from activities.adapters.notify.contact_routes import check_mail_server, routes
from models.errors import Refusal

PASSWORD, TOKEN = "pAsSwOrD77", "ToKeN4slackWebHook"
SERVER = "mailto://mail.example?from=backstop@ops.example"


@pytest.mark.parametrize(
    ("contact", "addresses"),
    [
        ("someone@team.example", ["email someone@team.example"]),
        (" some.one+gpu@TEAM.example ", ["email some.one+gpu@team.example"]),
        ("mailto:someone@team.example", ["email someone@team.example"]),
        ("mailto://someone@team.example", ["email someone@team.example"]),
        (
            f"mailtos://robot:{PASSWORD}@mail.example:587/a@team.example/b@team.example?from=x@ops.example",
            ["email a@team.example", "email b@team.example"],
        ),
        (f"slack://T1AAA/B1BBB/{TOKEN}", ["slack slack://***"]),
        (f"https://hooks.slack.com/services/T1AAA/B1BBB/{TOKEN}", ["slack slack://***"]),
        (f"json://robot:{PASSWORD}@host.example/{TOKEN}", ["webhook http://host.example/***"]),
        (f"jsons://host.example:8443/{TOKEN}?-sig={TOKEN}", ["webhook https://host.example:8443/***"]),
        (f"https://host.example/{TOKEN}?sig={TOKEN}", ["webhook https://host.example/***"]),
        (f"webhook+https://host.example/{TOKEN}", ["webhook https://host.example/***"]),
        (f"webhook+http://[::1]:8080/{TOKEN}", ["webhook http://[::1]:8080/***"]),
    ],
)
def test_an_address_is_shown_without_its_secrets(contact: str, addresses: list[str]) -> None:
    taken = routes(contact, SERVER)
    shown = [f"{route.channel} {re.sub('[0-9a-f]{8}$', '', route.address)}" for route in taken]
    assert shown == addresses
    assert PASSWORD not in repr(taken)
    assert TOKEN not in repr(taken)


def test_secret_addresses_are_told_apart_and_a_new_password_changes_none() -> None:
    one, other, renewed = (
        routes(f"https://robot:{password}@host.example/{path}", None)[0].address
        for password, path in (("old", "x"), ("old", "y"), ("new", "x"))
    )
    assert one != other
    assert one == renewed


@pytest.mark.parametrize(
    ("contact", "address"),
    [
        ("slack://T1AAA/B1BBB/ToKeN4slackWebHook/%23one", "slack://***9c4741fd/#one"),
        ("https://hooks.slack.com/services/T1AAA/B1BBB/ToKeN/", "slack://***b614c228"),
        ("https://hooks.slack-gov.com/services/T1AAA/B1BBB/ToKeN", "slack://***9c5bd5cc"),
        ("slack://T1AAA/B1BBB/ToKeN4slackWebHook?mode=gov-hook", "slack://***579692d1"),
        ("jsons://host.example/a%2Fb/c~d?-x=1&:extra=2&verify=no", "https://host.example/***ceb67cac"),
        ("https://host.example/?x=1&x=2&y=", "https://host.example/***fdbb9b95"),
        ("https://user:pw@Host.example:443/a%2Fb", "https://host.example:443/***6a632b4d"),
    ],
)
def test_a_secret_address_keeps_its_digits(contact: str, address: str) -> None:
    """Delivery books have them: where they change, what was told is told again."""
    assert [route.address for route in routes(contact, None)] == [address]


def test_one_receiver_spelled_twice_is_one_address() -> None:
    native, short = f"https://hooks.slack.com/services/T1AAA/B1BBB/{TOKEN}", f"slack://T1AAA/B1BBB/{TOKEN}"
    assert routes(native, None) == routes(short, None)
    assert routes("https://host.example/x", None) == routes("jsons://host.example/x", None)


def test_slack_channels_of_one_url_are_addresses_of_their_own() -> None:
    taken = routes(f"slack://T1AAA/B1BBB/{TOKEN}/%23one/%23two", None)
    assert [route.address.rpartition("/")[2] for route in taken] == ["#one", "#two"]


@pytest.mark.parametrize(
    ("contact", "why"),
    [
        ("", "not of a kind that Backstop supports"),
        ("team-a", "not of a kind that Backstop supports"),
        ("gopher://host/x", "not of a kind that Backstop supports"),
        ("http://host/x", "webhook+http://"),
        ("https://host:99999/x", "host and port"),
        ("https:///x", "host and port"),
        ("https://host/a b", "%-encoding"),
        ("https://host/a\nb", "%-encoding"),
        ("mailto://mail.example/nobody?from=a@b.example", "malformed"),
        ("mailto://mail.example/x@b.example?from=a@b.example&cc=c@b.example", "cc or bcc"),
        ("mailto://mail.example/a@b.example/nobody?from=a@b.example", "malformed"),
        ("mailto:notanaddress", "malformed"),
        ("slack://T1/B1/C1?template=/etc/passwd", "template"),
        ("slack://T1/B1/C1/not%20a%20channel", "channel"),
        (f"slack://xoxb-1-{TOKEN}/%23one", "malformed"),
        (f"https://hooks.slack.com/workflows/T1/F1/1/{TOKEN}", "incoming webhook of Slack"),
        ("jsons://host/x?method=PUT", "POST"),
        ("jsons://host/x?+X=a%0AHost:%20other", "sets a header"),
        ("mailto://mail.example/x@b.example?from=a@b.example&+Bcc=c@b.example", "sets a header"),
        ("mailtos://mail.example/a@b.example?from=a@b.example&pgp=encrypt", "does not support"),
        ("mailtos://mail.example/a@b.example?from=a@b.example&mode=tls", "malformed"),
        ("someone@team.example", "mail server"),
    ],
)
def test_a_contact_that_cannot_be_used_says_why(contact: str, why: str) -> None:
    with pytest.raises(Refusal) as refusal:
        routes(contact, None)
    assert why in refusal.value.message


@pytest.mark.parametrize(
    "url",
    [
        "smtp://mail.example",
        "mailto://",
        f"mailto://x:{PASSWORD}@h:nope",
        "mailto://h?cc=a@b.example&from=x@y.example",
    ],
)
def test_a_mail_server_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(Refusal, match="mail server") as refusal:
        check_mail_server(url)
    assert PASSWORD not in refusal.value.message
