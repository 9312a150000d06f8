"""The `unmdpo` command.

Commands import what they need when they run: `--help` must be instant, so nothing here may import torch or
transformers at the top.
"""

import io
import os
import signal
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

import unmdpo
from unmdpo.cli import audit, exchange, inspect, judge, lab, look, models, pairs, recipes, run, theory
from unmdpo.cli.output import say
from unmdpo.core.errors import Stopped, UnmdpoWarning, UserError, disk_problem, printable, stop
from unmdpo.core.processes import keep_streams, let_threads_sleep

LONGEST = 200  # characters of a command's line in the menu
SCREEN = 4000  # characters of an error


GONE = {  # commands of earlier versions → what to do instead
    "gc": "unmdpo rm --unused",
    "check": "unmdpo plan RECIPE, which looks for the same problems first",
    "arena": "Arena-Hard-Auto's own show_result.py ranks its judgments, on answers of `unmdpo answers`",
}


class _Group(TyperGroup):
    """Shows commands in groups, and user errors as a message with exit code 2, without a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in GONE:
            raise UserError(f"there is no command '{args[0]}' anymore: {GONE[args[0]]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, names in MENU.items():
            with formatter.section(group):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl(
                    [(name, command.get_short_help_str(LONGEST)) for name, command in commands if command]
                )

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            if ctx.params.get("debug"):
                raise
            _print_error(str(error))
            raise typer.Exit(2) from error
        except OSError as error:
            if ctx.params.get("debug") or error.filename is None:
                raise
            _print_error(disk_problem(error))
            raise typer.Exit(2) from error
        except (KeyboardInterrupt, Stopped) as error:
            raise typer.Exit(_stopped(error)) from error


def _stopped(error: BaseException) -> int:
    """Prints one line and returns the exit code for the signal."""
    typer.secho("stopped; finished work is kept, and the same command continues from there", err=True)
    return 128 + (error.signal if isinstance(error, Stopped) else signal.SIGINT)


def _print_error(problem: str) -> None:
    more = f"… ({len(problem) - SCREEN:,} more characters)" if len(problem) > SCREEN else ""
    typer.secho(f"error: {printable(problem[:SCREEN])}{more}", fg="red", err=True)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help halves the start-up time
    help="Preference optimization with strength margins and a learned prompt scale.",
)
MENU: dict[str, dict[str, Any]] = {  # as `--help` shows it: group → command → its function, or commands of its own
    "Start": {
        "demo": lab.demo, "look": look.look, "init": look.init, "plan": inspect.plan,
    },
    "Run": {"run": run.run},
    "Read": {
        "report": inspect.report, "table": exchange.table, "compare": inspect.compare, "scale": inspect.scale,
        "verify": inspect.verify, "chat": models.chat,
    },
    "Keep": {"runs": models.runs, "export": models.export, "rm": models.rm},
    "More": {
        "judge": judge.app, "pairs": pairs.pairs, "audit": audit.app, "answers": exchange.answers,
        "alpaca": exchange.alpaca, "theory": theory.app, "recipes": recipes.app,
        "lab": lab.app,
    },
}  # fmt: skip
for _commands in MENU.values():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name)(_command)


def _version(show: bool) -> None:
    if show:
        say(f"unmdpo {unmdpo.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our warnings are one plain line; others keep their category, since they are about code."""
    label = "warning" if issubclass(category, UnmdpoWarning) else category.__name__
    typer.secho(f"{label}: {printable(str(message))}", fg="yellow", err=True)


def main() -> None:
    if sys.platform == "win32":
        sys.exit("unmdpo runs on Linux and macOS; on Windows, use it inside WSL")
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, stop)
    let_threads_sleep()
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # bars of libraries make no sense in a file
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without τ shows ? instead of failing
    keep_streams()
    try:
        app()
    except (KeyboardInterrupt, Stopped) as error:  # before or between commands
        sys.exit(_stopped(error))
