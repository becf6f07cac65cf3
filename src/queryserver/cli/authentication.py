"""`auth explain`."""

import sys
from dataclasses import asdict

import typer

from queryserver.cli.context import AsJson, ConfigFile, print_json, run, settings_of

app = typer.Typer(help="Look at tokens.", no_args_is_help=True)

_MOST_CHARACTERS = 64 * 1024


@app.callback()
def _group() -> None:
    """Without this the one command would take the place of the group."""


@app.command("explain")
def explain(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Say which check takes or refuses the token on standard input. The token is never printed."""
    from queryserver.auth.explaining import Finding  # noqa: PLC0415 slow to import
    from queryserver.container.explaining import open_explainer  # noqa: PLC0415 as above

    words = sys.stdin.read(_MOST_CHARACTERS).split()
    if len(words) == 2 and words[0].lower() == "bearer":
        words = words[1:]
    if len(words) != 1:
        raise typer.BadParameter("Give one token on standard input.")
    settings = settings_of(config)

    async def findings() -> list[Finding]:
        async with open_explainer(settings) as explainer:
            return await explainer.explain(words[0])

    found = run(findings)
    is_good = not any(finding.passed is False for finding in found)
    if as_json:
        print_json({"accepted": is_good, "checks": [asdict(finding) for finding in found]})
    else:
        for finding in found:
            outcome = {True: "ok", False: "refused", None: "-"}[finding.passed]
            typer.echo(f"{finding.check:<10} {outcome}{': ' if finding.text else ''}{finding.text}")
        typer.echo("accepted" if is_good else "refused")
    raise typer.Exit(0 if is_good else 1)
