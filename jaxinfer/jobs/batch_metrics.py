"""HOST. Metrics of a batch job for Prometheus, through prometheus_client (the extra `metrics`).

Knows flat names such as `x_bucket{le="0.1"}` and turns them into families under `jaxinfer:`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxinfer.errors import ConfigError

PREFIX = "jaxinfer:"
_LABELLED = re.compile(r'(\w+)\{(\w+)="([^"]*)"\}')
# What may fall again; everything else only grows.
_GAUGES = frozenset(
    (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("kv_cache_usage_peak_perc", "model_load_seconds", "num_programs"),
        *("spec_decode_estimated_gain", "spec_decode_acceptance_rate"),
        *("spec_decode_mean_acceptance_length", "batch_lines"),
    )
)


class MetricsServer:
    """Serves what was last published, on a thread of its own.

    Args:
        port: of 127.0.0.1 and all other addresses; 0 chooses a free one, see `port`.

    Raises:
        ConfigError: prometheus_client is not installed, or the port is taken.
    """

    def __init__(self, port: int) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ConfigError(
                "metrics_port needs prometheus_client; install it with: pip install "
                "'jaxinfer[metrics]', or leave metrics_port out"
            ) from error
        self._values: Mapping[str, float] = {}
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)  # type: ignore[arg-type]
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, registry=registry
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"metrics_port={port!r} cannot be served ({error}); choose a free port from 1 to "
                "65535"
            ) from error
        self.port = self._server.server_port

    def publish(self, values: Mapping[str, float]) -> None:
        """Replaces what is served."""
        self._values = dict(values)

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for at every scrape."""
        return metric_families(self._values)


def metric_families(values: Mapping[str, float]) -> Iterator[Any]:
    """prometheus_client's families of metrics given by flat names."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    histograms = {
        name.removesuffix("_sum")
        for name in values
        if name.endswith("_sum") and f"{name.removesuffix('_sum')}_count" in values
    }
    buckets: dict[str, list[Any]] = {name: [] for name in histograms}
    labelled: dict[tuple[str, str], Any] = {}
    for name, value in values.items():
        found = _LABELLED.fullmatch(name)
        if found and found[1].removesuffix("_bucket") in histograms:
            buckets[found[1].removesuffix("_bucket")].append((found[3], value))
        elif found:
            family = labelled.setdefault(
                (found[1], found[2]),
                CounterMetricFamily(PREFIX + found[1], found[1], labels=[found[2]]),
            )
            family.add_metric([found[3]], value)
        elif name.removesuffix("_sum").removesuffix("_count") not in histograms:
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield kind(PREFIX + name, name, value=value)
    yield from labelled.values()
    for name in sorted(histograms):
        yield HistogramMetricFamily(
            PREFIX + name, name, buckets=buckets[name], sum_value=values[f"{name}_sum"]
        )
