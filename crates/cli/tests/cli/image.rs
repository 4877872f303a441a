//! The image that `deploy/image/build` makes of a binary, without a network and with the volumes that Kubernetes mounts.
//! Needs a Docker engine and no registry. Where there is none, one line says so; with CI=true that is a failure.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use sealwire_testkit::{NatsServer, SOON, root};
use serde_json::Value;

use crate::compose::say;
use crate::shell::Shell;
use crate::telemetry::stage::Listener;

const FILE: &str = "/etc/sealwire/config/sealwire.toml";

/// Its user, and the group to which Kubernetes gives what it mounts (`fsGroup`).
const SEALWIRE: u32 = 65_532;

/// The image, and its containers: all are gone when this is dropped.
struct Image {
    tag: String,
    containers: Vec<String>,
}

impl Image {
    fn build(test: &str) -> Option<Self> {
        let tag = format!("sealwire:test-{test}-{}", std::process::id());
        let engine = Command::new("docker").args(["version", "--format", "{{ .Server.Version }}"]).output();
        if !engine.is_ok_and(|output| output.status.success()) {
            let why = "NOT RUN: no Docker engine, so deploy/image is not tested here";
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
            say(why);
            return None;
        }
        let image = Self { tag, containers: Vec::new() };
        let script = root().join("deploy/image/build");
        done(Command::new(script).arg(env!("CARGO_BIN_EXE_sealwire")).arg(&image.tag).env("REVISION", "0123abc"));
        Some(image)
    }

    /// A container that may do as little as possible: `options` of `docker run`, and the arguments of the command.
    fn run(&self, options: &[&str], args: &[&str]) -> Output {
        docker(&[&["run", "--rm"], &HARDENED[..], options, &[&self.tag], args].concat())
    }

    /// One that goes on, with the network of this machine, where the broker is.
    fn start(&mut self, options: &[&str], args: &[&str]) -> String {
        let options = [&["run", "--detach", "--network", "host"], &HARDENED[..], options].concat();
        let started = docker(&[&options[..], &[self.tag.as_str()], args].concat());
        assert!(started.status.success(), "{started:?}");
        self.containers.push(String::from_utf8(started.stdout).unwrap().trim().to_owned());
        self.containers.last().unwrap().clone()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for container in &self.containers {
            if std::thread::panicking() {
                let log = docker(&["logs", container]);
                say(&format!("{}{}", String::from_utf8_lossy(&log.stdout), String::from_utf8_lossy(&log.stderr)));
            }
            docker(&["rm", "--force", container]);
        }
        docker(&["image", "rm", "--force", &self.tag]);
    }
}

const HARDENED: [&str; 7] =
    ["--read-only", "--cap-drop", "ALL", "--user", "65532:65532", "--security-opt", "no-new-privileges:true"];

fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs to the end, and expects success.
#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A volume of a Secret or a ConfigMap, laid out as the kubelet does: `NAME -> ..data/NAME`, `..data -> ..TIME`, everything root's and
/// the `fsGroup`'s, the volume itself open to all, and mounted read-only.
struct Volume {
    folder: PathBuf,
    mode: u32,
    revision: u32,
}

impl Volume {
    fn new(folder: PathBuf, mode: u32, files: &[(&str, String)]) -> Self {
        std::fs::create_dir(&folder).unwrap();
        own(&folder, 0o2777);
        let mut volume = Self { folder, mode, revision: 0 };
        volume.replace(files);
        volume
    }

    /// Replaces all files in one step.
    fn replace(&mut self, files: &[(&str, String)]) {
        let before = std::fs::read_link(self.folder.join("..data")).ok();
        self.revision += 1;
        let now = format!("..2026_11_26_00_00_00.{}", self.revision);
        std::fs::create_dir(self.folder.join(&now)).unwrap();
        own(&self.folder.join(&now), 0o2755);
        for (name, content) in files {
            let path = self.folder.join(&now).join(name);
            std::fs::write(&path, content).unwrap();
            own(&path, self.mode);
        }
        symlink(&now, self.folder.join("..data_tmp")).unwrap();
        std::fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
        for (name, _) in files {
            // It is there already after a change.
            let _ = symlink(Path::new("..data").join(name), self.folder.join(name));
        }
        if let Some(before) = before {
            std::fs::remove_dir_all(self.folder.join(before)).unwrap();
        }
    }

