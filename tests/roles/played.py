"""A planner among loaders and constructors that are played by the test, message by message."""

from dataclasses import dataclass, field, replace

import numpy as np
from strategies import make_infos

from msdata_jax.planning.graph import DGraph
from msdata_jax.recipe import Recipe, Source
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Finish, Send
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import Planner


def make_recipe(*, weights=None, rows=4, seq_len=8, on_exhausted="repeat", graph=None, **options):
    """Sources of nothing: tests say what their positions yield."""
    weights = weights or {"a": 1, "b": 1}
    strategy = graph or DGraph().mix(weights, on_exhausted=on_exhausted).pack(seq_len=seq_len, rows=rows)
    return Recipe(
        sources={name: Source([], **{"block_size": 8, **options}) for name in weights}, strategy=strategy
    )


def make_placement(num_loaders=2, num_constructors=1):
    return Placement(
        planner=0,
        loaders=tuple(range(1, 1 + num_loaders)),
        constructors=tuple(range(1 + num_loaders, 1 + num_loaders + num_constructors)),
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


def whole_block(lease, tokens=4, bad=(), num_bytes=None):
    """Every position yields one sample of `tokens` places, but for the bad ones."""
    positions = np.array([p for p in range(lease.start, lease.stop) if p not in bad], dtype=np.int64)
    infos = make_infos(lease.source, np.full(len(positions), tokens), positions=positions)
    if num_bytes is not None:
        infos["num_bytes"] = num_bytes
    return m.BlockReady(
        source=lease.source,
        start=lease.start,
        stop=lease.stop,
        infos=infos,
        bad_positions=[p for p in range(lease.start, lease.stop) if p in bad],
        bad_reasons=["cannot be read"] * sum(p in bad for p in range(lease.start, lease.stop)),
        seconds=0.0,
    )


@dataclass
class Job:
    """A planner and what it sent; loaders and constructors answer when told to."""

    recipe: Recipe
    placement: Placement
    planner: Planner = field(init=False)
    sent: list = field(default_factory=list)  # (rank, message), all of them
    leases: list = field(default_factory=list)  # (loader, Lease) not answered yet
    finish: Finish | None = None

    def __post_init__(self):
        self.planner = Planner(self.recipe, self.placement, start_seconds=10)
        self.take(self.planner.start())

    def take(self, effects):
        for effect in effects:
            assert self.finish is None, "nothing comes after Finish"
            if isinstance(effect, Finish):
                self.finish = effect
                continue
            assert isinstance(effect, Send)
            self.sent.append((effect.rank, effect.message))
            if isinstance(effect.message, m.Lease):
                self.leases.append((effect.rank, effect.message))
        return effects

    def tell(self, sender, message):
        return self.take(self.planner.handle(sender, message))

    def open(self, num_records=1000, fingerprint="f"):
        answered = 0
        while answered < len(asked := self.messages(m.OpenSource)):  # an answer may bring further questions
            rank, message = asked[answered]
            answered += 1
            self.tell(
                rank, m.SourceOpened(source=message.source, num_records=num_records, fingerprint=fingerprint)
            )

    def join(self, **changes):
        ranks = self.placement.constructors
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

    def deliver(self, step, ranks=None):
        for rank in ranks or self.placement.constructors:
            self.tell(rank, m.Delivered(step=step))

    def messages(self, kind, rank=None):
        return [(r, each) for r, each in self.sent if isinstance(each, kind) and rank in (None, r)]

    def steps(self, rank=None):
        """Expect messages of one constructor."""
        rank = self.placement.constructors[0] if rank is None else rank
        return [message for _, message in self.messages(m.Expect, rank)]


def start_job(recipe=None, placement=None, **joining):
    """A job whose sources are open and whose constructors have joined."""
    job = Job(recipe or make_recipe(), placement or make_placement())
    job.open()
    job.join(**joining)
    return job
