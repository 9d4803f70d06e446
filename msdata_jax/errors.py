"""The errors that msdata_jax raises.

MSDataError
├── RecipeError          a recipe, strategy, mesh or spec that breaks a rule; known before training
├── SourceError          a source that cannot be opened or read at all
├── BadSampleError       a sample that cannot be read, where the source's policy says so
├── PlanError            a step plan breaks one of its own laws: a fault of the strategy, never of the data
├── CheckpointError      a data checkpoint that cannot be read, or that does not fit the recipe
├── JobFailed            another rank of the job failed; carries that rank's own message
└── LaunchError          ranks that cannot form a job: roles missing, MPI absent, recipes that differ

Every message gives the rule, the values that broke it and the way out.
"""


class MSDataError(Exception):
    """Base of every error that msdata_jax raises on purpose."""


class RecipeError(MSDataError, ValueError):
    """A recipe, strategy, mesh or spec breaks a rule."""


class SourceError(MSDataError):
    """A source cannot be opened or read at all."""


class BadSampleError(MSDataError):
    """A sample cannot be read and the policy of its source does not allow to go on without it."""


class PlanError(MSDataError):
    """A step plan breaks one of its own laws; a fault of the strategy, never of the data."""


class CheckpointError(MSDataError):
    """A data checkpoint or journal cannot be read, or does not fit the recipe that is to go on with it."""


class JobFailed(MSDataError):
    """Another rank of the job failed.

    Attributes:
        rank: the rank that failed first.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank} failed: {message}")
        self.rank = rank
        self.message = message

    def __reduce__(self):
        return JobFailed, (self.rank, self.message)


class LaunchError(MSDataError):
    """The ranks cannot form a job."""
