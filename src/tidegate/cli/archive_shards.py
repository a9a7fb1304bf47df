"""`tidegate archive verify`, `extract` and `compare`: reading shards, and weighing two ways to make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tidegate.cli.archive_options import config_of, config_option
from tidegate.cli.choosing import FiniteRange, json_option, print_json
from tidegate.cli.commands import Command
from tidegate.cli.invocation import invocation_of


@click.command(cls=Command)
@config_option
@click.option(
    "--sample",
    type=FiniteRange(0, 100, min_open=True),
    default=100.0,
    metavar="PERCENT",
    help="Check so many of the shards, chosen at random, and at least one. [default: all]",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, /, *, config_file: Path, sample: float, as_json: bool) -> int:
    """Read shards again and check every file in them; exit 4 if one is not what was written.

    The records of all windows are compared with the history, so that none can go missing unseen.
    """
    invocation = invocation_of(ctx)
    config = config_of(invocation, config_file)
    from tidegate.archive import verifying
    from tidegate.archive.library import open_place
    from tidegate.observe.figures import counted, size
    from tidegate.state.clock import new_token

    place = open_place(config)
    checked = files = total = 0
    damaged = []
    for verdict in verifying.verify(place, sample=sample, seed=new_token()):
        checked += 1
        files += verdict.shard.entries
        total += verdict.shard.bytes
        if verdict.problem is not None:
            damaged.append({"shard": verdict.shard.key, "problem": verdict.problem})
            invocation.terminal.error(f"{place.where(verdict.shard.key)}: {verdict.problem}")
    doubts = [{"record": doubt.key, "problem": doubt.problem} for doubt in verifying.doubts(place)]
    for doubt in doubts:
        invocation.terminal.error(f"{place.where(doubt['record'])}: {doubt['problem']}")
    strangers = verifying.strangers(place)
    if as_json:
        told = {"shards": checked, "files": files, "damaged": damaged, "records": doubts}
        print_json({**told, "unreferenced": strangers})
    else:
        shards = f"{counted(checked, 'shard')} with {counted(files, 'file')}, {size(total)}"
        invocation.terminal.say(f"checked {shards}: {len(damaged) or 'none'} damaged")
        if strangers:
            said = counted(len(strangers), "shard")
            invocation.terminal.say(f"{said} that no manifest names: of an open window, or of one given up")
    return 4 if damaged or doubts else 0


@click.command(cls=Command)
@config_option
@click.argument("uids", nargs=-1, metavar="[UID]...")
@click.option("--all", "everything", is_flag=True, help="Every file of the archive.")
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write them; nothing is written outside of it.",
)
@json_option
@click.pass_context
def extract(
    ctx: click.Context,
    /,
    *,
    config_file: Path,
    uids: Sequence[str],
    everything: bool,
    folder: Path,
    as_json: bool,
) -> int:
    """Get files back, by their uids or all of them."""
    if everything == bool(uids):
        raise click.UsageError("name the uids, or give --all")
    invocation = invocation_of(ctx)
    config = config_of(invocation, config_file)
    from tidegate.archive import extracting
    from tidegate.archive.library import open_place

    place = open_place(config)
    found = extracting.extract_all(place, folder) if everything else extracting.extract(place, uids, folder)
    count = 0
    for item in found:
        count += 1
        if as_json:
            print_json({"uid": item.uid, "path": str(item.path), "bytes": item.bytes}, compact=True)
        elif not everything:
            invocation.terminal.say(f"{item.uid} → {item.path}")
    if everything and not as_json:
        from tidegate.observe.figures import counted

        invocation.terminal.say(f"{counted(count, 'file')} in {folder}")
    return 0


@click.command(cls=Command)
@config_option
@click.option(
    "--records", type=click.IntRange(min=1), default=100_000, show_default=True, help="How many files."
)
@click.option(
    "--commit-every",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="UPDATEs in one transaction of the way that has many in each.",
)
@json_option
@click.pass_context
def compare(
    ctx: click.Context, /, *, config_file: Path, records: int, commit_every: int, as_json: bool
) -> None:
    """Archive generated files with an UPDATE for each and with one for all, and show what each costs.

    Those for each file are committed one by one, and once more many at a time. Uses a scratch schema of the
    configured database, and drops it.
    """
    invocation = invocation_of(ctx)
    config = config_of(invocation, config_file)
    from tidegate.archive import comparing

    found = comparing.compare(config, records, commit_every)
    if as_json:
        print_json(found.to_json())
        return
    from tidegate.observe.figures import size

    peers = {
        "an UPDATE for each file": found.per_record,
        f"the same, {commit_every:,} to a commit": found.per_batch,
    }
    invocation.terminal.table(
        ["way", "time", "to remember", "files/s", "updates", "WAL"],
        [
            [
                name,
                f"{way.seconds:.2f} s",
                f"{way.remembering:.2f} s",
                f"{way.files / way.seconds:,.0f}",
                f"{way.updates:,}",
                size(way.wal_bytes),
            ]
            for name, way in {**peers, "the watermark": found.watermark}.items()
        ],
    )
    promises = ", ".join(f"{name} {setting}" for name, setting in found.server.items())
    invocation.terminal.show(f"on a server with {promises}")
    for name, way in peers.items():
        faster, less = found.times_faster(way), found.times_less_wal(way)
        invocation.terminal.show(
            f"against {name}, the watermark is {faster:.1f} × as fast, with {less:,.0f} × less WAL"
        )