    /// How `docker run` mounts it.
    fn at(&self, place: &str) -> String {
        format!("{}:{place}:ro", self.folder.display())
    }
}

fn own(path: &Path, mode: u32) {
    chown(path, Some(0), Some(SEALWIRE)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// docs/deployment.md, of the image: what is in it, and that it needs neither root, a network, nor anything to write to.
#[test]
fn image_is_the_command_and_nothing_else() {
    let Some(image) = Image::build("parts") else { return };
    let ran = image.run(&["--network", "none"], &["--version"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), concat!("sealwire ", env!("CARGO_PKG_VERSION"), "\n"), "{ran:?}");
    for program in ["sh", "/bin/sh", "cat", "ls"] {
        assert!(!image.run(&["--entrypoint", program], &[]).status.success(), "{program}");
    }
    let told: Value = serde_json::from_slice(&docker(&["image", "inspect", &image.tag]).stdout).unwrap();
    let config = &told[0]["Config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], serde_json::json!(["sealwire"]));
    let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].as_str().unwrap_or_default();
    assert_eq!((label("version"), label("licenses")), (env!("CARGO_PKG_VERSION"), "Apache-2.0"));
    assert_eq!((label("source"), label("revision")), (env!("CARGO_PKG_REPOSITORY"), "0123abc"));

    // Everything in it is root's, but the folders for volumes.
    let container = String::from_utf8(docker(&["create", &image.tag]).stdout).unwrap();
    let archive = docker(&["export", container.trim()]).stdout;
    docker(&["rm", container.trim()]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("image.tar"), archive).unwrap();
    let listed =
        done(Command::new("tar").args(["-tv", "--numeric-owner", "-f", "image.tar"]).current_dir(folder.path()));
    for line in listed.lines().filter(|line| line.starts_with(['-', 'd'])) {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let (mode, owner, name) = (parts[0], parts[1], parts[5]);
        let is_volume = name.starts_with("sealwire/") && name.matches('/').count() == 2;
        let expected = if is_volume { ("drwx------", "65532/65532") } else { (mode, "0/0") };
        // `/dev` and the like are Docker's.
        assert!(
            ["dev/", "proc/", "sys/"].iter().any(|own| name.starts_with(own)) || (mode, owner) == expected,
            "{line}"
        );
        assert!(!mode.contains(['s', 'S', 't', 'T']) && &mode[8..9] != "w", "{line}");
    }
    for wanted in ["etc/ssl/certs/ca-certificates.crt", "usr/share/doc/sealwire/LICENSE", "usr/local/bin/sealwire"] {
        assert!(listed.lines().any(|line| line.ends_with(&format!(" {wanted}"))), "{wanted}");
    }

    let parts = done(
        Command::new("tar")
            .args(["-xOf", "image.tar", "usr/share/doc/sealwire/sealwire.cdx.json"])
            .current_dir(&folder),
    );
    let parts: Value = serde_json::from_str(&parts).unwrap();
    assert_eq!((&parts["bomFormat"], &parts["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    let names: Vec<&str> =
        parts["components"].as_array().unwrap().iter().filter_map(|it| it["name"].as_str()).collect();
    for wanted in ["sealwire", "async-nats", "aws-lc-rs", "libc.so.6"] {
        assert!(names.contains(&wanted), "{wanted} is not in {names:?}");
    }
    assert!(!names.contains(&"sealwire-testkit") && !names.contains(&"proptest"), "of the tests");
}

/// docs/files.md and docs/deployment.md, of Kubernetes: secrets, policies and configuration are root's, readable for a group, and are
/// replaced by changing the link `..data`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_serves_from_the_volumes_that_kubernetes_mounts_and_follows_their_changes() {
    let Some(mut image) = Image::build("volumes") else { return };
    if !is_root() {
        say("NOT RUN: only root can lay out what Kubernetes mounts");
        return;
    }
    let server = NatsServer::start().await;
    let shell = Shell::new();
    shell.run(&format!("init hello --language none --url {}", server.url())).ok();
    let read = |name: &str| shell.read(&format!("hello/{name}"));
    let (at, mut config) = (Listener::free(), read("sealwire.toml"));
    for name in ["ring.json", "service-key.json", "denylist.json", "jwks.json"] {
        config = config.replace(&format!("\"{name}\""), &format!("\"/etc/sealwire/secrets/{name}\""));
    }
    config = config.replace("\"policies\"", "\"/etc/sealwire/policies\"") + &at.section();

    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let secret_files = ["ring.json", "service-key.json", "denylist.json", "jwks.json"].map(|name| (name, read(name)));
    let policy = read("policies/math.toml");
    let mut secrets = Volume::new(folder.path().join("secrets"), 0o440, &secret_files);
    let mut policies = Volume::new(folder.path().join("policies"), 0o644, &[("math.toml", policy.clone())]);
    let configs = Volume::new(folder.path().join("config"), 0o644, &[("sealwire.toml", config)]);
    let mounts = [
        configs.at("/etc/sealwire/config"),
        secrets.at("/etc/sealwire/secrets"),
        policies.at("/etc/sealwire/policies"),
    ];
    let volumes = mounts.iter().flat_map(|mount| ["--volume", mount]).collect::<Vec<_>>();
    let named = [&["--env", "SEALWIRE_SECRET_GROUPS=65532"][..], &volumes].concat();

    // Without its group's name, a secret is open to others; without its policies, a service denies everything and is not ready.
    let ran = image.run(&[&["--network", "none"][..], &volumes].concat(), &["serve", "--check", "--config", FILE]);
    assert_eq!(ran.status.code(), Some(30), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("is open to others"), "{ran:?}");
    let bare = [&["--env", "SEALWIRE_SECRET_GROUPS=65532"][..], &volumes[..4]].concat();
    let container = image.start(&bare, &["serve", "demo", "--config", FILE]);
    at.is_listening().await;
    let began = Instant::now();
    loop {
        let answer = at.is_ready(503).await;
        if answer.body.contains("[-]policy") && answer.body.contains("[+]guard") {
            break;
        }
        assert!(began.elapsed() < 2 * SOON, "{}", answer.body);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    docker(&["rm", "--force", &container]);

    let ran = image.run(&[&["--network", "none"][..], &named].concat(), &["serve", "--check", "--config", FILE]);
    assert!(ran.status.success(), "{ran:?}");
    let container = image.start(&named, &["serve", "demo", "--config", FILE]);
    at.is_listening().await;
    at.is_ready(200).await;
    assert_eq!(at.get("/livez").await.status, 200);
    let probe = docker(&["exec", &container, "sealwire", "ping", "--config", FILE, "--within", "5s"]);
    assert!(probe.status.success(), "{probe:?}");

    let call = || shell.run("call --creds hello/planner.creds.json math math/add [2,3]");
    assert_eq!(call().ok().stdout.trim(), "5");
    // A role that may do nothing, then the one that may; then a ring without the agent.
    policies.replace(&[("math.toml", policy.replace("allow = [\"*\"]", "allow = []"))]);
    until(|| call().code == 10).await;
    policies.replace(&[("math.toml", policy)]);
    until(|| call().code == 0).await;
    let mut changed = secret_files.clone();
    changed[0].1 = changed[0].1.replace("\"active\"", "\"revoked\"");
    secrets.replace(&changed);
    until(|| call().code == 22).await;
    let logged = docker(&["logs", &container]);
    let logged = String::from_utf8_lossy(&logged.stdout).into_owned() + &String::from_utf8_lossy(&logged.stderr);
    assert!(!logged.contains("REFUSED"), "{logged}");
}

async fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < 2 * SOON, "a change has no effect");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
