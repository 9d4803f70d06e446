"""`msdata completion`: the script that lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_MSDATA_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print what a shell reads to complete `msdata`.

    \b
    bash, in ~/.bashrc:                           eval "$(msdata completion bash)"
    zsh, in ~/.zshrc:                             eval "$(msdata completion zsh)"
    fish, in ~/.config/fish/completions/msdata.fish:  msdata completion fish | source
    """
    # The root command, which the script calls back, is known to click by its name alone.
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.Group(), {}, "msdata", _VARIABLE).source())
    return 0
