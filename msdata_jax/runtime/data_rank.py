"""Runs a planner or a source loader over an endpoint, session after session."""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msdata_transport import Endpoint

from msdata_jax.errors import JobFailed
from msdata_jax.recipe import Recipe, Source
from msdata_jax.roles.effects import Forget
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import START_SECONDS, Planner
from msdata_jax.roles.recording import Recorder
from msdata_jax.roles.source_loader import Process, Reader, SourceLoader
from msdata_jax.roles.watching import READ_SECONDS, Watch
from msdata_jax.runtime.figures import process_figures, resident_bytes
from msdata_jax.runtime.loop import RoleLoop
from msdata_jax.runtime.observing import NoObserver
from msdata_jax.runtime.saved_blocks import BlockFolders
from msdata_jax.runtime.scaling import ScaleOptions, make_scaling
from msdata_jax.runtime.status import StatusBoard
from msdata_jax.scaling.decision_log import Round
from msdata_jax.sources.forking import ForkUnsafeError
from msdata_jax.sources.isolation import IsolatedReader, open_reader
from msdata_jax.sources.reader import SourceReader

SUSPECT_SECONDS = 60.0
"""How long a record may take that was being read when a loader was lost, at most."""
SUSPECT_SHARE = 16
"""And at most such a part of the time in which a block must be read: a block is tried more than once."""

OnFailure = Callable[[JobFailed], None]
OnForget = Callable[[Forget], None]


def run_planner(  # noqa: PLR0913 - keyword-only, each with a default
    recipe: Recipe,
    placement: Placement,
    endpoint: Endpoint,
    *,
    start_seconds: float = START_SECONDS,
    watch: Watch | None = None,
    on_failure: OnFailure | None = None,
    on_forget: OnForget | None = None,
    on_loop: Callable[[RoleLoop], None] | None = None,
    recorder: Recorder | None = None,
    on_status: Callable[[Mapping[str, Any]], object] | None = None,
    scale: ScaleOptions | None = None,
    on_round: Callable[[Round], None] = lambda round_: None,
    observer: NoObserver | None = None,
) -> Mapping[str, Any]:
    """Plan until no trainer needs anything any more.

    Args:
        recipe: what to deliver.
        placement: who plays what.
        endpoint: of the planner's rank.
        start_seconds: time for the job to start.
        watch: when a silent loader counts as lost.
        on_failure: told why the job cannot go on.
        on_forget: told of a loader that is done without from now on.
        on_loop: given the loop of each session before it runs, so that others can tell it of lost ranks.
        recorder: told of every decision.
        on_status: told about once a second how the job goes (`runtime.status.describe`), and in the end.
        scale: who reads what at first, and how that changes.
        on_round: told of each round of the scaling policy that decided something.
        observer: told what this rank does, and of the figures of all.

    Returns:
        everybody's figures, of the last session in which steps were asked for; `lost` is of all sessions, and
        `stopped` says whether any of them was.

    Raises:
        JobFailed: a rank failed.
    """
    watch, observer = watch or Watch(()), observer or NoObserver()
    board = StatusBoard(recipe.source_names, on_status) if on_status else None
    lost: dict[int, str] | None = None
    figures: Mapping[str, Any] = {}
    scaling = make_scaling(scale or ScaleOptions(), recipe, placement, on_round)
    for session in itertools.count():
        role = Planner(
            recipe, placement, start_seconds, process_figures, recorder, watch.anew(lost or ()), lost, scaling
        )
        watched = board.watch(role) if board else role
        loop = RoleLoop(
            watched,
            endpoint,
            session=session,
            on_failure=on_failure,
            on_forget=on_forget,
            observer=observer,
        )
        if on_loop is not None:
            on_loop(loop)
        try:
            latest = loop.run()
        finally:
            observer.measure()
            observer.close()
            if board:
                board.tell()
        stopped = latest["stopped"] or figures.get("stopped", False)
        figures = latest if role.has_begun or not figures else {**figures, "lost": latest["lost"]}
        figures = {**figures, "stopped": stopped}
        if not loop.serves_again:
            break
        lost = {each["rank"]: each["why"] for each in latest["lost"]}
        scaling = role.learnt()
    return figures


class _Readers:
    """The open sources of a loader. A source is opened by whichever thread needs it first."""

    def __init__(self, recipe: Recipe, read_seconds: float) -> None:
        self._recipe = recipe
        self._suspect_seconds = min(SUSPECT_SECONDS, read_seconds / SUSPECT_SHARE)
        self._readers: dict[int, SourceReader | IsolatedReader] = {}
        self._locks = defaultdict[int, threading.Lock](threading.Lock)

    def open(self, index: int, isolate: bool) -> Reader:
        """The reader of a source.

        With `isolate` one of its own, for the caller to close, that reads in a child process whatever the
        source says; but for sources that no child of this process can read.
        """
        source = self._recipe.sources[self._recipe.source_names[index]]
        if isolate:
            seconds = source.sample_seconds or self._suspect_seconds
            try:
                return self._open(index, replace(source, isolate=True, sample_seconds=seconds))
            except ForkUnsafeError:
                return self._open(index, source)
        with self._locks[index]:
            if index not in self._readers:
                self._readers[index] = self._open(index, source)
            return self._readers[index]

    def _open(self, index: int, source: Source) -> SourceReader | IsolatedReader:
        name, recipe = self._recipe.source_names[index], self._recipe
        return open_reader(name, index, source, seed=recipe.seed, columns=recipe.columns)

    def close(self, index: int) -> None:
        """Close a source that nobody is reading; it may be opened again."""
        with self._locks[index]:
            reader = self._readers.pop(index, None)
        if reader is not None:
            reader.close()

    def close_all(self) -> None:
        """Close them all."""
        for reader in list(self._readers.values()):
            reader.close()


def run_loader(  # noqa: PLR0913 - keyword-only, each with a default
    recipe: Recipe,
    placement: Placement,
    endpoint: Endpoint,
    *,
    num_threads: int,
    read_seconds: float = READ_SECONDS,
    on_failure: OnFailure | None = None,
    observer: NoObserver | None = None,
) -> Mapping[str, Any]:
    """Serve the sources until the planner says stop for good. Raises JobFailed.

    Sources stay open from session to session.
    """
    readers = _Readers(recipe, read_seconds)
    blocks = BlockFolders(recipe, endpoint.rank)
    process = Process(figures=process_figures, clock=time.perf_counter, memory_bytes=resident_bytes)
    figures: Mapping[str, Any] = {}
    try:
        for session in itertools.count():
            role = SourceLoader(
                placement, readers, process, source_names=recipe.source_names, saved_blocks=blocks
            )
            loop = RoleLoop(
                role,
                endpoint,
                session=session,
                num_workers=num_threads,
                on_failure=on_failure,
                observer=observer,
            )
            figures = loop.run()
            if not loop.serves_again:
                break
    finally:
        if observer:
            observer.close()
        readers.close_all()  # after a failure too, and those that were opened when the end had come
    return figures
