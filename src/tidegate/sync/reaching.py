"""What tasks on other machines need in order to reach a source."""

from __future__ import annotations

from tidegate.config.connection_models import SourceConnection, SQLiteSource
from tidegate.core.errors import ConfigError
from tidegate.spark.session import SparkSettings


def demand_own_way(source: SourceConnection, spark: SparkSettings) -> None:
    """Refuse a tunnel that tasks could not open, before anything is read.

    The driver's tunnel ends at its own loopback address. Tasks on that machine use it; tasks elsewhere open
    their own, and what they need for it can only be files: an agent does not travel.
    """
    if isinstance(source, SQLiteSource) or spark.cores is not None:
        return
    tunnel = source.ssh_tunnel
    if tunnel is None or not tunnel.enabled:
        return
    missing = [key for key in ("private_key_path", "known_hosts") if getattr(tunnel, key) is None]
    if missing:
        raise ConfigError(
            "on a cluster every task opens the SSH tunnel by itself, and it is not said with which "
            + " and which ".join(f"`{key}`" for key in missing),
            where=f"{source.host}:{source.port}",
            hint="name files that are at the same path on every machine, or use spark master local[*]",
        )
    if tunnel.local_port:
        raise ConfigError(
            f"on a cluster every task opens the SSH tunnel by itself, and only one can have port "
            f"{tunnel.local_port}",
            where=f"{source.host}:{source.port}",
            hint="leave `local_port` out",
        )
