//! `sealwire init`: what it creates, and what it refuses without touching anything. `../readme.rs` runs the project.

use std::net::TcpListener;
use std::process::Command;

use crate::process;
use crate::shell::Shell;
use sealwire_testkit::{NatsServer, free_port};
use serde_json::Value;

#[test]
fn a_new_project_holds_all_that_its_service_and_client_need() {
    let shell = Shell::new();
    let port = free_port();
    let made = shell.run(&format!("init hello --port {port} --json")).ok();
    let result: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&result["service"], &result["agent"]), (&"math".into(), &"planner".into()));
    assert_eq!(result["run"][0], format!("sealwire nats-server --port {port}"));

    // The programs are the examples, which are built with the tests.
    for (program, example) in [("service", "hello_service"), ("client", "hello_client")] {
        let example = std::fs::read_to_string(sealwire_testkit::root().join(format!("examples/{example}.rs"))).unwrap();
        assert_eq!(shell.read(&format!("hello/src/bin/{program}.rs")), example);
    }
    shell.run("policy check hello/policies --warnings-are-errors").ok();
    shell.run("policy test hello/policies --require-coverage").ok();
    shell.run("serve --check --config hello/sealwire.toml").ok();
    for secret in ["planner.creds.json", "ring.json", "service-key.json", "token-key.json"] {
        assert_eq!(shell.mode(&format!("hello/{secret}")), 0o600, "{secret}");
        let ignored = shell.read("hello/.gitignore");
        assert!(ignored.lines().any(|line| secret.ends_with(line.trim_start_matches('*'))), "{secret}");
    }
    // Only packages in the lock file are needed. Those that only other platforms need were never downloaded here.
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let host = String::from_utf8(rustc.stdout).unwrap();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version", "1", "--filter-platform", host])
        .current_dir(shell.path("hello"))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let own = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "sealwire-math");
    let targets = own.unwrap()["targets"].as_array().unwrap().iter().map(|target| target["name"].as_str().unwrap());
    assert_eq!(targets.collect::<Vec<_>>(), ["client", "service"]);
}

#[test]
fn the_project_s_token_renews_itself_and_names_its_key() {
    let shell = Shell::new();
    shell.run(&format!("init hello --port {}", free_port())).ok();
    let command = &shell.read_json("hello/planner.creds.json")["token_command"];
    let words: Vec<&str> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    // Run like the client runs it: in the folder of the credentials.
    let printed = Command::new(words[0]).args(&words[1..]).current_dir(shell.path("hello")).output().unwrap();
    let token = String::from_utf8(printed.stdout).unwrap();
    let said = shell.run(&format!("token inspect {} --json", token.trim())).ok().stdout;
    let claims = &serde_json::from_str::<Value>(&said).unwrap()["claims"];
    assert_eq!((&claims["sub"], &claims["aud"]), (&"planner".into(), &"dev/math".into()), "{said}");
    assert_eq!((&claims["roles"][0], &claims["cnf"]["kid"]), (&"calculator".into(), &"planner.k1".into()), "{said}");
}

/// The check before a deployment reads what a start would read.
#[test]
fn a_check_finds_the_replay_state_that_a_start_would_refuse() {
    let shell = Shell::new();
    shell.run(&format!("init . --port {}", free_port())).ok();
    let config = shell.read("sealwire.toml").replace("\"shared\"\n", "\"local\"\n").replace("stream_messages", "# ");
    shell.write("sealwire.toml", &config);
    let fails = |why: &[&str]| {
        shell.run("serve --check --config sealwire.toml").fails(30, why);
        shell.run("serve demo --config sealwire.toml").fails(30, why);
    };
    shell.run("serve --check --config sealwire.toml").ok();
    shell.write("math.floor", "");
    fails(&["`math.floor`", "not as a replay guard wrote it"]);
    std::fs::remove_file(shell.path("math.floor")).unwrap();
    shell.write("sealwire.toml", &config.replace("[replay]\n", "[replay]\nstate = \"none/math.floor\"\n"));
    fails(&["none/math.floor", "No such file", "check the folder"]);
    assert!(!shell.path("none").exists());
}

