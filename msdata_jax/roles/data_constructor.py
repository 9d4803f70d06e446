"""A data constructor: fills the rows of its process as samples arrive and hands steps over in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.batching.assembly import RowAssembly, RowFormat, Segments, Slots
from msdata_jax.errors import BadSampleError, JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Deliver, Effect, EndStream, Finish, Send
from msdata_jax.roles.placement import Placement


class DataConstructor:
    """State machine of a data constructor; lives in a training process and never chooses a sample.

    Args:
        placement: the job's ranks.
        forms: the format of a row by its length.
        join: what to tell the planner.
        process_figures: what to add to the figures of this process.
        loss_factors: what the loss weights of each source's samples are multiplied by; None for 1.
        source_names: for messages.
    """

    def __init__(
        self,
        placement: Placement,
        forms: Mapping[int, RowFormat],
        join: m.Join,
        process_figures: Callable[[], Mapping[str, Any]] = dict,
        loss_factors: Sequence[float] | None = None,
        source_names: Sequence[str] = (),
    ) -> None:
        self._planner, self._forms, self._join = placement.planner, forms, join
        self._source_names = source_names
        self._loss_factors = None if loss_factors is None else np.asarray(loss_factors, dtype=np.float32)
        self._process_figures = process_figures
        self._expected: dict[int, m.Expect] = {}
        self._assembly: dict[int, RowAssembly] = {}
        self._early: dict[int, list[m.Samples]] = {}
        self._next_step = 0
        self._end: m.EndOfData | None = None
        self._leaving = False

    def start(self) -> Sequence[Effect]:
        """Tell the planner which mesh this process belongs to."""
        return [Send(rank=self._planner, message=self._join)]

    def tick(self, elapsed_seconds: float) -> Sequence[Effect]:
        """Nothing is timed here."""
        return []

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        match message:
            case m.Expect():
                return self._expect(message)
            case m.Samples():
                return self._take(message)
            case m.Delivered() | m.Failed():
                return [Send(rank=self._planner, message=message)]
            case m.EndOfData():
                self._end = message
                return self._hand_over()
            case m.Leave():
                self._leaving = True
                return [Send(rank=self._planner, message=m.Leave(figures=self._process_figures()))]
            case m.Summary():
                return [Finish(figures=message.figures)]
            case m.Abort():
                return [Finish(error=JobFailed(message.rank, message.message))]
            case _:
                raise MSDataError(f"constructor got {type(message).__name__} from rank {sender}")

    def _expect(self, expect: m.Expect) -> Sequence[Effect]:
        segments = Segments(
            row=expect.row,
            offset=expect.offset,
            length=expect.length,
            num_patches=expect.infos["patches"],
            factor=None if self._loss_factors is None else self._loss_factors[expect.infos["source"]],
            first_patch=expect.first_patch if expect.num_slots else None,
        )
        slots = Slots(
            num_slots=expect.num_slots,
            patches_per_slot=expect.patches_per_slot,
            slot=expect.slot,
            first=expect.slot_first,
            num_patches=expect.slot_patches,
        )
        self._expected[expect.step] = expect
        self._assembly[expect.step] = RowAssembly(
            self._forms[expect.seq_len], len(expect.rows), segments, slots if expect.num_slots else None
        )
        effects: list[Effect] = []
        for samples in self._early.pop(expect.step, []):
            effects += self._take(samples)
        return [*effects, *self._hand_over()]

    def _take(self, samples: m.Samples) -> Sequence[Effect]:
        """Write samples into their rows, and pass them on to the peers that this process feeds."""
        if samples.step < self._next_step:
            raise MSDataError(f"samples of step {samples.step} came after the step was handed over")
        if samples.step not in self._expected:
            self._early.setdefault(samples.step, []).append(samples)
            return []
        relay_to = () if samples.for_slots else self._expected[samples.step].relay_to
        relay = [Send(rank=rank, message=samples) for rank in relay_to]
        if self._leaving:
            return relay  # peers may still want their steps
        assembly = self._assembly[samples.step]
        try:
            if samples.for_slots:
                assembly.write_patches(samples.index, samples.num_patches, samples.patches)
            else:
                assembly.write(samples.index, samples.tokens, samples.num_patches, samples.patches)
        except ValueError as error:
            infos = self._expected[samples.step].infos
            sources = np.unique(infos["source"] if samples.for_slots else infos["source"][samples.index])
            names = [self._source_names[int(source)] for source in sources.tolist()]
            raise MSDataError(f"step {samples.step}, sources {', '.join(names)}: {error}") from None
        return [*relay, *self._hand_over()]

    def _hand_over(self) -> Sequence[Effect]:
        """Deliver finished steps in order, then the end; nothing once the trainer left."""
        effects: list[Effect] = []
        if self._leaving:
            return effects
        while self._next_step in self._assembly and self._assembly[self._next_step].complete:
            assembly = self._assembly.pop(self._next_step)
            expect = self._expected.pop(self._next_step)
            effects.append(Deliver(expect=expect, fields=assembly.finish()))
            self._next_step += 1
        if self._end is not None and self._next_step >= self._end.step:
            error = BadSampleError(self._end.error) if self._end.error else None
            self._end = None
            effects.append(EndStream(error=error))
        return effects
