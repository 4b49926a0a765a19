"""What does a user of the library write? An agent: what it is told, which engines it uses, how it behaves."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, ParamSpec, TypeVar, overload

from voice.endpointing import TurnEnd
from voice.errors import BadRequest, VoiceError
from voice.interfaces import LanguageModel, ModelOptions, Recogniser, Stages, Synthesiser, VoiceDetector
from voice.interruption import Interruptions
from voice.model_function import CallableModel, ChatView, ModelFunction, as_model
from voice.options import Limits, SpeechOptions, TurnOptions
from voice.schema import clip
from voice.spoken import prepare
from voice.tools import AnyTool, OnInterrupt, Tool, as_tool, declare_tool

__all__ = ["Agent", "CallableModel", "ChatView", "load_agent"]

DEFAULT_INSTRUCTIONS = "You are a helpful assistant. Answer briefly and correctly."
"""Short and plain, since very small models follow it too."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class Agent:
    """What an agent is told, what it can do and what it is made of. One agent serves any number of sessions.

    ``detector``, ``recogniser``, ``model`` and ``synthesiser`` are for construction only: each replaces one
    stage of ``stages``, where the result is found.

    Args:
        instructions: The system prompt.
        stages: The engines, such as ``stages.presets.local()``.
        tools: Functions the model may call, plain or made by :func:`~voice.tools.tool`. More can be added
            with :meth:`tool` or by appending to the list; read them with :meth:`tool_table`.
        name: Shown in logs, letters of your choice.
        greeting: Said at the start of a session; ``None``: the user speaks first.
        voice: Voice of the synthesiser; ``None``: its default.
        language: ISO 639-1 code of the conversation, a hint for the recogniser; ``None``: it finds out, and the
            conversation changes with a long utterance that is surely in another.
        model_options: Sampling and limits of the model.
        turns: Whose turn it is: times and thresholds.
        turn_end: The policies that tell whether the user is done.
        interruptions: The policies that tell a barge-in from a nod, a cough and the agent's own echo.
        speech: What is said when, and when things go wrong.
        limits: Bounds of a session's memory and patience.
        voices: Voice of the synthesiser by language, for conversations that change it; in others ``voice`` speaks.
        model: A language model, or an async generator function ``(chat, scope)`` that yields text.

    Raises:
        BadRequest: A wrong type, two tools of one name, or a function that can't be a tool or a model.
    """

    instructions: str
    stages: Stages
    tools: list[AnyTool | Callable[..., Any]] = field(default_factory=list)
    name: str = "agent"
    greeting: str | None = None
    voice: str | None = None
    language: str | None = "en"
    model_options: ModelOptions = field(default_factory=ModelOptions)
    turns: TurnOptions = field(default_factory=TurnOptions)
    turn_end: TurnEnd = field(default_factory=TurnEnd)
    interruptions: Interruptions = field(default_factory=Interruptions)
    speech: SpeechOptions = field(default_factory=SpeechOptions)
    limits: Limits = field(default_factory=Limits)
    voices: Mapping[str, str] | None = None
    detector: InitVar[VoiceDetector | None] = None
    recogniser: InitVar[Recogniser | None] = None
    model: InitVar[LanguageModel | ModelFunction | None] = None
    synthesiser: InitVar[Synthesiser | None] = None

    def __post_init__(
        self,
        detector: VoiceDetector | None,
        recogniser: Recogniser | None,
        model: LanguageModel | ModelFunction | None,
        synthesiser: Synthesiser | None,
    ) -> None:
        for name, kind in _KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                wanted = " or ".join(k.__name__ for k in kind).replace("NoneType", "None")
                raise BadRequest(f"Agent({name}=...) must be {wanted}, not {type(value).__name__}")
        for language, voice in (self.voices or {}).items():
            if not isinstance(language, str) or not isinstance(voice, str) or not language or not voice:
                raise BadRequest(f"Agent(voices=...) maps languages to voices, not {language!r} to {voice!r}")
            prepare(language)
        prepare(self.language or "en")
        self.tools = [as_tool(one) for one in self.tools]
        self.tool_table()
        given: dict[str, object] = {
            "detector": detector,
            "recogniser": recogniser,
            "synthesiser": synthesiser,
        }
        if model is not None:
            given["model"] = as_model(model)
        self.stages = replace(self.stages, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]

    def tool_table(self) -> dict[str, AnyTool]:
        """The tools by name, as of now.

        Raises:
            BadRequest: Two tools of one name, or a function in :attr:`tools` that can't be a tool.
        """
        table: dict[str, AnyTool] = {}
        for one in map(as_tool, self.tools):
            if one.name in table:
                raise BadRequest(
                    f'the agent has two tools named "{one.name}"; give one another with name=...'
                )
            table[one.name] = one
        return table

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(
        self,
        /,
        *,
        timeout_s: float = 10.0,
        on_interrupt: OnInterrupt = "finish",
        pure: bool = False,
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        timeout_s: float = 10.0,
        on_interrupt: OnInterrupt = "finish",
        pure: bool = False,
        name: str | None = None,
        description: str | None = None,
    ) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
        """Add a tool: ``@agent.tool``, or with the options of :func:`voice.tools.tool`.

        Raises:
            BadRequest: The agent has a tool of that name, or the function can't be a tool.
        """
        caller = sys._getframe(1).f_locals  # see voice.tools.tool

        def add(function: Callable[P, R]) -> Tool[P, R]:
            made = declare_tool(function, caller, timeout_s, on_interrupt, pure, name, description)
            if made.name in self.tool_table():
                raise BadRequest(
                    f'the agent already has a tool named "{made.name}"; give one another with name=...'
                )
            self.tools.append(made)
            return made

        return add if function is None else add(function)


