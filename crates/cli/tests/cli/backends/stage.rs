//! A broker, a service `dev/tools` with backends, run as a program, and an agent that calls it.

use std::path::Path;
use std::time::Duration;

use sealwire::{Client, ClientError, Credentials};
use sealwire_testkit::{NatsServer, root, within};
use serde_json::Value;
use tokio::process::Child;
use tokio::sync::watch;

use crate::process::heard;
use crate::shell::Shell;

/// Everything may be called, unless a test denies it.
pub(crate) const POLICY: &str = "[role.user]\nallow = [\"*\"]\n";

/// Long enough for programs to start, and to be ended, on a machine under full load.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The backend for an MCP server in these tests.
pub(crate) fn server_of_mcp(python: &Path) -> String {
    let server = root().join("crates/cli/tests/cli/backends/mcp/server.py");
    format!(
        "[[backend]]\nname = \"server\"\nkind = \"mcp\"\nprefix = \"t\"\nresources = true\nprompts = true\n\
         command = [\"{}\", \"-B\", \"{}\", \"modern\", \"server.log\"]\n",
        python.display(),
        server.display()
    )
}

/// Codes that an application may use, whatever they mean elsewhere: those of JSON-RPC 2.0, of SPEC.md §14, of A2A and MCP, both ends of the
/// reserved range, and some that nobody has taken.
pub(crate) const CODES: [i32; 40] = [
    -32700, -32600, -32601, -32602, -32603, -32000, -32001, -32002, -32003, -32004, -32005, -32006, -32007, -32008,
    -32009, -32010, -32011, -32012, -32013, -32014, -32015, -32016, -32017, -32018, -32019, -32020, -32021, -32022,
    -32042, -32050, -32099, -32100, -32768, -32769, -31999, -1, 1, 7, 1001, 32001,
];

pub(crate) struct Stage {
    pub(crate) shell: Shell,
    pub(crate) service: Child,
    pub(crate) stdout: watch::Receiver<String>,
    pub(crate) stderr: watch::Receiver<String>,
    pub(crate) client: Client,
    pub(crate) server: NatsServer,
}

impl Stage {
    /// With this policy and these lines in the configuration, ready.
    pub(crate) async fn new(policy: &str, backends: &str) -> Self {
        Self::run(policy, backends, &["serve"]).await
    }

    /// The same, with its own command line.
    pub(crate) async fn run(policy: &str, backends: &str, args: &[&str]) -> Self {
        Self::start(policy, backends, args).await.ready().await
    }

    /// Waits until it takes messages.
    pub(crate) async fn ready(self) -> Self {
        let mut stdout = self.stdout.clone();
        let ready = tokio::time::timeout(
            LONG,
            stdout.wait_for(|said| ["takes messages", "\"ready\":true"].iter().any(|ready| said.contains(ready))),
        )
        .await;
        assert!(matches!(ready, Ok(Ok(_))), "{}", *self.stderr.borrow());
        self
    }

    /// The same, not yet ready.
    pub(crate) async fn start(policy: &str, backends: &str, args: &[&str]) -> Self {
        let server = NatsServer::start().await;
        let shell = prepared(&server.url(), policy, backends);
        Self::begin(server, shell, args, &std::env::var("PATH").unwrap()).await
    }

    /// The same, in a prepared folder, with this PATH.
    pub(crate) async fn begin(server: NatsServer, shell: Shell, args: &[&str], path: &str) -> Self {
        let command = shell.command(args);
        Self::of(server, shell, command, path).await
    }

    /// The same, with a command line that finally becomes the service's.
    pub(crate) async fn of(server: NatsServer, shell: Shell, command: std::process::Command, path: &str) -> Self {
        let mut command = tokio::process::Command::from(command);
        command.env("PATH", path);
        let mut service = command.env("SECRET_OF_THE_SERVICE", "hunter2").kill_on_drop(true).spawn().unwrap();
        let (stdout, stderr) = (heard(service.stdout.take().unwrap()), heard(service.stderr.take().unwrap()));
        let credentials = Credentials::load(shell.path("planner.creds.json")).unwrap();
        // The tests do other things while a call is in progress.
        let client = Client::builder(credentials).in_flight(4_096).deadline(5 * LONG);
        let client = within(LONG, client.connect()).await.unwrap();
        Self { shell, service, stdout, stderr, client, server }
    }

    /// Another agent, enrolled while the service runs.
    pub(crate) async fn agent(&self, name: &str) -> Client {
        enrolled(&self.shell, name, &self.server.url());
        let credentials = Credentials::load(self.shell.path(&format!("{name}.creds.json"))).unwrap();
        let client = within(LONG, Client::builder(credentials).connect()).await.unwrap();
        // The service picks up a new key within a second, and refuses the agent until then.
        let known = async {
            while client.call::<Value>("tools", "rpc.can", serde_json::json!({ "method": "rpc.can" })).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(LONG, known).await;
        client
    }

    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, ClientError> {
        within(LONG, self.client.request("tools").deadline(Duration::from_secs(30)).call(method, params)).await
    }

    /// Calls until there is a result: a program may be on its way back.
    pub(crate) async fn comes_back(&self, method: &str, params: Value) {
        let back = async {
            loop {
                match self.client.call::<Value>("tools", method, &params).await {
                    Ok(result) => break assert_eq!(result, params),
                    Err(error) => assert_eq!(code(&error), Some(-32004), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let back = tokio::time::timeout(2 * LONG, back).await;
        assert!(back.is_ok(), "{}", *self.stderr.borrow());
    }

    /// Ends the service in order.
    pub(crate) async fn end(self) -> String {
        self.over().await.0
    }

    /// The same, and gives back the broker and the folder, for another service there.
    pub(crate) async fn stopped(self) -> (NatsServer, Shell) {
        let (_, server, shell) = self.over().await;
        (server, shell)
    }

    async fn over(mut self) -> (String, NatsServer, Shell) {
        crate::process::send(crate::process::SIGTERM, self.service.id().unwrap());
        let status = within(LONG, self.service.wait()).await.unwrap();
        let said = crate::process::whole(&mut self.stderr).await;
        assert!(status.success(), "{status}: {said}");
        (said, self.server, self.shell)
    }
}

/// The folder of a service with backends, and of its agent.
pub(crate) fn prepared(url: &str, policy: &str, backends: &str) -> Shell {
    let shell = Shell::new();
    shell.run("keys new-token-key https://dev.example").ok();
    shell.run("keys new-service dev/tools").ok();
    enrolled(&shell, "planner", url);
    shell.write("policies/tools.toml", policy);
    let limits = "[limits]\nagent_per_second = 100000\nagent_burst = 100000\nagent_in_flight = 4096\ndrain_s = 5\n";
    shell.write(
        "sealwire.toml",
        &format!(
            "environment = \"dev\"\nservice = \"tools\"\n[nats]\nurls = [\"{url}\"]\n[keys]\nring = \"ring.json\"\n\
             service_key = \"tools.service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\n\
             jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 0\n{limits}{backends}"
        ),
    );
    shell
}

/// An agent with a token for the role `user`.
fn enrolled(shell: &Shell, name: &str, url: &str) {
    shell.run(&format!("keys new-agent {name} --service dev/tools=ring.json --url {url}")).ok();
    let bound = format!("--subject {name} --cnf-kid {name}.k1 --out {name}.jwt --role user");
    shell.run(&format!("token issue --key token-key.json --audience dev/tools {bound}")).ok();
}

/// The code of the error that a method answered.
pub(crate) fn code(error: &ClientError) -> Option<i32> {
    error.remote().map(sealwire::RpcError::code)
}
