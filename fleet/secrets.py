"""Secrets at rest: sealed with a key that the database never sees.

Promise  A dump of the database holds no secret in the clear, and no message or repr made here repeats one.
Rotation SECRET_KEY=new,old: the first key seals, every key opens. Once nothing sealed by `old` is left, drop it.
"""

import hmac
import os
import tempfile
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from fleet.errors import FleetError, UsageError
from fleet.settings import Settings

PREFIX = "sealed:v1:"
KEY_FILE = "secret.key"
MAKE_A_KEY = "python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'"


class Secret:
    """A secret on its way through memory; only `reveal()` shows it, so that no log or traceback can by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)


class SecretBox:
    """Seals and opens with the keys of SECRET_KEY: Fernet keys separated by commas, the newest first."""

    def __init__(self, keys: str | None) -> None:
        texts = [key.strip() for key in (keys or "").split(",") if key.strip()]
        self._keys = [_fernet(text, number, len(texts)) for number, text in enumerate(texts, 1)]

    @staticmethod
    def generate_key() -> str:
        return Fernet.generate_key().decode()

    def seal(self, text: str) -> str:
        return PREFIX + self._newest().encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str:
        token = _token(sealed)
        if not self._keys:
            raise FleetError("A stored secret cannot be opened without a key; set SECRET_KEY.")
        try:
            return MultiFernet(self._keys).decrypt(token).decode()
        except InvalidToken:
            raise FleetError(
                "A stored secret cannot be opened with any key of SECRET_KEY; add the key it was sealed with."
            ) from None

    def is_current(self, sealed: str) -> bool:
        """Whether the newest key sealed it; when not, seal it anew before the older keys are dropped."""
        try:
            self._newest().decrypt(_token(sealed))
        except InvalidToken:
            return False
        return True

    def _newest(self) -> Fernet:
        if not self._keys:
            raise UsageError(f"Secrets need a key to be stored with: set SECRET_KEY to the output of {MAKE_A_KEY}.")
        return self._keys[0]


def key_for(data_dir: Path) -> str:
    """The key kept beside the embedded Postgres, made at first use: a laptop needs no setting."""
    path = data_dir / KEY_FILE
    try:
        if not path.exists():
            _write_once(path, SecretBox.generate_key())
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"The key file {path} cannot be used ({error}); make its folder writable.") from error
    try:
        _fernet(text, 1, 1)
    except UsageError:
        raise FleetError(f"The key file {path} holds no key; restore it from a backup, or set SECRET_KEY.") from None
    return text


def _write_once(path: Path, text: str) -> None:
    # Several processes may start at once. The link is made only when no other has been made, and the file is whole
    # by then, so that all of them read the same key. mkstemp gives it mode 0600.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{KEY_FILE}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())  # a secret sealed with a key that a power cut takes away is lost
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def _token(sealed: str) -> bytes:
    if not sealed.startswith(PREFIX):
        raise FleetError("A stored secret is not sealed, and is not used; set it anew.")
    return sealed.removeprefix(PREFIX).encode()


def _fernet(text: str, number: int, count: int) -> Fernet:
    try:
        return Fernet(text)
    except ValueError:
        raise UsageError(
            f"Key {number} of {count} in SECRET_KEY is not 32 bytes in URL-safe base64; make one with {MAKE_A_KEY}."
        ) from None


def secret_box(settings: Settings) -> SecretBox:
    """The box of this fleet: by SECRET_KEY, or by the key beside the embedded Postgres."""
    if settings.secret_key is None and settings.database_url is None:
        return SecretBox(key_for(settings.data_dir))
    return SecretBox(settings.secret_key)
