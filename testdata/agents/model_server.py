"""A model server for tests of coding agents: it asks for the commands of a list, one by one, then ends the turn.

Speaks Anthropic Messages, OpenAI Responses and Chat Completions, and Gemini. Which command is next follows from the
number of results in the request, so that a request that is sent again gets the same answer.

Usage: model_server.py COMMANDS.json LOG
       model_server.py

Prints the port that it listens on as its first line. LOG gets a line of JSON for each request that brings a new
result: that result, as the agent sent it. Without arguments, each command is a line of JSON on standard input, read
when an agent is ready for it, and LOG is standard output. Instead of a command there may be a call of any tool, as
{"tool": NAME, "input": ARGUMENTS}, where {digest} in the arguments is the digest of a plan that was the last one in a
result, and in Anthropic Messages a list of calls at once. COMMANDS.json may be an object with a
list for each conversation, which is found by its key in the first message: those of subagents.
"""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMANDS = json.load(open(sys.argv[1], encoding="utf-8")) if sys.argv[1:] else []
LOG = open(sys.argv[2], "a", encoding="utf-8", buffering=1) if sys.argv[1:] else sys.stdout

# The tools that run a command, by any agent's name for it.
TOOLS = ["exec_command", "shell_command", "run_shell_command", "Bash", "bash", "shell"]

logged = {}
digests = [""]
reading = threading.Lock()


def conversation(messages):
    """The key of a conversation, and its commands."""
    if not isinstance(COMMANDS, dict):
        return None, COMMANDS
    text = json.dumps(messages[0]["content"])
    return next(((key, COMMANDS[key]) for key in COMMANDS if key in text), (None, []))


def next_command(done, commands=COMMANDS):
    """What comes after so many results; none if that was all."""
    with reading:
        while len(COMMANDS) <= done and not sys.argv[1:]:
            line = sys.stdin.readline()
            if not line:
                break
            COMMANDS.append(json.loads(line))
    for command in commands:
        if done == 0:
            return command
        done -= len(command) if isinstance(command, list) else 1
    return None


def log_results(results, key=None):
    """Writes down those of all results of a conversation so far that are new."""
    before = logged.get(key, 0)
    for result in results[before:]:
        LOG.write(json.dumps(result) + "\n")
        digests.extend(re.findall(r'"digest\\*": *\\*"([0-9a-f]{16})\\*"', json.dumps(result)))
    LOG.flush()
    logged[key] = max(before, len(results))


def next_calls(names, done, commands):
    """The tools to call at once, and their arguments."""
    command = next_command(done, commands)
    commands = command if isinstance(command, list) else [command]
    return [call for call in (call_of(names, command) for command in commands) if call]


def next_call(names, done):
    """The tool to call and its arguments; none if all commands were asked for, or no tool runs commands."""
    return call_of(names, next_command(done))


def call_of(names, command):
    """The call of a tool for a command."""
    tool = next((tool for tool in TOOLS if tool in names), None)
    if tool is None or command is None:
        return None
    if isinstance(command, dict):
        return command["tool"], json.loads(json.dumps(command["input"]).replace("{digest}", digests[-1]))
    if tool == "exec_command":
        return tool, {"cmd": command, "yield_time_ms": 30000}
    if tool == "shell_command":
        return tool, {"command": command}
    if tool == "run_shell_command":
        return tool, {"command": command, "description": "step", "is_background": False}
    return tool, {"command": command, "description": "step"}


