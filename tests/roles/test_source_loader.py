import numpy as np
import pytest
from roles.played import make_placement
from strategies import make_infos

from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.records import IMAGE_TOKEN, BadSample, Block
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Finish, Run, Send
from msdata_jax.roles.source_loader import SourceLoader


class Reader:
    """A source of samples that tell where they come from: position p yields p % 3 samples."""

    num_records, num_open_files = 100, 1

    def __init__(self, source):
        self.source, self.closed = source, False

    def fingerprint(self):
        return f"print-{self.source}"

    def read_block(self, start, stop):
        keys = [(p, part) for p in range(start, stop) for part in range(p % 3)]
        samples = [{"tokens": np.array([100 * p + part, p, part], np.int32)} for p, part in keys]
        positions, parts = np.array(keys, dtype=np.int64).reshape(-1, 2).T
        infos = make_infos(self.source, [3] * len(keys), positions=positions, parts=parts)
        return Block(
            start=start, stop=stop, infos=infos, samples=samples, bad=[BadSample(position=start, reason="no")]
        )

    def close(self):
        self.closed = True


class Loader:
    """A SourceLoader whose background work is done when a test says so."""

    def __init__(self, reader=Reader):
        self.readers = {}
        self.role = SourceLoader(
            make_placement(), self.open, lambda: {"pss_mb": 1}, iter(range(99)).__next__, ["first", "second"]
        )
        self.reader = reader
        assert self.role.start() == []
        assert self.role.tick(10**6) == []

    def open(self, source):
        self.readers[source] = self.reader(source)
        return self.readers[source]

    def tell(self, message):
        """Effects, after any background work is done."""
        effects = []
        for effect in self.role.handle(0, message):
            effects += self.role.handle(1, effect.call()) if isinstance(effect, Run) else [effect]
        return effects


def order(step, *wanted, later=()):
    """wanted: (constructor, index, source, position, part, start, length); later: keys asked for again."""
    columns = np.array(wanted, dtype=np.int64).reshape(-1, 7).T
    names = ("constructor", "index", "source", "position", "part", "start", "length")
    is_last = np.array([key not in later for key in zip(*columns[2:5].tolist(), strict=True)], dtype=bool)
    fields = dict(zip(names, (c.astype(np.int32) for c in columns), strict=True))
    return m.Order(
        step=step, is_last=is_last, is_image=np.zeros_like(is_last), without_patches=False, **fields
    )


def opened_loader(num_blocks=2):
    loader = Loader()
    loader.tell(m.OpenSource(source=0))
    for block in range(num_blocks):
        loader.tell(m.Lease(source=0, start=8 * block, stop=8 * block + 8))
    return loader


def test_opens_in_the_background_and_tells_the_planner():
    loader = Loader()
    (run,) = loader.role.handle(0, m.OpenSource(source=3))
    assert isinstance(run, Run)
    assert not loader.readers  # nothing happens before the work is done
    assert loader.role.handle(1, run.call()) == [
        Send(rank=0, message=m.SourceOpened(source=3, num_records=100, fingerprint="print-3"))
    ]


def test_reads_a_lease_in_the_background_and_reports_metadata_only():
    loader = opened_loader(0)
    ((send),) = loader.tell(m.Lease(source=0, start=8, stop=12))
    ready = send.message
    assert (send.rank, ready.source, ready.start, ready.stop) == (0, 0, 8, 12)
    assert ready.infos[["position", "part"]].tolist() == [(8, 0), (8, 1), (10, 0), (11, 0), (11, 1)]
    assert (ready.bad_positions, ready.bad_reasons) == ([8], ["no"])
    assert ready.seconds == 1  # the clock's next tick


