//! The sides: a broker, the files of a service as an operator has them, and a process for each server.
//! Never leaves one behind: each ends when its input does.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sealwire::configure::{AgentKey, ServicePublicKey};
use sealwire::internal::auth::{IssueRequest, KeyEntry, KeyRingFile, TokenIssuer, write_service_key};
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::ServiceKey;
use sealwire::{BusConfig, Clock as _, Credentials, Name, SystemClock};
use sealwire_testkit::NatsServer;
use sealwire_testkit::site::{Site, agent_key};
use tokio::runtime::Runtime;

use crate::callers::{Http, Way};
use crate::error::Fallible;
use crate::jwt;
use crate::plan::Plan;
use crate::servers::Kind;
use crate::servers::sealwire::POLICY;

/// One of the sides that are compared.
pub struct Side {
    /// For `--side`.
    pub key: &'static str,
    pub name: &'static str,
    pub way: Way,
    /// What its client presents with each request; empty if nothing.
    pub bearer: String,
    /// How somebody without permission would call it, if there is such a caller.
    pub stranger: Option<Way>,
    /// The processes whose processor time is measured.
    pub processes: Vec<(&'static str, u32)>,
}

/// What lives as long as the measurement.
pub struct Stage {
    children: Vec<Child>,
    _sites: [Site; 2],
    servers: Vec<NatsServer>,
    runtime: Runtime,
}

const LIMITS: &str = "per_agent = 4000000\ntotal = 8000000\n\
    [limits]\nagent_per_second = 1000000\nagent_burst = 1000000\nagent_in_flight = 4096\n";

impl Stage {
    pub fn open(plan: &Plan) -> Fallible<(Self, Vec<Side>)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // The service whose guard is shared has the same name, and so a broker of its own.
        let servers = [(); 2].map(|()| runtime.block_on(NatsServer::start()));
        let [(url, broker), (other_url, other_broker)] = servers.each_ref().map(|s| (s.url(), ("broker", s.pid())));
        let sites = [Site::new(&url), Site::new(&other_url)];
        let [hmac, ed25519, stranger] = prepare(&sites[0], &url, "")?;
        let [shared, _, _] = prepare(&sites[1], &other_url, SHARED)?;
        let [folder, other_folder] = sites.each_ref().map(|site| site.folder.path().to_owned());
        let mut stage = Self { children: Vec::new(), _sites: sites, servers: servers.into(), runtime };
        let (sharing, _) = stage.serve(Kind::Sealwire, plan.threads, &other_folder)?;
        let (bearer, provided) = (jwt::bearer()?, jwt::provided(&folder)?);
        let mut serve = |kind: Kind| stage.serve(kind, plan.threads, &folder);
        let (service, _) = serve(Kind::Sealwire)?;
        let (bare, _) = serve(Kind::Bare)?;
        let (gateway, gateway_at) = serve(Kind::Gateway)?;
        let (rpc, rpc_at) = serve(Kind::Rpc)?;
        let (grpc, grpc_at) = serve(Kind::Grpc)?;
        let (mcp, mcp_at) = serve(Kind::Mcp)?;
        let (sessions, sessions_at) = serve(Kind::McpSessions)?;
        let (mint, mint_at) = serve(Kind::GatewayMint)?;
        let (mcp_provided, mcp_provided_at) = serve(Kind::McpProvided)?;
        let (rpc_at, grpc_at, mcp_at, gateway_at) =
            (rpc_at.parse()?, grpc_at.parse()?, mcp_at.parse()?, gateway_at.parse()?);
        let (sessions_at, mint_at, mcp_provided_at) =
            (sessions_at.parse()?, mint_at.parse()?, mcp_provided_at.parse()?);
        let on_the_bus = vec![("server", service), broker];
        let behind_a_gateway = vec![("gateway", gateway), ("server", service), broker];
        let behind_a_minting_gateway = vec![("gateway", mint), ("server", service), broker];
        let with = |key, name, way: Way, bearer: &str, processes| {
            let stranger = (!bearer.is_empty()).then(|| way.clone());
            Side { key, name, way, bearer: bearer.to_owned(), stranger, processes }
        };
        let side = |key, name, way, shows_token: bool, processes| {
            with(key, name, way, if shows_token { &bearer } else { "" }, processes)
        };
        let mut sides = vec![
            side("sealwire", "Sealwire, HMAC", Way::Sealwire(hmac), false, on_the_bus.clone()),
            side("ed25519", "Sealwire, Ed25519", Way::Sealwire(ed25519), false, on_the_bus),
            side(
                "shared",
                "Sealwire, shared guard",
                Way::Sealwire(shared),
                false,
                vec![("server", sharing), other_broker],
            ),
            side("bare", "async-nats, nothing checked", Way::Bare(url), false, vec![("server", bare), broker]),
            side("http", "jsonrpsee, HTTP", Way::Rpc(rpc_at), true, vec![("server", rpc)]),
            side("ws", "jsonrpsee, WebSocket", Way::Ws(rpc_at, "/"), true, vec![("server", rpc)]),
            side("grpc", "tonic", Way::Grpc(grpc_at), true, vec![("server", grpc)]),
            side(
                "gateway",
                "gateway, `POST /rpc`",
                Way::Post(gateway_at, "/rpc/site", Http::One),
                false,
                behind_a_gateway.clone(),
            ),
            side(
                "gateway-2",
                "gateway, `POST /rpc`, HTTP/2",
                Way::Post(gateway_at, "/rpc/site", Http::Two),
                false,
                behind_a_gateway.clone(),
            ),
            side(
                "gateway-ws",
                "gateway, WebSocket",
                Way::Ws(gateway_at, "/rpc/site/ws"),
                false,
                behind_a_gateway.clone(),
            ),
            side(
                "gateway-mcp",
                "gateway, `POST /mcp`",
                Way::Mcp(gateway_at, "/mcp/site", Http::One),
                false,
                behind_a_gateway.clone(),
            ),
            side(
                "gateway-mcp-2",
                "gateway, `POST /mcp`, HTTP/2",
                Way::Mcp(gateway_at, "/mcp/site", Http::Two),
                false,
                behind_a_gateway.clone(),
            ),
            side(
                "gateway-mcp-session",
                "gateway, `POST /mcp`, in a session",
                Way::McpSession(gateway_at, "/mcp/site"),
                false,
                behind_a_gateway,
            ),
            side(
                "rmcp-sessions",
                "rmcp as it comes, `tools/call`",
                Way::McpSession(sessions_at, "/mcp"),
                true,
                vec![("server", sessions)],
            ),
            side("rmcp", "rmcp, `tools/call`", Way::Mcp(mcp_at, "/mcp", Http::One), true, vec![("server", mcp)]),
            side(
                "rmcp-2",
                "rmcp, `tools/call`, HTTP/2",
                Way::Mcp(mcp_at, "/mcp", Http::Two),
                true,
                vec![("server", mcp)],
            ),
            with(
                "gateway-mcp-mint",
                "gateway, `POST /mcp`, a provider's tokens",
                Way::Mcp(mint_at, "/mcp/site", Http::One),
                &provided,
                behind_a_minting_gateway,
            ),
            with(
                "rmcp-provided",
                "rmcp, `tools/call`, a provider's tokens",
                Way::Mcp(mcp_provided_at, "/mcp", Http::One),
                &provided,
                vec![("server", mcp_provided)],
            ),
        ];
        for side in &mut sides[..3] {
            side.stranger = Some(Way::Sealwire(stranger.clone()));
        }
        if plan.python.exists() {
            let (pid, at) = stage.python(&plan.python)?;
            sides.push(side(
                "python",
                "Python `mcp`, `tools/call`",
                Way::Mcp(at.parse()?, "/mcp", Http::One),
                true,
                vec![("server", pid)],
            ));
        } else {
            println!("NOT MEASURED: Python `mcp`, since there is no {}; see --python\n", plan.python.display());
        }
        Ok((stage, sides))
    }

