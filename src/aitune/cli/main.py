"""The command ``aitune``."""

from __future__ import annotations

from typing import Annotated

import typer

from aitune import __version__
from aitune.cli.artifact_file import show, verify
from aitune.cli.doctor import doctor

app = typer.Typer(
    name="aitune",
    help="Find the fastest correct way to run a PyTorch module for inference on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(show)
app.command()(verify)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aitune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Find the fastest correct way to run a PyTorch module for inference on this machine."""
