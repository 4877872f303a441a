"""Methods as tools of CrewAI, with agents whose models say what the test says. Only where CrewAI is installed."""

import json
import os

# Nothing is to be sent anywhere.
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

from crewai import Agent, BaseLLM, Crew, Task

import pytest
import sealwire
import sealwire.crewai


@pytest.fixture
def bus(stage, bank):
    bank.ran.clear()
    with sealwire.SyncClient(stage.creds()) as bus:
        bus.wait_for("site")
        yield bus


class Llm(BaseLLM):
    """Makes the calls one after the other, natively or in words."""

    turns: object
    is_native: bool = True
    seen: list = []

    def call(self, messages, tools=None, callbacks=None, available_functions=None, **_):
        self.seen.append("\n".join(message["content"] or "" for message in messages[-2:]))
        turn = next(self.turns, None)
        if turn is None:
            return "Thought: I know\nFinal Answer: done" if not self.is_native else "done"
        name, args = turn
        if not self.is_native:
            return f"Thought: I must\nAction: {name}\nAction Input: {json.dumps(args)}"
        call = {"id": f"call_{len(self.seen)}", "type": "function"}
        return [{**call, "function": {"name": name, "arguments": json.dumps(args)}}]

    def supports_function_calling(self):
        return self.is_native

    def supports_stop_words(self):
        return False


def ran(bus, calls, is_native, service="site", **options):
    """What the model reads after each call."""
    tools = sealwire.crewai.tools(bus, service, **options)
    llm = Llm(model="stub", turns=iter(calls), is_native=is_native, seen=[])
    agent = Agent(role="teller", goal="pay", backstory="none", llm=llm, tools=tools, max_retry_limit=0)
    task = Task(description="go", expected_output="done", agent=agent)
    assert Crew(agents=[agent], tasks=[task]).kickoff().raw == "done"
    return llm.seen[1:]


both_ways = pytest.mark.parametrize("is_native", [True, False])


@both_ways
def test_results_and_refusals_are_what_the_model_reads(bank, bus, is_native):
    calls = [
        ("site_add", {"a": 2, "b": 3}),
        ("site_transfer", {"to": "bob", "amount": 5001}),
        ("site_transfer", {"to": "nobody", "amount": 5}),
        ("site_self", {"config": "c", "run_manager": "r"}),
        ("site_pay", {"amount": 1}),
        ("site_say", {}),
        ("site_pay", {"amount": 1}),
    ]
    add, denied, nobody, own, first, say, again = ran(bus, calls, is_native)
    assert "5" in add and "permission denied (-32002)" in denied and "no such account (1001)" in nobody
    assert '["c","r","","",""]' in own and "plain\ufffd words" in say
    assert "1" in first and "2" in again and bank.ran["pay"] == 2, "nothing is kept and shown again"


@both_ways
def test_an_unknown_outcome_ends_the_crew_and_nothing_is_repeated(bank, bus, is_native):
    before = bus.call("liar", "liar/times")
    with pytest.raises(sealwire.crewai.OutcomeUnknown) as raised:
        ran(bus, [("liar_late", {})] * 2, is_native, "liar", methods=["liar/late"])
    assert isinstance(raised.value.__cause__, sealwire.Timeout)
    assert bus.call("liar", "liar/times") == before + 1


def test_the_model_is_shown_the_schema(bus):
    (transfer,) = sealwire.crewai.tools(bus, "site", methods=["site/transfer"])
    schema = transfer.args_schema.model_json_schema()
    assert schema["properties"]["amount"]["maximum"] == 100 and schema["required"] == ["to", "amount"]
    assert transfer.description == "Transfers an amount."
