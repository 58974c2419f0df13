"""The command line: a lazy registry of commands, one error handler, nothing heavy imported before a command runs.

``shapefront --help`` lists every command from :data:`COMMANDS` without importing its module. A command lives in
``studies/commands/<module>.py`` as ``def <name>(...)`` with typer annotations, or as ``app = typer.Typer()`` where it
has sub-commands of its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from .output import open_closed_streams, write_any_encoding

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

# name → (module in studies/commands, one line for --help, panel of the help page)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("run", "Search architectures of a study and write the ranked Pareto set.", "Design"),
    "suggest": ("suggest", "Propose designs for a parameter budget.", "Design"),
    "check": ("check", "Hold a config.json to the seven guidelines, each with its cost.", "Design"),
    "estimate": ("estimate", "Price one model on one layout, with a breakdown.", "Price"),
    "compare": ("compare", "Frontiers of several models side by side.", "Price"),
    "kernel": ("kernel", "Price one kernel (gemm, attention, moe, collective).", "Price"),
    "export": ("export", "Write a result as csv, parquet, json, hf, vllm, sglang or trtllm.", "Results"),
    "plot": ("plot", "Draw a result.", "Results"),
    "report": ("report", "Write a result as one page.", "Results"),
    "calibrate": ("calibrate", "Fit a kernel profile to measured tables.", "Silicon"),
    "validate": ("validate", "Report the cost model's error against measured tables.", "Silicon"),
    "studies": ("studies", "List the built-in studies, show one, or print the schema.", "What is there"),
    "hardware": ("hardware", "List GPUs, or show one with the source of each number.", "What is there"),
    "profiles": ("profiles", "List kernel profiles, or show one with its errors.", "What is there"),
    "models": ("models", "List the reference models.", "What is there"),
    "worker": ("worker", "Join a study on a shared PostgreSQL storage.", "Scale out"),
}


class LazyCommand(TyperCommand):
    """Name and help of a command whose module is imported when it is called."""

    def __init__(self, name: str) -> None:
        self.module, line, panel = COMMANDS[name]
        super().__init__(name, help=line, short_help=line, rich_help_panel=panel)

    def load(self) -> Any:
        """Import the module and return its click command."""
        assert self.name is not None
        try:
            module = import_module(f".commands.{self.module}", __package__)
        except ModuleNotFoundError as error:
            if error.name != f"{__package__}.commands.{self.module}":
                raise
            _fail(f"'shapefront {self.name}' is not part of this build yet")
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
            app.command(self.name)(getattr(module, self.name))
        command = typer.main.get_command(app)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Hand over to the command itself.

        An empty argument is refused here: it comes from a shell variable that is not set, and as a path it would mean the
        current folder.
        """
        for before, argument in zip(["", *args], args, strict=False):
            if not argument or (argument.startswith("--") and argument.endswith("=")):
                option = (argument or before).rstrip("=")
                what = f"{option} is empty" if option.startswith("-") else "an argument is empty"
                _fail(f"{what} (a shell variable that is not set?); give a value or leave it out")
        return self.load().make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of :data:`COMMANDS`, in that order."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The lazy command, or None where there is none of that name."""
        return LazyCommand(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C is said in words (typer ends a program without any)."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            print(f"shapefront: {str(error) or 'interrupted'}", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from .. import __version__
        from ..costmodel.profile import load_profile, profile_names

        typer.echo(f"shapefront {__version__}")
        for name in profile_names():
            facts = load_profile(name).provenance
            said = ", ".join(str(facts[key]) for key in ("date", "tables") if key in facts)
            typer.echo(f"  profile {name}{': ' + said if said else ''}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def shapefront(
    version: bool = typer.Option(False, "--version", help="Print the version and leave.", callback=_version, is_eager=True),
) -> None:
    """Hardware-friendly LLM architectures under a parameter budget, priced on a GB300 cost model."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line.

    Args:
        argv: arguments without the program's name; the process's own when None.

    Raises:
        SystemExit: 0 on success, 2 where the user's input breaks a rule (one message on stderr, no traceback), 130
            after an interrupt.
    """
    open_closed_streams()
    write_any_encoding()
    try:
        typer.main.get_command(app).main(args=argv, prog_name="shapefront", standalone_mode=True)
    except Exception as error:
        message = _user_message(error)
        if message is None:
            raise
        _fail(message)
    sys.exit(0)


def _user_message(error: BaseException) -> str | None:
    """The one line to show, or None where the error is ours and its traceback helps."""
    errors = sys.modules.get("shapefront.costmodel.errors")
    if errors is not None and isinstance(error, errors.ShapefrontError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory; reduce the study (fewer dimensions, fewer layouts, fewer trials)"
    if isinstance(error, ImportError) and isinstance(error.__cause__, ImportError):
        return str(error)
    return None


def _fail(message: str) -> NoReturn:
    print(f"shapefront: error: {message}", file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
