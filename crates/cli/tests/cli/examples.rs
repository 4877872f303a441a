//! docs/examples and docs/start: runs the commands of each page unchanged, starting in an empty folder.
//! Only the ports differ, since several pages run at the same time.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sealwire_testkit::page::{self, Piece};

/// A program in its own terminal.
struct Terminal {
    program: Child,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Including its children: it is its own process group.
        let group = rustix::process::Pid::from_child(&self.program);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        drop(self.program.wait());
    }
}

fn keep(stream: impl Read + Send + 'static, said: &Arc<Mutex<Vec<String>>>) {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in std::io::BufReader::new(stream).lines().map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    });
}

/// A reader who types the commands of a page.
struct Reader {
    folder: tempfile::TempDir,
    /// The scripts are kept here, so that the reader's folder is empty at first.
    script: tempfile::TempDir,
    /// The ports that replace those on the page.
    ports: BTreeMap<&'static str, String>,
    terminals: Vec<Terminal>,
    /// What `export` has set.
    exported: BTreeMap<String, String>,
    code: i32,
}

impl Reader {
    fn new() -> Self {
        let free = || sealwire_testkit::free_port().to_string();
        let ports = BTreeMap::from([("4222", free()), ("8000", free())]);
        Self {
            folder: tempfile::tempdir().unwrap(),
            script: tempfile::tempdir().unwrap(),
            ports,
            terminals: Vec::new(),
            exported: BTreeMap::new(),
            code: 0,
        }
    }

    fn here(&self, text: &str) -> String {
        let text = self.ports.iter().fold(text.to_owned(), |text, (page, here)| {
            text.replace(&format!("127.0.0.1:{page}"), &format!("127.0.0.1:{here}"))
        });
        // The commands rely on the default address, which differs here.
        let init = if text.contains("--url") {
            text
        } else {
            text.replace("sealwire init", &format!("sealwire init --port {}", self.ports["4222"]))
        };
        let text = init;
        let url = format!("--url nats://127.0.0.1:{} --service dev/", self.ports["4222"]);
        text.replace("--service dev/", &url)
            .replace("sealwire nats-server", &format!("sealwire nats-server --port {}", self.ports["4222"]))
            .replace("sealwire dev --port 4222", &format!("sealwire dev --port {}", self.ports["4222"]))
            .replace("http.server 8000", &format!("http.server {}", self.ports["8000"]))
    }

    fn shell(&self, command: &str) -> Command {
        // Not as arguments, where `pkill -f` would match them.
        let script = self.script.path().join("typed");
        std::fs::write(&script, self.here(command)).unwrap();
        let mut shell = page::shell(env!("CARGO_BIN_EXE_sealwire"), self.folder.path());
        shell
            .arg(&script)
            .env("SEALWIRE_NATS_SERVER", &sealwire_testkit::found().path)
            .env_remove("SEALWIRE_CREDS")
            .envs(&self.exported)
            .stdin(Stdio::null());
        shell
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.folder.path().join(path);
        assert!(!file.exists(), "{path} is written twice");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, self.here(text)).unwrap();
    }

    fn type_in(&mut self, command: &str, shown: &[&str]) {
        if command == "echo $?" {
            assert_eq!(shown, [self.code.to_string()], "the exit code");
            return;
        }
        // Each command has a shell of its own.
        if let Some((name, value)) = command.strip_prefix("export ").and_then(|set| set.split_once('=')) {
            self.exported.insert(name.to_owned(), value.to_owned());
            return;
        }
        let output = self.shell(&format!("exec 2>&1\n{command}")).output().unwrap();
        self.code = output.status.code().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines = said.lines();
        for line in shown {
            assert!(lines.any(|said| fits(line, said)), "`{command}` shows `{line}` on the page, and here:\n{said}");
        }
        let refusals = ["error:", "deny:", "{\"error\":"];
        // Of a batch, an entry may be refused.
        let is_refusal =
            |line: &str| refusals.iter().any(|begin| line.starts_with(begin)) || line.contains("  error: ");
        let refused = shown.iter().any(|line| is_refusal(line));
        assert_eq!(self.code != 0, refused, "{command}: exit code {}\n{said}", self.code);
    }

    fn open_terminal(&mut self, command: &str, shown: &[&str]) {
        let mut shell = self.shell(&format!("exec {command}"));
        let mut program = shell.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::default();
        keep(program.stdout.take().unwrap(), &said);
        keep(program.stderr.take().unwrap(), &said);
        self.terminals.push(Terminal { program });
        let deadline = Instant::now() + Duration::from_secs(60);
        for line in shown {
            while !said.lock().unwrap().iter().any(|said| fits(line, said)) {
                assert!(Instant::now() < deadline, "`{command}` does not say `{line}`: {:#?}", said.lock().unwrap());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Whether a line matches the page, where `…` stands for any text.
fn fits(page: &str, said: &str) -> bool {
    let mut parts = page.split('…');
    let Some(mut rest) = said.strip_prefix(parts.next().unwrap()) else { return false };
    let mut open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        open = part.is_empty();
    }
    rest.is_empty() || open
}

/// Types a whole page. Returns the number of commands.
fn read(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut reader, mut commands) = (Reader::new(), 0);
    for piece in page::pieces(&text) {
        let block = match piece {
            Piece::Prose(line) => {
                page::assert_prose(line);
                continue;
            }
            Piece::Block(block) => block,
        };
        match block.info.split_once(' ') {
            None if block.info == "console" => {
                for typed in block.typed() {
                    reader.type_in(&typed.command, &typed.shown);
                    commands += 1;
                }
            }
            Some(("console", "terminal")) => {
                for typed in block.typed() {
                    reader.open_terminal(&typed.command, &typed.shown);
                    commands += 1;
                }
            }
            // Compiled by crates/testkit/src/page.rs.
            None if block.info.starts_with("rust") => {}
            Some(("toml" | "json" | "python", path)) => reader.write(path, &block.text()),
            _ => panic!("{}: a block of an unknown kind: `{}`", file.display(), block.info),
        }
    }
    commands
}

/// Types all pages of a folder, in parallel, and checks that its index lists them.
fn read_all(folder: &str, wanted: usize, least: usize) {
    let folder = sealwire_testkit::root().join(folder);
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let pages = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<_> = pages.filter(|page| !page.ends_with("README.md")).collect();
    assert_eq!(pages.len(), wanted);
    std::thread::scope(|scope| {
        for page in &pages {
            let name = page.file_name().unwrap().to_str().unwrap();
            assert!(index.contains(&format!("]({name})")), "{name} is not in the index");
            scope.spawn(move || assert!(read(page) >= least, "{name}"));
        }
    });
}

#[test]
fn examples_do_what_they_say() {
    read_all("docs/examples", 5, 8);
}

#[test]
fn pages_to_start_from_do_what_they_say() {
    read_all("docs/start", 5, 1);
}

#[test]
fn a_line_fits_what_a_page_shows_of_it() {
    for (page, said, wanted) in [
        ("5", "5", true),
        ("5", "55", false),
        ("ready …", "ready in 3 s", true),
        ("…k2…", "rotated: ada.k2", true),
        ("…k2", "rotated: ada.k2", true),
        ("…k2", "ada.k2 holds", false),
        ("a … b", "a 1 c", false),
    ] {
        assert_eq!(fits(page, said), wanted, "{page} {said}");
    }
}