/// `serve` has other methods than the project, whose policy files declare its own.
#[test]
fn a_project_s_files_are_checked_for_what_it_is() {
    let shell = Shell::new();
    shell.run(&format!("init . --port {}", free_port())).ok();
    let check = "serve --check --config sealwire.toml";
    let checked = shell.run(check).ok();
    assert!(!checked.stdout.contains("methods") && checked.stderr.is_empty(), "{checked:?}");
    let policy = shell.read("policies/math.toml");
    shell.write("policies/math.toml", &policy.replace("math/add", "math/root"));
    let checked = shell.run(check).ok();
    assert!(checked.stdout.contains("for the methods that its files declare"), "{checked:?}");
    let said = ["`sealwire serve demo` has the demonstration's methods", "unknown method `math/root`"];
    assert!(said.iter().all(|said| checked.stderr.contains(said)), "{checked:?}");
    // A mistake is reported in terms of the project's methods.
    shell.write("policies/math.toml", &format!("{policy}\n[role.x]\nallow = [\"math/ad\"]\n"));
    let wrong = shell.run(check).fails(11, &["math/ad`", "did you mean `math/add`"]);
    assert!(wrong.stderr.starts_with("error: `policies` cannot be used\nmath.toml:"), "{wrong:?}");
    let told = shell.run_args(&["serve", "--check", "--json"]).error();
    assert_eq!(
        (&told["message"], &told["findings"][0]["file"]),
        (&"`policies` cannot be used".into(), &"math.toml".into())
    );
    // A missing folder is neither a policy nor an invalid one.
    std::fs::rename(shell.path("policies"), shell.path("kept")).unwrap();
    for line in [check, "policy check policies"] {
        let missing = shell.run(line).fails(30, &["policies` is not a folder", "name the folder"]);
        assert_eq!(missing.stderr.matches("error:").count(), 1, "{missing:?}");
    }
    assert!(!wrong.stderr.contains("demonstration"), "{wrong:?}");
    // Policies that declare nothing are for the demonstration.
    shell.write("policies/math.toml", "[role.calculator]\nallow = [\"math/mul\"]\n");
    assert!(shell.run(check).ok().stdout.contains("for the demonstration's methods"));
}

/// Each name is the other party's in the templates.
#[test]
fn a_project_has_the_names_that_it_is_given() {
    let shell = Shell::new();
    shell.run(&format!("init --service planner --agent math x --port {}", free_port())).ok();
    assert!(shell.read("x/sealwire.toml").contains("service = \"planner\""));
    assert!(shell.read("x/src/bin/service.rs").contains("\"planner/add\""));
    let client = shell.read("x/src/bin/client.rs");
    assert!(client.contains("math.creds.json") && client.contains("\"planner\", \"planner/add\""), "{client}");
    shell.run("policy test x/policies --require-coverage").ok();
    assert_eq!(shell.read_json("x/math.creds.json")["service_keys"]["planner"][0]["kid"], "svc:dev/planner:1");
}

