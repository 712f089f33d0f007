"""Secrets at rest: sealed, opened, rotated, and repeated nowhere."""

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from fleet.errors import FleetError, UsageError
from fleet.secrets import MAKE_A_KEY, PREFIX, Secret, SecretBox, key_for

CANARY = "canary-7f3a-äöü"


def test_what_was_sealed_opens_again_and_does_not_show_the_secret() -> None:
    box = SecretBox(SecretBox.generate_key())
    sealed = box.seal(CANARY)
    assert sealed.startswith(PREFIX)
    assert CANARY not in sealed
    assert box.open(sealed) == CANARY


def test_the_same_secret_never_looks_the_same_twice() -> None:
    box = SecretBox(SecretBox.generate_key())
    assert box.seal(CANARY) != box.seal(CANARY)


def test_keys_rotate_without_a_moment_in_which_nothing_opens() -> None:
    old, new = SecretBox.generate_key(), SecretBox.generate_key()
    sealed = SecretBox(old).seal(CANARY)
    # Step one, everywhere: the new key opens, the old one still seals. Step two: the order is turned round.
    between, turned = SecretBox(f"{old},{new}"), SecretBox(f" {new} , {old},")
    assert between.open(turned.seal(CANARY)) == CANARY
    assert turned.open(sealed) == CANARY
    assert between.is_current(sealed)
    assert not turned.is_current(sealed)
    resealed = turned.seal(turned.open(sealed))
    assert turned.is_current(resealed)
    assert SecretBox(new).open(resealed) == CANARY


@pytest.mark.parametrize("keys", [None, "", " , "])
def test_without_a_key_the_sentence_says_how_to_make_one(keys: str | None) -> None:
    box = SecretBox(keys)
    sealed = SecretBox(SecretBox.generate_key()).seal(CANARY)
    with pytest.raises(FleetError, match="set SECRET_KEY"):
        box.open(sealed)
    for use in (lambda: box.seal(CANARY), lambda: box.is_current(sealed)):
        with pytest.raises(UsageError, match="set SECRET_KEY to the output of python3 -c") as caught:
            use()
        assert CANARY not in str(caught.value)


def test_the_command_that_makes_a_key_makes_one() -> None:
    key = subprocess.run(MAKE_A_KEY, shell=True, capture_output=True, text=True, check=True).stdout.strip()
    box = SecretBox(key)
    assert box.open(box.seal(CANARY)) == CANARY


def test_a_foreign_key_opens_nothing_and_the_sentence_repeats_nothing() -> None:
    sealed = SecretBox(SecretBox.generate_key()).seal(CANARY)
    key = SecretBox.generate_key()
    with pytest.raises(FleetError, match="cannot be opened") as caught:
        SecretBox(key).open(sealed)
    assert caught.value.__cause__ is None
    assert key not in str(caught.value)
    assert sealed[-20:] not in str(caught.value)
    assert not SecretBox(key).is_current(sealed)


@pytest.mark.parametrize(
    "damage", [lambda s: s[:-2], lambda s: s[:40] + "A" + s[41:], lambda s: PREFIX, lambda s: PREFIX + "é"]
)
def test_a_damaged_secret_is_refused(damage) -> None:
    box = SecretBox(SecretBox.generate_key())
    with pytest.raises(FleetError, match="cannot be opened"):
        box.open(damage(box.seal(CANARY)))


def test_plain_text_is_never_taken_for_a_sealed_secret() -> None:
    box = SecretBox(SecretBox.generate_key())
    for use in (box.open, box.is_current):
        with pytest.raises(FleetError, match="is not sealed") as caught:
            use(CANARY)
        assert CANARY not in str(caught.value)


def test_a_bad_key_is_named_by_its_place_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="Key 2 of 2 in SECRET_KEY is not 32 bytes") as caught:
        SecretBox(f"{SecretBox.generate_key()},{CANARY}")
    assert CANARY not in str(caught.value)


def test_a_secret_in_memory_shows_itself_only_when_asked() -> None:
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>5}", f"{[secret]}", "%s %r" % (secret, secret)]  # noqa: UP031
    assert not any(CANARY in text for text in shown)
    assert str(secret) == "***"
    assert secret.reveal() == CANARY
    assert secret == Secret(CANARY)
    assert hash(secret) == hash(Secret(CANARY))
    assert secret != Secret("other")
    assert secret != CANARY


def test_a_laptop_gets_a_key_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".fleet"
    before = os.umask(0)
    try:
        key = key_for(folder)
    finally:
        os.umask(before)
    assert key_for(folder) == key
    SecretBox(key)
    assert [path.name for path in folder.iterdir()] == ["secret.key"]
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_processes_that_start_at_once_share_one_key(tmp_path: Path) -> None:
    keys: list[str] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait(10)
        keys.append(key_for(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


@pytest.mark.parametrize("content", [b"", b"hunter2", b"\xff\xff"])
def test_a_damaged_key_file_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    # A new key would make every stored secret unreadable for good.
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    with pytest.raises(FleetError, match="key file") as caught:
        key_for(tmp_path)
    assert path.read_bytes() == content
    assert "hunter2" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match="cannot be used"):
        key_for(tmp_path / "file")
