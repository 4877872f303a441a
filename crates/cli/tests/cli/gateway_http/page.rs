//! The command lines of docs/gateway, and that of README.md, run unchanged in the folder of `sealwire dev`.
//! Never changes a line, except for the port, which may be in use, and the folder of credentials.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sealwire_testkit::page::{self, Block, section};
use sealwire_testkit::{free_port, within};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::backends::stage::LONG;
use crate::process::{SIGTERM, heard, says, send, spawn};
use crate::shell::Shell;

/// All pages with commands; the first has the configuration that the others go on with.
const PAGES: [&str; 6] = [
    include_str!("../../../../../docs/gateway/README.md"),
    include_str!("../../../../../docs/gateway/json-rpc.md"),
    include_str!("../../../../../docs/gateway/mcp.md"),
    include_str!("../../../../../docs/gateway/a2a.md"),
    include_str!("../../../../../docs/gateway/identity.md"),
    include_str!("../../../../../docs/gateway/stdio.md"),
];
const README: &str = include_str!("../../../../../README.md");

/// Stands in for the client of MCP that the pages name: it begins with the server that it is told of, as that does, and lists its tools.
const CLAUDE: &str = r#"#!/bin/bash
set -euo pipefail
hello='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
list='{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
[[ "$1 $2" == "mcp add" ]]
shift 2
if [[ $1 == --transport ]]; then
    [[ $2 == http ]]
    curl -sS -H 'content-type: application/json' -d "$list" "$4"
else
    [[ $2 == -- ]]
    coproc server { exec "${@:3}"; }
    printf '%s\n%s\n' "$hello" "$list" >&"${server[1]}"
    head -n 2 <&"${server[0]}"
fi
"#;

/// The lines of a block, with continued lines joined.
fn lines(block: &Block<'_>) -> Vec<String> {
    block.text().replace("\\\n", "").lines().map(ToOwned::to_owned).collect()
}

fn is_gateway(line: &str) -> bool {
    line.starts_with("sealwire gateway")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lines_of_the_pages_do_what_they_say() {
    if let Err(error) = Command::new("curl").arg("--version").output().await {
        return eprintln!("NOT TESTED, for want of curl: {error}");
    }
    let shell = Shell::new();
    let mut dev = spawn(&shell, &["dev"]);
    says(&mut heard(dev.stdout.take().unwrap()), "Ctrl-C ends it").await;
    let folder = shell.path("sealwire-dev");
    let port = free_port().to_string();
    let blocks: Vec<_> = PAGES.into_iter().flat_map(page::blocks).collect();
    let config = blocks.iter().find(|block| block.info == "toml").unwrap().text().replace("8480", &port);
    shell.write("sealwire-dev/gateway.toml", &config);
    shell.write("bin/claude", CLAUDE);
    std::fs::set_permissions(shell.path("bin/claude"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", shell.path("bin").display(), page::path_with(env!("CARGO_BIN_EXE_sealwire")));
    let typed = |line: &str| {
        let line = line.replace("8480", &port).replace("/home/me/", "");
        let mut command = Command::from(page::shell(env!("CARGO_BIN_EXE_sealwire"), &folder));
        // The shell becomes the command, so that signals reach the command.
        command.env("PATH", &path).args(["-euo", "pipefail", "-c", &format!("exec {line}")]).kill_on_drop(true);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    };

    let all = blocks.iter().filter(|block| block.info == "sh").flat_map(lines);
    let mut all: Vec<String> = all.collect();
    // The first block is about a server of MCP: crates/cli/tests/cli/backends/mcp/known.rs types it.
    let of_readme = page::blocks(section(README, "What you have already")).skip(1).flat_map(|block| lines(&block));
    for line in of_readme {
        if !all.contains(&line) {
            all.push(line);
        }
    }
    let (gateways, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|line| is_gateway(line));
    assert_eq!((gateways.len(), others.len()), (1, 8), "{others:?}");
    let mut gateway: Child = typed(&gateways[0]).spawn().unwrap();
    says(&mut heard(gateway.stdout.take().unwrap()), &format!("planner answers on http://127.0.0.1:{port}")).await;

    for line in &others {
        let said = async {
            loop {
                let output = typed(line).output().await.unwrap();
                let said = String::from_utf8(output.stdout).unwrap();
                // The gateway has just been started.
                if !said.contains("cannot be reached") {
                    assert!(output.status.success(), "{line}: {said}{}", String::from_utf8_lossy(&output.stderr));
                    break said;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let said = within(LONG, said).await;
        if line.starts_with("claude") {
            assert!(said.contains("\"math_add\""), "{line}: {said}");
        } else if line.starts_with("sealwire keys") {
            for file in line.split(' ').filter(|word| word.ends_with(".json")) {
                assert!(folder.join(file).exists(), "{file}: {said}");
            }
        } else if line.contains("/stream") {
            let shown = blocks.iter().skip_while(|block| !block.text().contains("/rpc/demo/stream")).nth(1).unwrap();
            assert_eq!(said.trim_end(), shown.text().trim_end());
        } else {
            let answer: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(answer["result"], 5, "{line}: {said}");
        }
    }
    for process in [&mut gateway, &mut dev] {
        send(SIGTERM, process.id().unwrap());
        assert!(within(LONG, process.wait()).await.unwrap().success());
    }
}
