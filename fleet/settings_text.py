"""The two files that are made from the list of settings: config/fleet.toml and docs/reference/settings.md.

Tests compare the files with these functions. To write the files anew: python -m fleet.settings_text
"""

import json
from datetime import timedelta
from pathlib import Path

from fleet.settings import Settings, default_of, env_name, meaning_of, shown

TOML_HEAD = """\
# Fleet's settings. Every line shows a default: take away the # and change the value.
# A flag wins over the environment (same names in upper case), which wins over this file.
"""

DOCS_HEAD = """\
# Settings

A flag wins over the environment, the environment over the TOML file, the file over the default. The file is the one
`--config` or `FLEET_CONFIG` names, else `config/fleet.toml` or `fleet.toml` in the current folder; the names in it are
the same in lower case, without `FLEET_`. An empty environment variable counts as unset. `DATABASE_URL_FILE` names a
file that holds the address, for secrets mounted as files; `DATABASE_URL` wins over it.

Durations are whole numbers with a unit: `100ms`, `30s`, `5m`, `6h`, `1d`, `1h30m`. Every mistake is reported at once
before anything starts, and a name that is not a setting is a mistake: any in the file, those that begin with `FLEET_`
in the environment. `fleetctl config check` only checks; `fleetctl config show --origin` tells where values came from.

| name | default | meaning |
|---|---|---|
"""


EXAMPLES = {
    "database_url": '"postgresql://user:password@host:5432/name"',
    "secret_key": '"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="',
    "port": "5000",
}


def toml_text() -> str:
    """config/fleet.toml: every default, commented out, with its meaning above it."""
    return TOML_HEAD + "".join(
        f"\n# {meaning_of(name)}\n# {name} = {_literal(name)}\n" for name in Settings.model_fields
    )


def docs_text() -> str:
    """docs/reference/settings.md: name, default, meaning."""
    rows = []
    for name in Settings.model_fields:
        default = shown(name, default_of(name))
        rows.append(f"| `{env_name(name)}` | {f'`{default}`' if default else 'unset'} | {meaning_of(name)} |\n")
    return DOCS_HEAD + "".join(rows)


def _literal(name: str) -> str:
    """A default as TOML; one that is unset is shown as an example of the right kind."""
    default = default_of(name)
    if default is None:
        return EXAMPLES[name]
    if isinstance(default, (timedelta, Path)):
        return json.dumps(shown(name, default))
    return json.dumps(default)


if __name__ == "__main__":
    Path("config/fleet.toml").write_text(toml_text(), encoding="utf-8")
    Path("docs/reference/settings.md").write_text(docs_text(), encoding="utf-8")
