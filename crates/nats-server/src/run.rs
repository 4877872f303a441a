//! One running nats-server: its port, its files, its end.
//! Never leaves a server behind: not when it is dropped, and on Unix not when this process is killed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sealwire::internal::files::write_secret;
use serde::Deserialize;
use tempfile::TempDir;

use crate::find::Found;
use crate::scratch::private;

/// What may differ between servers. The default is JetStream on, in a scratch folder, without any user or permission.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The text of a configuration file: users, permissions, limits, TLS, clusters. Address, port, JetStream and its
    /// folder are set on the command line, which wins over this text.
    pub config: Option<String>,
    /// The port on the loopback address; if none is given, the server takes a free one.
    pub port: Option<u16>,
    /// Where JetStream keeps its files; if none is given, a scratch folder that goes with the server.
    pub store: Option<PathBuf>,
    /// JetStream is off.
    pub without_jetstream: bool,
}

/// Why the server did not come up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A scratch folder, the log or the program could not be opened.
    #[error("`{}`: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody listens there already.
    #[error("port {0} of 127.0.0.1 is in use: give another one with `--port`, or end what listens there")]
    PortInUse(u16),
    /// The server ended at once: usually a mistake in the configuration text.
    #[error("nats-server ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The server runs but does not answer.
    #[error("nats-server was not ready within {} s; the end of its log:\n{log}", READY_WITHIN.as_secs())]
    NotReady {
        /// The last lines of its log.
        log: String,
    },
}

/// A server that accepts connections. It is killed and its scratch folder removed when this is dropped.
#[derive(Debug)]
pub struct Running {
    server: Server,
    port: u16,
    scheme: String,
    executable: PathBuf,
    options: ServerOptions,
    scratch: TempDir,
}

/// The process and the watcher that ends it if this process cannot. `None` once it was killed.
#[derive(Debug)]
struct Server(Option<(Child, Option<Child>)>);

/// Starts a server and waits until it accepts connections. Blocks, usually for about 30 ms.
///
/// # Errors
/// [`RunError::Ended`] and [`RunError::NotReady`] carry the end of the server's log.
pub fn spawn(found: &Found, options: &ServerOptions) -> Result<Running, RunError> {
    let base = std::env::temp_dir();
    let scratch = private(tempfile::Builder::new().prefix("sealwire-nats-")).tempdir().map_err(at(&base))?;
    let (server, url) = start(&found.path, options, scratch.path()).map_err(|error| match (error, options.port) {
        (RunError::Ended { log, .. }, Some(port)) if log.contains(IN_USE) => RunError::PortInUse(port),
        (error, _) => error,
    })?;
    Ok(Running {
        server,
        port: url.port,
        scheme: url.scheme,
        executable: found.path.clone(),
        options: options.clone(),
        scratch,
    })
}