_KINDS: dict[str, tuple[type, ...]] = {
    "instructions": (str,),
    "stages": (Stages,),
    "tools": (list, tuple),
    "name": (str,),
    "greeting": (str, NoneType),
    "voice": (str, NoneType),
    "language": (str, NoneType),
    "voices": (Mapping, NoneType),
    "model_options": (ModelOptions,),
    "turns": (TurnOptions,),
    "turn_end": (TurnEnd,),
    "interruptions": (Interruptions,),
    "speech": (SpeechOptions,),
    "limits": (Limits,),
}


# ---------------------------------------------------------------- from a file


def load_agent(spec: str) -> Agent:
    """The agent that a Python file defines. The file is run: load only files you trust.

    Args:
        spec: ``FILE.py:NAME``. ``NAME`` is an :class:`Agent`, or a function without arguments that returns
            one. The file's folder is put on the import path, as for ``python FILE.py``.

    Raises:
        BadRequest: No such file or name, not an agent, or the file fails; with the file and line at fault.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise BadRequest(f'the agent "{spec}" must be given as FILE.py:NAME, such as my_agent.py:agent')
    path = Path(file)
    if not path.is_file():
        raise BadRequest(
            f"the agent file {file} does not exist" if not path.exists() else f"{file} is not a file"
        )
    path = path.resolve()
    module = _import(path)
    if not hasattr(module, name):
        agents = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        hint = f"; it has: {', '.join(agents)}" if agents else ""
        raise BadRequest(f'{file} defines nothing named "{name}"{hint}')
    found = getattr(module, name)
    if (
        inspect.isroutine(found)
        and not inspect.iscoroutinefunction(found)
        and not inspect.isasyncgenfunction(found)
    ):
        if not _takes_nothing(found):
            raise BadRequest(f'"{name}" in {file} must take no arguments and return an Agent')
        made = _guarded(path, found)
        if not isinstance(made, Agent):
            raise BadRequest(
                f'"{name}" in {file} returned something of type {type(made).__name__}; expected an Agent'
            )
        return made
    if not isinstance(found, Agent):
        hint = f"; make one with Agent(..., model={name})" if inspect.isasyncgenfunction(found) else ""
        kind = "an async function" if inspect.isroutine(found) else f"of type {type(found).__name__}"
        raise BadRequest(
            f'"{name}" in {file} is {kind}; expected an Agent, or a function that returns one{hint}'
        )
    return found


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _import(path: Path) -> ModuleType:
    loader_spec = importlib.util.spec_from_file_location(f"voice_agent_file_{path.stem}", path)
    if path.suffix != ".py" or loader_spec is None or loader_spec.loader is None:
        raise BadRequest(f"the agent file {path.name} must be Python source, with a name that ends in .py")
    module = importlib.util.module_from_spec(loader_spec)
    # dataclasses and postponed annotations look their module up by name while it is being run
    sys.modules[loader_spec.name] = module
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        _guarded(path, functools.partial(loader_spec.loader.exec_module, module))
    except BadRequest:
        sys.modules.pop(loader_spec.name, None)
        raise
    return module


def _guarded(path: Path, call: Callable[[], R]) -> R:
    """Run the user's code; what it raises is put in one sentence with the file and line at fault."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
        ]
        where = f"{path.name}, line {lines[-1]}" if lines else path.name
        if isinstance(error, SyntaxError):
            where = f"{Path(error.filename or path).name}, line {error.lineno}"
            what = f"syntax error: {error.msg}"
        elif isinstance(error, VoiceError):
            what = str(error)
        else:
            what = f"{type(error).__name__}: {error}"
        raise BadRequest(f"{where}: {' '.join(clip(what, 400).split())}") from error
