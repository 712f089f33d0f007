"""Prometheus metrics of one process, served on /metrics. Their names are an API: alerts and dashboards use them.

docs/reference/metrics.md is made from this list; to write it anew: python -m fleet.metrics
"""

from pathlib import Path

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

# A *_created series per counter would double what is scraped, and nothing reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

# From a punctual tick (the ticker looks every 100 ms) to one that missed a whole misfire grace and more.
_LATENESS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
# Attempts last from a millisecond to the longest max_execution_time, 30 minutes.
_DURATION = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

ticks_generated_total = Counter("fleet_ticks_generated_total", "planned times written as ticks")
tick_lateness_seconds = Histogram(
    "fleet_tick_lateness_seconds", "from a tick's execute_at to its execution being emitted", buckets=_LATENESS
)
executions_emitted_total = Counter("fleet_executions_emitted_total", "ticks turned into executions")
deliveries_total = Counter("fleet_deliveries_total", "attempts that ended, by outcome", ["outcome"])
attempt_duration_seconds = Histogram("fleet_attempt_duration_seconds", "how long one attempt took", buckets=_DURATION)
execution_latency_seconds = Histogram(
    "fleet_execution_latency_seconds", "from an execution's execute_at to its delivery", buckets=_LATENESS
)
leases_expired_total = Counter("fleet_leases_expired_total", "executions taken back from workers that lost their lease")
stale_writes_refused_total = Counter(
    "fleet_stale_writes_refused_total", "results refused because the lease had passed to another"
)
gaps_total = Counter("fleet_gaps_total", "planned times deliberately not executed, by reason", ["reason"])
role_errors_total = Counter("fleet_role_errors_total", "steps of a role that failed", ["role"])
role_steps_total = Counter("fleet_role_steps_total", "steps a role has taken, failed ones included", ["role"])
slots_busy = Gauge("fleet_slots_busy", "delivery slots of this dispatcher in use")
slots_total = Gauge("fleet_slots_total", "delivery slots of this dispatcher")
worker_heartbeats_total = Counter("fleet_worker_heartbeats_total", "heartbeats this worker has written")
cleanup_removed_total = Counter("fleet_cleanup_removed_total", "rows removed by cleanup, by table", ["table"])
cleanup_lag_seconds = Gauge("fleet_cleanup_lag_seconds", "age of the oldest row that cleanup should have removed")

ALL: tuple[Counter | Gauge | Histogram, ...] = (
    ticks_generated_total,
    tick_lateness_seconds,
    executions_emitted_total,
    deliveries_total,
    attempt_duration_seconds,
    execution_latency_seconds,
    leases_expired_total,
    stale_writes_refused_total,
    gaps_total,
    role_errors_total,
    role_steps_total,
    slots_busy,
    slots_total,
    worker_heartbeats_total,
    cleanup_removed_total,
    cleanup_lag_seconds,
)

DOCS_HEAD = """\
# Metrics

Every role serves these on `/metrics` beside `/health` (see `PORT`, `HEALTH_ADDR` and `METRICS_ENABLED`), together with
the usual `process_` and `python_` ones. A metric with labels appears with its first event.

| name | type | labels | meaning |
|---|---|---|---|
"""


def exposition() -> bytes:
    """Everything in Prometheus's text format."""
    return generate_latest(REGISTRY)


def docs_text() -> str:
    """docs/reference/metrics.md: name, type, labels, meaning."""
    rows = []
    for metric in ALL:
        [family] = metric.describe()
        name = f"{family.name}_total" if isinstance(metric, Counter) else family.name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n")
    return DOCS_HEAD + "".join(rows)


if __name__ == "__main__":
    Path("docs/reference/metrics.md").write_text(docs_text(), encoding="utf-8")
