"""Which functions does a client bring? ``tools`` and ``tool_choice`` of a session or a response."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from transports.realtime import fields
from transports.realtime.errors import RealtimeError, missing, wrong_type, wrong_value
from voice.interfaces import ToolSpec

MAX_TOOLS = 128
"""The vendor's bound."""
MAX_DESCRIPTION_CHARS = 10_000
MAX_SCHEMA_BYTES = 64 * 1024
MAX_TOOLS_BYTES = 256 * 1024
"""All names, descriptions and schemas of a session: some clients take no event above 1 MiB, and the echo holds them."""

MODES: Final = ("auto", "none", "required")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}


def read_tools(value: object, param: str, agent_tools: Collection[str]) -> tuple[ToolSpec, ...]:
    """The client's functions; ``null`` for none.

    Args:
        agent_tools: Names of the agent's own tools, which run here and can't be replaced.

    Raises:
        RealtimeError: Also for MCP servers, two tools of one name, and names of the agent's tools.
    """
    if value is None:
        return ()
    tools: dict[str, ToolSpec] = {}
    size = 0
    for index, one in enumerate(fields.as_list(value, param, MAX_TOOLS)):
        tool, tool_bytes = _read_tool(one, f"{param}[{index}]")
        if tool.name in tools:
            raise _name_taken(f"{param}[{index}].name", f"there are two tools named '{tool.name}'")
        if tool.name in agent_tools:
            raise _name_taken(
                f"{param}[{index}].name",
                f"the agent has its own tool '{tool.name}', which runs on the server",
            )
        size += tool_bytes
        if size > MAX_TOOLS_BYTES:
            raise RealtimeError(
                f"Invalid '{param}': more than {MAX_TOOLS_BYTES:,} bytes of tools in all.", param=param
            )
        tools[tool.name] = tool
    return tuple(tools.values())


def _read_tool(value: object, param: str) -> tuple[ToolSpec, int]:
    """A function and its size in bytes."""
    data = fields.as_object(value, param)
    kind = fields.required(data, "type", param)
    if kind == "mcp":
        message = "MCP servers are not called from here; offer their functions as tools of type 'function'"
        raise RealtimeError(f"Invalid value for '{param}.type': {message}.", param=f"{param}.type")
    fields.as_one_of(kind, f"{param}.type", ("function",))
    fields.only_known(
        data,
        param,
        ("type", "name", "description", "parameters", "strict"),
        {"function": "put its 'name', 'description' and 'parameters' directly into the tool"},
    )
    name = fields.as_text(fields.required(data, "name", param), f"{param}.name", most=64)
    if not _NAME.fullmatch(name):
        raise wrong_value(f"{param}.name", "1 to 64 letters, digits, '_' or '-'", name)
    description = data.get("description")
    told = ""
    if description is not None:
        told = fields.as_text(description, f"{param}.description", most=MAX_DESCRIPTION_CHARS)
    schema = data.get("parameters")
    parameters = _NO_PARAMETERS
    size = len(name) + len(told.encode())
    if schema is not None:
        parameters, schema_bytes = fields.as_schema(schema, f"{param}.parameters", MAX_SCHEMA_BYTES)
        size += schema_bytes
    return ToolSpec(name, told, parameters), size


def _name_taken(param: str, why: str) -> RealtimeError:
    return RealtimeError(f"Invalid value for '{param}': {why}; choose another name.", param=param)


def wire_tool(tool: ToolSpec) -> dict[str, object]:
    """The tool as a client wrote it."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }


def read_tool_choice(value: object, param: str, names: Collection[str]) -> str:
    """``"auto"``, ``"none"``, ``"required"`` or the name of one tool.

    Args:
        names: The tools there are, the client's and the agent's.

    Raises:
        RealtimeError: Also for a tool that there is not.
    """
    if isinstance(value, str):
        return fields.as_one_of(value, param, MODES)
    if not isinstance(value, dict):
        raise wrong_type(param, "'auto', 'none', 'required' or an object", value)
    fields.as_one_of(fields.required(value, "type", param), f"{param}.type", ("function",))
    fields.only_known(value, param, ("type", "name"))
    if value.get("name") is None:
        raise missing(f"{param}.name")
    name = fields.as_text(value["name"], f"{param}.name", most=64)
    if name not in names or name in MODES:
        raise wrong_value(f"{param}.name", "the name of a tool of this session", name)
    return name


def wire_tool_choice(choice: str) -> str | dict[str, object]:
    """The choice as a client writes it."""
    return choice if choice in MODES else {"type": "function", "name": choice}
