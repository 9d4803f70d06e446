"""Which rank plays which role, and which loaders a source may be leased to."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from msdata_jax.errors import LaunchError

ROLES = ("planner", "loader", "shadow", "constructor")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Ranks by role. Constructor `i` of the tuple is the training process with process index `i`.

    Shadows are loaders that stand by: their sources are open, and they take over when a loader is lost.
    """

    planner: int
    loaders: tuple[int, ...]
    constructors: tuple[int, ...]
    shadows: tuple[int, ...] = ()

    @property
    def readers(self) -> tuple[int, ...]:
        """All that can read: loaders and shadows."""
        return (*self.loaders, *self.shadows)

    def role_of(self, rank: int) -> str:
        """The role of a rank.

        Raises:
            LaunchError: it has none.
        """
        for role, ranks in (
            ("planner", (self.planner,)),
            ("loader", self.loaders),
            ("shadow", self.shadows),
            ("constructor", self.constructors),
        ):
            if rank in ranks:
                return role
        raise LaunchError(f"rank {rank} has no role in {self}")

    def without(self, lost: Collection[int]) -> "Placement":
        """The same without some loaders and shadows; where no loader is left, the shadows are loaders."""
        loaders = tuple(rank for rank in self.loaders if rank not in lost)
        shadows = tuple(rank for rank in self.shadows if rank not in lost)
        if not loaders:
            loaders, shadows = shadows, ()
        return replace(self, loaders=loaders, shadows=shadows)

    def affinity(self, num_sources: int) -> list[tuple[int, ...]]:
        """The loaders of each source: one each where there are at least as many sources as loaders.

        Otherwise the loaders are dealt to the sources in turn. A source stays open on its loaders alone,
        whatever the number of trainers.
        """
        count = len(self.loaders)
        if num_sources >= count > 0:
            return [(self.loaders[source % count],) for source in range(num_sources)]
        return [self.loaders[source::num_sources] for source in range(num_sources)]


def placement_from_groups(groups: dict[str, tuple[int, ...]]) -> Placement:
    """Placement from the ranks that asked for each role.

    Raises:
        LaunchError: not exactly one planner, no loader, no constructor, or a role that is none.
    """
    counts = {role: len(groups.get(role, ())) for role in ROLES}
    unknown = sorted(set(groups) - set(ROLES))
    if unknown or counts["planner"] != 1 or not counts["loader"] or not counts["constructor"]:
        raise LaunchError(
            f"a job has one planner, at least one loader, shadows if any, and at least one constructor (a "
            f"training process each); the ranks asked for {counts}"
            f"{f' and for unknown roles {unknown}' if unknown else ''}. "
            f"`msdata launch --loaders 3 --trainers 2 recipe.py -- train.py` starts them rightly"
        )
    return Placement(
        planner=groups["planner"][0],
        loaders=groups["loader"],
        constructors=groups["constructor"],
        shadows=groups.get("shadow", ()),
    )


def parse_roles(spec: str) -> list[tuple[str, int]]:
    """Roles and how many ranks in turn play them, from a spec such as `planner=1,loaders=3,trainers=2`.

    A role may come again: `trainers=2,loaders=1,planner=1,trainers=2,loaders=2` are two hosts of four ranks.
    Shadows may be left out.

    Raises:
        LaunchError: the text is no such spec.
    """
    names = {"planner": "planner", "loaders": "loader", "shadows": "shadow", "trainers": "constructor"}
    runs: list[tuple[str, int]] = []
    for part in spec.split(","):
        name, _, number = part.strip().partition("=")
        if name not in names or not number.isdecimal() or int(number) < 1:
            raise LaunchError(f"roles are given as 'planner=1,loaders=3,trainers=2', got {spec!r}")
        runs.append((names[name], int(number)))
    if {"shadow", *(role for role, _ in runs)} != set(ROLES) or [
        count for role, count in runs if role == "planner"
    ] != [1]:
        raise LaunchError(f"roles name one planner, some loaders and some trainers, got {spec!r}")
    return runs


def role_of_rank(spec: str, rank: int) -> str:
    """The role that `parse_roles(spec)` gives to `rank`.

    Raises:
        LaunchError: the spec names fewer ranks.
    """
    first = 0
    for role, count in parse_roles(spec):
        first += count
        if rank < first:
            return role
    raise LaunchError(f"roles {spec!r} name {first} ranks; rank {rank} has no role: start {first} ranks")
