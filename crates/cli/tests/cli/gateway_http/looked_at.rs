//! The gateway's page: who sees it, what is on it, and what it looks like in a real browser. docs/gateway/page.md.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sealwire::internal::auth::{IssueRequest, TokenIssuer};
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::wire::{Wire, call, post};
use super::{FAST, Gateway, demo};
use crate::backends::stage::{LONG, Stage};

const PAGE: &str = "page = true\n";

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n")
}

/// A viewer of the page, and everything they were sent.
struct Looker {
    wire: Wire,
    text: String,
    calls: Vec<Value>,
    state: Value,
    methods: Value,
}

impl Looker {
    async fn open(gateway: &Gateway) -> Self {
        let mut wire = gateway.wire().await;
        wire.write(get("/page/events", "Sec-Fetch-Site: same-origin\r\n")).await;
        let head = wire.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Self { wire, text: String::new(), calls: Vec::new(), state: Value::Null, methods: Value::Null }
    }

    /// Takes the next event; `false` after the last.
    async fn next(&mut self) -> bool {
        let Some(chunk) = self.wire.chunk().await else { return false };
        let (name, data) = chunk.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data.trim_end()).unwrap();
        match name {
            "calls" => self.calls.extend(data.as_array().unwrap().clone()),
            "state" => self.state = data,
            "methods" => self.methods = data,
            name => panic!("{name}"),
        }
        self.text.push_str(&chunk);
        true
    }

    /// Watches until something appears.
    async fn sees(&mut self, what: &str, is_there: impl Fn(&Self) -> bool) {
        let seeing = async {
            while !is_there(self) {
                assert!(self.next().await);
            }
        };
        let seen = tokio::time::timeout(LONG, seeing).await.is_ok();
        assert!(seen, "{what}: {:?} {} {}", self.calls, self.state, self.methods);
    }

    fn count(&self, wanted: &Value) -> usize {
        let wanted = wanted.as_object().unwrap();
        self.calls.iter().filter(|call| wanted.iter().all(|(key, value)| call[key] == *value)).count()
    }

    async fn has(&mut self, wanted: Value) {
        self.sees(&wanted.to_string(), |looker| looker.count(&wanted) == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_for_whoever_sits_at_the_machine_and_only_to_look_at() {
    let stage = demo().await;
    let off = Gateway::start(&stage.shell, FAST, "").await;
    for path in ["/", "/page/page.js", "/page/events"] {
        off.wire().await.ask(get(path, "")).await.is(404, -32600);
    }
    assert_eq!(off.stop().await.0, Some(0));

    let names = "hosts = [\"gateway.example\"]\norigins = [\"https://app.example\"]\n";
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}{PAGE}{names}"), "").await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/page.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        for site in ["", "Sec-Fetch-Site: none\r\n", "Sec-Fetch-Site: same-origin\r\n"] {
            let answer = gateway.wire().await.ask(get(path, site)).await;
            assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)));
            let policy = answer.header("content-security-policy").unwrap();
            for part in
                ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"]
            {
                assert!(policy.contains(part), "{policy}");
            }
            for (name, value) in [
                ("x-content-type-options", "nosniff"),
                ("x-frame-options", "DENY"),
                ("cache-control", "no-store"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-resource-policy", "same-origin"),
                ("cross-origin-opener-policy", "same-origin"),
            ] {
                assert_eq!(answer.header(name), Some(value));
            }
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
        // The page loads nothing from elsewhere, and nothing is both text and script.
        let text = String::from_utf8(gateway.wire().await.ask(get(path, "")).await.body).unwrap();
        for foreign in ["https://", "innerHTML", "insertAdjacentHTML", "eval(", " style=", " onclick=", "<script>"] {
            assert!(!text.contains(foreign), "{path}: {foreign}");
        }
        for lines in [
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
            "Origin: https://app.example\r\n",
            "Origin: http://localhost:3000\r\n",
            "Origin: null\r\n",
            "X-Forwarded-For: 10.0.0.1\r\n",
        ] {
            gateway.wire().await.ask(get(path, lines)).await.is(403, -32600);
        }
        gateway.wire().await.ask(get(path, "").replace("127.0.0.1", "gateway.example")).await.is(403, -32600);
        gateway.wire().await.ask(get(path, "").replace("127.0.0.1", "evil.example")).await.is(403, -32600);
        gateway.wire().await.ask(post(path, "", "{}")).await.is(405, -32600);
    }
    for lines in ["Sec-Fetch-Site: cross-site\r\n", "Origin: https://app.example\r\n"] {
        gateway.wire().await.ask(get("/page/events", lines)).await.is(403, -32600);
    }
    gateway.wire().await.ask(get("/page/none", "")).await.is(404, -32600);

    // Eight may watch. One who leaves makes room, and the gateway does not wait for those who stay.
    let mut lookers = Vec::new();
    for _ in 0..8 {
        lookers.push(Looker::open(&gateway).await);
    }
    gateway.wire().await.ask(get("/page/events", "")).await.is(503, -32014);
    lookers.pop();
    let room = async {
        loop {
            let mut wire = gateway.wire().await;
            wire.write(get("/page/events", "")).await;
            let head = wire.answer().await.unwrap();
            if head.status == 200 {
                break wire;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let last = within(LONG, room).await;
    let stopped = within(LONG, gateway.stop()).await;
    assert_eq!(stopped.0, Some(0), "{}", stopped.1);
    drop(last);
    let mut looker = lookers.pop().unwrap();
    within(LONG, async { while looker.next().await {} }).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_the_gateway_is_seen_in_every_dialect_and_nothing_that_is_secret() {
    let policy = format!(
        "{}[rule.bank]\nroles = [\"user\"]\nallow = [\"bank/transfer\"]\nwhen.params.amount = {{ max = 700 }}\n",
        super::POLICY
    );
    let declared = "[method.\"bank/transfer\"]\nparams = [{ name = \"to\", type = \"string\" }, { name = \"amount\", type = \"integer\" }, { name = \"note\", type = \"string\", optional = true }]\n";
    let mut stage = Stage::run(&format!("{declared}{policy}"), "", &["serve", "demo"]).await;
    let bounds = "per_second = 1000\nburst = 20\nstreams = 1\n";
    let methods = "methods = [\"math/*\", \"text/*\", \"log/*\", \"job/*\", \"bank/*\"]\ntimeout_s = 120";
    let gateway = Gateway::start(&stage.shell, &format!("{PAGE}{bounds}"), methods).await;
    gateway.is_ready(200).await;
    let mut looker = Looker::open(&gateway).await;

    let mut wire = gateway.wire().await;
    assert_eq!(wire.post(&call(47_114_711_471_147, "math/add", "[271828, 31415]")).await.json()["result"], 303_243);
    let seen = json!({ "caller": "planner", "via": "rpc", "service": "tools", "method": "math/add", "outcome": "ok", "calls": 1 });
    looker.has(seen).await;
    wire.post(&call(1, "math/mul", "[2,3]")).await.is(200, -32002);
    looker.has(json!({ "method": "math/mul", "outcome": "denied", "code": -32002 })).await;
    wire.post(&call(1, "math/add", r#"{"a":"hunter2"}"#)).await.is(200, -32602);
    looker.has(json!({ "method": "math/add", "outcome": "error", "code": -32602 })).await;
    let batch = [call(1, "math/add", "[1,2]"), call(2, "math/mul", "[1,2]"), call(3, "math/add", "[1,2]")].join(",");
    assert_eq!(wire.post(&format!("[{batch}]")).await.status, 200);
    looker.has(json!({ "method": "math/add math/mul", "calls": 3, "of": 1, "outcome": "denied" })).await;
    assert_eq!(wire.post(r#"{"jsonrpc":"2.0","method":"log/append","params":{"msg":"hunter2"}}"#).await.status, 204);
    looker.has(json!({ "method": "log/append", "outcome": "sent", "code": null })).await;
    // Names that nobody would have.
    let markup = r#"<img src=x onerror=alert(1)>"#;
    wire.post(&call(1, markup, "[]")).await.is(200, -32601);
    looker.has(json!({ "method": markup, "outcome": "refused", "code": -32601, "replica": null })).await;
    let long = "x".repeat(50_000);
    wire.post(&call(1, &long, "[]")).await.is(200, -32601);
    looker
        .sees("a name that was cut", |looker| {
            looker.calls.iter().any(|call| call["method"].as_str().unwrap().len() == 103)
        })
        .await;

    let echo = post("/rpc/tools/stream", "", &call(9, "text/echo", r#"{"text":"one by hunter2"}"#));
    let mut stream = gateway.wire().await;
    stream.write(&echo).await;
    stream.head().await;
    while stream.event().await.is_some_and(|event| event != "[DONE]") {}
    looker.has(json!({ "via": "sse", "method": "text/echo", "outcome": "ok", "parts": 3 })).await;
    let echoed = looker.calls.iter().find(|call| call["via"] == "sse").unwrap();
    let replica = echoed["replica"].as_str().unwrap().to_owned();

    let mcp = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "math_add", "arguments": { "a": 1, "b": 2 } } });
    let accept = "Accept: application/json, text/event-stream\r\n";
    assert_eq!(gateway.wire().await.ask(post("/mcp/tools", accept, &mcp.to_string())).await.status, 200);
    looker
        .has(json!({ "via": "mcp", "caller": "planner", "service": "tools", "method": "math/add", "outcome": "ok" }))
        .await;

    // The methods that the agent may call and the gateway exposes, with bounds; and which replica has answered.
    looker.sees("methods", |looker| !looker.methods[0]["methods"].is_null()).await;
    let methods = looker.methods[0]["methods"].as_array().unwrap();
    let names: Vec<_> = methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bank/transfer", "job/run", "log/append", "math/add", "text/echo"]);
    assert_eq!(methods[0]["params"][1], json!({ "name": "amount", "required": true, "bounds": "integer, ≤ 700" }));
    looker
        .sees("replicas", |looker| {
            looker.state["services"][0]["answer"]["failed"].is_null()
                && looker.state["services"][0]["replicas"][0]["replica"] == json!(replica)
        })
        .await;

    // A running stream, and what exceeds its bound.
    let mut job = gateway.wire().await;
    job.write(post("/rpc/tools/stream", "", &call(7, "job/run", r#"{"steps":5999}"#))).await;
    job.head().await;
    job.event().await.unwrap();
    looker
        .sees("a stream", |looker| {
            let open = &looker.state["under_way"][0];
            open["method"] == "job/run"
                && open["stream"] == true
                && open["parts"].as_u64().is_some_and(|parts| parts > 1)
                && open["replica"] == json!(replica)
        })
        .await;
    gateway.wire().await.ask(&echo).await.is(429, -32013);
    looker.has(json!({ "via": "sse", "outcome": "refused", "code": -32013 })).await;
    looker
        .sees("a caller", |looker| {
            looker.state["callers"][0]["streams"] == 1 && looker.state["callers"][0]["counts"]["refused"] == 3
        })
        .await;
    drop(job);
    looker.has(json!({ "method": "job/run", "outcome": "cancelled" })).await;

    stage.server.kill().await;
    looker.sees("that the broker is away", |looker| looker.state["bus"] == false).await;
    gateway.is_ready(503).await;
    gateway.wire().await.post(&call(1, "math/add", "[1,2]")).await.is(503, -32014);
    looker.has(json!({ "via": "rpc", "outcome": "refused", "code": -32014 })).await;

    let token = stage.shell.read("planner.jwt");
    for secret in ["271828", "303243", "hunter2", "47114711471147", token.trim()] {
        assert!(!looker.text.contains(secret), "{secret}: {}", looker.text);
    }
    // A later viewer sees what happened before.
    let mut late = Looker::open(&gateway).await;
    late.has(json!({ "method": "log/append", "outcome": "sent" })).await;
    assert_eq!(gateway.stop().await.0, Some(0));
}

/// Then, callers are people.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_who_call_are_not_named_on_the_page() {
    let stage = demo().await;
    let shell = &stage.shell;
    shell.run("keys new-token-key https://gateway.example --out gateway-key.json --jwks gateway-jwks.json").ok();
    let (issuer, jwks) = {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let jwks = issuer.public_jwks();
        (issuer, jwks)
    };
    shell.write("idp-jwks.json", &jwks);
    let tables = "[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n";
    let mint = |url: &str| {
        format!("{PAGE}public_url = \"{url}\"\nidentity = {{ mode = \"mint\", key = \"gateway-key.json\" }}\n")
    };
    super::configure_identity(shell, &mint("https://gateway.example"), tables, "");
    shell.run("gateway").fails(30, &["`page`", "`public_url` https://gateway.example"]);

    super::configure_identity(shell, &mint("http://127.0.0.1:8480"), tables, "");
    let gateway = Gateway::spawn(shell).await;
    gateway.is_ready(200).await;
    let mut looker = Looker::open(&gateway).await;
    let mut request = IssueRequest::new("alice@example.com", "http://127.0.0.1:8480", SystemClock.now_s());
    request.claims = json!({ "scope": "tools" }).as_object().unwrap().clone();
    let bearer = format!("Authorization: Bearer {}\r\n", issuer.issue(&request).unwrap());
    let add = call(1, "math/add", "[1,2]");
    // The service does not know the gateway's issuer: the page shows that answer, too.
    assert_eq!(gateway.wire().await.ask(post("/rpc/tools", &bearer, &add)).await.status, 502);
    gateway.wire().await.ask(post("/rpc/tools", "", &add)).await.is(401, -32010);
    looker.has(json!({ "caller": null, "outcome": "refused", "code": -32010 })).await;
    looker
        .sees("a caller with a mark", |looker| {
            let marks = looker.calls.iter().filter_map(|call| call["caller"].as_str());
            marks.filter(|mark| mark.len() == 9 && mark.starts_with('#')).count() == 1
        })
        .await;
    looker
        .sees("the state", |looker| {
            looker.state["identity"] == "mint" && looker.state["callers"][0]["caller"].is_string()
        })
        .await;
    for name in ["alice", "idp.example"] {
        assert!(!looker.text.contains(name), "{}", looker.text);
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// A browser that shows one page.
pub(super) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Chromium, if installed. In CI it must be: `.ci/run` makes sure.
pub(super) fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let named = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&folders)
        .flat_map(|folder| named.map(|name| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no Chromium for this test");
        eprintln!("NOT TESTED, for want of Chromium: apt-get install chromium");
    }
    found
}

impl Browser {
    /// At this address.
    pub(super) fn start(python: &Path, chromium: &Path, url: &str, folder: &Path) -> Self {
        let mut command = Command::new(python);
        command.arg("-B").arg(root().join("crates/cli/tests/cli/gateway_http/browser.py")).arg(chromium);
        command.arg(url).arg(folder).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Self { child, commands, answers }
    }

    pub(super) async fn tell(&mut self, command: Value) -> Value {
        self.commands.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        let line = within(2 * LONG, self.answers.next_line()).await.unwrap().expect("the browser has gone");
        serde_json::from_str(&line).unwrap()
    }

    pub(super) async fn evaluate(&mut self, script: &str) -> Value {
        self.tell(json!({ "do": "evaluate", "script": script })).await
    }

    /// Watches until this is true on the page.
    pub(super) async fn sees(&mut self, script: &str) {
        let began = std::time::Instant::now();
        while self.evaluate(script).await != true {
            if began.elapsed() > LONG {
                let text = self.evaluate("document.body.innerText").await;
                panic!("{script}: {}\n{}", text.as_str().unwrap_or_default(), self.tell(json!({ "do": "said" })).await);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) async fn end(self) {
        let Self { mut child, commands, .. } = self;
        drop(commands);
        assert!(within(LONG, child.wait()).await.unwrap().success());
    }
}

/// With `SEALWIRE_WRITE_DOCS=1` it also takes the picture that docs/gateway/page.md shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_the_page_as_calls_come_and_runs_nothing_of_theirs() {
    let (Some(python), Some(chromium)) = (python(), chromium()) else { return };
    let declared = "[method.\"bank/transfer\"]\nparams = [{ name = \"to\", type = \"string\" }, { name = \"amount\", type = \"integer\" }, { name = \"note\", type = \"string\", optional = true }]\n";
    let bank = "[rule.small]\nroles = [\"user\"]\nallow = [\"bank/transfer\"]\nwhen.params.amount = { max = 5000 }\nwhen.params.to = { in = [\"alice\", \"bob\"] }\n";
    let stage = Stage::run(&format!("{declared}{}{bank}", super::POLICY), "", &["serve", "demo"]).await;
    let gateway = Gateway::start(
        &stage.shell,
        PAGE,
        "methods = [\"math/*\", \"text/*\", \"log/*\", \"job/*\", \"bank/*\", \"clock/*\"]\ntimeout_s = 300",
    )
    .await;
    gateway.is_ready(200).await;
    let mut wire = gateway.wire().await;
    wire.post(&call(1, "math/add", "[1,2]")).await;

    let address = format!("http://{}", gateway.at);
    let mut browser = Browser::start(python, &chromium, &address, &stage.shell.path("browser"));
    browser.tell(json!({ "do": "view", "width": 1280, "height": 860 })).await;
    browser.tell(json!({ "do": "open" })).await;
    browser.sees("document.getElementById('health-text')?.textContent.startsWith('broker connected')").await;
    // What was before, and what comes meanwhile.
    let row = |method: &str, outcome: &str| {
        format!(
            "[...document.querySelectorAll('#rows tr.is-{outcome}')].some(row => row.cells[3].textContent === '{method}')"
        )
    };
    browser.sees(&row("math/add", "ok")).await;
    wire.post(&call(1, "bank/transfer", r#"{"to":"alice","amount":5001}"#)).await.is(200, -32002);
    browser.sees(&row("bank/transfer", "denied")).await;
    let markup = "<img src=x onerror=document.title=1><script>document.title=2</script>";
    wire.post(&call(1, markup, "[]")).await.is(200, -32601);
    browser.sees(&row(markup, "refused")).await;
    browser.sees("document.querySelectorAll('img').length === 0 && document.scripts.length === 1 && document.title === 'Sealwire gateway'").await;
    let mut job = gateway.wire().await;
    job.write(post("/rpc/tools/stream", "", &call(7, "job/run", r#"{"steps":2999}"#))).await;
    job.head().await;
    browser.sees("document.getElementById('open').innerText.includes('job/run')").await;
    browser.sees("document.getElementById('methods').innerText.includes('≤ 5000')").await;
    browser.sees("document.getElementById('services').innerText.includes('answers in')").await;

    // The page's content security policy works: no foreign script, and no text that becomes markup.
    let inline = "const made = document.createElement('script'); made.append('document.title = 3');";
    let thrown = browser.evaluate(&format!("{inline} document.head.append(made); document.title")).await;
    assert_ne!(thrown, 3, "{thrown}");
    let thrown = browser.evaluate("document.body.innerHTML = '<p>x</p>'").await;
    assert!(thrown["thrown"].as_str().is_some_and(|thrown| thrown.contains("TrustedHTML")), "{thrown}");
    let reached = browser.evaluate("fetch('https://example.com/').then(() => 'reached', () => 'refused')").await;
    assert_eq!(reached, "refused");
    let said = browser.tell(json!({ "do": "said" })).await;
    let refusals = said.as_array().unwrap().iter().filter(|said| said.get("log").is_some()).count();
    assert!(refusals >= 3, "a browser says what it refuses: {said}");

    // A fresh page, without any of that, and at the width of a phone.
    browser.tell(json!({ "do": "view", "width": 360, "height": 740, "dark": true })).await;
    browser.tell(json!({ "do": "open" })).await;
    browser.sees(&row("bank/transfer", "denied")).await;
    browser.sees("document.getElementById('methods').innerText.includes('≤ 5000')").await;
    browser.sees("document.documentElement.scrollWidth <= 360").await;
    browser.evaluate("document.getElementById('bad').click()").await;
    browser.sees("document.querySelectorAll('#rows tr').length === 2").await;
    if std::env::var_os("SEALWIRE_WRITE_DOCS").is_some() {
        let narrow = stage.shell.path("narrow.png");
        browser.tell(json!({ "do": "picture", "file": narrow, "whole": true })).await;
        picture(&gateway, &mut browser).await;
        std::fs::copy(narrow, std::env::temp_dir().join("sealwire-page-narrow.png")).unwrap();
    }
    let said = browser.tell(json!({ "do": "said" })).await;
    for said in said.as_array().unwrap() {
        let request = said["request"].as_str().unwrap_or_else(|| panic!("the console: {said}"));
        assert!(request.starts_with(&format!("http://{}/", gateway.at)), "{request}");
    }
    browser.end().await;
    drop(job);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// Takes the picture of docs/gateway/page.md: some minutes of a gateway's life, in some seconds.
async fn picture(gateway: &Gateway, browser: &mut Browser) {
    let mut wire = gateway.wire().await;
    for round in 0..30 {
        for (method, params) in [
            ("math/add", format!("[{round}, 1]")),
            ("text/echo", r#"{"text":"one by one"}"#.to_owned()),
            ("bank/transfer", format!(r#"{{"to":"alice","amount":{}}}"#, 500 + 300 * round)),
            ("math/add", r#"{"a":1}"#.to_owned()),
        ] {
            if method == "text/echo" || round % 7 == 3 {
                let mut stream = gateway.wire().await;
                stream.write(post("/rpc/tools/stream", "", &call(round, method, &params))).await;
                stream.head().await;
                while stream.event().await.is_some() {}
            } else if method != "math/add" || params.starts_with('[') || round % 5 == 0 {
                wire.post(&call(round, method, &params)).await;
            }
            tokio::time::sleep(Duration::from_millis(40 + 60 * (round % 4))).await;
        }
    }
    browser.tell(json!({ "do": "view", "width": 1280, "height": 860 })).await;
    browser.tell(json!({ "do": "open" })).await;
    browser.sees("document.getElementById('methods').innerText.includes('≤ 5000')").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    browser.tell(json!({ "do": "picture", "file": root().join("docs/page.png") })).await;
}
