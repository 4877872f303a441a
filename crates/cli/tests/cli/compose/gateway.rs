//! The gateway and the MCP server: tools approved at the operator's desk, then called with a token and no key.
//! Never reaches the server except through the service in front of it.

use std::process::Command;

use serde_json::Value;

use super::pages::Pages;
use super::stack::{Stack, say};

pub(crate) fn callers_come_in_with_tokens(stack: &Stack, pages: &mut Pages) {
    stack.wait_healthy("gateway", 1);
    stack.wait_healthy("glossary", 1);
    // Only the service and the desk are on the server's network, and the server has no other.
    let at_the_server = stack.docker(&["network", "inspect", &stack.name("glossary")]);
    let at_the_server: Value = serde_json::from_str(&at_the_server).unwrap();
    assert_eq!(at_the_server[0]["Internal"], true);
    assert_eq!(at_the_server[0]["Containers"].as_object().unwrap().len(), 2, "{at_the_server}");
    assert_eq!(stack.inspect("glossary-mcp", 1)["NetworkSettings"]["Networks"].as_object().unwrap().len(), 1);

    let folder = tempfile::tempdir().unwrap();
    let mut run = |words: &str| pages.run_in(stack, folder.path(), words);
    run("token issue");
    run("docker cp");
    let answer = |text: String| serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(answer(run("/rpc/demo"))["result"], 5);
    let lookup = "/rpc/glossary";
    // Nobody can call a tool that no operator has approved.
    let early = answer(run(lookup));
    assert_eq!(
        (&early["error"]["code"], &early["error"]["data"]["tool"]),
        (&(-32004).into(), &"new".into()),
        "{early}"
    );
    let shown = run("tools diff");
    assert!(shown.contains("lookup") && shown.contains("What a term means."), "{shown}");
    assert!(run("tools approve").contains("2 approved"));
    stack.wait_for("the approval to be read", || {
        answer(run(lookup)).pointer("/result/result").filter(|text| text.as_str() == Some(NONCE)).map(drop)
    });

    let python = sealwire_testkit::python::python().unwrap();
    let output = Command::new(python)
        .args(["-c", CLIENT, &stack.at_its_port("https://localhost:8443/mcp/glossary")])
        .current_dir(folder.path())
        .env("SSL_CERT_FILE", folder.path().join("callers-ca.pem"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // A reader is not even shown how terms are defined.
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("['glossary_lookup'] {NONCE}"));
    let log = stack.log("glossary");
    let is_its =
        |line: &&str| line.contains("agent=gateway") && line.contains("subject=ann") && line.contains("allowed");
    assert!(log.lines().filter(is_its).count() >= 2, "{log}");

    // Any other token is invalid, and without one nobody is let in.
    for (lines, status) in [
        (
            "curl -sS -o /dev/null -w '%{http_code}' --cacert callers-ca.pem -d '{}' https://localhost:8443/rpc/demo",
            "401",
        ),
        (
            "docker compose run --rm -T operator token issue --key issuer/token-key.json --subject ann --audience dev/demo \
             --claim scope=demo --role visitor > other.jwt; curl -sS -o /dev/null -w '%{http_code}' --cacert callers-ca.pem \
             -H \"Authorization: Bearer $(cat other.jwt)\" -d '{}' https://localhost:8443/rpc/demo",
            "401",
        ),
    ] {
        assert_eq!(pages.run_block(stack, folder.path(), &stack.at_its_port(lines)), status, "{lines}");
    }
    say("a server's tools were approved, and called through the gateway over HTTP and MCP");
}

const NONCE: &str = "A number that is used once.";

/// An unchanged client: lists the tools, and prints the result of one.
const CLIENT: &str = r#"
import asyncio, sys
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    token = open("ann.jwt").read().strip()
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
        async with Client(streamable_http_client(sys.argv[1], http_client=http)) as client:
            tools = await client.list_tools()
            result = await client.call_tool("glossary_lookup", {"term": "nonce"})
            print([tool.name for tool in tools.tools], result.structured_content["result"])

asyncio.run(main())
"#;
