"""A data constructor: fills the rows of its process as samples arrive and hands steps over in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msdata_jax.batching.assembly import RowAssembly, RowFormat, Segments, Slots
from msdata_jax.errors import BadSampleError, JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Deliver, Effect, EndStream, Finish, Forget, Saved, Send, Show
from msdata_jax.roles.placement import Placement


class DataConstructor:
    """State machine of a data constructor; lives in a training process and never chooses a sample.

    A step becomes visible to the trainer when all constructors have all of it, so that data which fail, or a
    loader that is lost for good, end training at the same step everywhere. Samples that come again, since the
    planner cannot know what a lost loader had sent, are dropped.

    Args:
        placement: the job's ranks.
        forms: the format of a row by its length.
        process_figures: what to add to the figures of this process.
        loss_factors: what the loss weights of each source's samples are multiplied by; None for 1.
        source_names: for messages.
    """

    def __init__(
        self,
        placement: Placement,
        forms: Mapping[int, RowFormat],
        process_figures: Callable[[], Mapping[str, Any]] = dict,
        loss_factors: Sequence[float] | None = None,
        source_names: Sequence[str] = (),
    ) -> None:
        self._planner, self._forms = placement.planner, forms
        self._source_names = source_names
        self._loss_factors = None if loss_factors is None else np.asarray(loss_factors, dtype=np.float32)
        self._process_figures = process_figures
        self._expected: dict[int, m.Expect] = {}
        self._assembly: dict[int, RowAssembly] = {}
        self._early: dict[int, list[m.Samples]] = {}
        self._states: list[m.StateAfter] = []  # of steps that are not delivered, in order
        self._loaders = placement.readers
        self._alone = len(placement.constructors) == 1
        self._next_step: int | None = None  # the first step that is not complete here
        self._shown = -1
        self._num_repeated = 0
        self._end: m.EndOfData | None = None
        self._leaving = False

    def start(self) -> Sequence[Effect]:
        """Tell the planner that the DataLoader is built; `Join` waits until it is to begin."""
        return [Send(rank=self._planner, message=m.Built())]

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> Sequence[Effect]:
        """Nothing is timed here."""
        return []

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        match message:
            case m.Expect():
                return self._expect(message)
            case m.Samples():
                return self._take(message)
            case m.StateAfter():
                self._states.append(message)
                return []
            case m.Visible():
                return [*self._show(message.step), *self._end_stream()]
            case m.EndOfData():
                self._end = message
                return self._hand_over()
            case m.Lost():
                return self._lose(sender, message)
            case m.BlocksSaved():
                return [Saved(message=message)]
            case _:
                return self._pass_on_or_finish(sender, message)

    def _pass_on_or_finish(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """What the trainer's thread says to the planner, and the end."""
        match message:
            case m.Join() | m.Delivered() | m.PinBlocks() | m.SaveBlocks() | m.AskToStop() | m.Failed():
                return [Send(rank=self._planner, message=message)]
            case m.Leave():
                self._leaving = True
                figures = {**self._process_figures(), "repeated_segments": self._num_repeated}
                return [Send(rank=self._planner, message=replace(message, figures=figures))]
            case m.Summary():
                return [Finish(figures=message.figures)]
            case m.Abort():
                return [Finish(error=JobFailed(message.rank, message.message))]
            case _:
                raise MSDataError(f"constructor got {type(message).__name__} from rank {sender}")

    def _lose(self, sender: int, lost: m.Lost) -> Sequence[Effect]:
        """Go on without a loader; without any other rank the job is over."""
        if lost.rank not in self._loaders:
            raise JobFailed(lost.rank, f"lost contact: {lost.why}")
        forget = Forget(rank=lost.rank, why=lost.why)
        # The loader may live, and what it sent is lost: the planner must let others send it.
        return [forget] if sender == self._planner else [forget, Send(rank=self._planner, message=lost)]

    def _expect(self, expect: m.Expect) -> Sequence[Effect]:
        if self._next_step is None:
            self._next_step, self._shown = expect.step, expect.step - 1
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
        if self._next_step is not None and samples.step < self._next_step:
            self._num_repeated += len(samples.index)
            return []
        if samples.step not in self._expected:
            self._early.setdefault(samples.step, []).append(samples)
            return []
        relay_to = () if samples.for_slots else self._expected[samples.step].relay_to
        relay = [Send(rank=rank, message=samples) for rank in relay_to]
        if self._leaving:
            return relay  # peers may still want their steps
        assembly = self._assembly[samples.step]
        samples = self._without_repeated(samples, assembly)
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

    def _without_repeated(self, samples: m.Samples, assembly: RowAssembly) -> m.Samples:
        """Only what is not written yet."""
        fresh = assembly.is_missing(samples.index, for_slots=samples.for_slots)
        if fresh.all():
            return samples
        self._num_repeated += int(np.count_nonzero(~fresh))
        of_patch = of_token = slice(0)
        if len(samples.patches):
            of_patch = np.repeat(fresh, samples.num_patches)
        if len(samples.tokens):
            of_token = np.repeat(fresh, self._expected[samples.step].length[samples.index])
        return replace(
            samples,
            index=samples.index[fresh],
            num_patches=samples.num_patches[fresh],
            tokens=samples.tokens[of_token],
            patches=samples.patches[of_patch],
        )

    def _hand_over(self) -> Sequence[Effect]:
        """Deliver finished steps in order, then the end; nothing once the trainer left."""
        effects: list[Effect] = []
        if self._leaving:
            return effects
        first = self._next_step
        while self._next_step in self._assembly and self._assembly[self._next_step].complete:
            assembly = self._assembly.pop(self._next_step)
            expect = self._expected.pop(self._next_step)
            states = [state for state in self._states if state.step <= self._next_step]
            del self._states[: len(states)]
            effects.append(Deliver(expect=expect, fields=assembly.finish(), states=states))
            self._next_step += 1
        if self._next_step is not None and self._next_step != first:
            step = self._next_step - 1
            done = Send(rank=self._planner, message=m.Complete(step=step))
            effects += self._show(step) if self._alone else [done]
        return [*effects, *self._end_stream()]

    def _show(self, step: int) -> Sequence[Effect]:
        self._shown = step
        return [] if self._leaving else [Show(step=step)]

    def _end_stream(self) -> Sequence[Effect]:
        """The end, once all steps before it are shown."""
        end, shown = self._end, self._shown
        if end is None or self._leaving or (self._next_step is not None and shown + 1 < end.step):
            return []
        self._end = None
        return [EndStream(error=BadSampleError(end.error) if end.error else None, stopped=end.stopped)]