def anthropic_messages(request):
    """The events of an answer to Anthropic Messages."""
    contents = [m["content"] for m in request["messages"] if isinstance(m["content"], list)]
    blocks = [block for content in contents for block in content]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    done = len(results)
    key, commands = conversation(request["messages"])
    log_results([block.get("content") for block in results], key)
    names = [tool["name"] for tool in request.get("tools", []) if "name" in tool]
    calls = next_calls(names, done, commands) if any(tool in names for tool in TOOLS) else []
    message = {
        "id": f"m{key}{done}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "mock"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    reason = "tool_use" if calls else "end_turn"
    blocks = []
    for number, (tool, arguments) in enumerate(calls):
        block = {"type": "tool_use", "id": f"toolu_{key}_{done + number}".replace(" ", "_"), "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        blocks.append((block, delta, dict(block, input=arguments)))
    if not calls:
        text = {"type": "text", "text": "done"}
        blocks.append((dict(text, text=""), {"type": "text_delta", "text": "done"}, text))
    if not request.get("stream"):
        return dict(message, content=[whole for _, _, whole in blocks], stop_reason=reason)
    events = [{"type": "message_start", "message": message}]
    for index, (block, delta, _) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    return events + [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


def openai_responses(request):
    """The events of an answer to OpenAI Responses."""
    items = [item for item in request.get("input", []) if isinstance(item, dict)]
    results = [item for item in items if item.get("type", "").endswith("_call_output")]
    done = len(results)
    log_results([item.get("output") for item in results])
    names = [tool.get("name", tool.get("type")) for tool in request.get("tools", [])]
    call = next_call(names, done)
    if call:
        tool, arguments = call
        item = {
            "type": "function_call",
            "id": f"fc_{done}",
            "call_id": f"call_{done}",
            "name": tool,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        for space in request["tools"]:
            prefix = space.get("name", "") + "__"
            if space["type"] == "namespace" and tool.startswith(prefix):
                item.update(namespace=space["name"], name=tool.removeprefix(prefix))
        deltas = [
            {
                "type": "response.function_call_arguments.delta",
                "item_id": item["id"],
                "output_index": 0,
                "delta": item["arguments"],
            },
            {
                "type": "response.function_call_arguments.done",
                "item_id": item["id"],
                "output_index": 0,
                "arguments": item["arguments"],
            },
        ]
    else:
        item = {
            "type": "message",
            "id": f"msg_{done}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "done", "annotations": []}],
        }
        deltas = [
            {
                "type": "response.output_text.delta",
                "item_id": item["id"],
                "output_index": 0,
                "content_index": 0,
                "delta": "done",
            }
        ]
    response = {
        "id": f"resp_{done}",
        "object": "response",
        "created_at": 1,
        "model": request.get("model"),
        "status": "completed",
        "output": [item],
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }
    if not request.get("stream"):
        return response
    started = dict(response, status="in_progress", output=[])
    return [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *deltas,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]


def is_result(message):
    """Whether a message has the result of a tool, or of a command that the user of aider has run."""
    ran = message["role"] == "user" and str(message["content"]).startswith("I ran this command:")
    return message["role"] == "tool" or ran


def openai_chat(request):
    """The chunks of an answer to OpenAI Chat Completions."""
    results = [message for message in request["messages"] if is_result(message)]
    done = len(results)
    log_results([message.get("content") for message in results])
    names = [tool["function"]["name"] for tool in request.get("tools", []) if "function" in tool]
    call = next_call(names, done)
    if call:
        tool, arguments = call
        function = {"name": tool, "arguments": json.dumps(arguments)}
        calls = [{"index": 0, "id": f"call_{done}", "type": "function", "function": function}]
        message, reason = {"role": "assistant", "tool_calls": calls}, "tool_calls"
    else:
        message, reason = {"role": "assistant", "content": "done"}, "stop"
    base = {"id": f"c{done}", "created": 1, "model": request.get("model")}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return dict(base, object="chat.completion", choices=[choice], usage=usage)
    base["object"] = "chat.completion.chunk"
    return [
        dict(base, choices=[{"index": 0, "delta": message, "finish_reason": None}]),
        dict(base, choices=[{"index": 0, "delta": {}, "finish_reason": reason}], usage=usage),
    ]


def gemini(request, streams):
    """The one answer of Gemini."""
    parts = [part for content in request.get("contents", []) for part in content.get("parts", [])]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    done = len(results)
    log_results([part.get("response") for part in results])
    tools = request.get("tools", [])
    names = [f["name"] for tool in tools for f in tool.get("functionDeclarations", [])]
    call = next_call(names, done)
    if call:
        tool, arguments = call
        part = {"functionCall": {"name": tool, "args": arguments}}
    elif "Schema" in json.dumps(request.get("generationConfig", {})):
        part = {"text": '{"next_speaker": "user", "reasoning": "done"}'}
    else:
        part = {"text": "done"}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "mock"}
    return [answer] if streams else answer


class Handler(BaseHTTPRequestHandler):
    """Answers each request from itself alone."""

    protocol_version = "HTTP/1.1"

    def handle(self):
        """Ends in silence with a client that does not close its connection."""
        try:
            super().handle()
        except ConnectionError:
            pass

    def log_message(self, *_):
        """Says nothing of requests on standard error."""

    def do_GET(self):
        self.send_json({"data": [{"id": "mock", "object": "model"}], "models": []})

    def do_HEAD(self):
        self.send_json({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            return self.send_json({})
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            return self.send_json({"input_tokens": 10})
        if path.endswith(":countTokens"):
            return self.send_json({"totalTokens": 10})
        if path.endswith("/messages"):
            return self.answer(anthropic_messages(request))
        if path.endswith("/responses"):
            return self.answer(openai_responses(request))
        if path.endswith("/chat/completions"):
            return self.answer(openai_chat(request), end=b"data: [DONE]\n\n")
        if path.endswith((":streamGenerateContent", ":generateContent")):
            return self.answer(gemini(request, "stream" in path))
        return self.send_json({})

    def answer(self, answer, end=b""):
        """Sends the events of a list as a stream, and anything else at once."""
        if not isinstance(answer, list):
            return self.send_json(answer)
        stream = b""
        for event in answer:
            if "type" in event:
                stream += b"event: " + event["type"].encode() + b"\n"
            stream += b"data: " + json.dumps(event).encode() + b"\n\n"
        return self.send("text/event-stream", stream + end)

    def send_json(self, answer):
        """Sends one object."""
        self.send("application/json", json.dumps(answer).encode())

    def send(self, content_type, body):
        """Sends a response."""
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
