"""Methods as tools of each framework, with agents whose models say what the test says."""

import asyncio
import hashlib
import itertools
import json
import re

import agents
import fastmcp
import pydantic_ai
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware.error_handling import RetryMiddleware
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.plugins import ReflectAndRetryToolPlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import pytest
import sealwire
import sealwire.adk
import sealwire.fastmcp
import sealwire.langchain
import sealwire.openai_agents
import sealwire.pydantic_ai
from conftest import SOON, opened, run, until
from test_examples import blocks

METHODS = ["add", "long", "odd", "pay", "say", "self", "slow", "transfer"]


@pytest.fixture
def connected(stage, bank):
    """Runs a test with a client."""
    bank.ran.clear()

    def connected(main):
        async def with_bus():
            async with opened(stage) as bus:
                await bus.wait_for("site")
                return await main(bus)

        return run(with_bus)

    return connected


# One agent of each framework, whose model makes the calls `(tool, arguments)` one after the other. What its tools have
# answered, as `(text, is_error)`.


async def with_pydantic_ai(bus, calls, *, service="site", **options):
    turns = iter([*calls, None])

    def model(messages, _info):
        turn = next(turns)
        return ModelResponse(parts=[TextPart("done") if turn is None else ToolCallPart(*turn, tool_call_id="call_0")])

    agent = pydantic_ai.Agent(FunctionModel(model), toolsets=[sealwire.pydantic_ai.toolset(bus, service, **options)])
    result = await agent.run("go")
    parts = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
    return [(part.content, part.outcome == "failed") for part in parts]


class ChatModel(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def chat_model(calls):
    turns = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call_{number}"}])
        for number, (name, args) in enumerate(calls)
    ]
    return ChatModel(messages=itertools.chain(turns, (AIMessage("done") for _ in itertools.count())))


def of_messages(messages):
    return [(each.content, each.status == "error") for each in messages if isinstance(each, ToolMessage)]


async def with_langchain(bus, calls, *, service="site", middleware=(), **options):
    tools = await sealwire.langchain.tools(bus, service, **options)
    agent = create_agent(chat_model(calls), tools, middleware=middleware)
    return of_messages((await agent.ainvoke({"messages": [("user", "go")]}))["messages"])


class ResponsesModel(agents.Model):
    def __init__(self, calls):
        self.turns = iter([*calls, None])

    async def get_response(self, *_, **__):
        turn = next(self.turns)
        if turn is None:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            item = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        else:
            name, args = turn
            text = args if isinstance(args, str) else json.dumps(args)
            item = ResponseFunctionToolCall(call_id=f"c{id(turn)}", name=name, arguments=text, type="function_call")
        return agents.ModelResponse(output=[item], usage=agents.Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def with_openai_agents(bus, calls, *, service="site", **options):
    tools = await sealwire.openai_agents.tools(bus, service, **options)
    agent = agents.Agent("teller", model=ResponsesModel(calls), tools=tools)
    result = await agents.Runner.run(agent, "go", run_config=agents.RunConfig(tracing_disabled=True))
    outputs = [item.output for item in result.new_items if isinstance(item, agents.ToolCallOutputItem)]
    return [(text.removeprefix("error: "), text.startswith("error: ")) for text in outputs]


class Llm(BaseLlm):
    turns: object

    async def generate_content_async(self, llm_request, stream=False):
        turn = next(self.turns)
        part = types.Part(text="done")
        if turn is not None:
            part = types.Part(function_call=types.FunctionCall(name=turn[0], args=turn[1]))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def with_adk(bus, calls, *, service="site", plugins=(), **options):
    tools = await sealwire.adk.tools(bus, service, **options)
    agent = LlmAgent(name="teller", model=Llm(model="stub", turns=iter([*calls, None])), tools=tools)
    answers = []
    app = App(name="bank", root_agent=agent, plugins=list(plugins))
    async with InMemoryRunner(app=app) as runner:
        session = await runner.session_service.create_session(app_name="bank", user_id="u")
        go = types.Content(role="user", parts=[types.Part(text="go")])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=go):
            answers += [response.response for response in event.get_function_responses()]
    texts = lambda value: (
        value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    )
    return [(texts(answer.get("result", answer.get("error"))), "error" in answer) for answer in answers]


