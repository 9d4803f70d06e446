"""Figures of other ranks never reach a role, whether somebody watches or not."""

import pytest
from msdata_transport import connect
from roles.played import make_placement

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Finish
from msdata_jax.runtime import wire
from msdata_jax.runtime.loop import RoleLoop
from msdata_jax.runtime.observing import NoObserver, Observer


class Strict:
    """A role that knows `Stop` alone."""

    def start(self) -> list[Effect]:
        return []

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> list[Effect]:
        return []

    def handle(self, sender: int, message: m.RoleMessage) -> list[Effect]:
        assert isinstance(message, m.Stop)
        return [Finish(figures={"heard": "stop"})]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("session", [0, 3])
def test_figures_pass_the_role_by(watched: bool, session: int) -> None:
    endpoint, other, *_ = connect(4)
    told: list[tuple[int, object]] = []
    observer = NoObserver()
    if watched:
        observer = Observer(
            0, make_placement(num_loaders=2), on_measured=lambda *figures: told.append(figures)
        )
    other.send(0, wire.encode(m.Measured(figures={"role": "loader"}), session))  # of an earlier one, too
    other.send(0, wire.encode(m.Stop(lost=[]), 3))
    loop = RoleLoop(Strict(), endpoint, session=3, observer=observer)
    assert loop.run() == {"heard": "stop"}
    assert told == ([(1, {"role": "loader"})] if watched else [])
