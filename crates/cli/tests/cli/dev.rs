//! `sealwire dev`: one process per folder, which it keeps; more agents; it ends with its broker.

mod streams;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{SIGINT, SIGKILL, SIGSTOP, SIGTERM, children, heard, says, send, spawn, whole};
use crate::shell::{Ran, Shell};
use sealwire_testkit::{SOON, page, within};
use serde_json::Value;
use tokio::process::Child;
use tokio::sync::watch;

struct Dev {
    child: Child,
    stdout: watch::Receiver<String>,
    stderr: watch::Receiver<String>,
}

impl Dev {
    /// Starts it with these arguments, and waits until the service takes messages.
    async fn start(shell: &Shell, words: &[&str]) -> Self {
        let mut child = spawn(shell, &[&["dev"], words].concat());
        let (stdout, stderr) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
        let mut dev = Self { child, stdout, stderr };
        says(&mut dev.stdout, "Ctrl-C ends it").await;
        dev
    }

    fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Its nats-server.
    fn broker(&self) -> u32 {
        *children(self.id()).first().unwrap()
    }

    async fn stop(mut self) {
        send(SIGTERM, self.id());
        assert_eq!(self.ended().await, Some(0), "{}", self.said());
    }

    async fn ended(&mut self) -> Option<i32> {
        within(2 * SOON, self.child.wait()).await.unwrap().code()
    }

    fn said(&self) -> String {
        format!("{}{}", *self.stdout.borrow(), *self.stderr.borrow())
    }
}

fn add(shell: &Shell, agent: &str) -> Ran {
    let creds = format!("sealwire-dev/{agent}.creds.json");
    shell.run_args(&["call", "--creds", &creds, "demo", "math/add", "[2, 3]"])
}