async def with_fastmcp(bus, calls, *, service="site", middleware=(), **options):
    server = fastmcp.FastMCP("tools", providers=[sealwire.fastmcp.Provider(bus, [service], **options)])
    for each in middleware:
        server.add_middleware(each)
    answers = []
    async with fastmcp.Client(server) as client:
        for name, args in calls:
            result = await client.call_tool(name, args, raise_on_error=False)
            if result.is_error and "may have run" in result.content[0].text:
                raise Unknown(result.content[0].text)
            answers.append((result.content[0].text, result.is_error))
    return answers


class Unknown(Exception):
    """What a server of MCP says of an unknown outcome."""


FRAMEWORKS = [with_pydantic_ai, with_langchain, with_openai_agents, with_adk, with_fastmcp]
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


@each_framework
def test_results_and_refusals_are_what_the_model_reads(bank, connected, framework):
    calls = [
        ("site_add", {"a": 2, "b": 3}),
        ("site_transfer", {"to": "bob", "amount": 5}),
        ("site_transfer", {"to": "bob", "amount": 5001}),
        ("site_transfer", {"to": "bob", "amount": "many"}),
        ("site_transfer", {"to": "nobody", "amount": 5}),
        ("site_self", {"config": "c", "run_manager": "r", "callbacks": "b", "input": "i"}),
        ("site_say", {}),
    ]
    answers = connected(lambda bus: framework(bus, calls))
    assert [is_error for _, is_error in answers] == [False, False, True, True, True, False, False], answers
    texts = [text for text, _ in answers]
    assert float(texts[0]) == 5 and json.loads(texts[1]) == {"to": "bob", "amount": 5}
    assert "permission denied" in texts[2] and "(-32002)" in texts[2] and "-32602" in texts[3]
    assert texts[4] == 'no such account (1001): {"account":"nobody"}'
    assert json.loads(texts[5]) == ["c", "r", "", "b", "i"]
    assert texts[6] == "plain\ufffd words\n"
    assert bank.ran["transfer"] == 2, "what was refused has not run"


@each_framework
def test_results_are_bounded_and_say_nothing_unseen(connected, framework):
    answers = connected(lambda bus: framework(bus, [("site_long", {"length": 3000}), ("site_odd", {})], max_result=200))
    (long, _), (odd, _) = answers
    assert long.startswith('["xxx') and len(long) < 300 and long.endswith("the first 200 of 3004 characters]")
    assert json.loads(odd) == {"text": "a\ufffdb\ufffd[31m\ufffdc\ufffd", "list": [1, None, "\ufffd"]}


#: Each framework as it is, and with everything of its own that makes calls again.
UNKNOWN = [
    (with_pydantic_ai, {}),
    (with_langchain, {}),
    (with_langchain, {"middleware": [ToolRetryMiddleware(retry_on=(Exception,), initial_delay=0, on_failure="error")]}),
    (with_openai_agents, {}),
    (with_adk, {}),
    (with_fastmcp, {}),
    (with_fastmcp, {"middleware": [RetryMiddleware(base_delay=0)]}),
    (with_fastmcp, {"middleware": [RetryMiddleware(base_delay=0, retry_exceptions=(Exception,))]}),
]


#: A method that is never known to have run: the service says that the deadline has passed.
LATE = {"service": "liar", "methods": ["liar/late", "liar/times"]}


async def times(bus):
    return await bus.call("liar", "liar/times")


@pytest.mark.parametrize(("framework", "retries"), UNKNOWN)
def test_an_unknown_outcome_is_raised_and_nothing_is_repeated(connected, framework, retries):
    async def main(bus):
        before = await times(bus)
        with pytest.raises(Exception) as raised:
            await framework(bus, [("liar_late", {}), ("liar_late", {})], **LATE, **retries)
        assert isinstance(raised.value, Unknown) or outcome_unknown(raised.value), repr(raised.value)
        assert await times(bus) == before + 1

    connected(main)


def outcome_unknown(error):
    """Whether an error says so, or one that it comes from."""
    while error is not None and not isinstance(error, sealwire.Error):
        error = error.__cause__
    return error is not None and error.outcome_unknown


AGAIN = RetryPolicy(max_attempts=4, initial_interval=0.01, jitter=False, retry_on=Exception)


