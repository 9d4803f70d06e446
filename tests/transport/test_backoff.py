from msdata_transport.backoff import Backoff


def test_looks_again_at_once_then_sleeps_longer_and_longer() -> None:
    backoff = Backoff()
    backoff.traffic(10.0)
    assert backoff.pause(10.0 + 20e-6) == 0.0
    soon = [round(backoff.pause(10.01) * 1e6) for _ in range(7)]
    assert soon == [50, 100, 200, 400, 800, 1000, 1000]
    later = [round(backoff.pause(10.2) * 1e6) for _ in range(4)]
    assert later == [2000, 4000, 5000, 5000]


def test_traffic_starts_over() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.pause(5.0)
    backoff.traffic(6.0)
    assert backoff.pause(6.0) == 0.0
    assert backoff.pause(6.001) == 50e-6


def test_before_any_traffic_it_sleeps() -> None:
    assert Backoff().pause(0.0) == 50e-6


def test_sleeps_stay_short_while_bytes_are_under_way():
    backoff = Backoff()
    backoff.traffic(1.0)
    assert [backoff.pause(1.0 + t, moving=True) for t in (1e-3, 2e-3, 4e-3)] == [50e-6] * 3
    assert [backoff.pause(1.0 + t, moving=True) for t in (6e-3, 7e-3, 8e-3)] == [50e-6, 100e-6, 200e-6]
