"""One cycle: read the mark, freeze a window, pack it, prove it, move the mark by one UPDATE.

The order is that of every job, and it is never bent:

1. Take the lease of one's share. Under the lease of the archive, read the mark, freeze the ceiling, and
   persist the planned window; then list it once, and keep the listing (`opening`).
2. Pack the parts of the share. Each shard is read back before it has a name; each part leaves a receipt.
3. Take over the parts of shares whose worker is dead.
4. When every part has its receipt: write the manifest, with which the window's shards count; add the window
   to the index; commit `extracted`.
5. Move `archived_until`, if it still is where the window began. Commit `loaded`.
6. Clean up what only an open window needs.

Whoever dies between any two of these leaves a window that the next run finishes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from tidegate.archive.contract import Share, Tools, Watching
from tidegate.archive.index import add_window, merge_if_many
from tidegate.archive.naming import shards_until
from tidegate.archive.opening import AnotherIsOpen, Opening, OpenWindow, move_mark, proof_of
from tidegate.archive.packing import Packing
from tidegate.archive.records import Manifest, PartReceipt, ProblemKind, demand_spread
from tidegate.archive.results import CycleResult, result_of
from tidegate.archive.streams import AS_LONG_AS_IT_TAKES, committed, holding, polls, share_stream
from tidegate.core import transitions
from tidegate.core.errors import (
    ArchiveError,
    Conflict,
    InvariantBroken,
    LeaseHeld,
    StateError,
    TidegateError,
)
from tidegate.core.watermark import StreamId
from tidegate.state.hold import TTL, HeldStream

_TAKEN_OVER = TTL + TTL
"""How long a worker waits for its own share, which another may have taken over for a while."""

_log = logging.getLogger("tidegate.archive")


@dataclass
class Cycle:
    tools: Tools
    watching: Watching
    share: Share = field(default_factory=Share)
    late: bool = False
    """Pack what appeared behind the mark after it had passed; the mark stays."""

    @property
    def _opening(self) -> Opening:
        return Opening(self.tools, self.watching, self.late)

    @property
    def stream(self) -> StreamId:
        return self._opening.stream

    def run(self) -> CycleResult:
        """One window from its plan to its end. If one was left open, that one first."""
        demand_spread(self.tools.place, self.tools.config.packer.n_bits, create=True)
        try:
            return self._run()
        except AnotherIsOpen:
            self.watching.note("a window was left open: it is finished before late files are looked for")
            replace(self, late=False).run()
            return self.run()

    def _run(self) -> CycleResult:
        patience = _TAKEN_OVER if self.share.workers > 1 else None
        with self._held(share_stream(self.stream, self.share), patience):
            left_open = self._opening.left_open()
            result = self._one()
            return result.followed_by(self._one()) if left_open else result

    def _one(self) -> CycleResult:
        began = self.tools.clock()
        opened = self._opening.opened()
        if not isinstance(opened, OpenWindow):
            return opened
        try:
            self._pack(opened)
            result = self._close(opened)
        except TidegateError as error:
            self._failed(opened, error)
            raise
        return replace(
            result,
            started_at=began,
            finished_at=self.tools.clock(),
            held_back_seconds=opened.held_back_seconds,
            problems=tuple(problem for problem in opened.folder.problems() if problem.skipped),
        )

    # --- Packing

    def _pack(self, opened: OpenWindow) -> None:
        self._pack_share(opened, self.share)
        self._demand_no_problems(opened)
        pauses = polls()
        while (missing := self._missing(opened)) and not self._is_over(opened):
            if self.share.workers == 1:
                raise InvariantBroken(f"{len(missing)} parts were left out", where=str(self.stream))
            if not self._help(opened, missing):
                self.watching.wait(next(pauses))
            self.watching.check()

    def _missing(self, opened: OpenWindow) -> list[str]:
        done = opened.folder.receipts()
        return [part for part in opened.listing.parts if part not in done]

    def _pack_share(self, opened: OpenWindow, share: Share) -> None:
        parts = [part for part in self._missing(opened) if share.takes(part)]
        work = self._work(opened)
        for receipt in self.tools.packer.pack(work, parts):
            if receipt is not None:
                self.watching.packed(receipt)
            self.watching.check()

    def _help(self, opened: OpenWindow, missing: Sequence[str]) -> bool:
        """Pack what is missing of the shares that nobody holds: their workers are dead, or never came."""
        helped = False
        for share in self.share.others:
            if not any(share.takes(part) for part in missing):
                continue
            try:
                with self._held(share_stream(self.stream, share)):
                    self.watching.note(f"taking over {share.name}")
                    self._pack_share(opened, share)
            except LeaseHeld:
                continue
            self._demand_no_problems(opened)
            helped = True
        return helped

    def _is_over(self, opened: OpenWindow) -> bool:
        """Whether another worker has closed the window meanwhile."""
        mark = self.tools.store.read(self.stream).watermark
        run = mark.open_run if mark else None
        return run is None or run.id != opened.run.id

    def _work(self, opened: OpenWindow) -> Packing:
        packer = self.tools.config.packer
        return Packing(
            folder=opened.folder,
            listing=opened.listing,
            high=opened.high,
            n_bits=packer.n_bits,
            max_bytes=packer.max_shard_size,
            level=packer.compression_level,
            files=self.tools.files,
            policies={kind: getattr(packer.on_problem, kind.value) for kind in ProblemKind},
            late=self.late,
            uids_repeat=not self.tools.table.uid_is_key,
        )

    def _demand_no_problems(self, opened: OpenWindow) -> None:
        """Stop before the mark if a file could not be packed and no policy says to leave it out."""
        open_problems = list(opened.folder.open_problems())
        if not open_problems:
            return
        opened.folder.forget_listing()
        first = open_problems[0]
        more = f", and {len(open_problems) - 1:,} more" if len(open_problems) > 1 else ""
        where = self.tools.place.where(f"{opened.folder.root}/problems")
        raise ArchiveError(
            f"`{first.uid}` cannot be archived: {first.kind}, {first.message} ({first.location}){more}",
            where=self.tools.config.database.table_name,
            hint=f"mend the files listed in {where}, or set packer.on_problem.{first.kind} to `skip`, "
            "and run this again: the mark has not moved",
        )

    # --- The end of a window

    def _close(self, opened: OpenWindow) -> CycleResult:
        """Write the manifest and move the mark, unless another worker was quicker."""
        with self._held(self.stream, AS_LONG_AS_IT_TAKES) as held:
            run = held.watermark.open_run if held.watermark else None
            if run is None or run.id != opened.run.id:
                return self._closed_by_another(opened)
            packed = self._manifest(opened)
            self.tools.place.settle(shard.key for shard in packed.shards)
            manifest = opened.folder.keep_manifest(packed)
            if manifest.given_up:
                raise _given_up(opened)
            add_window(opened.folder, [shard.key for shard in manifest.shards])
            self._extracted(held, opened, manifest)
            moved = not self.late and move_mark(self.tools, self.watching, opened.run.window)
            proved = {opened.folder.manifest_key}
            held.commit(*transitions.loaded(committed(held), proved, self.tools.clock()))
            self._clean(opened, held)
        return result_of(manifest, moved=moved)

    def _closed_by_another(self, opened: OpenWindow) -> CycleResult:
        manifest = opened.folder.manifest()
        if manifest is None and not opened.listing.rows:
            return CycleResult(opened.run.window, moved=not self.late)
        if manifest is None or manifest.given_up:
            raise _given_up(opened)
        return result_of(manifest, moved=not self.late)

    def _manifest(self, opened: OpenWindow) -> Manifest:
        receipts = [opened.folder.receipt(part) for part in opened.listing.parts]
        found = [receipt for receipt in receipts if receipt is not None]
        gone = len(opened.listing.parts) - len(found)
        if gone or sum(receipt.listed for receipt in found) != opened.listing.rows:
            # Others have listed it again meanwhile. The next listing counts what has a receipt as it is.
            opened.folder.forget_listing()
            raise Conflict(
                f"{gone} parts of the window have no receipt any more"
                if gone
                else "the window was listed again while it was packed",
                where=str(self.stream),
                hint="run it again: what is packed stays packed",
            )
        self._demand_shards(opened, found)
        return Manifest(
            run=opened.run.id,
            number=opened.run.number,
            window=opened.run.window,
            late=self.late,
            n_bits=self.tools.config.packer.n_bits,
            shards=tuple(shard for receipt in found for shard in receipt.shards),
            files=sum(receipt.packed for receipt in found),
            bytes=sum(receipt.bytes for receipt in found),
            already=sum(receipt.already for receipt in found),
            repeated=sum(receipt.repeated for receipt in found),
            skipped=sum(receipt.skipped for receipt in found),
            written_at=self.tools.clock().isoformat(),
        )

    def _demand_shards(self, opened: OpenWindow, receipts: Sequence[PartReceipt]) -> None:
        """A receipt may have outlasted its shards: in a power cut, or because nothing named them yet."""
        there = {(listed.key, listed.bytes) for listed in self.tools.place.list(shards_until(opened.high))}
        hollow = [
            receipt.part
            for receipt in receipts
            if any((shard.key, shard.bytes) not in there for shard in receipt.shards)
        ]
        if hollow:
            opened.folder.forget_receipts(hollow)
            raise ArchiveError(
                f"shards of {len(hollow)} parts of the window were taken away before they counted",
                where=self.tools.place.where(shards_until(opened.high)),
                hint="run it again: these parts are packed anew, and the mark has not moved",
            )

    def _extracted(self, held: HeldStream, opened: OpenWindow, manifest: Manifest) -> None:
        """Commit that the window is packed; its manifest is what the mark still has to follow."""
        now = self.tools.clock()
        receipt = proof_of(opened.folder, opened.run, manifest, self.share.name)
        held.commit(*transitions.finish(transitions.advance(committed(held), [receipt], now), now))

    def _clean(self, opened: OpenWindow, held: HeldStream) -> None:
        """What is left behind is only untidy: no record refers to it any more."""
        try:
            opened.folder.clean(manifest_too=not opened.listing.rows)
            merge_if_many(self.tools.place, f"{opened.folder.name}-merged")
            self.tools.place.sweep()
            held.check()
        except (ArchiveError, StateError) as error:
            _log.warning("cleaning up after the window failed: %s", error)

    def _failed(self, opened: OpenWindow, error: TidegateError) -> None:
        """Write down why the window is still open. Not being able to hides nothing: the error goes on."""
        try:
            with self._held(self.stream) as held:
                run = held.watermark.open_run if held.watermark else None
                if run is not None and run.id == opened.run.id:
                    held.commit(*transitions.fail(committed(held), str(error), self.tools.clock()))
        except TidegateError as second:
            _log.warning("the failure could not be recorded: %s", second)

    def _held(
        self, stream: StreamId, patience: timedelta | None = None
    ) -> AbstractContextManager[HeldStream]:
        return holding(self.tools, self.watching, stream, patience)


def _given_up(opened: OpenWindow) -> Conflict:
    return Conflict(
        "the window was given up while it was packed",
        where=opened.folder.root,
        hint="run it again: nothing was lost, and the window is planned anew",
    )