def graph(tools, calls, saver=None):
    """A graph whose node of tools is repeated."""
    model = chat_model(calls)
    built = StateGraph(MessagesState)
    built.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    built.add_node("tools", tools, retry_policy=AGAIN)
    built.add_edge(START, "model")
    built.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    built.add_edge("tools", "model")
    return built.compile(checkpointer=saver)


def test_a_node_of_a_graph_that_is_repeated_repeats_no_call(connected):
    async def main(bus):
        tools = await sealwire.langchain.tools(bus, "liar", methods=LATE["methods"])
        before = await times(bus)
        with pytest.raises(sealwire.Timeout):
            await graph(ToolNode(tools), [("liar_late", {})]).ainvoke({"messages": [("user", "go")]})
        assert await times(bus) == before + 1
        # A tool by itself: no id, only the run that repeats it.
        alone = next(tool for tool in tools if tool.name == "liar_late").with_retry(
            retry_if_exception_type=(Exception,), wait_exponential_jitter=False
        )
        # Another run is another call.
        for number in (2, 3):
            with pytest.raises(sealwire.Timeout):
                await alone.ainvoke({})
            assert await times(bus) == before + number

    connected(main)


def test_an_idempotent_method_is_repeated_and_runs_once(bank, connected):
    async def main(bus):
        executed = []

        async def fails_afterwards(request, execute):
            answer = await execute(request)
            executed.append(answer.content)
            if len(executed) <= AGAIN.max_attempts:
                raise ConnectionError("after the payment")
            return answer

        tools = ToolNode(await sealwire.langchain.tools(bus, "site"), awrap_tool_call=fails_afterwards)
        config = {"configurable": {"thread_id": "1"}}
        payments = graph(tools, [("site_pay", {"amount": 1}), ("site_pay", {"amount": 1})], InMemorySaver())
        with pytest.raises(ConnectionError, match="after the payment"):
            await payments.ainvoke({"messages": [("user", "go")]}, config)
        # A graph that goes on where it broke off makes the same call. Two payments, since the model has asked for two.
        answers = of_messages((await payments.ainvoke(None, config))["messages"])
        assert [text for text, _ in answers] == ["1", "2"] and bank.ran["pay"] == 2
        assert executed == ["1", "1", "1", "1", "1", "2"]

    connected(main)


@pytest.mark.parametrize("framework", [with_pydantic_ai, with_openai_agents, with_adk, with_fastmcp])
def test_models_that_count_their_calls_from_zero_pay_each_time(bank, connected, framework):
    async def main(bus):
        for number in (1, 2):
            assert await framework(bus, [("site_pay", {"amount": 1})]) == [(str(number), False)]

    connected(main)


def test_adk_s_plugin_asks_the_model_and_makes_no_call_by_itself(connected):
    async def main(bus):
        before = await times(bus)
        answers = await with_adk(bus, [("liar_late", {})], **LATE, plugins=[ReflectAndRetryToolPlugin()])
        assert len(answers) == 1 and await times(bus) == before + 1

    connected(main)


@each_framework
def test_a_run_that_is_cancelled_cancels_its_call(bank, connected, framework):
    async def main(bus):
        running = asyncio.ensure_future(framework(bus, [("site_slow", {})]))
        await asyncio.wait_for(bank.has_run("slow"), SOON)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: asyncio.sleep(0, bank.ran["cancelled"] == 1))

    connected(main)


@each_framework
def test_a_call_has_a_deadline_of_its_own(bank, connected, framework):
    async def main(bus):
        with pytest.raises(Exception) as raised:
            await framework(bus, [("site_slow", {})], deadline=0.3)
        assert isinstance(raised.value, Unknown) or outcome_unknown(raised.value)

    connected(main)


def test_the_program_on_the_page(stage, bank, monkeypatch):
    bank.ran.clear()
    monkeypatch.setenv("SEALWIRE_CREDS", str(stage.creds()))
    program = {}
    exec(compile(blocks()["agent.py"], "agent.py", "exec"), program)
    model = chat_model([("site_add", {"a": 2, "b": 3})])
    assert run(lambda: program["ask"](model, "what is 2 + 3?")) == "done" and bank.ran["add"] == 1


