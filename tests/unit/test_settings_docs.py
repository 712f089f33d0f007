"""What is written down about settings and metrics is what the code does."""

import re
from pathlib import Path

from prometheus_client import REGISTRY

from fleet import metrics
from fleet.config import Settings, load
from fleet.settings_text import docs_text, toml_text

ROOT = Path(__file__).parents[2]


def test_the_shipped_toml_file_shows_every_default() -> None:
    assert (ROOT / "config/fleet.toml").read_text(encoding="utf-8") == toml_text()


def test_the_shipped_toml_file_with_its_lines_taken_in_gives_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(re.sub(r"(?m)^# (\w+ = )", r"\1", toml_text()), encoding="utf-8")
    # Unset by default, so the file can only show an example.
    examples = {"database_url": None, "secret_key": None, "port": None}
    assert load(environ={}, toml=file).model_copy(update=examples) == Settings()


def test_the_settings_table_in_the_docs_is_the_codes() -> None:
    assert (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8") == docs_text()


def test_the_metrics_table_in_the_docs_is_the_codes() -> None:
    assert (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8") == metrics.docs_text()


def test_every_fleet_metric_that_is_served_is_listed() -> None:
    served = {family.name for family in REGISTRY.collect() if family.name.startswith("fleet_")}
    assert served == {family.name for metric in metrics.ALL for family in metric.describe()}
