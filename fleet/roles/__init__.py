"""The processes of a fleet: one file and one class per role, all run by loop.py."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.roles.role import Role

CLASSES = {
    "tick-generator": ("fleet.roles.generator", "Generator"),
    "ticker": ("fleet.roles.ticker", "Ticker"),
    "dispatcher": ("fleet.roles.dispatcher", "Dispatcher"),
    "reconciler": ("fleet.roles.reconciler", "Reconciler"),
    "cleanup": ("fleet.roles.cleanup", "Cleanup"),
}
ROLES = tuple(CLASSES)


def load_role(name: str) -> "type[Role]":
    """The class of a role, imported when asked for: each needs other things."""
    module, attribute = CLASSES[name]
    role: type[Role] = getattr(importlib.import_module(module), attribute)
    return role