def test_tools_are_what_the_policy_lets_this_agent_call(bank, connected):
    async def main(bus):
        listed = {tool.name: tool for tool in await sealwire.openai_agents.tools(bus, ["site"])}
        assert sorted(listed) == [f"site_{name}" for name in METHODS], "no others"
        amount = listed["site_transfer"].params_json_schema["properties"]["amount"]
        assert (amount["minimum"], amount["maximum"]) == (1, 100), "the agent's own bounds"
        assert listed["site_add"].description == "Adds two numbers."
        only = await sealwire.langchain.tools(bus, "site", methods=["site/add", "site/hidden"])
        assert [tool.name for tool in only] == ["site_add"]
        assert only[0].tool_call_schema["properties"]["a"]["type"] == "number"

    connected(main)


def test_each_framework_shows_the_model_the_schema(bank, connected):
    async def main(bus):
        only = {"methods": ["site/transfer"]}
        model = TestModel()
        agent = pydantic_ai.Agent(model, toolsets=[sealwire.pydantic_ai.toolset(bus, "site", **only)])
        await agent.run("go")
        (shown,) = model.last_model_request_parameters.function_tools
        (adk,) = await sealwire.adk.tools(bus, "site", **only)
        (pydantic,) = await sealwire.pydantic_ai.tools(bus, "site", **only)
        async with fastmcp.Client(
            fastmcp.FastMCP("tools", providers=[sealwire.fastmcp.Provider(bus, ["site"], **only)])
        ) as client:
            (mcp_tool,) = await client.list_tools()
        schemas = [shown.parameters_json_schema, pydantic.function_schema.json_schema, mcp_tool.input_schema]
        schemas.append(adk._get_declaration().parameters_json_schema)
        for schema in schemas:
            assert schema["properties"]["amount"]["maximum"] == 100 and schema["required"] == ["to", "amount"], schema

    connected(main)


def test_langchain_without_an_event_loop(stage, bank):
    bank.ran.clear()
    with sealwire.SyncClient(stage.creds()) as bus:
        bus.wait_for("site")
        tools = ToolNode(sealwire.langchain.tools(bus, "site"))
        calls = [("site_add", {"a": 1, "b": 2}), ("site_transfer", {"to": "x", "amount": 999})]
        (sum, _), (_, is_error) = of_messages(graph(tools, calls).invoke({"messages": [("user", "go")]})["messages"])
        assert float(sum) == 3 and is_error
        before = bus.call("liar", "liar/times")
        late = ToolNode(sealwire.langchain.tools(bus, "liar", methods=LATE["methods"]))
        with pytest.raises(sealwire.Timeout):
            graph(late, [("liar_late", {})]).invoke({"messages": [("user", "go")]})
        assert bus.call("liar", "liar/times") == before + 1


def test_a_hostile_service(stage, bank, connected):
    async def main(bus):
        with pytest.raises(sealwire.TooLarge, match=r"methods are offered, and a model takes 128 tools.*methods="):
            await sealwire.openai_agents.tools(bus, ["site", "liar"])
        forged = f"a_b_{digest('liar a/b')}"
        alike = ["a/b", "a.b", "a_b", forged, "sp ace", "é"]
        kinds = "bomb code deep kinds long loop none remote seen spaces wide".split()
        methods = [*alike, *(f"liar/{kind}" for kind in kinds)]
        tools = await sealwire.langchain.tools(bus, "liar", methods=methods)
        listed = {tool.name: tool for tool in tools}
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in listed)
        # Names that are alike have digests; one that forges a digest is no tool, nor is the one that it forges.
        assert f"a_b_{digest('liar a.b')}" in listed and f"a_b_{digest('liar a_b')}" in listed
        assert "a_b" not in listed and forged not in listed
        # What does not fit is left out.
        assert not {"liar_bomb", "liar_deep", "liar_spaces", "liar_wide"} & set(listed)
        assert listed["liar_loop"].args_schema["properties"] == {"child": {}}
        assert listed["liar_remote"].args_schema["properties"] == {"a": {}, "b": {}}
        assert listed["liar_kinds"].args_schema == {"properties": {"a": {"default": 1}}, "type": "object"}
        assert listed["liar_none"].args_schema == {"type": "object", "properties": {}}
        assert len(listed["liar_long"].description) == 4096
        assert listed["liar_seen"].description == "do\ufffd it\ufffd"
        assert listed["liar_seen"].args_schema["properties"]["a"]["description"] == "\ufffd\ufffd"
        # Each framework takes what is left.
        for framework in (sealwire.pydantic_ai, sealwire.openai_agents, sealwire.adk):
            others = await framework.tools(bus, "liar", methods=methods)
            assert {tool.name for tool in others} == set(listed)
        (code,) = (tool for tool in tools if tool.name == "liar_code")
        call = {"type": "tool_call", "name": "liar_code", "id": "1"}
        busy = await code.ainvoke({**call, "args": {"code": -32013, "data": {"retry_after_ms": 1500}}})
        assert (busy.content, busy.status) == ("no (-32013): call again in 1.5 s", "error")
        with pytest.raises(sealwire.Overloaded) as overloaded:
            await code.ainvoke({**call, "args": {"code": -32014, "data": {"retry_after_ms": 1500}}})
        assert overloaded.value.retry_after == 1.5
        # A denial that may have done something all the same is no refusal.
        with pytest.raises(sealwire.Denied):
            await code.ainvoke({**call, "args": {"code": -32002, "data": {"outcome": "unknown"}}})

    connected(main)


