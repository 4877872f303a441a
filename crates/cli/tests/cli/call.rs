//! `sealwire call`, `notify`, `batch` and `send` against a service on a real nats-server, with keys, tokens and policies
//! made by the commands themselves.

use crate::streams;
use crate::terminal::on_terminal;
use sealwire_lab::demo_methods;

use std::time::{Duration, Instant};

use crate::shell::{Ran, Shell};
use futures_util::StreamExt as _;
use sealwire::serve::State;
use sealwire::{Config, Ctx, Router, RpcError};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const POLICY: &str = r#"
[role.calc]
allow = ["math/*", "log/append", "bank/*", "audit/read", "test/*"]
deny = ["math/reset"]
"#;

/// A broker, a service `dev/demo`, and the agent `planner` with its credentials, token and policy.
pub(crate) struct Bench {
    pub(crate) shell: Shell,
    pub(crate) server: NatsServer,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

async fn slow(_: Ctx<demo_methods::Demo>, (): ()) -> Result<(), RpcError> {
    tokio::time::sleep(Duration::from_secs(60)).await;
    Ok(())
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::start_with("", |router| router).await
    }

    /// With `more` below `[replay]` in the configuration, and further methods.
    pub(crate) async fn start_with(
        more: &str,
        methods: impl FnOnce(Router<demo_methods::Demo>) -> Router<demo_methods::Demo>,
    ) -> Self {
        let server = NatsServer::start().await;
        let shell = Shell::new();
        shell.run("keys new-token-key https://dev.example").ok();
        shell.run("keys new-service dev/demo").ok();
        for (name, alg) in [("planner", "hs256"), ("eve", "eddsa")] {
            let url = server.url();
            shell.run(&format!("keys new-agent {name} --alg {alg} --service dev/demo=demo.ring.json --url {url}")).ok();
            let bound = format!("--subject {name} --cnf-kid {name}.k1 --out {name}.jwt");
            shell.run(&format!("token issue --key token-key.json --audience dev/demo --role calc {bound}")).ok();
        }
        shell.write("policies/demo.toml", POLICY);
        let config = format!(
            "environment = \"dev\"\nservice = \"demo\"\n[nats]\nurls = [\"{}\"]\n[keys]\nring = \"demo.ring.json\"\n\
             service_key = \"demo.service-key.json\"\ndenylist = \"denylist.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\n\
             jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 0\n{more}",
            server.url()
        );
        shell.write("denylist.json", "{}");
        shell.write("demo.toml", &config);
        let config = Config::load(shell.path("demo.toml")).unwrap();
        let (builder, options) = config.builder().await.unwrap();
        let router = methods(streams::methods(demo_methods::router().method("test/slow", slow)));
        let service = builder.methods(router).build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (started, running) = oneshot::channel();
        let served = tokio::spawn(async move {
            let tell = |running: sealwire::Running| drop(started.send(running));
            service.serve(&config.nats, options, tell, async { drop(stopped.await) }).await.unwrap();
        });
        let mut state = running.await.unwrap().state();
        within(SOON, state.wait_for(|state| *state == State::Ready)).await.unwrap();
        Self { shell, server, stop, served }
    }

