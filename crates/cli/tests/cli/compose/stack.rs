//! The running setup, and what tests do to it from outside.
//! Never touches a container, network or volume of another project.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Writes a line to the log of the test run, even if the test passes: the harness captures only what `println!` writes.
pub(crate) fn say(text: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGAN.get_or_init(Instant::now).elapsed().as_secs();
    let _ = writeln!(std::io::stderr().lock(), "compose {seconds:>3} s: {text}");
}

/// The setup, under its own project name. Dropping it removes everything.
pub(crate) struct Stack {
    tool: Vec<&'static str>,
    project: String,
    image: String,
    glossary_image: String,
    /// The gateway's port on this machine.
    pub(crate) gateway_port: String,
    /// That of Prometheus.
    pub(crate) prometheus_port: String,
    began: Instant,
    is_down: bool,
    _alone: File,
}

impl Stack {
    /// Builds and starts everything; `None`, and a line in the log, if there is no Docker.
    pub(crate) fn up() -> Option<Self> {
        let Some(tool) = compose_tool() else {
            let why = "NOT RUN: no Docker engine with a compose tool, so docker-compose.yml is not tested here";
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
            say(why);
            return None;
        };
        // It has logged why, or failed.
        let python = sealwire_testkit::python::python()?;
        let alone = alone();
        let project = format!("{PROJECTS}{}", std::process::id());
        let (image, glossary_image) = (format!("sealwire:{project}"), format!("sealwire-glossary:{project}"));
        let gateway_port = sealwire_testkit::free_port().to_string();
        let prometheus_port = sealwire_testkit::free_port().to_string();
        let stack = Self {
            tool,
            project,
            image,
            glossary_image,
            gateway_port,
            prometheus_port,
            began: Instant::now(),
            is_down: false,
            _alone: alone,
        };
        // Exactly the version that the compose file names, whatever is installed.
        let environment = sealwire_testkit::nats_server::Environment {
            path: None,
            named: None,
            ..sealwire_testkit::nats_server::Environment::of_process()
        };
        let server = sealwire_testkit::nats_server::find_in(&environment, &mut |note| say(note)).unwrap();
        let mut stand_ins = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/compose/stand-ins"));
        stand_ins.arg(server.path).arg(python);
        run(&mut stand_ins);
        let build = sealwire_testkit::root().join("deploy/image/build");
        run(Command::new(build).arg(env!("CARGO_BIN_EXE_sealwire")).arg(&stack.image));
        stack.compose(&["build", "glossary-mcp"]);
        let size = |image: &str| stack.docker(&["image", "inspect", "--format", "{{ .Size }}", image]);
        let megabytes = |image: &str| size(image).trim().parse::<f64>().unwrap() / 1e6;
        let (own, broker) = (megabytes(&stack.image), megabytes("nats:2.15.1-alpine"));
        say(&format!(
            "{:.1} s for the images: sealwire {own:.0} MB (unoptimized build), broker {broker:.0} MB (stand-in)",
            stack.began.elapsed().as_secs_f64()
        ));
        let began = Instant::now();
        stack.compose(&["up", "--detach"]);
        say(&format!("up and healthy after {:.1} s", began.elapsed().as_secs_f64()));
        Some(stack)
    }

    /// Removes everything, and checks that it is gone.
    pub(crate) fn down(mut self) {
        self.remove();
        let label = format!("label=com.docker.compose.project={}", self.project);
        for what in [&["ps", "--all"][..], &["volume", "ls"], &["network", "ls"]] {
            let args: Vec<&str> = what.iter().copied().chain(["--quiet", "--filter", &label]).collect();
            assert_eq!(self.docker(&args).trim(), "", "{what:?} after down");
        }
        say(&format!("down; {:.0} s in all", self.began.elapsed().as_secs_f64()));
    }

    fn remove(&mut self) {
        if !std::mem::replace(&mut self.is_down, true) {
            // Even if the test has failed, nothing may stay behind, and there is nobody to report errors to.
            let _ = self.command(&["down", "--volumes", "--remove-orphans", "--timeout", "3"]).output();
            let _ = Command::new("docker").args(["image", "rm", &self.image]).output();
            // Under the names of real images, they would surprise the next person who builds.
            let list =
                Command::new("docker").args(["image", "ls", "--quiet", "--filter", "label=sealwire.stand-in"]).output();
            let ids = list.map(|list| String::from_utf8_lossy(&list.stdout).into_owned()).unwrap_or_default();
            let _ = Command::new("docker").args(["image", "rm", "--force"]).args(ids.split_whitespace()).output();
        }
    }

    /// The name of a container of the project.
    pub(crate) fn container(&self, service: &str, replica: u32) -> String {
        let names = self.containers(service, &format!("label=com.docker.compose.container-number={replica}"));
        assert_eq!(names.len(), 1, "{service} {replica}: {names:?}");
        names[0].clone()
    }

