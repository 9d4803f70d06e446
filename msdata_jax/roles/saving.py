"""Blocks that loaders write beside a checkpoint: who asked for them, and who is done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Send


@dataclass(frozen=True, kw_only=True)
class _Saving:
    """Who asked, which loaders are not done, and what was written so far."""

    asked_by: int
    waits_for: frozenset[int]
    total: m.BlocksSaved


class BlockSaving:
    """Passes on what constructors ask of the loaders, and sums up what these say."""

    def __init__(self) -> None:
        self._savings: dict[str, _Saving] = {}

    def ask(self, sender: int, message: m.PinBlocks | m.SaveBlocks, loaders: Sequence[int]) -> list[Effect]:
        """Tell all loaders."""
        if isinstance(message, m.SaveBlocks):
            nothing = m.BlocksSaved(folder=message.folder, num_blocks=0, num_bytes=0, error="")
            saving = _Saving(asked_by=sender, waits_for=frozenset(loaders), total=nothing)
            return [
                *(Send(rank=rank, message=message) for rank in loaders),
                *self._settle(message.folder, saving),
            ]
        return [Send(rank=rank, message=message) for rank in loaders]

    def collect(self, loader: int, saved: m.BlocksSaved) -> list[Effect]:
        """A loader is done; when all are, whoever asked is told."""
        saving = self._savings.get(saved.folder)
        if saving is None:
            return []
        total = m.BlocksSaved(
            folder=saved.folder,
            num_blocks=saving.total.num_blocks + saved.num_blocks,
            num_bytes=saving.total.num_bytes + saved.num_bytes,
            error=saving.total.error or saved.error,
        )
        saving = replace(saving, waits_for=saving.waits_for - {loader}, total=total)
        return self._settle(saved.folder, saving)

    def lose(self, loader: int) -> list[Effect]:
        """A loader is gone: its blocks are missing, which costs reading them again."""
        effects: list[Effect] = []
        for folder, saving in list(self._savings.items()):
            effects += self._settle(folder, replace(saving, waits_for=saving.waits_for - {loader}))
        return effects

    def _settle(self, folder: str, saving: _Saving) -> list[Effect]:
        self._savings[folder] = saving
        if saving.waits_for:
            return []
        del self._savings[folder]
        return [Send(rank=saving.asked_by, message=saving.total)]
