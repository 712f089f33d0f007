"""As whom Postgres runs. It refuses to run as root, so root has to look like somebody else to it."""

import ctypes
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fleet.errors import FleetError

CLONE_NEWUSER = 0x10000000
STAND_INS = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """What a child does just before it becomes a Postgres program, and who must own its files (None: who does now)."""

    before_exec: Callable[[], None] | None = None
    owner: tuple[int, int] | None = None


def account_for(data_dir: Path) -> Account:
    """An ordinary user runs Postgres as itself; root as the folder's owner, in a user namespace, or as a stand-in."""
    if os.geteuid() != 0:
        return Account()
    found = data_dir.stat()
    if found.st_uid != 0:
        return _become(found.st_uid, found.st_gid)
    if _namespaces_allowed():
        return Account(before_exec=_enter_user_namespace)
    for name in STAND_INS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _become(entry.pw_uid, entry.pw_gid)
    raise FleetError("Postgres does not run as root and there is no user postgres or nobody here; run as another user.")


def hand_over(folder: Path, account: Account) -> None:
    """Give the folder and all in it to the account's owner."""
    if account.owner is None:
        return
    uid, gid = account.owner
    os.chown(folder, uid, gid)
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(os.path.join(parent, name), uid, gid, follow_symlinks=False)


def _become(uid: int, gid: int) -> Account:
    def before_exec() -> None:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)

    return Account(before_exec=before_exec, owner=(uid, gid))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _enter_user_namespace() -> None:
    # In a namespace without a mapping the process is nobody to itself, and still root's equal to the files it owns.
    if _libc().unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare was refused")


def _namespaces_allowed() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    _libc()  # loaded before the fork: a child between fork and exec should do as little as possible
    try:
        subprocess.run(["/bin/sh", "-c", ":"], preexec_fn=_enter_user_namespace, check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