    pub(super) fn containers(&self, service: &str, filter: &str) -> Vec<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        let filters = [&project, &service, "label=com.docker.compose.oneoff=False", filter];
        let filters = filters.into_iter().flat_map(|filter| ["--filter", filter]);
        let args: Vec<&str> = ["ps", "--all", "--format", "{{ .Names }}"].into_iter().chain(filters).collect();
        self.docker(&args).split_whitespace().map(ToOwned::to_owned).collect()
    }

    /// A network or volume of the project.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{}_{of}", self.project)
    }

    pub(crate) fn inspect(&self, service: &str, replica: u32) -> Value {
        let text = self.docker(&["inspect", &self.container(service, replica)]);
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    }

    /// What a broker says about itself.
    pub(crate) fn monitor(&self, broker: &str, page: &str) -> Value {
        let url = format!("http://127.0.0.1:8222/{page}");
        let text = self.docker(&["exec", &self.container(broker, 1), "wget", "-q", "-O", "-", &url]);
        serde_json::from_str(&text).unwrap()
    }

    /// Everything that the containers of a service have logged.
    pub(crate) fn log(&self, service: &str) -> String {
        let mut text = String::new();
        for container in self.containers(service, "label=com.docker.compose.project") {
            let output = Command::new("docker").args(["logs", &container]).output().unwrap();
            text.push_str(&String::from_utf8_lossy(&output.stdout));
            text.push_str(&String::from_utf8_lossy(&output.stderr));
        }
        text
    }

    /// The replicas' answers when asked, through the broker, whether this many take messages.
    pub(crate) fn ping(&self, at_least: u32) -> String {
        let ping = ["sealwire", "ping", "--config", "/sealwire/demo/sealwire.toml", "--within", "5s", "--at-least"];
        let (container, at_least) = (self.container("demo", 1), at_least.to_string());
        self.docker(&[&["exec", &container], &ping[..], &[&at_least]].concat())
    }

    pub(crate) fn wait_healthy(&self, service: &str, replica: u32) {
        let what = format!("{service} {replica} to be healthy");
        self.wait_for(&what, || {
            (self.inspect(service, replica)["State"]["Health"]["Status"] == "healthy").then_some(())
        });
    }

    pub(crate) fn wait_for<T>(&self, what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = try_it() {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    pub(crate) fn compose(&self, args: &[&str]) -> String {
        run(&mut self.command(args))
    }

    pub(crate) fn docker(&self, args: &[&str]) -> String {
        run(Command::new("docker").args(args))
    }

    pub(crate) fn try_docker(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("docker").args(args).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.tool[0]);
        command.args(&self.tool[1..]).args(args).envs(self.environment());
        command
    }

    /// With these, the tool and the project's scripts use this setup.
    pub(crate) fn environment(&self) -> [(&str, &OsStr); 5] {
        [
            ("COMPOSE_PROJECT_NAME", self.project.as_ref()),
            ("SEALWIRE_IMAGE", self.image.as_ref()),
            ("GLOSSARY_IMAGE", self.glossary_image.as_ref()),
            ("GATEWAY_PORT", self.gateway_port.as_ref()),
            ("PROMETHEUS_PORT", self.prometheus_port.as_ref()),
        ]
    }

    /// A line, with the usual ports of the gateway and of Prometheus replaced by this setup's.
    pub(crate) fn at_its_port(&self, line: &str) -> String {
        line.replace("https://localhost:8443/", &format!("https://localhost:{}/", self.gateway_port))
            .replace("http://localhost:9090/", &format!("http://localhost:{}/", self.prometheus_port))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.is_down {
            let logs = self.command(&["logs", "--no-color", "--tail", "40"]).output();
            say(&logs.map(|logs| String::from_utf8_lossy(&logs.stdout).into_owned()).unwrap_or_default());
        }
        self.remove();
    }
}

/// The name of this test's projects, before the process id.
const PROJECTS: &str = "sealwire-test-";

/// Waits until no other run of this test is active, since all share the stand-ins, and removes what a run that was
/// killed has left behind. The kernel holds the lock, so it does not outlive its process.
fn alone() -> File {
    let path = std::env::temp_dir().join("sealwire-compose-test.lock");
    // Another user's file can be locked, too.
    let lock = File::create(&path).or_else(|_| File::open(&path)).unwrap();
    lock.lock().unwrap();
    let filter = format!("name={PROJECTS}");
    for (list, remove) in [
        (&["ps", "--all", "--quiet"][..], &["rm", "--force"][..]),
        (&["volume", "ls", "--quiet"], &["volume", "rm"]),
        (&["network", "ls", "--quiet"], &["network", "rm"]),
    ] {
        let left = run(Command::new("docker").args(list).args(["--filter", &filter]));
        let left: Vec<&str> = left.split_whitespace().collect();
        if !left.is_empty() {
            run(Command::new("docker").args(remove).args(left));
        }
    }
    lock
}

/// `docker compose`, or the older `docker-compose`, with an engine behind it.
fn compose_tool() -> Option<Vec<&'static str>> {
    let works = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !cfg!(target_os = "linux") || !works("docker", &["version", "--format", "{{ .Server.Version }}"]) {
        return None;
    }
    if works("docker", &["compose", "version"]) {
        return Some(vec!["docker", "compose"]);
    }
    works("docker-compose", &["version"]).then(|| vec!["docker-compose"])
}

/// Runs to the end and returns stdout.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