    fn serve(&mut self, kind: Kind, threads: usize, folder: &Path) -> Fallible<(u32, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", kind.name(), &threads.to_string()]).arg(folder);
        self.spawn(command)
    }

    fn python(&mut self, python: &Path) -> Fallible<(u32, String)> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/servers/server.py");
        let mut command = Command::new(python);
        command.args(["-B", script, std::str::from_utf8(jwt::SECRET)?]);
        self.spawn(command)
    }

    /// Starts it, and waits for the line that says where it listens.
    fn spawn(&mut self, mut command: Command) -> Fallible<(u32, String)> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let pid = child.id();
        self.children.push(child);
        if line.is_empty() {
            return Err(format!("{command:?} did not start").into());
        }
        Ok((pid, line.trim().to_owned()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
            // Whatever the result is: it is over.
            drop(child.wait());
        }
        let servers = std::mem::take(&mut self.servers);
        self.runtime.block_on(async move { drop(servers) });
    }
}

/// What the issuer of all agents may say, and what a gateway of its callers.
const ISSUERS: &str = "may = { agents = [\"*\"], roles = [\"*\"] }\n\
    [[tokens.issuer]]\nissuer = \"https://gateway.example\"\njwks = \"gateway-jwks.json\"\n\
    require = { \"act.sub\" = \"ann\" }\n\
    may = { agents = [\"ann\"], roles = [\"worker\"], subjects = [\"*\"] }\n";