    /// Runs a command as `planner`.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let (command, rest) = args.split_first().unwrap();
        let mut args = vec![*command, "--creds", "planner.creds.json"];
        args.extend(rest);
        self.shell.run_args(&args)
    }

    pub(crate) async fn end(self) {
        let _ = self.stop.send(());
        within(SOON, self.served).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_print_results_and_end_with_the_code_of_their_kind() {
    let bench = Bench::start().await;
    let ran = bench.run(&["call", "demo", "math/add", r#"{"a":2,"b":3}"#]).ok();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("5\n", ""));
    let ran = bench.run(&["call", "demo", "math/mul", "[2, 2.5]", "--json", "--method-subject", "--idempotent"]).ok();
    assert_eq!(ran.json(), json!({ "result": 5 }));
    let stdin = ["call", "--creds", "planner.creds.json", "demo", "bank/balance", "-"];
    let ran = bench.shell.run_with_stdin(&stdin, br#"{"account":"bob"}"#).ok();
    assert_eq!(ran.stdout, "{\"account\":\"bob\",\"balance\":10000}\n");
    let mut with_env = bench.shell.command(&["call", "demo", "math/add", "[1,1]"]);
    let output = with_env.env("SEALWIRE_CREDS", "planner.creds.json").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n");

    let denied = ["permission denied (-32002)", "rpc.can '{\"method\": \"math/reset\"", "sealwire policy explain"];
    bench.run(&["call", "demo", "math/reset"]).fails(10, &denied);
    let error = bench.run(&["call", "demo", "math/reset", "--json"]).fails(10, &[]).error();
    let rpc = json!({ "code": -32002, "message": "permission denied" });
    assert_eq!((&error["exit"], &error["kind"], &error["rpc"]), (&json!(10), &json!("denied"), &rpc));
    let not_found = ["Method not found (-32601)", "`demo` has no method `math/none`"];
    bench.run(&["call", "demo", "math/none"]).fails(21, &[&not_found[..], &["sealwire policy matrix FOLDER"]].concat());
    let declared = "[method.\"math/add\"]\n[method.\"math/mul\"]\n[method.\"bank/balance\"]\n";
    bench.shell.write("elsewhere/policies/methods.toml", declared);
    let said_there = |method: &str| {
        let mut there = bench.shell.command(&["call", "--creds", "../planner.creds.json", "demo", method]);
        let output = there.current_dir(bench.shell.path("elsewhere")).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let said = said_there("nath/add");
    assert!(
        said.contains("name no `nath/add`, but bank/balance, math/add, math/mul; the service's log names"),
        "{said}"
    );
    let said = said_there("rpc.explain");
    assert!(said.contains("help: the service's log names the rule"), "{said}");
    let said = said_there("math/none");
    assert!(said.contains("has no method `math/none`; the policy files here name math/add, math/mul\n"), "{said}");
    bench.run(&["call", "demo", "math/add", r#"{"a":2}"#]).fails(21, &["parameter `b` is missing"]);
    bench.run(&["call", "demo", "bank/transfer", r#"{"to":"bob","amount":999999}"#]).fails(21, &["does not cover"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_notifications_and_raw_payloads_get_what_they_deserve() {
    let bench = Bench::start().await;
    let entries = r#"[{"method":"math/add","params":[2,3]},{"method":"math/reset"},
        {"method":"log/append","params":{"msg":"hi"},"notify":true},
        {"jsonrpc":"2.0","method":"math/mul","params":{"a":2,"b":3},"id":"mine"},
        {"jsonrpc":"2.0","method":"log/append","params":["hi"]}]"#;
    let ran = bench.run(&["batch", "demo", entries]);
    assert_eq!(ran.code, 10, "one entry is denied: {ran:?}");
    assert_eq!(ran.stdout, "math/add    5\nmath/reset  error: permission denied (-32002)\nmath/mul    6\n");
    assert!(ran.stderr.contains("2 notifications"), "{ran:?}");
    let ran = bench.run(&["batch", "demo", "--json", entries]);
    // An error has the same shape everywhere.
    let mut error = bench.run(&["call", "demo", "math/reset", "--json"]).error();
    error.as_object_mut().unwrap().remove("help");
    let denied = json!({ "method": "math/reset", "error": error });
    let lines = json!([{"method": "math/add", "result": 5}, denied, {"id": "mine", "method": "math/mul", "result": 6}]);
    assert_eq!((ran.code, ran.json()), (10, lines));
    let ran = bench.run(&["batch", "demo", r#"[{"method":"math/add","params":[1,2]}]"#]).ok();
    assert_eq!(ran.stdout, "math/add  3\n");
    bench.run(&["batch", "demo", "[]"]).fails(30, &["1 to 50 entries"]);
    bench.run(&["batch", "demo", "{}"]).fails(30, &["array", "sealwire send"]);
    bench.run(&["batch", "demo", "[1]"]).fails(30, &["entries"]);

    let ran = bench.run(&["notify", "demo", "log/append", r#"{"msg":"hello"}"#]).ok();
    assert!(ran.stdout.contains("nobody says"), "{ran:?}");
    // Two from each batch above, and the single one. A call that is sent after a notification may overtake it.
    let started = Instant::now();
    loop {
        let ran = bench.run(&["call", "demo", "log/append", r#"{"msg":"last"}"#]).ok();
        let lines: Value = serde_json::from_str(&ran.stdout).unwrap();
        if lines["lines"].as_u64().unwrap() >= 6 {
            break;
        }
        assert!(started.elapsed() < SOON, "{lines}");
    }

    let ran = bench.run(&["send", "demo", r#"{"jsonrpc":"2.0","method":"math/add","params":[1,2],"id":1}"#]).ok();
    assert_eq!(ran.stdout, "{\"jsonrpc\":\"2.0\",\"result\":3,\"id\":1}\n");
    let send = ["send", "--creds", "planner.creds.json", "demo"];
    // The answer is printed as it is, and the exit code says that it is no result.
    let ran = bench.shell.run_with_stdin(&send, b"\xff\xfe not text");
    assert_eq!((ran.code, &ran.json()["error"]["code"]), (21, &json!(-32700)));
    let wrong_subject =
        ["send", "demo", r#"{"jsonrpc":"2.0","method":"math/add","id":1}"#, "--subject-of", "log/append"];
    let ran = bench.run(&wrong_subject);
    assert_eq!((ran.code, &ran.json()["error"]["code"]), (21, &json!(-32600)));
    let one = |method: &str, id: u8| json!({ "jsonrpc": "2.0", "method": method, "params": [1, 2], "id": id });
    for (payload, code) in [
        (json!([one("math/add", 1), one("math/mul", 2)]), 0),
        (one("math/reset", 1), 10),
        (json!([one("math/add", 1), one("math/reset", 2)]), 10),
        (json!([one("math/reset", 1), one("math/none", 2)]), 21),
        (one("math/none", 1), 21),
        (json!([]), 21),
        (json!(7), 21),
    ] {
        let ran = bench.run(&["send", "demo", &payload.to_string()]);
        assert_eq!((ran.code, ran.stderr.as_str()), (code, ""), "{payload}: {ran:?}");
    }
    let ran = bench.run(&["send", "demo", "[]", "--no-reply"]).ok();
    assert_eq!(ran.stdout, "");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_says_what_to_do() {
    let bench = Bench::start().await;
    let shell = &bench.shell;
    let call = ["call", "demo", "math/add", "[1,2]"];

    let nobody = ["nobody listens", "rpc.v1.elsewhere.planner", "just started", "--wait 10s"];
    bench.run(&["call", "elsewhere", "math/add"]).fails(20, &nobody);
    let started = Instant::now();
    bench.run(&["call", "elsewhere", "math/add", "--wait", "500ms"]).fails(20, &nobody[..2]);
    assert!(started.elapsed() > Duration::from_millis(300), "it waited");
    bench.run(&["call", "demo", "test/slow", "--deadline", "3s"]).fails(23, &[]);
    bench.run(&["call", "demo", "math/add", "{a:1}"]).fails(30, &["not JSON", "quote"]);
    bench.run(&["call", "demo", "math/add", "5"]).fails(30, &["object", "array"]);
    for more in [&[][..], &["--method-subject"]] {
        bench.run(&[&["call", "demo", "math add", "[1,2]"], more].concat()).fails(30, &["not a method name"]);
    }
    bench.run(&["notify", "demo", "math add"]).fails(30, &["not a method name"]);
    bench.run(&["batch", "demo", r#"[{"method":"math add"}]"#]).fails(30, &["not a method name"]);
    // Missing words, and words that were not quoted.
    let missing = ["SERVICE is missing", "sealwire call demo math/add '[2,3]'"];
    bench.run(&["call", "math/add", "[2,3]"]).fails(30, &missing);
    bench
        .run(&["notify", "log/append", "{}"])
        .fails(30, &["SERVICE is missing", "sealwire notify demo log/append '{}'"]);
    // Service and method in the wrong order; and an unquoted object as a shell passes it on.
    bench.run(&["call", "math/add", "demo", "[2,3]"]).fails(30, &["sealwire call demo math/add '[2,3]'"]);
    bench.run(&["call", "demo", "math/add", "a:2", "b:x"]).fails(30, &[r#"'{"a": 2, "b": "x"}'"#]);
    bench.run(&["call", "demo", "math/add", "2", "3"]).fails(30, &["'[2, 3]'"]);
    bench.run(&["call", "demo", "bank/balance", "bob", "1e2", "--deadline", "1s"]).fails(30, &[r#"'["bob", 1e2]'"#]);
    let whose = ["--creds", "SEALWIRE_CREDS", "export SEALWIRE_CREDS=eve.creds.json"];
    shell.run_args(&call).fails(2, &whose);
    shell.run("ping demo").fails(2, &whose);
    let nothing = shell.command(&call).env("SEALWIRE_CREDS", "").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    shell.run("ping").fails(2, &["sealwire ping SERVICE", "--creds", "SEALWIRE_CREDS", "--config sealwire.toml"]);
    shell
        .run_args(&["call", "--creds", "nobody.creds.json", "demo", "math/add"])
        .fails(30, &["nobody.creds.json", "SEALWIRE_CREDS"]);
    shell.set_mode("planner.creds.json", 0o640);
    bench.run(&call).fails(30, &["chmod 600"]);
    shell.set_mode("planner.creds.json", 0o600);

    // Tokens: expired, missing, for somebody else's audience.
    shell.run("token issue --key token-key.json --subject planner --audience dev/demo --ttl 1s --out planner.jwt").ok();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let expired = bench.run(&call).fails(30, &["expired", "token issue"]);
    assert_eq!(expired.stderr.matches("expired").count(), 1, "it is told once: {expired:?}");
    std::fs::remove_file(shell.path("planner.jwt")).unwrap();
    bench.run(&call).fails(30, &["`token_file`", "token issue"]);
    shell.run("token issue --key token-key.json --subject planner --audience dev/other --out planner.jwt").ok();
    bench.run(&call).fails(22, &["-32010", "cause: the token is for `dev/other`, and this service is `dev/demo`"]);
    let issue = "token issue --key token-key.json --audience dev/demo --out planner.jwt";
    shell.run(&format!("{issue} --subject planner --cnf-kid planner.k7")).ok();
    bench
        .run(&call)
        .fails(22, &["cause: the token is bound to the key `planner.k7`, and the key in use is `planner.k1`"]);
    shell.run(&format!("{issue} --subject planner --cnf-jkt 0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I")).ok();
    let print = "the token is bound to the thumbprint `0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I`, and the key in use, \
                 `planner.k1`, has none: it is an HMAC key";
    bench.run(&call).fails(22, &[print]);
    // Each line of a repeated call gives the reason, too.
    let ran = bench.run(&[&call[..], &["--every", "10ms", "--times", "2"]].concat());
    assert_eq!((ran.code, ran.stdout.matches(print).count()), (22, 2), "{ran:?}");
    shell.run(&format!("{issue} --subject scout")).ok();
    bench.run(&call).fails(22, &["cause: the token is that of `scout`, and the key that of `planner`"]);
    shell.run(&format!("{issue} --subject alice --actor planner")).ok();
    let own = bench.run(&call);
    assert!(own.code != 22, "a delegated token is the actor's: {own:?}");
    // A key that the service does not know.
    shell.run("keys new-agent ghost --service dev/demo=ghosts.ring.json").ok();
    let creds = shell.read("ghost.creds.json").replace("nats://127.0.0.1:4222", &bench.server.url());
    shell.write("ghost.creds.json", &creds);
    // On a busy machine, the token may no longer count as made just now.
    let told = (0..5).any(|_| {
        shell.run("token issue --key token-key.json --subject ghost --audience dev/demo --out ghost.jwt").ok();
        let ran = shell.run_args(&["call", "--creds", "ghost.creds.json", "demo", "math/add"]).fails(22, &["-32010"]);
        ran.stderr.contains("made just now") && ran.stderr.contains("try again")
    });
    assert!(told);
    // The given time covers waiting and asking together.
    let in_time = (0..5).any(|_| {
        let started = Instant::now();
        let ran = shell.run_args(&["ping", "demo", "--creds", "ghost.creds.json", "--within", "4s"]);
        ran.code == 22 && ran.stderr.contains("-32010") && started.elapsed() < Duration::from_secs(6)
    });
    assert!(in_time);

    // The broker: nobody listens there, and an invalid address.
    let elsewhere = |url: &str| {
        shell.write("planner.creds.json", &shell.read("planner.creds.json").replace(&bench.server.url(), url));
        let ran = bench.run(&call);
        shell.write("planner.creds.json", &shell.read("planner.creds.json").replace(url, &bench.server.url()));
        ran
    };
    // At once, not after the deadline, which would be reported as such.
    elsewhere("nats://127.0.0.1:1").fails(20, &["nats://127.0.0.1:1", "is it running"]);
    elsewhere("not a url").fails(30, &["urls[0]", "nats://host:port"]);
    let said = elsewhere("nats://planner:hunter2@127.0.0.1:1").fails(30, &["urls[0]", "password_file"]);
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_takes_longer_than_a_second_says_what_it_waits_for() {
    let bench = Bench::start().await;
    let call = ["call", "--creds", "planner.creds.json", "late", "math/add", "--wait", "4s"];
    let waits = "waiting for the service `late` …";
    let terminal = on_terminal(&bench.shell, &call, &[]);
    let (counted, rest) = terminal.rsplit_once("\r\u{1b}[K").unwrap();
    // On a busy machine, it may not get to say each of them.
    assert!((1..=4).any(|second| counted.contains(&format!("{waits} {second} s"))), "{terminal:?}");
    assert!(!rest.contains(waits) && rest.contains("nobody listens"), "the line is gone: {terminal:?}");
    // A terminal that cannot take a line back gets the line that a log gets.
    let dumb = on_terminal(&bench.shell, &call, &[("TERM", "dumb")]);
    assert!(dumb.starts_with(&format!("{waits}\n")) && !dumb.contains('\u{1b}') && !dumb.contains('\r'), "{dumb:?}");
    let log = bench.shell.run_args(&call).fails(20, &["nobody listens"]).stderr;
    assert!(log.starts_with(&format!("{waits}\n")) && log.matches(waits).count() == 1, "{log:?}");
    let json = bench.shell.run_args(&[&call[..], &["--json"]].concat()).fails(20, &[]).stderr;
    assert_eq!(json.lines().count(), 1, "{json:?}");
    // No line for what is done at once.
    let quick = on_terminal(&bench.shell, &["call", "--creds", "planner.creds.json", "demo", "math/add", "[2,3]"], &[]);
    assert_eq!(quick, "5\n");
    bench.end().await;
}

/// "Nobody listens" is unsigned, so a call that gets it may have run. Waiting for a service therefore uses a request that runs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_comes_late_is_waited_for_and_called_once() {
    let bench = Bench::start().await;
    let words =
        ["call", "--creds", "planner.creds.json", "late", "math/add", "[2,3]", "--wait", "60s", "--deadline", "5s"];
    let mut call = bench.shell.command(&words).spawn().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let client = bench.server.client().await;
    let mut heard = within(SOON, client.subscribe("rpc.v1.late.planner")).await.unwrap();
    let mut calls = Vec::new();
    // No waiting for a service that is too busy, nor for one that knows the agent.
    let hint = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
    let mut ended = tokio::task::spawn_blocking(move || call.wait().unwrap());
    let answering = async {
        loop {
            tokio::select! {
                Some(message) = heard.next() => {
                    client.publish(message.reply.unwrap(), hint.into()).await.unwrap();
                    calls.push(String::from_utf8(message.payload.to_vec()).unwrap());
                }
                ended = &mut ended => break ended.unwrap(),
            }
        }
    };
    let status = within(4 * SOON, answering).await;
    assert_eq!(status.code(), Some(22), "the hint was its answer");
    let (questions, called): (Vec<&str>, Vec<&str>) = calls.iter().map(String::as_str).partition(|text| *text == "{}");
    // Whether it is there, and whether it knows the agent; a question that is answered late is asked again.
    assert!(questions.len() >= 2 && called.len() == 1 && called[0].contains("math/add"), "{calls:?}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_waits_says_for_what_and_how_long() {
    let bench = Bench::start().await;
    let config = bench.shell.read("demo.toml").replace("\"demo\"", "\"other\"").replace("skew_s = 0", "skew_s = 3");
    let config = config.replace("service_key = \"demo.service-key.json\"\n", "").replace("demo.ring", "other.ring");
    bench.shell.write("other.toml", &config.replace("\"policies\"", "\"others\""));
    bench.shell.write("others/policy.toml", "[role.calc]\nallow = [\"math/*\"]\n");
    bench.shell.run("keys new-agent ann --service dev/other=other.ring.json").ok();
    let mut service = bench.shell.command(&["serve", "demo", "--config", "other.toml"]).spawn().unwrap();
    let stdout = service.stdout.take().unwrap();
    let ready = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).map(|_| line)
    });
    let line = within(SOON, ready).await.unwrap().unwrap();
    service.kill().unwrap();
    let said = String::from_utf8(service.wait_with_output().unwrap().stderr).unwrap();
    assert!(line.contains("takes messages"), "{line}{said}");
    assert!(said.contains("starting: connects to the broker") && said.contains(&bench.server.url()), "{said}");
    assert_eq!(
        said.matches("not ready yet reason=messages issued before this start are not vouched for: ready in ").count(),
        1,
        "{said}"
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ed25519_agents_need_and_use_the_pinned_key() {
    let bench = Bench::start().await;
    let shell = &bench.shell;
    let call = "call --creds eve.creds.json demo math/add [1,2] --deadline 60s";
    shell.run(call).fails(30, &["no key of the service `demo` is pinned", "keys pin"]);
    let other = shell.run("keys new-service dev/demo --number 2 --out other.json --json").ok().json();
    let pin = |key: &Value| {
        let (kid, x) = (key["kid"].as_str().unwrap(), key["x"].as_str().unwrap());
        shell.run(&format!("keys pin eve.creds.json --service demo --kid {kid} --x {x} --only")).ok();
    };
    pin(&other);
    // It is waited for until the deadline. On a busy machine, the answer itself may come later than that.
    let brief = call.replace("60s", "3s");
    let refused = (0..5).any(|_| {
        let ran = shell.run(&brief);
        assert!(matches!(ran.code, 22 | 23) && ran.stdout.is_empty(), "an answer under another key is none: {ran:?}");
        ran.code == 22
    });
    assert!(refused);
    pin(&shell.read_json("demo.service-key.json"));
    assert_eq!(shell.run(call).ok().stdout, "3\n");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_service_takes_up_rotated_retired_and_revoked_keys() {
    let bench = Bench::start().await;
    let shell = &bench.shell;
    let call = ["call", "demo", "math/add", "[1,2]"];
    let issue = "token issue --key token-key.json --subject planner --audience dev/demo --role calc --out planner.jwt";
    // The service checks its files twice a second.
    let soon = |expected: i32| {
        let started = Instant::now();
        loop {
            let ran = bench.run(&call);
            if ran.code == expected {
                return;
            }
            assert!(started.elapsed() < SOON, "{ran:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    shell.run(issue).ok();
    let old = shell.read("planner.creds.json");
    bench.run(&call).ok();
    shell.run("keys rotate planner.creds.json --ring demo.ring.json").ok();
    let new = shell.read("planner.creds.json");
    soon(0);
    shell.write("planner.creds.json", &old);
    bench.run(&call).ok();
    shell.run("keys retire planner.k1 --ring demo.ring.json").ok();
    soon(22);
    shell.write("planner.creds.json", &new);
    bench.run(&call).ok();
    shell.run("keys revoke planner.k2 --ring demo.ring.json").ok();
    soon(22);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_stay_secret_at_the_most_talkative_log_level() {
    let bench = Bench::start().await;
    let shell = &bench.shell;
    let token = shell.read("planner.jwt").trim().to_owned();
    let secret = shell.read_json("planner.creds.json")["key"]["secret"].as_str().unwrap().to_owned();
    for format in ["text", "json"] {
        let args = ["call", "--creds", "planner.creds.json", "demo", "math/add", "[1,2]", "--log-format", format];
        let output = shell.command(&args).env("RUST_LOG", "trace").output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.lines().count() > 1, "it logs: {said}");
        for secret in [&token, &secret] {
            assert!(!said.contains(secret.as_str()), "a secret was printed: {said}");
        }
    }
    bench.end().await;
}
