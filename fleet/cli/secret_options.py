"""The options that hold secrets. What they say is sealed before it is stored, and never shown again."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from fleet.cli.target_options import NONE, Given, read_headers
from fleet.delivery.signing import check_secret, new_secret
from fleet.domain.target import validate_http
from fleet.errors import UsageError
from fleet.secrets import SecretBox

NEW = "new"

SECRETS = (
    click.option(
        "--secret", metavar="WHSEC|@FILE|new", help="Sign requests; the secret before stays valid; none stops signing."
    ),
    click.option("--retire-secret", is_flag=True, help="Sign with the newest secret only."),
    click.option(
        "--secret-header", "secret_headers", multiple=True, metavar="'K: V'", help="A header whose value is a secret."
    ),
)


class Sealed(NamedTuple):
    parts: dict[str, Any]
    """What the stored target gets."""
    shown_once: str | None
    """A secret that was made here: nobody can see it later."""


def changes_secrets(given: Given) -> bool:
    return any(given.get(option) for option in ("secret", "retire_secret", "secret_headers"))


def read_secrets(given: Given, had: Mapping[str, Any], box: SecretBox) -> Sealed:
    """Seal what was given; what was not stays as it was. A new secret signs beside the one before: receivers change
    over in their own time."""
    secrets, shown_once = list(had.get("secrets", [])), None
    if given.get("secret") == NONE:
        secrets = []
    elif given.get("secret"):
        text = shown_once = new_secret() if given["secret"] == NEW else None
        text = text or _read(given["secret"])
        check_secret(text)
        secrets = [box.seal(text), *secrets[:1]]
    if given.get("retire_secret"):
        secrets = secrets[:1]
    headers = dict(had.get("secret_headers", {}))
    if given.get("secret_headers"):
        plain = read_headers(given["secret_headers"])
        validate_http("http://host", "POST", plain)
        headers = {name: box.seal(value) for name, value in plain.items()}
    parts: dict[str, Any] = {"secrets": secrets} if secrets else {}
    return Sealed(parts | ({"secret_headers": headers} if headers else {}), shown_once)


def _read(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        with click.open_file(text[1:], encoding="utf-8") as stream:
            content: str = stream.read()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--secret {text} cannot be read; check the file's name") from None
    return content.strip()
