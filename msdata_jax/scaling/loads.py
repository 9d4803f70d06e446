"""How work that several loaders may share spreads over them."""

from collections.abc import Mapping, Sequence

_ROUNDS = 8


def spread(
    needs: Sequence[float], loaders: Sequence[Sequence[int]], threads: Mapping[int, float]
) -> tuple[dict[int, float], list[dict[int, float]]]:
    """How busy each loader is when each source's work is shared as evenly as its loaders allow.

    Water-filling, source by source and round by round: each fills its loaders up to one level given what the
    others have put there. Levels approach those of the least possible maximum.

    Args:
        needs: worker threads that each source keeps busy.
        loaders: of each source, at least one.
        threads: worker threads of each loader.

    Returns:
        threads kept busy over threads there are, by loader; above 1 it cannot keep up. And threads that each
        source keeps busy, by loader.
    """
    load = dict.fromkeys(threads, 0.0)
    parts: list[dict[int, float]] = [{} for _ in needs]
    order = sorted(range(len(needs)), key=lambda i: (len(loaders[i]), -needs[i], i))
    shared = any(len(each) > 1 for each in loaders)
    for _ in range(_ROUNDS if shared else 1):
        for source in order:
            if needs[source] <= 0:
                continue
            for rank, part in parts[source].items():
                load[rank] -= part
            parts[source] = _fill(needs[source], loaders[source], load, threads)
            for rank, part in parts[source].items():
                load[rank] += part
    return {rank: max(load[rank], 0.0) / threads[rank] for rank in threads}, parts


def _fill(
    need: float, loaders: Sequence[int], load: Mapping[int, float], threads: Mapping[int, float]
) -> dict[int, float]:
    """What each loader takes of a need, so that the emptiest are filled to one level."""
    by_level = sorted(loaders, key=lambda rank: (load[rank] / threads[rank], rank))
    busy = capacity = level = 0.0
    filled = 0
    for place, rank in enumerate(by_level):
        busy += load[rank]
        capacity += threads[rank]
        level = (need + busy) / capacity
        filled = place + 1
        following = by_level[place + 1 : place + 2]
        if not following or level <= load[following[0]] / threads[following[0]]:
            break
    return {rank: max(level * threads[rank] - load[rank], 0.0) for rank in by_level[:filled]}