def test_one_message_for_each_constructor_of_a_step():
    loader = opened_loader()
    wanted = order(
        4,
        (7, 0, 0, 11, 1, 0, 3),
        (5, 9, 0, 2, 0, 1, 2),
        (7, 2, 0, 11, 0, 0, 1),
        (5, 3, 0, 2, 1, 0, 3),
        (-1, 0, 0, 5, 0, 0, 0),
    )
    first, second = loader.tell(wanted)
    assert (first.rank, second.rank) == (5, 7)
    assert (first.message.step, first.message.index.tolist()) == (4, [9, 3])
    assert first.message.tokens.tolist() == [2, 0, 201, 2, 1]
    assert second.message.index.tolist() == [0, 2]
    assert second.message.tokens.tolist() == [1101, 11, 1, 1100]
    assert second.message.num_patches.tolist() == [0, 0]


def test_an_order_of_dropped_samples_only_sends_nothing():
    assert opened_loader().tell(order(0, (-1, 0, 0, 5, 0, 0, 0))) == []


def test_keeps_samples_until_their_step_is_released_then_forgets_them():
    loader = opened_loader(1)  # samples at 1.0, 2.0, 2.1, 4.0, 5.0, 5.1, 7.0
    held = loader.role._samples
    assert len(held) == 7
    loader.tell(order(0, (5, 0, 0, 1, 0, 0, 3), (-1, 0, 0, 2, 0, 0, 0)))
    loader.tell(order(1, (5, 0, 0, 5, 1, 0, 3)))
    assert len(held) == 7
    assert loader.tell(m.Release(step=0)) == []
    assert sorted(held) == [(0, 2, 1), (0, 4, 0), (0, 5, 0), (0, 5, 1), (0, 7, 0)]
    loader.tell(m.Release(step=5))
    assert sorted(held) == [(0, 2, 1), (0, 4, 0), (0, 5, 0), (0, 7, 0)]
    assert not loader.role._ordered


def test_a_sample_that_is_split_is_kept_for_its_other_pieces():
    loader = opened_loader(1)
    (first,) = loader.tell(order(0, (5, 0, 0, 1, 0, 0, 2), later=[(0, 1, 0)]))
    loader.tell(m.Release(step=0))
    (second,) = loader.tell(order(1, (5, 0, 0, 1, 0, 2, 1)))
    assert [first.message.tokens.tolist(), second.message.tokens.tolist()] == [[100, 1], [0]]
    loader.tell(m.Release(step=1))
    assert (0, 1, 0) not in loader.role._samples


def test_patches_of_two_sizes_are_an_error_that_names_step_and_sources():
    class Images(Reader):
        def read_block(self, start, stop):
            patches = np.zeros((1, 12 + self.source), np.uint8)
            sample = {"tokens": np.array([IMAGE_TOKEN], np.int32), "patches": patches}
            infos = make_infos(self.source, [1], [1])
            return Block(start=start, stop=stop, infos=infos, samples=[sample])

    loader = Loader(Images)
    for source in range(2):
        loader.tell(m.OpenSource(source=source))
        loader.tell(m.Lease(source=source, start=0, stop=1))
    with pytest.raises(MSDataError, match=r"step 6, sources first, second: patches have \[12, 13\] values"):
        loader.tell(order(6, (5, 0, 0, 0, 0, 0, 1), (5, 1, 1, 0, 0, 0, 1)))


def test_stop_closes_the_readers_and_says_farewell():
    loader = opened_loader()
    farewell, finish = loader.tell(m.Stop())
    assert loader.readers[0].closed
    assert farewell.rank == 0
    assert farewell.message.figures == {
        "sources": 1,
        "open_files": {"0": 1},
        "read_seconds": 2,
        "samples": 15,
        "pss_mb": 1,
    }
    assert finish == Finish()


def test_failures_go_to_the_planner_and_an_abort_ends_the_loop():
    loader = opened_loader()
    assert loader.tell(m.Failed(message="no")) == [Send(rank=0, message=m.Failed(message="no"))]
    (finish,) = loader.tell(m.Abort(rank=5, message="gone"))
    assert isinstance(finish.error, JobFailed)
    assert str(finish.error) == "rank 5 failed: gone"


def test_a_message_for_somebody_else():
    with pytest.raises(MSDataError, match="loader got Delivered from rank 0"):
        Loader().tell(m.Delivered(step=0))