/// Behind `[replay]`.
const SHARED: &str = "guard = \"shared\"\nstream_messages = 8000000\n";

/// For as long as all of it may take.
fn token(site: &Site, name: &str) -> Fallible<String> {
    let mut request = IssueRequest::new(name, site.endpoint.audience().as_str(), SystemClock.now_s());
    request.roles = ["worker".to_owned()].into();
    request.ttl_s = 3_600;
    Ok(site.issuer.issue(&request)?)
}

/// Writes what service and gateway read. The credentials of an agent with an HMAC key, of one with an Ed25519 key, and of one that
/// the service does not know.
fn prepare(site: &Site, url: &str, guard: &str) -> Fallible<[Credentials; 3]> {
    let audience = site.endpoint.audience();
    site.write_config(&format!("{guard}{LIMITS}"));
    let config = std::fs::read_to_string(site.path("sealwire.toml"))?;
    let own = "jwks = \"jwks.json\"\n";
    std::fs::write(site.path("sealwire.toml"), config.replace(own, &format!("{own}{ISSUERS}")))?;
    std::fs::write(site.path("policies/policy.toml"), POLICY)?;
    std::fs::write(site.path("broker"), url)?;
    std::fs::remove_file(site.path("service-key.json"))?;
    let service = ServiceKey::generate("svc:test/site:1", audience)?;
    write_service_key(&site.path("service-key.json"), &service)?;
    let (ann, eve) = (agent_key("ann"), AgentKey::ed25519("bob.k1", [7; 32])?);
    let keys = vec![
        KeyEntry::hmac(ann.kid(), Name::new("ann")?, &ann.derived(audience).ok_or("no HMAC key")?),
        KeyEntry::ed25519(eve.kid(), Name::new("bob")?, eve.public().ok_or("no public key")?),
    ];
    let ring = KeyRingFile { audience: audience.to_string(), keys };
    write_secret(&site.path("ring.json"), &serde_json::to_string(&ring)?, true)?;
    let credentials = |name: &str, key: AgentKey| -> Fallible<Credentials> {
        let pinned: Vec<ServicePublicKey> = vec![service.public()];
        Ok(Credentials::new(Name::new("test")?, Name::new(name)?, key, BusConfig::open(url))
            .token(token(site, name)?)
            .service_keys(Name::new("site")?, pinned))
    };
    let all =
        [credentials("ann", ann)?, credentials("bob", eve)?, credentials("ann", AgentKey::ed25519("x.k1", [9; 32])?)?];
    all[0].save(site.path("ann.creds.json"), true)?;
    const GATEWAY: &str = "[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"ann.creds.json\"\n\
                        per_second = 1000000\nburst = 1000000\nin_flight = 65536\nconnections = 4096\n";
    const EXPOSE: &str = "[[gateway.expose]]\nservice = \"site\"\n";
    std::fs::write(site.path("gateway.toml"), format!("{GATEWAY}{EXPOSE}"))?;
    let (url, provider) = (jwt::PROVIDED_FOR, jwt::PROVIDER);
    let mint = format!(
        "{GATEWAY}public_url = \"{url}\"\nidentity = {{ mode = \"mint\", key = \"gateway-key.json\" }}\n\
         [[gateway.tokens.issuer]]\nissuer = \"{provider}\"\njwks = \"{}\"\n{EXPOSE}",
        jwt::PROVIDED_KEYS
    );
    std::fs::write(site.path("gateway-mint.toml"), mint)?;
    let issuer = TokenIssuer::generate(url)?;
    issuer.save(site.path("gateway-key.json"))?;
    std::fs::write(site.path("gateway-jwks.json"), issuer.public_jwks())?;
    Ok(all)
}