/// All files in the folder, with their contents.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = sealwire_testkit::files_below(folder).into_iter();
    files.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_0_is_any_free_port_and_the_one_taken_is_told() {
    let shell = Shell::new();
    let port = |said: &str| -> u16 {
        let (_, rest) = said.split_once("nats://127.0.0.1:").unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // Two at a time, so that one of them at least is not the usual port.
    let mut ports = Vec::new();
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut child = spawn(&shell, &["nats-server", "--port", "0"]);
        let mut stdout = heard(child.stdout.take().unwrap());
        says(&mut stdout, "Ctrl-C ends it").await;
        ports.push(port(&stdout.borrow()));
        running.push(child);
    }
    let dev = Dev::start(&shell, &["--port", "0"]).await;
    ports.push(port(&dev.stdout.borrow()));
    for port in &ports {
        assert!(*port > 0 && std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok(), "{ports:?}");
    }
    assert_eq!(ports.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{ports:?}");
    assert_eq!(add(&shell, "planner").ok().stdout, "5\n");
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_dev_in_one_folder_is_refused_and_harms_nothing() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    let ring = shell.read("sealwire-dev/ring.json");
    for words in ["dev", "dev --fresh"] {
        let mut second = shell.command(&words.split(' ').collect::<Vec<_>>());
        let second = second.env("SEALWIRE_NATS_SERVER", &sealwire_testkit::found().path).output().unwrap();
        let said = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(30), "{said}");
        assert!(said.contains(&format!("(process {})", dev.id())) && said.contains("--folder"), "{said}");
    }
    assert_eq!(shell.read("sealwire-dev/ring.json"), ring);
    assert_eq!(add(&shell, "planner").ok().stdout, "5\n");
    // In another folder, another process can run.
    let other = Dev::start(&shell, &["--folder", "other"]).await;
    other.stop().await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_told_in_one_line_before_anything_is_touched() {
    let shell = Shell::new();
    Dev::start(&shell, &[]).await.stop().await;
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let before = contents(&shell.path("sealwire-dev"));
    std::fs::create_dir(shell.path("empty")).unwrap();
    for args in [
        &["dev", "--port", &port][..],
        &["dev", "--fresh", "--port", &port],
        &["dev", "--folder", "empty", "--port", &port],
        &["dev", "--folder", "none", "--port", &port],
        &["nats-server", "--port", &port],
    ] {
        let ran = shell.run_args(args).fails(30, &[&format!("port {port} of 127.0.0.1 is in use"), "--port"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    assert_eq!(contents(&shell.path("sealwire-dev")), before);
    assert_eq!(std::fs::read_dir(shell.path("empty")).unwrap().count(), 0, "it is nobody's");
    assert!(!shell.path("none").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_kept_unless_a_fresh_start_is_asked_for() {
    let shell = Shell::new();
    // Where no outgoing connection can take it while nobody listens there.
    let usual = sealwire_testkit::free_port().to_string();
    let first = Dev::start(&shell, &["--port", &usual]).await;
    assert!(!first.said().contains("--fresh"), "there is nothing yet to begin anew: {}", first.said());
    first.stop().await;
    let policy = format!("{}# edited\n", shell.read("sealwire-dev/policies/math.toml"));
    shell.write("sealwire-dev/policies/math.toml", &policy);
    let names = ["planner.creds.json", "ring.json", "token-key.json", "service-key.json", "sealwire.toml"];
    let kept = || names.map(|name| shell.read(&format!("sealwire-dev/{name}")));
    let before = kept();

    let again = Dev::start(&shell, &[]).await;
    assert!(again.said().contains("`--fresh` makes new ones"), "{}", again.said());
    assert_eq!(kept(), before, "the port is the same, too");
    assert_eq!(shell.read("sealwire-dev/policies/math.toml"), policy);
    add(&shell, "planner").ok();
    again.stop().await;

    // On another port, only the port in the credentials differs.
    let free = sealwire_testkit::free_port().to_string();
    let moved = Dev::start(&shell, &["--port", &free]).await;
    assert!(shell.read("sealwire-dev/planner.creds.json").contains(&format!(":{free}\"")));
    assert_eq!(shell.read("sealwire-dev/ring.json"), before[1]);
    add(&shell, "planner").ok();
    moved.stop().await;

    let fresh = Dev::start(&shell, &["--fresh"]).await;
    assert!(kept()[..4].iter().zip(&before).all(|(now, then)| now != then), "nothing of the old one");
    assert!(!shell.read("sealwire-dev/policies/math.toml").contains("# edited"));
    assert!(!shell.path("sealwire-dev/.new").exists());
    add(&shell, "planner").ok();
    fresh.stop().await;
}

/// A start that was killed while creating its files leaves nothing that the next one takes for complete, or for its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_made_folder_is_made_anew_and_what_is_somebodys_own_stays() {
    let shell = Shell::new();
    shell.write("sealwire-dev/.sealwire-dev", "1\n");
    std::fs::create_dir(shell.path("sealwire-dev/.new")).unwrap();
    Dev::start(&shell, &[]).await.stop().await;
    shell.run("dev add-agent indexer").ok();
    shell.write("sealwire-dev/notes.md", "thesis");
    shell.write("sealwire-dev/mine/planner.creds.json", "thesis");
    shell.write("sealwire-dev/policies/mine.toml", "");
    std::fs::remove_file(shell.path("sealwire-dev/ring.json")).unwrap();
    let members = shell.read("sealwire-dev/agents.json");
    std::fs::remove_file(shell.path("sealwire-dev/agents.json")).unwrap();
    let before = contents(&shell.path("sealwire-dev"));
    shell.run("dev add-agent indexer").fails(30, &["is not the folder of a `sealwire dev`"]);
    let mut refused = shell.command(&["dev"]);
    let refused = refused.env("SEALWIRE_NATS_SERVER", &sealwire_testkit::found().path).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(30), "{said}");
    assert!(said.contains("`agents.json` is missing") && said.contains("`--fresh`"), "{said}");
    let mut after = contents(&shell.path("sealwire-dev"));
    // The mark names the last process.
    let mark = shell.path("sealwire-dev/.sealwire-dev").display().to_string();
    after.insert(mark.clone(), before[&mark].clone());
    assert_eq!(after, before);

    shell.write("sealwire-dev/agents.json", &members);
    let dev = Dev::start(&shell, &["--fresh"]).await;
    add(&shell, "planner").ok();
    for gone in ["indexer.creds.json", "indexer.jwt", "policies/mine.toml"] {
        assert!(!shell.path("sealwire-dev").join(gone).exists(), "{gone}");
    }
    for kept in ["notes.md", "mine/planner.creds.json"] {
        assert_eq!(shell.read(&format!("sealwire-dev/{kept}")), "thesis");
    }
    dev.stop().await;
    // And files that we did not create are left alone.
    shell.write("mine/letter.txt", "dear diary");
    shell.run("dev --folder mine --fresh").fails(30, &["did not write"]);
    assert_eq!(std::fs::read_dir(shell.path("mine")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_can_be_added_whether_dev_runs_or_not() {
    let shell = Shell::new();
    shell.run("dev add-agent indexer").fails(30, &["is not the folder of a `sealwire dev`", "start"]);
    let dev = Dev::start(&shell, &[]).await;
    assert!(dev.said().contains("sealwire dev add-agent"), "{}", dev.said());

    shell.run("dev add-agent indexer --role calculatr").fails(30, &["`calculatr`", "calculator"]);
    shell.run("dev add-agent service").fails(30, &["user of the broker"]);
    let ran = shell.run("dev add-agent indexer --role calculator").ok();
    assert!(ran.stdout.contains("the broker and the service know it"), "{ran:?}");
    assert_eq!(add(&shell, "indexer").ok().stdout, "5\n");
    add(&shell, "planner").ok();
    let ran = shell.run("dev add-agent signer --role calculator --alg eddsa --json").ok();
    assert_eq!(ran.json()["running"], true);
    assert_eq!(add(&shell, "signer").ok().stdout, "5\n", "the service's key is pinned");
    shell.run("dev add-agent indexer --role teller").fails(30, &["already", "indexer.creds.json"]);
    shell
        .run_args(&["call", "--creds", "sealwire-dev/indexer.creds.json", "demo", "math/reset"])
        .fails(10, &["-32002"]);
    assert!(!dev.said().contains("connection to the broker is lost"), "the others stay: {}", dev.said());
    dev.stop().await;

    let ran = shell.run("dev add-agent later --role calculator").ok();
    assert!(ran.stdout.contains("will know it"), "{ran:?}");
    let again = Dev::start(&shell, &[]).await;
    for agent in ["indexer", "signer", "later"] {
        add(&shell, agent).ok();
    }
    assert!(again.said().contains("yours"), "{}", again.said());
    // Tokens, credentials and the ring are nobody else's business.
    for name in ["later.creds.json", "later.jwt", "ring.json"] {
        assert_eq!(shell.mode(&format!("sealwire-dev/{name}")), 0o600, "{name}");
    }
    again.stop().await;
}

/// Runs each line printed below "Next", unchanged.
fn type_next(shell: &Shell, said: &str, role: &str) -> Vec<std::process::Output> {
    let lines = said.lines().skip_while(|line| !line.contains("Next")).filter_map(|line| line.strip_prefix("  "));
    let typed = lines.map(|line| {
        let mut bash = std::process::Command::new("bash");
        let bin = Path::new(env!("CARGO_BIN_EXE_sealwire")).parent().unwrap();
        bash.args(["-c", &line.replace("ROLE", role)]).current_dir(shell.path(""));
        bash.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())).output().unwrap()
    });
    typed.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_call_printed_for_a_new_agent_is_not_denied() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    for (agent, role) in [("adder", "calculator"), ("cashier", "teller")] {
        let ran = shell.run(&format!("dev add-agent {agent} --role {role}")).ok();
        let typed = type_next(&shell, &ran.stdout, role);
        assert_eq!(typed.len(), 1, "{ran:?}");
        assert!(typed[0].status.success(), "{ran:?} {typed:?}");
    }
    let ran = shell.run("dev add-agent idle").ok();
    assert!(ran.stdout.contains("idle has no role") && ran.stdout.contains("calculator"), "{ran:?}");
    // A denied caller can name the message, and the service's log has its rule.
    let denied = add(&shell, "idle").fails(10, &["with message_id "]).stderr;
    let id = denied.split("message_id ").nth(1).unwrap().split(',').next().unwrap();
    let began = Instant::now();
    while !dev.said().lines().any(|line| line.contains(&format!("message_id={id}")) && line.contains("decision")) {
        assert!(id.len() == 22 && began.elapsed() < SOON, "{id}: {}", dev.said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let typed = type_next(&shell, &ran.stdout, "calculator");
    assert!(typed.len() == 2 && typed.iter().all(|typed| typed.status.success()), "{ran:?} {typed:?}");
    let began = Instant::now();
    while add(&shell, "idle").code != 0 {
        assert!(began.elapsed() < SOON, "the role is granted: {}", dev.said());
    }
    dev.stop().await;
}

/// As created by `keys new-agent` alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_the_broker_does_not_know_is_named() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    let url = shell.read_json("sealwire-dev/planner.creds.json")["nats"]["urls"][0].as_str().unwrap().to_owned();
    shell
        .run(&format!("keys new-agent ghost --service dev/demo=sealwire-dev/ring.json --url {url}"))
        .fails(30, &["is the folder of a `sealwire dev`", "help: sealwire dev add-agent ghost --role ROLE\n"]);
    shell
        .run("keys new-agent ghost --config sealwire-dev/sealwire.toml --role calculator")
        .fails(30, &["help: sealwire dev add-agent ghost --role ROLE\n"]);
    assert_eq!(shell.files(), ["sealwire-dev"], "nothing was made");
    for line in ["keys add-agent ghost", "setup add-agent ghost", "add-agent ghost"] {
        shell.run(line).fails(2, &["there is `sealwire dev add-agent`"]);
    }
    shell.run("setup remove-agent ghost --out sealwire-dev").fails(30, &["sealwire dev add-agent NAME"]);
    shell.run(&format!("keys new-agent ghost --service dev/demo=ghost.ring.json --url {url}")).ok();
    let issue = "token issue --key sealwire-dev/token-key.json --audience dev/demo --subject ghost --out ghost.jwt";
    shell.run(issue).ok();
    let ran = shell.run("call --creds ghost.creds.json demo math/add [1,2]");
    let ran = ran.fails(20, &["the agent `ghost`", "sealwire dev add-agent ghost"]);
    assert!(!ran.stderr.contains("async_nats"), "{ran:?}");
    // And this is the suggested way.
    shell.run("dev add-agent ghost --role calculator").ok();
    assert_eq!(add(&shell, "ghost").ok().stdout, "5\n");
    dev.stop().await;
}

/// docs/performance.md, "Measure your own deployment": its commands, only for a shorter time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_that_measure_dev_measure_it() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    let measuring = page::section(include_str!("../../../../docs/performance.md"), "Measure your own deployment");
    let commands: String =
        page::blocks(measuring).filter(|block| block.info == "sh").map(|block| block.text()).collect();
    let lines: Vec<&str> = commands.lines().filter(|line| line.starts_with("sealwire bench ")).collect();
    assert_eq!(lines.len(), 4, "{commands}");
    let short = commands.replace("sealwire bench ", "sealwire bench --duration 1200ms --warmup 50ms --json ");
    let mut bash = page::shell(env!("CARGO_BIN_EXE_sealwire"), &shell.path(""));
    let ran = bash.args(["-ec", &short]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let told: Vec<Value> =
        std::str::from_utf8(&ran.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(told.len(), lines.len(), "{told:?}");
    let timed = told.iter().find(|told| told["cpu_us"]["broker"].is_number()).unwrap();
    assert!(timed["cpu_us"]["service"].as_f64() > Some(0.0), "{timed}");
    dev.stop().await;
}

/// Also in a folder that an earlier version created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_can_be_compared_with_bare_requests_whose_user_can_do_nothing_else() {
    let shell = Shell::new();
    Dev::start(&shell, &[]).await.stop().await;
    for file in ["bench.password", "bench.nats.json"] {
        std::fs::remove_file(shell.path("sealwire-dev").join(file)).unwrap();
    }
    let dev = Dev::start(&shell, &[]).await;
    let words = ["demo", "math/add", "[2,3]", "--duration=1200ms", "--warmup=100ms", "--against=bare", "--json"];
    let creds = ["bench", "--creds", "sealwire-dev/planner.creds.json"];
    let told = shell.run_args(&[&creds[..], &words].concat()).ok().json();
    let bare = &told["against"]["bare"];
    assert!(bare["results"].as_u64() > Some(0) && bare["results"] == bare["calls"], "{told}");
    // An agent's user may not.
    let agent = &shell.read_json("sealwire-dev/planner.creds.json")["nats"];
    shell.write("agent.nats.json", &agent.to_string());
    shell.set_mode("agent.nats.json", 0o600);
    let words = [&creds[..], &words[..6], &["--bare-login=agent.nats.json"]].concat();
    let why = [
        "does not let this user exchange bare requests",
        "publish and subscribe to `sealwire-bench.>`",
        "--bare-login",
    ];
    shell.run_args(&words).fails(20, &why);
    // And the user of the bare requests reaches nobody else.
    let login: sealwire::BusConfig = serde_json::from_str(&shell.read("sealwire-dev/bench.nats.json")).unwrap();
    let password = shell.read("sealwire-dev/bench.password");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let options = async_nats::ConnectOptions::with_user_and_password(login.user.unwrap(), password);
    let options = options.event_callback(move |event| {
        drop(tell.send(event.to_string()));
        async {}
    });
    let client = within(SOON, options.connect(login.urls[0].as_str())).await.unwrap();
    for subject in ["rpc.v1.demo.planner", "_INBOX.planner.x", "$SRV.PING", "rpc.v1-ctl.demo.planner.all.x"] {
        within(SOON, client.publish(subject, "{}".into())).await.unwrap();
        let refused = within(SOON, async {
            loop {
                let event = told.recv().await.unwrap().to_lowercase();
                if event.contains("permissions violation") && event.contains(&subject.to_lowercase()) {
                    break;
                }
            }
        });
        refused.await;
    }
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_of_the_broker_is_printed() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    let ran = shell.run("dev add-agent indexer --role calculator").ok();
    let said = format!("{}{}{}", dev.said(), ran.stdout, ran.stderr);
    let mut secrets: Vec<String> =
        ["nats", "tools", "bench"].map(|user| shell.read(&format!("sealwire-dev/{user}.password"))).into();
    for agent in ["planner", "teller", "operator", "auditor", "indexer"] {
        let creds = shell.read_json(&format!("sealwire-dev/{agent}.creds.json"));
        secrets.push(creds["nats"]["password"].as_str().unwrap().to_owned());
        for member in ["secret", "seed"] {
            secrets.extend(creds["key"][member].as_str().map(str::to_owned));
        }
    }
    assert_eq!(secrets.len(), 3 + 5 * 2);
    for secret in secrets {
        assert!(secret.trim().len() > 16 && !said.contains(secret.trim()), "a secret was printed");
    }
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_ends_with_its_broker_and_says_so_once() {
    let shell = Shell::new();
    let mut dev = Dev::start(&shell, &[]).await;
    let broker = dev.broker();
    send(SIGKILL, broker);
    let killed = Instant::now();
    assert_eq!(dev.ended().await, Some(20), "{}", dev.said());
    assert!(killed.elapsed() < 2 * SOON, "{:?}", killed.elapsed());
    whole(&mut dev.stderr).await;
    let told = "error: nats-server ended with signal: 9 (SIGKILL), and so does this";
    assert_eq!(dev.said().matches(told).count(), 1, "{}", dev.said());
    assert_eq!(dev.said().matches("nats-server").count(), 1, "{}", dev.said());
    assert!(dev.said().lines().count() < 60, "{}", dev.said());
    // And its files are still there.
    let again = Dev::start(&shell, &[]).await;
    add(&shell, "planner").ok();
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_stops_within_its_bound_whatever_its_broker_does() {
    let one = async |fault: Option<i32>, signal: i32, twice: bool| {
        let shell = Shell::new();
        let mut dev = Dev::start(&shell, &[]).await;
        let (id, broker) = (dev.id(), dev.broker());
        if let Some(fault) = fault {
            send(fault, broker);
        }
        send(signal, id);
        if twice {
            // Two signals that nobody has seen yet are one.
            says(&mut dev.stderr, "draining").await;
            send(signal, id);
        }
        let code = dev.ended().await;
        // Past its time limit, the exit code would differ.
        match (fault, twice) {
            // Depending on what was noticed first.
            (Some(SIGKILL), _) => assert!(matches!(code, Some(0 | 20)), "{code:?}"),
            (Some(_), true) => assert_eq!(code, Some(128 + signal)),
            _ => assert_eq!(code, Some(0), "{}", dev.said()),
        }
        // Its broker ends, too, whether it is silent or not.
        let gone = Instant::now();
        while Path::new(&format!("/proc/{broker}")).exists() {
            assert!(gone.elapsed() < SOON, "the broker outlived it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let cases = [
        (None, SIGINT, false),
        (None, SIGTERM, false),
        (Some(SIGKILL), SIGTERM, false),
        (Some(SIGSTOP), SIGINT, false),
        (Some(SIGSTOP), SIGTERM, false),
        (Some(SIGSTOP), SIGTERM, true),
    ];
    futures_util::future::join_all(cases.map(|(fault, signal, twice)| one(fault, signal, twice))).await;
}

/// Links and files that somebody else has put there are neither followed nor changed.
#[test]
fn a_folder_is_judged_before_anything_in_it_is_touched() {
    use std::os::unix::fs::{chown, symlink};
    let shell = Shell::new();
    shell.write("victim", "precious");
    std::fs::create_dir(shell.path("mine")).unwrap();
    shell.set_mode("mine", 0o755);
    symlink(shell.path("victim"), shell.path("mine/.sealwire-dev")).unwrap();
    shell.run("dev --folder mine").fails(30, &["did not write"]);
    shell.run("dev add-agent indexer --folder mine").fails(30, &["is not the folder of a `sealwire dev`"]);
    assert_eq!((shell.read("victim").as_str(), shell.mode("mine")), ("precious", 0o755));
    std::fs::remove_file(shell.path("mine/.sealwire-dev")).unwrap();
    shell.set_mode("mine", 0o777);
    shell.run("dev --folder mine").fails(30, &["can be written by others", "chmod go-w"]);
    assert_eq!(shell.mode("mine"), 0o777);
    shell.set_mode("mine", 0o755);
    if chown(shell.path("mine"), Some(12_345), None).is_ok() {
        shell.run("dev --folder mine").fails(30, &["belongs to user 12345"]);
        assert_eq!(shell.mode("mine"), 0o755);
    }
    assert_eq!(std::fs::read_dir(shell.path("mine")).unwrap().count(), 0);
}