impl Running {
    /// Where clients connect, such as `nats://127.0.0.1:38477`.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The port on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.server.0.as_ref().map(|(child, _)| child.id())
    }

    /// What the server has logged so far, restarts included.
    pub fn log(&self) -> String {
        read_log(&self.log_file(), 0)
    }

    /// The last lines of that, to explain an end.
    pub fn log_end(&self) -> String {
        tail(&self.log())
    }

    /// How the server ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.server.0.as_mut().and_then(|(process, _)| process.try_wait().ok().flatten())
    }

    /// The file that the server logs to.
    pub fn log_file(&self) -> PathBuf {
        self.scratch.path().join(LOG)
    }

    /// Where JetStream keeps its files.
    pub fn store(&self) -> PathBuf {
        store_of(&self.options, self.scratch.path())
    }

    /// Puts other users and permissions in force; connections whose users stay are kept. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`RunError::File`]. A mistake in the text is reported in the server's log, and the text before stays in force.
    pub fn reload(&mut self, config: String) -> Result<(), RunError> {
        write_config(self.scratch.path(), &config)?;
        self.options.config = Some(config);
        let Some(pid) = self.pid() else { return Ok(()) };
        let mut signal = Command::new(&self.executable);
        signal.arg("--signal").arg(format!("reload={pid}"));
        signal.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        signal.status().map(drop).map_err(at(&self.executable))
    }

    /// Ends the server at once, as a crash would (SIGKILL). Port and store stay reserved for [`restart`](Self::restart).
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the server again on the same port and store, after a [`kill`](Self::kill) if it still runs. Blocks.
    ///
    /// # Errors
    /// As [`spawn`]. Somebody else may have taken the port meanwhile.
    pub fn restart(&mut self) -> Result<(), RunError> {
        self.kill();
        let options = ServerOptions { port: Some(self.port), ..self.options.clone() };
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            match start(&self.executable, &options, self.scratch.path()) {
                Ok((server, _)) => {
                    self.server = server;
                    return Ok(());
                }
                // A client's outgoing connection may hold the port for a moment.
                Err(RunError::Ended { log, .. }) if log.contains(IN_USE) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Server {
    fn kill(&mut self) {
        let Some((mut server, watcher)) = self.0.take() else { return };
        // The watcher goes first: once the server is reaped its process id may belong to somebody else.
        if let Some(mut watcher) = watcher {
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a server could listen on this port of the loopback address.
pub fn is_free(port: u16) -> bool {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// What nats-server logs when it cannot listen.
const IN_USE: &str = "address already in use";

/// Scheme and port that the server reports.
struct Url {
    scheme: String,
    port: u16,
}

fn start(executable: &Path, options: &ServerOptions, scratch: &Path) -> Result<(Server, Url), RunError> {
    let ports = scratch.join("ports");
    // A file of an earlier run would name a port that is no longer served.
    let _ = fs::remove_dir_all(&ports);
    fs::create_dir_all(&ports).map_err(at(&ports))?;
    let log_file = scratch.join(LOG);
    let log = File::options().create(true).append(true).open(&log_file).map_err(at(&log_file))?;
    let log_for_errors = log.try_clone().map_err(at(&log_file))?;
    let logged_before = log.metadata().map_err(at(&log_file))?.len();

    let mut command = Command::new(executable);
    command.args(["--addr", "127.0.0.1", "--port"]);
    // -1: the server binds port 0 itself and reports what it got, so no other process can take the port in between.
    command.arg(options.port.map_or_else(|| "-1".to_owned(), |port| port.to_string()));
    command.arg("--ports_file_dir").arg(&ports);
    if !options.without_jetstream {
        command.arg("--jetstream").arg("--store_dir").arg(store_of(options, scratch));
    }
    if let Some(text) = &options.config {
        let file = write_config(scratch, text)?;
        command.arg("--config").arg(&file);
    }
    command.stdin(Stdio::null()).stdout(log).stderr(log_for_errors);
    let process = in_own_group(&mut command).spawn().map_err(at(executable))?;
    let watcher = watch(&process, scratch);
    let mut server = Server(Some((process, watcher)));

    let deadline = Instant::now() + READY_WITHIN;
    let log_end = || tail(&read_log(&log_file, logged_before));
    loop {
        if let Some(url) = reported(&ports).filter(|url| greets(url.port)) {
            return Ok((server, url));
        }
        if let Some((process, _)) = &mut server.0
            && let Some(status) = process.try_wait().map_err(at(executable))?
        {
            return Err(RunError::Ended { status, log: log_end() });
        }
        if Instant::now() >= deadline {
            return Err(RunError::NotReady { log: log_end() });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Holds every user's password.
fn write_config(scratch: &Path, text: &str) -> Result<PathBuf, RunError> {
    let file = scratch.join("server.conf");
    write_secret(&file, text, true).map_err(|error| at(&file)(io::Error::other(error)))?;
    Ok(file)
}

/// The client port out of the ports file, which the server writes when it is ready for connections.
fn reported(ports: &Path) -> Option<Url> {
    #[derive(Deserialize)]
    struct Ports {
        #[serde(default)]
        nats: Vec<String>,
    }
    let file = fs::read_dir(ports).ok()?.next()?.ok()?.path();
    // Half-written text does not parse and is read again.
    let ports: Ports = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let (scheme, address) = ports.nats.first()?.split_once("://")?;
    Some(Url { scheme: scheme.to_owned(), port: address.rsplit_once(':')?.1.parse().ok()? })
}

/// Whether a client gets the server's greeting.
fn greets(port: u16) -> bool {
    let wait = Duration::from_secs(1);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let greeting = || -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&address, wait)?;
        stream.set_read_timeout(Some(wait))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    greeting().is_ok_and(|line| line.starts_with("INFO "))
}

/// A process that sees our end as the end of its input, and then ends the server and removes its scratch folder.
///
/// Dropping [`Running`] does that in every ordinary case; this is for the others, such as SIGKILL or a test runner's
/// timeout. The kernel's parent-death signal would need unsafe code, and fires when the *thread* that started it ends.
#[cfg(unix)]
fn watch(server: &Child, scratch: &Path) -> Option<Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"read -r _; kill -9 "$1"; rm -rf -- "$2""#, "sh"]);
    command.arg(server.id().to_string()).arg(scratch);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    in_own_group(&mut command).spawn().ok()
}

#[cfg(not(unix))]
fn watch(_server: &Child, _scratch: &Path) -> Option<Child> {
    None
}

/// Control-C in a terminal goes to the whole foreground group. The server must outlive it while a service drains.
#[cfg(unix)]
fn in_own_group(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    command.process_group(0)
}

#[cfg(not(unix))]
fn in_own_group(command: &mut Command) -> &mut Command {
    command
}

fn store_of(options: &ServerOptions, scratch: &Path) -> PathBuf {
    options.store.clone().unwrap_or_else(|| scratch.join("store"))
}

fn read_log(file: &Path, from: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|mut log| {
        log.seek(SeekFrom::Start(from))?;
        log.read_to_end(&mut bytes)
    });
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(12)).copied().collect::<Vec<_>>().join("\n")
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> RunError {
    let path = path.to_owned();
    move |source| RunError::File { path, source }
}

/// A server is ready in about 30 ms; this is for a machine under heavy load, or a large store to recover.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The log's name in the scratch folder.
const LOG: &str = "server.log";
