"""A placed step as messages: what each constructor is to expect, and what each loader is to send to whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msdata_jax.plan import StepPlan
from msdata_jax.planning.giants import dominance, num_giants, over_mean
from msdata_jax.planning.place_tree import ClientPlaceTree
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Send


@dataclass(frozen=True, kw_only=True)
class Client:
    """A constructor rank as the planner sees it.

    Attributes:
        rank, process: its rank, and its process index in the mesh.
        relay_to: ranks that it passes samples on to.
        is_leader: loaders send it the samples of its rows.
        is_fed: a leader sends them.
        needs_data: it holds a first or last stage, where there are stages.
    """

    rank: int
    process: int
    relay_to: list[int]
    is_leader: bool
    is_fed: bool
    needs_data: bool


def build_clients(
    tree: ClientPlaceTree, joins: Mapping[int, m.Join], constructors: Sequence[int], *, by_host: bool
) -> list[Client]:
    """Who leads and who is fed.

    Args:
        tree: the mesh.
        joins: what each constructor rank said.
        constructors: their ranks in order.
        by_host: leaders relay samples to their peers; else the devices share arrays.
    """
    rank_of_process = {join.process: rank for rank, join in joins.items()}
    clients = []
    for rank in constructors:
        process = joins[rank].process
        needs_data = tree.needs_data(process)
        is_leader = needs_data and tree.leader_of_process(process) == process
        peers = [rank_of_process[p] for p in tree.peers_of_process(process) if p != process]
        clients.append(
            Client(
                rank=rank,
                process=process,
                relay_to=peers if is_leader and by_host else [],
                is_leader=is_leader,
                is_fed=needs_data and by_host and not is_leader,
                needs_data=needs_data,
            )
        )
    return clients


@dataclass(frozen=True, kw_only=True)
class Audience:
    """Who is told of a step, and along which axes it is cut.

    Attributes:
        tree: the mesh.
        clients: the constructors.
        row_axes: mesh axes that cut rows.
        encoder_axes: mesh axes that cut the slots of the encoder's batch, where it has any.
        num_sources: of the recipe.
    """

    tree: ClientPlaceTree
    clients: Sequence[Client]
    row_axes: tuple[str, ...]
    encoder_axes: tuple[str, ...]
    num_sources: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The samples that a step takes from the loaders; kept until the step is delivered everywhere.

    Attributes:
        step: the step.
        infos: SampleInfo records `[k]`; a sample is there once for each stretch and each constructor.
        columns: of `Order`, `[k]` each.
        without_patches: as in `Order`.
    """

    step: int
    infos: np.ndarray
    columns: Mapping[str, np.ndarray]
    without_patches: bool

    def without(self, constructors: Sequence[int]) -> "Wanted":
        """The same, but nothing is to be sent to these constructors, only to be forgotten in time."""
        constructor = self.columns["constructor"]
        kept = np.where(np.isin(constructor, constructors), -1, constructor).astype(np.int32)
        return replace(self, columns={**self.columns, "constructor": kept})

    def orders(self, owner: np.ndarray, which: np.ndarray | None = None) -> list[Effect]:
        """One order to each loader.

        Args:
            owner: int64 `[k]`, the loader that holds each sample.
            which: bool `[k]`, those to ask for; None for all.
        """
        by_owner = np.argsort(owner, kind="stable")
        if which is not None:
            by_owner = by_owner[which[by_owner]]
        loaders, first = np.unique(owner[by_owner], return_index=True)
        effects: list[Effect] = []
        if not len(loaders):
            return effects
        for loader, mine in zip(loaders.tolist(), np.split(by_owner, first[1:]), strict=True):
            of_loader = {name: column[mine] for name, column in self.columns.items()}
            order = m.Order(step=self.step, without_patches=self.without_patches, **of_loader)
            effects.append(Send(rank=loader, message=order))
        return effects


def announce(plan: StepPlan, is_last: np.ndarray, audience: Audience) -> tuple[list[Effect], Wanted]:
    """Expectations for the constructors, and what loaders are to send them.

    Args:
        plan: the step.
        is_last: bool `[segments]`, as in `Order`.
        audience: who is told.
    """
    row_of_content = np.empty(plan.num_rows, dtype=np.int64)
    row_of_content[plan.order] = np.arange(plan.num_rows)
    of_row = _Members(row_of_content[plan.row], plan.num_rows)
    of_slot = _Members(plan.slot, plan.num_slots)
    figures = _figures(plan, audience.num_sources)
    effects: list[Effect] = []
    wanted: list[np.ndarray] = []
    for client in audience.clients:
        rows = audience.tree.rows_of_process(client.process, audience.row_axes, plan.num_rows)
        mine, row = of_row.of(rows if client.is_leader or client.is_fed else rows[:0])
        slots, images = _slots_of(plan, client, audience, of_slot)
        expect = m.Expect(
            step=plan.step,
            rows=rows,
            infos=plan.samples[mine],
            row=row.astype(np.int32),
            offset=plan.offset[mine],
            start=plan.start[mine],
            length=plan.length[mine],
            relay_to=client.relay_to,
            first_patch=(plan.slot.astype(np.int64) * plan.patches_per_slot + plan.first_patch)[mine]
            if plan.num_slots
            else np.empty(0, dtype=np.int64),
            **slots,
            **figures,
        )
        effects.append(Send(rank=client.rank, message=expect))
        wanted.append(_wanted(client.rank, images, for_slots=True))
        if client.is_leader:
            wanted.append(_wanted(client.rank, mine, for_slots=False))
    return effects, _wanted_of(plan, is_last, np.concatenate(wanted))


