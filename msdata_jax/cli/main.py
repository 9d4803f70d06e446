"""The command line, `msdata COMMAND`. Commands load what they need when they run."""

import importlib
import os
import sys

import click

from msdata_jax.errors import MSDataError

_COMMANDS = {
    "launch": "Start a job: planner, loaders and trainers, on this machine or in a Slurm allocation.",
    "serve": "Be one rank of a job: planner, loader, or trainer.",
    "profile": "Measure what each source costs: time, threads, bytes and memory.",
    "plan": "Dry run: what a recipe's steps look like on a mesh, and what to change.",
    "inspect": "Ask a plan log, a checkpoint, or the record of a run.",
    "report": "Make one HTML page of a recorded job: how it went, and what it waited for.",
    "trace": "Write what the ranks of a recorded job did for some steps, for ui.perfetto.dev.",
    "simulate": "What balancing would bring on clusters of this size, with the real planner.",
    "doctor": "Check what is installed, and that ranks start and stay free of JAX.",
    "bench": "Run a benchmark and print its rows.",
    "completion": "Print what bash, zsh or fish reads to complete commands and options.",
}
_MODULES = {"inspect": "inspect_log", "profile": "profile_sources", "trace": "trace_run"}
"""Modules not called like their command: a script of that folder would import ours in place of Python's."""
_WITHOUT_JAX = ("launch", "serve", "profile", "plan", "inspect")
"""Commands that load a recipe as a data rank does."""


class _LazyGroup(click.Group):
    """Loads a command's module when it is called, so that a data rank never loads what it does not need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        return importlib.import_module(f"msdata_jax.cli.{module}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="msdata-jax", prog_name="msdata")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A multi-source data layer for JAX training over MPI.

    \b
    msdata launch --loaders 3 --trainers 2 recipe.py -- train.py --steps 100
    msdata doctor

    Exit status: 0 all went well; 1 the job failed, or doctor found trouble; 2 a wrong call or recipe; 85 the
    job was asked to stop and did, so that it can go on; 130, 143 and 129 interrupted, told to end (SIGTERM),
    or its terminal was closed (SIGHUP).
    """
    # Here, where the process is known to be this command's alone: the block cannot be undone.
    if ctx.invoked_subcommand in _WITHOUT_JAX:
        from msdata_jax.sources.without_jax import block_jax

        block_jax()


def main() -> None:
    """Entry point; shows errors of msdata_jax as one readable block."""
    try:
        status = cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the flush at exit is none to fail
        sys.exit(1)
    except MSDataError as error:
        print(f"msdata: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
