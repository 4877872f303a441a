//! Servers over HTTP: made with published packages, and hostile ones.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::RpcError;
use sealwire::internal::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::super::stage::{LONG, POLICY, Stage, code};
use super::known::until;
use super::{approved, refused, text};
use crate::process::{SIGTERM, heard, says, send};

/// Starts a server, and waits until it accepts connections.
async fn started(program: &str, args: &[&str], port: u16) -> Option<Child> {
    let program = root().join("crates/cli/tests/cli/backends/mcp").join(program);
    let mut command = Command::new(python()?);
    let server = command
        .arg("-B")
        .arg(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let there = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(2 * LONG, there).await;
    Some(server)
}

async fn made(package: &str, options: &[&str], port: u16) -> Option<Child> {
    started("made.py", &[&[package, &port.to_string()], options].concat(), port).await
}

fn backend(name: &str, port: u16, more: &str) -> String {
    format!(
        "[[backend]]\nname = \"{name}\"\nkind = \"mcp\"\nprefix = \"{name}\"\nurl = \"http://127.0.0.1:{port}/mcp\"\n{more}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_both_eras_are_called_streamed_asked_and_cancelled_over_http() {
    let servers = [
        ("modern", "mcp", &[][..]),
        ("newest", "fastmcp", &[][..]),
        ("earlier", "mcp", &["earlier"][..]),
        ("stateless", "fastmcp", &["earlier", "stateless", "json"][..]),
    ];
    let (mut text, mut policy, mut running) = (String::new(), POLICY.to_owned(), Vec::new());
    let ports = servers.map(|_| free_port());
    let all = servers.iter().zip(ports).map(|((_, package, options), port)| made(package, options, port));
    for ((name, ..), (port, server)) in servers.iter().zip(ports.iter().zip(futures_util::future::join_all(all).await))
    {
        let Some(server) = server else { return };
        running.push(server);
        text += &backend(name, *port, "");
        policy += &format!(
            "[rule.small_{name}]\nroles = [\"user\"]\ndeny = [\"{name}/add\"]\nwhen.params.a = {{ min = 100 }}\n"
        );
    }
    let stage = Stage::new(&policy, &text).await;
    stage.shell.run("tools approve --yes").ok();

    for (name, package, options) in servers {
        let method = |tool: &str| format!("{name}/{tool}");
        assert_eq!(approved(&stage, &method("add"), json!({ "a": 2, "b": 3 })).await, json!({ "result": 5 }));
        assert_eq!(refused(stage.call(&method("add"), json!({ "a": 100, "b": 3 })).await).0, -32002);
        assert_eq!(refused(stage.call(&method("count"), json!({ "to": "x" })).await).0, -32602);
        assert_eq!(refused(stage.call(&method("large"), json!({})).await).0, -32004);

        let told: Arc<Mutex<Vec<Request>>> = Arc::default();
        let listener = Arc::clone(&told);
        let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
        let mut counted = request.stream::<Value>(&method("count"), json!({ "to": 3 }));
        assert!(within(LONG, counted.next()).await.is_none());
        assert_eq!(within(LONG, counted.finish::<Value>()).await.unwrap(), json!({ "result": "there" }));
        let told = told.lock().unwrap().iter().map(|note| note.method.clone()).collect::<Vec<_>>();
        // An answer in JSON has no place for it.
        assert_eq!(told.contains(&"rpc.progress".to_owned()), !options.contains(&"json"), "{name}: {told:?}");

        if !options.contains(&"stateless") {
            let file = stage.shell.path(name);
            let hanging = stage.client.stream::<Value>("tools", &method("hang"), json!({ "file": file }));
            until(&file, "begun").await;
            assert!(within(LONG, hanging.cancel()).await);
            until(&file, "cancelled").await;
        }
        if package == "mcp" {
            let asked = stage.client.request("tools").on_ask(|question: Request| async move {
                assert_eq!(question.method, "elicitation/create");
                Ok::<_, RpcError>(json!({ "action": "accept", "content": { "size": "large" } }))
            });
            let mut asked = asked.stream::<Value>(&method("order"), json!({}));
            assert!(within(LONG, asked.next()).await.is_none());
            assert_eq!(within(LONG, asked.finish::<Value>()).await.unwrap(), json!({ "result": "large" }));
            let region = json!({ "region": "Zürich\r\nX: y" });
            assert_eq!(stage.call(&method("where"), region.clone()).await.unwrap()["result"], region["region"]);
            // The newer revision also sends it as a header, where there is no room for more.
            let long = json!({ "region": "x".repeat(5_000) });
            match (name, stage.call(&method("where"), long.clone()).await) {
                ("modern", outcome) => assert_eq!(refused(outcome).0, -32602),
                (_, outcome) => assert_eq!(outcome.unwrap()["result"], long["region"]),
            }

            // An approved tool is disabled when the server says that it has changed.
            stage.call(&method("grow"), json!({})).await.unwrap();
            let off = async {
                loop {
                    let outcome = stage.call(&method("add"), json!({ "a": 1, "b": 2 })).await;
                    if outcome.is_err() {
                        break refused(outcome);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            assert_eq!(within(LONG, off).await.2, json!({ "tool": "changed" }), "{name}");
        }
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_http_that_goes_away_is_found_again() {
    let port = free_port();
    let Some(mut server) = made("mcp", &["earlier"], port).await else { return };
    let mut stage = Stage::new(POLICY, &backend("made", port, "")).await;
    stage.shell.run("tools approve --yes").ok();
    let add = json!({ "a": 1, "b": 2 });
    approved(&stage, "made/add", add.clone()).await;

    // A session that the server has ended: the call was not made, so it is made in the next one.
    stage.call("made/forget", json!({})).await.unwrap();
    says(&mut stage.stderr, "it has ended the session").await;
    assert_eq!(stage.call("made/add", add.clone()).await.unwrap(), json!({ "result": 3 }));

    // Killed in the middle.
    let file = stage.shell.path("hang");
    let hanging = stage.call("made/hang", json!({ "file": file }));
    let killed = async {
        until(&file, "begun").await;
        server.kill().await.unwrap();
    };
    let (hanging, ()) = futures_util::future::join(hanging, killed).await;
    assert_eq!(code(&hanging.unwrap_err()), Some(-32004));
    says(&mut stage.stderr, "cannot be reached").await;
    assert_eq!(code(&stage.call("made/add", add.clone()).await.unwrap_err()), Some(-32004));

    send(SIGTERM, stage.service.id().unwrap());
    within(LONG, stage.service.wait()).await.unwrap();

    // A service starts without the server, since it knows what was approved, and later finds it again.
    let mut again = Command::from(stage.shell.command(&["serve", "--json"]));
    stage.service = again.env("PATH", std::env::var_os("PATH").unwrap_or_default()).kill_on_drop(true).spawn().unwrap();
    let mut stdout = heard(stage.service.stdout.take().unwrap());
    stage.stderr = heard(stage.service.stderr.take().unwrap());
    says(&mut stage.stderr, "cannot be reached").await;
    let _server = made("mcp", &["earlier"], port).await.unwrap();
    let ready = within(LONG, stdout.wait_for(|said| said.contains("\"ready\":true"))).await.is_ok();
    assert!(ready, "{}", *stage.stderr.borrow());
    assert_eq!(approved(&stage, "made/add", add).await, json!({ "result": 3 }));
    stage.end().await;
}

/// A stage with the hostile server, approved; `None` without Python.
async fn hostile(more: &str) -> Option<(Stage, Child)> {
    hostile_on(free_port(), &[], more).await
}

async fn hostile_on(port: u16, args: &[&str], more: &str) -> Option<(Stage, Child)> {
    let server = started("hostile.py", &[&[&*port.to_string()], args].concat(), port).await?;
    let stage = Stage::new(POLICY, &backend("h", port, more)).await;
    stage.shell.run("tools approve --yes").ok();
    approved(&stage, "h/good", json!({})).await;
    Some((stage, server))
}

/// The calls that the server got, by tool name.
async fn got(stage: &Stage) -> Value {
    stage.call("h/made", json!({})).await.unwrap()["structuredContent"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_session_that_the_server_ends_are_made_once_or_go_on() {
    let Some((mut stage, _server)) = hostile("").await else { return };
    let good = text(&["good"]);
    // Calls in progress when the session ends go on, on their own connections.
    let slow = stage.call("h/slow", json!({}));
    let others = async {
        assert_eq!(stage.call("h/begun", json!({})).await.unwrap(), good);
        stage.call("h/end", json!({})).await.unwrap();
        assert_eq!(stage.call("h/good", json!({})).await.unwrap(), good, "in the next session");
        stage.call("h/release", json!({})).await.unwrap();
    };
    let (slow, ()) = futures_util::future::join(slow, others).await;
    assert_eq!(slow.unwrap(), good);
    says(&mut stage.stderr, "it has ended the session").await;

    // Many at once, while sessions end: each is made once.
    let before = got(&stage).await;
    for round in 1..=3 {
        let calls = (0..20).map(|number| {
            let (stage, good) = (&stage, &good);
            async move {
                if number == 7 {
                    stage.call("h/end", json!({})).await.unwrap();
                }
                assert_eq!(&stage.call("h/good", json!({})).await.unwrap(), good);
            }
        });
        futures_util::future::join_all(calls).await;
        let now = got(&stage).await;
        assert_eq!(now["good"].as_u64(), before["good"].as_u64().map(|good| good + 20 * round), "{before} {now}");
    }

    // A server that ends each session with the call is not asked forever.
    let doomed = refused(stage.call("h/doomed", json!({})).await);
    assert_eq!(doomed.0, -32004);
    assert_eq!(stage.call("h/good", json!({})).await.unwrap(), good);
    assert_eq!(got(&stage).await["doomed"], 2);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_over_http_give_their_places_back() {
    // One place for an agent alone, and a timeout far above what the test waits.
    const FEW: &str = "in_flight = 2\ntimeout_s = 600";
    let folder = tempfile::tempdir().unwrap();
    let (go, secret) = (folder.path().join("go"), folder.path().join("key.sh"));
    let wait = format!("while [ $SEALWIRE_AGENT = late ] && [ ! -e {} ]; do sleep 0.2; done\n", go.display());
    std::fs::write(&secret, wait + "echo key-of-$SEALWIRE_AGENT\n").unwrap();
    let credential =
        format!("scheme = \"Bearer\"\nowner = \"agent\"\ncommand = [\"sh\", {:?}]", secret.to_str().unwrap());
    let more = format!("{FEW}\n[[backend.credential]]\n{credential}");
    let ports = [free_port(), free_port()];
    let Some(_modern) = made("mcp", &[], ports[0]).await else { return };
    let Some(_stateless) = made("fastmcp", &["earlier", "stateless", "json"], ports[1]).await else { return };
    let backends = backend("modern", ports[0], &more) + &backend("stateless", ports[1], &more);
    let stage = Stage::new(POLICY, &backends).await;
    stage.shell.run("tools approve --yes").ok();
    let late = stage.agent("late").await;
    let add = json!({ "a": 1, "b": 2 });
    for name in ["modern", "stateless"] {
        let method = format!("{name}/add");
        approved(&stage, &method, add.clone()).await;
        // A call that was never sent, for lack of credentials, does not count as one that the server works on.
        let call = |deadline| late.request("tools").deadline(deadline).call::<Value>(&method, &add);
        within(LONG, call(Duration::from_millis(500))).await.unwrap_err();
        std::fs::write(&go, "").unwrap();
        // A call that was sent would keep its place for longer.
        assert_eq!(within(LONG, call(Duration::from_secs(8))).await.unwrap(), json!({ "result": 3 }), "{name}");
        std::fs::remove_file(&go).unwrap();
    }
    // The call existed only on its connection.
    let file = stage.shell.path("hang");
    for _ in 0..3 {
        let hanging = stage.client.stream::<Value>("tools", "modern/hang", json!({ "file": file }));
        until(&file, "begun").await;
        assert!(within(LONG, hanging.cancel()).await);
        until(&file, "cancelled").await;
    }
    assert_eq!(stage.call("modern/add", add).await.unwrap(), json!({ "result": 3 }));
    stage.end().await;

    // A server of an earlier revision may never say that it has stopped.
    let Some((stage, _server)) = hostile(FEW).await else { return };
    let brief = stage.client.request("tools").deadline(Duration::from_millis(500));
    within(LONG, brief.call::<Value>("h/silent", json!({}))).await.unwrap_err();
    assert_eq!(stage.call("h/good", json!({})).await.unwrap(), text(&["good"]));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_tool_is_not_approved_any_more_has_no_next_round() {
    let port = free_port();
    let Some(_server) = made("mcp", &[], port).await else { return };
    let stage = Stage::new(POLICY, &backend("made", port, "")).await;
    stage.shell.run("tools approve --yes").ok();
    approved(&stage, "made/add", json!({ "a": 1, "b": 2 })).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (answer, answered) = tokio::sync::watch::channel(false);
    let asked = stage.client.request("tools").on_ask(move |_: Request| {
        let mut answered = answered.clone();
        tell.send(()).unwrap();
        async move {
            answered.wait_for(|answered| *answered).await.unwrap();
            Ok::<_, RpcError>(json!({ "action": "accept", "content": { "size": "large" } }))
        }
    });
    let mut asked = asked.stream::<Value>("made/order", json!({}));
    let asked = tokio::spawn(async move { asked.next().await });
    within(LONG, told.recv()).await.unwrap();
    let lock = stage.shell.read("tools.lock.toml");
    let order = lock.find("[made.tool.order]").unwrap();
    let after = lock[order + 1..].find("\n[made.").map_or(lock.len(), |next| order + 1 + next);
    stage.shell.write("tools.lock.toml", &format!("{}{}", &lock[..order], &lock[after..]));
    let off = async {
        while refused(stage.call("made/order", json!({})).await).2 != json!({ "tool": "new" }) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, off).await;
    answer.send_replace(true);
    let refused = refused(within(LONG, asked).await.unwrap().unwrap());
    assert_eq!((refused.0, refused.2), (-32004, json!({ "tool": "new" })));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_none_of_its_sessions_is_not_there() {
    let port = free_port();
    // Far above what the test waits.
    let Some((stage, _server)) = hostile_on(port, &[], "timeout_s = 600").await else { return };
    stage.call("h/split", json!({})).await.unwrap();
    // Not because of their deadline: one or two may find out that the session is over.
    for _ in 0..3 {
        let refused = refused(stage.call("h/good", json!({})).await);
        assert_eq!(refused.0, -32004);
    }
    // Nor do callers wait for it that do not depend on it.
    let url = format!("--url http://127.0.0.1:{port}/mcp");
    stage.shell.run(&format!("tools diff {url}")).fails(30, &["it has ended the session"]);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_doubted_when_the_stream_of_news_ends() {
    let Some((stage, _server)) = hostile_on(free_port(), &["news"], "").await else { return };
    // A server that fails to open it is asked again.
    let listened = async {
        while got(&stage).await["listen"] != 2 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, listened).await;
    stage.call("h/restart", json!({})).await.unwrap();
    let doubted = async {
        loop {
            let outcome = stage.call("h/good", json!({})).await;
            if outcome.is_err() {
                break refused(outcome);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let doubted = tokio::time::timeout(LONG, doubted).await.unwrap_or_else(|_| panic!("{}", *stage.stderr.borrow()));
    assert_eq!(doubted.0, -32004);
    assert_eq!(approved(&stage, "h/good", json!({})).await, text(&["good"]));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_server_over_http_does_not_take_costs_no_other_call() {
    let Some((stage, _server)) = hostile("in_flight = 6").await else { return };
    let good = text(&["good"]);
    // An answer that it does not accept: it would wait forever, and so would the caller.
    let asked =
        stage.client.request("tools").on_ask(|_: Request| async { Ok::<_, RpcError>(json!({ "action": "decline" })) });
    let mut asked = asked.stream::<Value>("h/ask", json!({}));
    assert_eq!(refused(within(LONG, asked.next()).await.unwrap()).0, -32004);
    let told = async {
        while got(&stage).await["ask cancelled"] != 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, told).await;

    // No more than a few unanswered messages of ours take a call's connection. They are given up after ten seconds.
    stage.call("h/pings", json!({})).await.unwrap();
    let request = stage.client.request("tools").deadline(Duration::from_secs(8));
    assert_eq!(within(LONG, request.call::<Value>("h/good", json!({}))).await.unwrap(), good);

    // For a while, it cannot list its tools.
    stage.call("h/spoil", json!({})).await.unwrap();
    assert_eq!(refused(stage.call("h/good", json!({})).await).0, -32004);
    assert_eq!(approved(&stage, "h/good", json!({})).await, good);

    // Calls that are given up, but that the server may go on with, count against the agent's share, three, until it has had time to stop.
    let quiet = stage.agent("quiet").await;
    let began = Instant::now();
    for _ in 0..4 {
        let brief = stage.client.request("tools").deadline(Duration::from_millis(500));
        within(LONG, brief.call::<Value>("h/silent", json!({}))).await.unwrap_err();
    }
    let got: Value = within(LONG, quiet.call("tools", "h/made", json!({}))).await.unwrap();
    let silent = got["structuredContent"]["silent"].as_u64().unwrap();
    assert!(silent < 4 || began.elapsed() >= Duration::from_secs(10), "{silent}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_answer_of_a_server_over_http_costs_that_call_alone() {
    let port = free_port();
    let Some(_server) = started("hostile.py", &[&port.to_string()], port).await else { return };
    let url = format!("http://127.0.0.1:{port}/mcp");
    let mut stage = Stage::run(POLICY, "", &["serve", "mcp", "--url", &url]).await;
    stage.shell.run(&format!("tools approve --yes --url {url}")).ok().says("35 approved");
    assert_eq!(approved(&stage, "good", json!({})).await, text(&["good"]));
    for (method, expected, why) in [
        ("garbage", -32004, "its answer is not UTF-8"),
        ("wrong_id", -32004, "an answer to what was not asked"),
        ("page", -32004, "its answer is `text/html`"),
        ("large", -32004, "more than 1 MiB"),
        ("flood", -32004, "1000 useless events"),
        ("comments", -32004, "1000 useless lines"),
        ("blanks", -32004, "1000 useless lines"),
        ("empties", -32004, "1000 useless lines"),
        ("ids", -32004, "1000 useless lines"),
        ("cut", -32004, "the stream has ended before its answer"),
        ("ended", -32004, "the stream has ended before its answer"),
        ("redirect", -32004, "redirects are not followed"),
        ("denied", -32004, "it does not take the credentials"),
        ("encoded", -32004, "content encoding"),
        ("heads", -32004, ""),
        ("nothing", -32004, "neither JSON nor a stream of events"),
        ("pose", -32004, ""),
        ("refused", 7, ""),
        ("missing", 8, ""),
        ("unfound", -32004, ""),
    ] {
        let refused = refused(stage.call(method, json!({})).await);
        assert_eq!(refused.0, expected, "{method}: {refused:?}");
        says(&mut stage.stderr, why).await;
        // Meanwhile, health checks succeed.
        assert_eq!(stage.call("good", json!({})).await.unwrap(), text(&["good"]), "{method}");
    }
    let impatient = stage.client.request("tools").deadline(Duration::from_millis(500));
    within(LONG, impatient.call::<Value>("silent", json!({}))).await.unwrap_err();
    assert_eq!(stage.call("good", json!({})).await.unwrap(), text(&["good"]));

    // One that never stops saying what nobody has asked for is read more slowly, until its call ends.
    // On a busy machine, it may say less than that in a second.
    let limited = async {
        while !stage.stderr.borrow().contains("things a second that nobody has asked for") {
            let impatient = stage.client.request("tools").deadline(Duration::from_secs(3));
            within(LONG, impatient.call::<Value>("changes", json!({}))).await.unwrap_err();
        }
    };
    within(LONG, limited).await;
    let known = async {
        while stage.call("good", json!({})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, known).await;

    // A server that gives no sign of life for a while: what it works on goes on.
    let mut stderr = stage.stderr.clone();
    let slow = stage.call("slow", json!({}));
    let sick = async {
        assert_eq!(refused(stage.call("sick", json!({})).await).0, -32004);
        let released = async {
            while stage.call("release", json!({})).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(LONG, says(&mut stderr, "HTTP status 502")).await;
        within(LONG, released).await;
    };
    let (slow, ()) = futures_util::future::join(slow, sick).await;
    assert_eq!(slow.unwrap(), text(&["good"]));
    let said = stage.end().await;
    assert!(!said.contains("it has ended the session"), "{said}");
    assert!(!said.contains("secret") && !said.contains("panicked"), "{said}");

    let shell = super::super::stage::prepared("nats://127.0.0.1:4222", POLICY, "");
    let base = shell.read("sealwire.toml");
    for (keys, fault) in [
        ("", "`command` or `url` is missing"),
        ("url = \"https://a.example/mcp\"\ncommand = [\"x\"]", "write one of them"),
        ("url = \"http://a.example/mcp\"", "is not https"),
        ("url = \"https://a.example/mcp\"\nprocesses = 2", "`processes` is for kind `stdio`"),
        ("command = [\"x\"]\nheaders = { X = \"y\" }", "`url` and what belongs to it"),
    ] {
        shell.write("sealwire.toml", &format!("{base}[[backend]]\nname = \"a\"\nkind = \"mcp\"\n{keys}\n"));
        shell.run("serve --check").fails(30, &[fault]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_starts_without_known_servers_that_hang() {
    let Some(python) = python() else { return };
    let port = free_port();
    let Some(mut server) = made("mcp", &["earlier"], port).await else { return };
    // Far longer than the test waits: a start in time does not wait for these servers.
    let process = super::backend(python, "legacy").replace("kind =", "timeout_s = 600\nkind =");
    let command = "[[backend]]\nname = \"clock\"\nkind = \"exec\"\ncommand = [\"date\"]\n\
                   [[backend.method]]\nname = \"clock/now\"\noutput = \"text\"\n";
    let backends = format!("{}{process}{command}", backend("made", port, "timeout_s = 600"));
    let mut stage = Stage::new(POLICY, &backends).await;
    stage.shell.run("tools approve --yes").ok();
    let add = json!({ "a": 1, "b": 2 });
    approved(&stage, "made/add", add.clone()).await;
    send(SIGTERM, stage.service.id().unwrap());
    within(LONG, stage.service.wait()).await.unwrap();

    // One accepts connections and says nothing; the other says nothing, either.
    server.kill().await.unwrap();
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let config = stage.shell.read("sealwire.toml");
    let (before, after) = config.split_once("command = [").unwrap();
    let (_, after) = after.split_once(']').unwrap();
    stage.shell.write("sealwire.toml", &format!("{before}command = [\"sleep\", \"600\"]{after}"));
    let mut again = Command::from(stage.shell.command(&["serve", "--state-file", "state.json"]));
    stage.service = again.env("PATH", std::env::var_os("PATH").unwrap_or_default()).kill_on_drop(true).spawn().unwrap();
    stage.stdout = heard(stage.service.stdout.take().unwrap());
    stage.stderr = heard(stage.service.stderr.take().unwrap());
    let there = async {
        while stage.call("clock/now", json!({})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(2 * LONG, there).await;
    for method in ["made/add", "t/add", "t/prompts/get"] {
        assert_eq!(refused(stage.call(method, json!({ "a": 1, "b": 2 })).await).0, -32004, "{method}");
    }
    says(&mut stage.stderr, "it has not said within 10 s what it can do").await;
    stage.shell.run("ping --config sealwire.toml --own state.json --within 30s").fails_with(20, "interrupted");

    // Up at last, but none of the others is.
    drop(listener);
    let _server = made("mcp", &["earlier"], port).await.unwrap();
    assert_eq!(approved(&stage, "made/add", add).await, json!({ "result": 3 }));
    assert_eq!(refused(stage.call("t/add", json!({ "a": 1, "b": 2 })).await).0, -32004);
    stage.end().await;
}