def _wanted(rank: int, segments: np.ndarray, *, for_slots: bool) -> np.ndarray:
    """int64 `[k, 4]`: constructor rank, index among what it expects, index in the plan, for slots or not."""
    count = len(segments)
    columns = (np.full(count, rank), np.arange(count), segments, np.full(count, int(for_slots)))
    return np.stack(columns, axis=1)


class _Members:
    """Segments by what they belong to: looked up for every client, so sorted once.

    Args:
        key: int `[segments]`; -1 for those that belong to nothing.
        num_keys: keys are below it.
    """

    def __init__(self, key: np.ndarray, num_keys: int) -> None:
        self._by_key = np.argsort(key, kind="stable")
        self._first = np.searchsorted(key[self._by_key], np.arange(num_keys + 1))

    def of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Int64 `[k]` each: the segments of some keys, key by key, and the place in `keys` of each one's."""
        count = self._first[keys + 1] - self._first[keys]
        place = np.repeat(np.arange(len(keys)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return self._by_key[self._first[keys][place] + within], place


def _slots_of(
    plan: StepPlan, client: Client, audience: Audience, of_slot: _Members
) -> tuple[dict[str, Any], np.ndarray]:
    """The slots of the encoder's batch that a process holds, as in `Expect`, and the segments in them."""
    parts = np.empty(0, dtype=np.int64)
    if plan.num_slots:
        parts = np.array(audience.tree.parts_of_process(client.process, audience.encoder_axes))
    images, slot = of_slot.of(parts if client.needs_data else parts[:0])
    first = plan.first_patch[images] if plan.num_slots else images
    fields = {
        "num_slots": len(parts),
        "patches_per_slot": plan.patches_per_slot,
        "slot": slot.astype(np.int32),
        "slot_first": first.astype(np.int32),
        "slot_patches": plan.samples["patches"][images].astype(np.int32),
    }
    return fields, images


def _figures(plan: StepPlan, num_sources: int) -> dict[str, Any]:
    source, costs = plan.samples["source"], plan.phase_costs.sum(axis=0)
    group_costs, unbalanced_costs = plan.group_costs(), plan.group_costs(np.arange(plan.num_rows))
    return {
        "digest": plan.digest,
        "content_digest": plan.content_digest,
        "seq_len": plan.seq_len,
        "global_row": plan.order,
        "source_samples": np.bincount(source, minlength=num_sources),
        "source_tokens": np.bincount(source, weights=plan.length, minlength=num_sources).astype(np.int64),
        "group_costs": group_costs,
        "unbalanced_costs": unbalanced_costs,
        "imbalance": over_mean(group_costs),
        "imbalance_unbalanced": over_mean(unbalanced_costs),
        "fill": plan.fill,
        "num_dropped": len(plan.dropped),
        "num_cut": plan.num_cut,
        "dominance": float(dominance(costs, plan.num_groups)),
        "num_giants": num_giants(costs, plan.num_groups),
        "note": plan.note,
    }


def _wanted_of(plan: StepPlan, is_last: np.ndarray, wanted: np.ndarray) -> Wanted:
    """`wanted` as `_wanted` gives it; dropped samples are wanted by nobody."""
    rank, index, segment, for_slots = wanted.T
    dropped = np.zeros(len(plan.dropped), dtype=np.int32)
    infos = np.concatenate([plan.samples[segment], plan.dropped])
    columns = {
        "constructor": np.concatenate([rank, dropped - 1]).astype(np.int32),
        "index": np.concatenate([index, dropped]).astype(np.int32),
        "source": infos["source"],
        "position": infos["position"],
        "part": infos["part"],
        "start": np.concatenate([plan.start[segment], dropped]),
        "length": np.concatenate([plan.length[segment], dropped]),
        "is_last": np.concatenate([is_last[segment], dropped == 0]),
        "is_image": np.concatenate([for_slots, dropped]).astype(bool),
    }
    return Wanted(step=plan.step, infos=infos, columns=columns, without_patches=plan.num_slots > 0)


def order_to_forget(step: int, infos: np.ndarray) -> m.Order:
    """To a loader: forget these samples when `step` is released; nobody asks for them."""
    nothing = np.zeros(len(infos), dtype=np.int32)
    return m.Order(
        step=step,
        constructor=nothing - 1,
        index=nothing,
        source=infos["source"],
        position=infos["position"],
        part=infos["part"],
        start=nothing,
        length=nothing,
        is_last=nothing == 0,
        is_image=nothing > 0,
        without_patches=False,
    )