/// A program that sealwire runs: from an empty folder to the first call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_without_a_package_serves_and_answers() {
    let server = NatsServer::start_with("jetstream: enabled").await;
    let shell = Shell::new();
    let made = shell.run(&format!("init . --language stdio --url {} --service sums --agent ann", server.url())).ok();
    let files = [
        ".gitignore",
        "README.md",
        "ann.creds.json",
        "denylist.json",
        "jwks.json",
        "policies",
        "ring.json",
        "sealwire.toml",
        "service-key.json",
        "service.py",
        "token-key.json",
    ];
    assert_eq!(shell.files(), files);
    shell.run("policy check --warnings-are-errors").ok();
    shell.run("policy test --require-coverage").ok();
    shell.run("serve --check").ok();
    let printed =
        |start: &str| made.stdout.lines().find_map(|line| line.trim().strip_prefix(start)).unwrap().trim().to_owned();
    assert_eq!(printed("sealwire serve"), "");
    let mut command = tokio::process::Command::from(shell.command(&["serve"]));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    let mut service = command.kill_on_drop(true).spawn().unwrap();
    process::says(&mut process::heard(service.stdout.take().unwrap()), "takes messages").await;
    let call = printed("sealwire call");
    assert!(shell.read("README.md").contains(&call), "{call}");
    let call = format!("call {}", call.replace("'[2, 3]'", "[2,3]"));
    assert_eq!(shell.run(&call).ok().stdout, "5\n");
    let by_name =
        shell.run_args(&["call", "--creds", "ann.creds.json", "sums", "sums/add", r#"{"a": 2, "b": 0.5}"#]).ok();
    assert_eq!(by_name.stdout, "2.5\n");
    shell.run_args(&["call", "--creds", "ann.creds.json", "sums", "sums/add", "[1]"]).fails(21, &["-32602"]);
    service.kill().await.unwrap();
}

/// Whoever has a program already gets what is missing, and keeps what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_with_a_program_gets_only_what_it_needs() {
    let server = NatsServer::start_with("jetstream: enabled").await;
    let url = server.url();
    let shell = Shell::new();
    let program = "import json, sys\nfor line in sys.stdin:\n    r = json.loads(line)\n    \
        print(json.dumps({'jsonrpc': '2.0', 'id': r['id'], 'result': sum(r['params'])}), flush=True)\n";
    shell.write("app.py", program);
    shell.write("README.md", "mine");
    let made = shell.run(&format!("init --url {url}")).ok();
    let files = [
        ".gitignore",
        "README.md",
        "app.py",
        "denylist.json",
        "jwks.json",
        "planner.creds.json",
        "policies",
        "ring.json",
        "sealwire.toml",
        "service-key.json",
        "token-key.json",
    ];
    assert_eq!(shell.files(), files);
    assert_eq!((shell.read("README.md").as_str(), shell.read("app.py").as_str()), ("mine", program));
    assert!(
        made.stdout.contains("sealwire serve stdio --method 'math/add(a: number, b: number)' -- python3 "),
        "{made:?}"
    );
    shell.run("policy check --warnings-are-errors").ok();
    let serve = ["serve", "stdio", "--method", "math/add(a: number, b: number)", "--", "python3", "app.py"];
    let mut command = tokio::process::Command::from(shell.command(&serve));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    let mut service = command.kill_on_drop(true).spawn().unwrap();
    process::says(&mut process::heard(service.stdout.take().unwrap()), "takes messages").await;
    assert_eq!(shell.run("call --creds planner.creds.json math math/add [2,3] --wait 10s").ok().stdout, "5\n");
    service.kill().await.unwrap();

    // A second time, nothing is touched.
    let before = shell.read("ring.json");
    shell
        .run(&format!("init --url {url}"))
        .fails(30, &["is in `.` already", "nothing was written", "sealwire init FOLDER"]);
    assert_eq!(shell.read("ring.json"), before);
    // What is not ours is kept when something goes wrong half-way, too.
    shell.write("other/tool.py", "pass");
    shell.run("init other --url http://127.0.0.1").fails(30, &["no broker address"]);
    assert_eq!(std::fs::read_dir(shell.path("other")).unwrap().count(), 1);
    // Only a Python program without a Cargo project says that no Rust is wanted.
    for (name, is_rust) in [("pyproject.toml", false), ("requirements.txt", false), ("notes.txt", true)] {
        shell.write(&format!("{name}.d/{name}"), "");
        let ran = shell.run(&format!("init {name}.d --url {url}"));
        assert_eq!(ran.code, if is_rust { 30 } else { 0 }, "{ran:?}");
        assert!(!is_rust || ran.stderr.contains("--language none"), "{ran:?}");
    }
}

/// A newcomer's first command, in a folder without anything.
#[test]
fn whoever_serves_without_a_configuration_is_told_how_to_get_one() {
    let shell = Shell::new();
    for line in [
        "serve",
        "serve demo",
        "serve --check",
        "serve stdio --method a/b -- python3 app.py",
        "serve mcp -- mcp-server-time",
        "serve http http://127.0.0.1:1/rpc --method a/b",
        "serve exec --method a/b -- date",
        "ping --config sealwire.toml",
        "tools list",
        "policy skeleton",
        "keys new-agent ann --config sealwire.toml",
    ] {
        let ran = shell.run(line);
        assert!(
            ran.code == 30 && ran.stderr.contains("sealwire.toml") && ran.stderr.contains("`sealwire init`"),
            "{line}: {ran:?}"
        );
    }
    assert!(shell.files().is_empty());
    let free = shell.run("init x --port 0 --json").ok().json();
    let url = free["url"].as_str().unwrap().to_owned();
    assert!(!url.ends_with(":0") && shell.read("x/sealwire.toml").contains(&url), "{free}");
}

#[test]
fn a_refusal_leaves_everything_as_it_was() {
    let shell = Shell::new();
    shell.write("mine/notes.txt", "keep");
    shell
        .run(&format!("init mine --port {}", free_port()))
        .fails(30, &["`notes.txt` is in it", "nothing was written", "sealwire init FOLDER"]);
    assert_eq!(std::fs::read_dir(shell.path("mine")).unwrap().count(), 1);

    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let use_it = format!("--url nats://127.0.0.1:{port}");
    shell.run(&format!("init hello --port {port}")).fails(30, &["in use", "nothing was written", "--port", &use_it]);
    assert!(!shell.path("hello").exists());
    let made = shell.run(&format!("init hello {use_it}")).ok();
    assert!(!made.stdout.contains("nats-server"), "a broker is there: {}", made.stdout);
    assert!(!shell.read("hello/README.md").contains("sealwire nats-server --"));

    shell.run(&format!("init half --service rpc --port {}", free_port())).fails(30, &["the library's own"]);
    // A mistake that is found after much has been written.
    shell.run("init half --url http://127.0.0.1").fails(30, &["no broker address"]);
    assert!(!shell.path("half").exists());
    std::fs::create_dir(shell.path("half")).unwrap();
    std::fs::create_dir(shell.path("half/.git")).unwrap();
    shell.run("init half --url http://127.0.0.1").fails(30, &["no broker address"]);
    assert_eq!(std::fs::read_dir(shell.path("half")).unwrap().count(), 1, "what was there before");
    shell.run(&format!("init half --port {}", free_port())).ok();
}

