"""A client of `agent-snapshot mcp` made with the official SDK.

Usage: mcp_client.py PROGRAM [ARGUMENT...]

Prints the list of tools as a line of JSON. Then each line of standard input is a call, [NAME, ARGUMENTS], and is answered
with a line: an object with the key `structured`, or with `error` (the text of a result that is an error) or `refused` (the
error of the protocol). All schemas are checked, and each result against that of its tool.
"""

import asyncio
import json
import os
import sys

import jsonschema
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

Validator = jsonschema.Draft202012Validator


def wire(model):
    """What was sent, by the names of the protocol."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def call(session, schemas, name, arguments):
    """The answer to one call."""
    try:
        result = wire(await session.call_tool(name, arguments))
    except Exception as error:
        return {"refused": str(error)}
    text = result["content"][0]["text"]
    if result.get("isError"):
        return {"error": text}
    structured = result["structuredContent"]
    assert json.loads(text) == structured, result
    schemas[name].validate(structured)
    return {"structured": structured, "length": len(text)}


async def main():
    """Connects, and passes calls on until standard input ends."""
    command, *arguments = sys.argv[1:]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [wire(tool) for tool in (await session.list_tools()).tools]
        for tool in tools:
            Validator.check_schema(tool["inputSchema"])
            Validator.check_schema(tool["outputSchema"])
        schemas = {tool["name"]: Validator(tool["outputSchema"]) for tool in tools}
        print(json.dumps(tools), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await call(session, schemas, *json.loads(line))), flush=True)


asyncio.run(main())
