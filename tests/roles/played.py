"""A planner among loaders and constructors that are played by the test, message by message."""

import zlib
from dataclasses import dataclass, field, replace

import numpy as np
from strategies import make_infos

from msdata_jax.planning.graph import DGraph
from msdata_jax.recipe import Recipe, Source
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Finish, Forget, Send
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import Planner
from msdata_jax.roles.scaler import Scaling
from msdata_jax.roles.watching import Watch


def make_recipe(*, weights=None, rows=4, seq_len=8, on_exhausted="repeat", graph=None, **options):
    """Sources of nothing: tests say what their positions yield."""
    weights = weights or {"a": 1, "b": 1}
    strategy = graph or DGraph().mix(weights, on_exhausted=on_exhausted).pack(seq_len=seq_len, rows=rows)
    return Recipe(
        sources={name: Source([], **{"block_size": 8, **options}) for name in weights}, strategy=strategy
    )


def make_placement(num_loaders=2, num_constructors=1, num_shadows=0):
    """Ranks in this order: planner, loaders, constructors, shadows."""
    first_constructor = 1 + num_loaders
    first_shadow = first_constructor + num_constructors
    return Placement(
        planner=0,
        loaders=tuple(range(1, first_constructor)),
        constructors=tuple(range(first_constructor, first_shadow)),
        shadows=tuple(range(first_shadow, first_shadow + num_shadows)),
    )


def make_join(recipe, process=0, *, processes=1, **changes):
    plain = m.Join(
        process=process,
        axis_names=["dp"],
        axis_sizes=[processes],
        process_of_device=list(range(processes)),
        row_axes=["dp"] if processes > 1 else [],
        recipe=recipe.fingerprint(),
        num_steps=-1,
        steps_ahead=2,
        buffer_bytes_per_loader=1 << 20,
    )
    return replace(plain, **changes)


def whole_block(lease, tokens=4, bad=(), num_bytes=None, **changes):
    """Every position yields one sample of `tokens` places, but for the bad ones; verdicts are bad by luck."""
    verdicts = dict(lease.verdicts)
    bad = {p: (p, "cannot be read", False) for p in bad} | {p: (p, why, True) for p, why in verdicts.items()}
    positions = np.array([p for p in range(lease.start, lease.stop) if p not in bad], dtype=np.int64)
    infos = make_infos(lease.source, np.full(len(positions), tokens), positions=positions)
    if num_bytes is not None:
        infos["num_bytes"] = num_bytes
    block = m.BlockReady(
        source=lease.source,
        start=lease.start,
        stop=lease.stop,
        infos=infos,
        bad=[bad[p] for p in range(lease.start, lease.stop) if p in bad],
        verdicts=list(lease.verdicts),
        digest=zlib.crc32(infos.tobytes()),
        seconds=0.0,
    )
    return replace(block, **changes)


def opened(source, num_records=1000, fingerprint="f", files=None):
    return m.SourceOpened(source=source, num_records=num_records, fingerprint=fingerprint, files=files or {})


@dataclass
class Job:
    """A planner and what it sent; loaders and constructors answer when told to."""

    recipe: Recipe
    placement: Placement
    planner: Planner = field(init=False)
    sent: list = field(default_factory=list)  # (rank, message), all of them
    leases: list = field(default_factory=list)  # (loader, Lease) not answered yet
    forgotten: list = field(default_factory=list)  # ranks, in order
    finish: Finish | None = None
    watch: Watch | None = None
    scaling: Scaling | None = None

    def __post_init__(self):
        self.planner = Planner(
            self.recipe, self.placement, start_seconds=10, watch=self.watch, scaling=self.scaling
        )
        self.take(self.planner.start())

    def take(self, effects):
        for effect in effects:
            assert self.finish is None, "nothing comes after Finish"
            if isinstance(effect, Finish):
                self.finish = effect
                continue
            if isinstance(effect, Forget):
                self.forgotten.append(effect.rank)
                continue
            assert isinstance(effect, Send)
            assert effect.rank not in self.forgotten, "nothing is sent to a rank that is gone"
            self.sent.append((effect.rank, effect.message))
            if isinstance(effect.message, m.Lease):
                self.leases.append((effect.rank, effect.message))
        return effects

    def tell(self, sender, message):
        return self.take(self.planner.handle(sender, message))

    def open(self, **facts):
        answered = 0
        while answered < len(asked := self.messages(m.OpenSource)):  # an answer may bring further questions
            rank, message = asked[answered]
            answered += 1
            if rank not in self.forgotten:
                self.tell(rank, opened(message.source, **facts))

    def join(self, **changes):
        ranks = self.placement.constructors
        for rank in ranks:
            self.tell(rank, m.Built())
        for process, rank in enumerate(ranks):
            joining = make_join(self.recipe, process, processes=len(ranks))
            self.tell(rank, replace(joining, **changes))

    def read(self, order=None, **content):
        """Answer the leases that are out now; in `order`, a permutation of them."""
        leases, self.leases = self.leases, []
        for i in order(len(leases)) if order else range(len(leases)):
            rank, lease = leases[i]
            self.tell(rank, whole_block(lease, **content))

    def run(self, limit=100, **content):
        """Answer leases until there are none."""
        for _ in range(limit):
            if not self.leases or self.finish:
                return
            self.read(**content)
        raise AssertionError("leases without end")

    def complete(self, step, ranks=None):
        for rank in ranks or self.placement.constructors:
            self.tell(rank, m.Complete(step=step))

    def deliver(self, step, ranks=None):
        """A step is complete on all constructors, and the trainers of some, or of all, take it."""
        if len(self.placement.constructors) > 1:  # one alone need not ask the others
            self.complete(step)
        for rank in ranks or self.placement.constructors:
            self.tell(rank, m.Delivered(step=step))

    def lose(self, rank, why="it was killed"):
        """A rank is gone, and what it was asked for."""
        self.leases = [(each, lease) for each, lease in self.leases if each != rank]
        return self.tell(self.placement.planner, m.Lost(rank=rank, why=why))

    def messages(self, kind, rank=None, since=0):
        """(rank, message) of a class, all or those from place `since` of `sent` on."""
        return [(r, each) for r, each in self.sent[since:] if isinstance(each, kind) and rank in (None, r)]

    def steps(self, rank=None):
        """Expect messages of one constructor."""
        rank = self.placement.constructors[0] if rank is None else rank
        return [message for _, message in self.messages(m.Expect, rank)]


def start_job(recipe=None, placement=None, scaling=None, **joining):
    """A job whose sources are open and whose constructors have joined."""
    job = Job(recipe or make_recipe(), placement or make_placement(), scaling=scaling)
    job.open()
    job.join(**joining)
    return job