def digest(origin):
    return hashlib.sha256(origin.encode()).hexdigest()[:8]


def test_names_are_those_of_the_command(connected):
    async def main(bus):
        one = await sealwire.openai_agents.tools(bus, "site", methods=["site/add"])
        two = await sealwire.openai_agents.tools(bus, ["site", "liar"], methods=["site/add", "liar/code"])
        assert [tool.name for tool in one + two] == ["site_add", "site__site_add", "liar__liar_code"]

    connected(main)


def test_what_is_given_wrongly_is_said_at_once(stage, connected):
    waits = sealwire.SyncClient(stage.creds())
    for framework, error in [
        (sealwire.fastmcp.Provider, "give a `sealwire.Client`"),
        (sealwire.pydantic_ai.toolset, "give"),
    ]:
        with pytest.raises(TypeError, match=error):
            framework(waits, "site")
    # A number that is none in Python is no reason to fail with anything else than the client's own error.
    with pytest.raises(sealwire.DecodeError, match="too large"):
        sealwire._request.catalogue('{"info": {}, "methods": [1e999]}')

    async def main(bus):
        (add,) = await sealwire.langchain.tools(bus, "site", methods=["site/add"])
        with pytest.raises(TypeError, match=r"give a `sealwire.SyncClient`"):
            add.invoke({"a": 1, "b": 1})
        for services, options in [([], {}), ("site", {"methods": "site/add"}), ("site", {"max_result": 0})]:
            with pytest.raises(sealwire.InvalidRequest):
                await sealwire.openai_agents.tools(bus, services, **options)
        answers = await with_openai_agents(bus, [("site_add", "[1"), ("site_add", "[1, 2]")])
        assert answers == [("the arguments are not a JSON object", True)] * 2

    connected(main)


def test_memory_of_unknown_outcomes_is_bounded(connected, monkeypatch):
    monkeypatch.setattr(sealwire._tools, "MOST_UNKNOWN", 2)

    async def main(bus):
        found = sealwire._tools.Tools(bus, "liar", methods=["liar/late"], deadline=SOON, max_result=9)
        (tool,) = await found.listed()
        before = await times(bus)
        for id in ("1", "2", "3", "3", "2"):
            with pytest.raises(sealwire.Timeout):
                await tool.call({}, id)
        assert len(found.unknown) == 2 and await times(bus) == before + 3

    connected(main)


def test_a_server_asks_its_services_now_and_then(bank, connected):
    async def main(bus):
        provider = sealwire.fastmcp.Provider(bus, "site")
        server = fastmcp.FastMCP("tools", providers=[provider])
        asked = []
        discover = bus.discover
        bus.discover = lambda service: asked.append(service) or discover(service)
        async with fastmcp.Client(server) as client:
            for _ in range(3):
                with pytest.raises(ToolError, match="Unknown tool"):
                    await client.call_tool("nothing", {})
                await client.call_tool("site_add", {"a": 1, "b": 1})
        assert asked == ["site"]

    connected(main)