/// `keys new-agent --config`: the project has everything else that it needs.
#[test]
fn an_agent_is_added_by_the_service_s_configuration() {
    let shell = Shell::new();
    shell.run(&format!("init . --port {}", free_port())).ok();
    let agent = "keys new-agent indexer --config sealwire.toml --alg eddsa";
    shell.run(&format!("{agent} --role calculater")).fails(30, &["`calculater`", "there are: calculator"]);
    assert!(!shell.path("indexer.creds.json").exists());
    let added = shell.run(&format!("{agent} --role calculator")).ok();
    assert!(!added.stdout.contains("keys pin"), "the service's key is pinned: {}", added.stdout);
    let credentials = shell.read_json("indexer.creds.json");
    assert_eq!(credentials["service_keys"]["math"][0]["kid"], "svc:dev/math:1");
    assert_eq!(credentials["nats"]["urls"], shell.read_json("planner.creds.json")["nats"]["urls"]);
    assert!(shell.run("keys list ring.json").ok().stdout.contains("indexer.k1"));

    // The command finds the token key from another folder, too.
    std::fs::create_dir(shell.path("elsewhere")).unwrap();
    shell.run("keys new-agent far --config sealwire.toml --out elsewhere/far.creds.json").ok();
    let command = shell.read_json("elsewhere/far.creds.json")["token_command"].to_string();
    assert!(command.contains(&shell.path("token-key.json").canonicalize().unwrap().display().to_string()), "{command}");

    // The prefix and the audience in the configuration are used, too.
    let config = shell.read("sealwire.toml").replace("service = \"math\"", "service = \"math\"\nprefix = \"corp.rpc\"");
    shell.write("sealwire.toml", &config.replace("[tokens]", "[tokens]\naudience = \"urn:math\""));
    shell.run("keys new-agent other --config sealwire.toml").ok();
    let credentials = shell.read_json("other.creds.json");
    assert_eq!(credentials["prefix"], "corp.rpc");
    assert!(credentials["token_command"].to_string().contains("\"--audience\",\"urn:math\""), "{credentials}");

    std::fs::remove_file(shell.path("token-key.json")).unwrap();
    shell.run("keys new-agent late --config sealwire.toml --role calculator").fails(30, &["token-key.json", "--role"]);
    shell.run("keys new-agent late --config sealwire.toml").ok();
    assert_eq!(shell.read_json("late.creds.json")["token_file"], "late.jwt");
}

/// Runs at once what `keys new-agent` prints: the running service does not know the key yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_printed_for_a_new_agent_work_at_once() {
    let server = NatsServer::start_with("jetstream: enabled").await;
    let shell = Shell::new();
    shell.run(&format!("init . --url {}", server.url())).ok();
    // The demonstration has a method of that name, too.
    let mut service = process::spawn(&shell, &["serve", "demo", "--config", "sealwire.toml"]);
    process::says(&mut process::heard(service.stdout.take().unwrap()), "takes messages").await;
    let typed = |line: &str| {
        let words = line.trim().trim_start_matches("sealwire ").replace("'{…}'", "[2,3]");
        shell.run(&words)
    };
    for number in 0..3 {
        let said = shell.run(&format!("keys new-agent a{number} --config sealwire.toml --role calculator")).ok().stdout;
        assert_eq!(typed(said.lines().last().unwrap()).ok().stdout, "5\n", "{said}");
        let said = shell.run(&format!("keys new-agent b{number} --config sealwire.toml")).ok().stdout;
        assert!(said.contains(&format!("b{number} has no role, and no policy lets it call anything")), "{said}");
        assert!(said.contains("policies (calculator)") && said.contains("roles = [\"calculator\"]"), "{said}");
        let ping = said.lines().find(|line| line.contains("sealwire ping")).unwrap();
        assert!(typed(ping).ok().stdout.contains("math is there"), "{said}");
    }
    // If somebody else issues the tokens, that issuer assigns the roles.
    let said = shell.run("keys new-agent far --service dev/math=other.json").ok().stdout;
    assert!(said.contains("token issue --key token-key.json --subject far --role ROLE"), "{said}");
    service.kill().await.unwrap();
}
