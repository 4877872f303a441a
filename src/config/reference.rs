//! Every key of the configuration file: its type, unit, range, default and meaning. The JSON Schema, docs/configuration.md
//! and the check of ranges are made from this one table.
//! Never states a default of its own: it asks the code that has it.

use serde_json::{Value, json};

use super::{LimitsConfig, ReplayConfig};
use crate::auth::{ANSWER_WITHIN, KeyRules, KeySource, SharedConfig, TokenRules};
use crate::rpc::MAX_BATCH;
use crate::wire::Endpoint;

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) left_out: LeftOut,
    pub(super) about: &'static str,
}

/// What a file without the key means.
pub(super) enum LeftOut {
    /// It does not load.
    Required,
    /// The same as with this value.
    Value(Value),
    /// What these words say.
    Means(&'static str),
}

/// What a key's value is.
pub(super) enum Kind {
    Text,
    /// 1 to 64 of `A-Z a-z 0-9 _ -`.
    Name,
    /// 1 to 8 subject tokens with dots in between.
    Prefix,
    /// Relative to the configuration file.
    Path,
    Flag,
    /// Unit, least, most.
    Number(&'static str, u64, Option<u64>),
    Choice(&'static [&'static str]),
    /// The way to a claim.
    Claim,
    /// A text, or the beginning of one.
    Pattern,
    /// Texts by claim.
    Claims,
    /// Texts by text.
    Texts,
    /// A list, and the fewest entries.
    List(Box<Kind>, u64),
    Table(Table),
    /// `[[…]]`, one at least.
    Tables(Table),
}

/// A table.
pub(super) struct Table {
    pub(super) about: &'static str,
    pub(super) keys: Vec<Key>,
}

impl Key {
    fn new(name: &'static str, kind: Kind, left_out: LeftOut, about: &'static str) -> Self {
        Self { name, kind, left_out, about }
    }

    fn required(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Required, about)
    }

    fn value(name: &'static str, kind: Kind, value: impl Into<Value>, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Value(value.into()), about)
    }

    fn none(name: &'static str, kind: Kind, means: &'static str, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Means(means), about)
    }

    fn table(name: &'static str, means: &'static str, about: &'static str, keys: Vec<Self>) -> Self {
        Self::new(name, Kind::Table(Table { about, keys }), LeftOut::Means(means), "")
    }
}

use Kind::{Choice, Claim, Claims, Flag, List, Name, Number, Path, Pattern, Prefix, Tables, Text, Texts};

const ALGORITHMS: &[&str] = &["EdDSA", "ES256", "RS256", "PS256", "HS256"];
/// What nats-server lets `max_payload` be at most.
const MOST_PAYLOAD: u64 = 64 * 1024 * 1024;

/// The whole file.
pub(super) fn file() -> Table {
    let required = |name, about, keys| Key::required(name, Kind::Table(Table { about, keys }), "");
    let optional = |name, about, keys| Key::table(name, "the defaults below", about, keys);
    Table {
        about: "The service, and the subjects that it is found at.",
        keys: vec![
            Key::required(
                "environment",
                Name,
                "The environment, such as `prod`: a message for another one is refused.",
            ),
            Key::required("service", Name, "The service."),
            Key::value("prefix", Prefix, Endpoint::PREFIX, "What the subjects of requests begin with."),
            Key::value("inbox_prefix", Prefix, Endpoint::INBOX_PREFIX, "What callers' reply subjects begin with."),
            Key::value(
                "service_inbox_prefix",
                Prefix,
                Endpoint::SERVICE_INBOX_PREFIX,
                "What services' own inboxes begin with; nobody who answers agents may publish there.",
            ),
            required("nats", "The broker, and how to log in there.", bus()),
            required("keys", "Whose proofs are accepted.", keys()),
            required("tokens", "Whose access tokens are accepted.", tokens()),
            required(
                "policy",
                "Who may do what.",
                vec![Key::required(
                    "folder",
                    Path,
                    "The folder of policy files. Read again when something in it changes.",
                )],
            ),
            optional("replay", "How replays are recognized.", replay()),
            optional("limits", "Bounds of sizes, rates and queues.", limits()),
            optional(
                "reload",
                "What happens when files cannot be read again.",
                vec![Key::none(
                    "fail_closed_after_s",
                    Number("seconds", 1, None),
                    "what was read last stays in force",
                    "For how long the key ring or the denylist may be missing, unreadable or wrong, before everything is refused (`-32014`) until it can be read.",
                )],
            ),
            optional(
                "files",
                "Whose files are believed beside one's own and root's (docs/files.md). The configuration itself must be one's own or root's.",
                vec![
                    Key::value(
                        "trust_users",
                        List(Box::new(Number("user ids", 0, Some(u32::MAX.into()))), 0),
                        json!([]),
                        "To whom files may belong, too: those who deploy policies, for example.",
                    ),
                    Key::value(
                        "trust_groups",
                        List(Box::new(Number("group ids", 0, Some(u32::MAX.into()))), 0),
                        json!([]),
                        "Groups whose members may write files, and read secrets, that belong to the group: a Kubernetes `fsGroup`, for example.",
                    ),
                ],
            ),
        ],
    }
}

fn bus() -> Vec<Key> {
    vec![
        Key::required(
            "urls",
            List(Box::new(Text), 1),
            "`nats://host:port` or `tls://host:port`, one or several nodes of one cluster.",
        ),
        Key::none("user", Text, "no user", "The user's name."),
        Key::none(
            "password",
            Text,
            "no password",
            "The user's password. The file is then a secret, and must be for its owner alone.",
        ),
        Key::none("password_file", Path, "no password", "A file that holds the password, readable by its owner alone."),
        Key::none("token", Text, "no token", "A token for the broker (no access token of calls)."),
        Key::none("nkey_seed", Text, "no nkey", "An nkey seed (`SU…`)."),
        Key::none("nkey_seed_file", Path, "no nkey", "A file that holds the nkey seed, readable by its owner alone."),
        Key::none(
            "tls_ca",
            Path,
            "the system's",
            "Certificate authorities that sign the brokers' certificates, a PEM file. With it, there is no connection without TLS.",
        ),
        Key::none("tls_cert", Path, "no certificate", "Our certificate, a PEM file, for brokers that ask for one."),
        Key::none("tls_key", Path, "no certificate", "Our certificate's key, a PEM file, readable by its owner alone."),
        Key::value(
            "allow_plaintext",
            Flag,
            false,
            "Whether a password or token may be sent in clear text to another machine: for networks in which nobody else can listen.",
        ),
    ]
}

fn keys() -> Vec<Key> {
    vec![
        Key::required("ring", Path, "The key ring, made by `sealwire keys new-agent`. Read again when it changes."),
        Key::none(
            "service_key",
            Path,
            "Ed25519 requests and the shared guard are refused",
            "The key that Ed25519 requests are answered with, and that replicas sign with what they say about themselves; made by `sealwire keys new-service`. Read again when it changes.",
        ),
        Key::none(
            "denylist",
            Path,
            "nothing is revoked but keys",
            "Revoked tokens, subjects and keys, written by `sealwire token revoke`. Read again when it changes.",
        ),
    ]
}

fn tokens() -> Vec<Key> {
    let rules = TokenRules::new("");
    vec![
        Key::none("audience", Text, "`<environment>/<service>`", "What `aud` must name."),
        Key::value(
            "leeway_s",
            Number("seconds", 0, Some(TokenRules::MAX_LEEWAY_S)),
            rules.leeway_s,
            "How far the issuer's clock may differ.",
        ),
        Key::value(
            "max_lifetime_s",
            Number("seconds", 1, Some(TokenRules::MAX_LIFETIME_S)),
            rules.max_lifetime_s,
            "The longest life of a token, from `iat` to `exp`.",
        ),
        Key::value(
            "require_cnf",
            Flag,
            rules.require_cnf,
            "Whether every token must be bound to its bearer's key (`cnf`), so that a stolen one is useless.",
        ),
        Key::value(
            "accept_plain_jwt_typ",
            Flag,
            rules.accept_plain_jwt_typ,
            "Whether `typ` may be `JWT` beside `at+jwt`, for issuers without `typ` of their own.",
        ),
        Key::value(
            "accept_symmetric",
            Flag,
            false,
            "Whether HS256 keys are taken: everybody who verifies such tokens can make them.",
        ),
        Key::required(
            "issuer",
            Tables(Table {
                about: "An issuer of access tokens; several may be described. Exactly one of `jwks`, `jwks_url`, `discovery` and `openid_configuration` says where its keys are (docs/identity-providers.md).",
                keys: issuer(),
            }),
            "",
        ),
    ]
}

fn issuer() -> Vec<Key> {
    let (day, week) = (86_400, 604_800);
    vec![
        Key::required("issuer", Text, "What `iss` must be."),
        Key::none("jwks", Path, "they are elsewhere", "Its public keys, a JWKS file. Read again when it changes."),
        Key::none("jwks_url", Text, "they are elsewhere", "Its public keys, the `https` address of a JWKS."),
        Key::value(
            "discovery",
            Flag,
            false,
            "Whether the keys are found by OpenID Connect discovery, at `/.well-known/openid-configuration` below the issuer.",
        ),
        Key::none(
            "openid_configuration",
            Text,
            "they are elsewhere",
            "The `https` address of the discovery document, if it is elsewhere. Its `issuer` must be this one.",
        ),
        Key::none("tls_ca", Path, "the system's", "Trust anchors for fetching, a PEM file."),
        Key::value(
            "http_on_loopback",
            Flag,
            false,
            "Whether addresses may be `http` to a loopback address, for development.",
        ),
        Key::value(
            "refresh_s",
            Number("seconds", 60, Some(day)),
            KeySource::REFRESH.as_secs(),
            "How old fetched keys get before they are fetched again, if the issuer does not say.",
        ),
        Key::value(
            "keep_s",
            Number("seconds", 60, Some(week)),
            KeySource::KEEP.as_secs(),
            "How long fetched keys are used that cannot be fetched again. After that the issuer's tokens are refused.",
        ),
        Key::none(
            "algorithm",
            Choice(ALGORITHMS),
            "keys without `alg` are left out unless their type tells",
            "The algorithm of keys without `alg`; needed for RSA keys. With it, keys with another `alg` are left out.",
        ),
        Key::value("key_use", Text, KeyRules::new("").key_use, "What `use` of a key must be if it is there."),
        Key::none(
            "typ",
            List(Box::new(Choice(&["at+jwt", "JWT", "JOSE", "absent"])), 1),
            "`at+jwt`, and `JWT` with `accept_plain_jwt_typ`",
            "Which `typ` the tokens may have.",
        ),
        Key::value(
            "header",
            List(Box::new(Choice(&["x5t", "x5t#S256"])), 0),
            json!([]),
            "Which further members the tokens' header may have; they are not used.",
        ),
        Key::none(
            "audience",
            Text,
            "that of `[tokens]`",
            "What `aud` must name. `{environment}` and `{service}` stand for the names of this service.",
        ),
        Key::none(
            "max_lifetime_s",
            Number("seconds", 1, Some(TokenRules::MAX_LIFETIME_S)),
            "that of `[tokens]`",
            "The longest life of a token.",
        ),
        Key::value(
            "id",
            Claim,
            "jti",
            "The claim that tells tokens apart, or `digest` to number them by their digest.",
        ),
        Key::value("require", Claims, json!({}), "Claims that must have exactly this text: `{ idtyp = \"app\" }`."),
        Key::table(
            "roles",
            "the defaults below",
            "Where roles come from.",
            vec![
                Key::value("claim", Claim, "roles", "The claim."),
                Key::value(
                    "format",
                    Choice(&["list", "words"]),
                    "list",
                    "How it is written: a list, or one text of words as `scope` is.",
                ),
                Key::none(
                    "prefix",
                    Text,
                    "all texts count",
                    "Only texts that begin with this are roles, and it is taken off.",
                ),
                Key::none(
                    "map",
                    Texts,
                    "they are called as they are",
                    "Only texts that stand here are roles, and this is what they are called. After `prefix`.",
                ),
            ],
        ),
        Key::table(
            "agent",
            "`act.sub`, or `sub`",
            "Where the agent's name comes from, for issuers whose `sub` is no name of an agent. A token that `own` does not call the agent's own is a delegated one.",
            vec![
                Key::required("claim", Claim, "The claim, such as `azp`, `client_id` or `sub`."),
                Key::none("prefix", Text, "nothing is taken off", "What the text must begin with; it is taken off."),
                Key::none(
                    "map",
                    Texts,
                    "the text is the name",
                    "Only texts that stand here name an agent, and this is what it is called. After `prefix`.",
                ),
                Key::value(
                    "own",
                    Claims,
                    json!({}),
                    "The claims that, with exactly these texts, make it the agent's own token; `{value}` stands for the text of `claim`. Not needed if `claim` is `sub`.",
                ),
            ],
        ),
        Key::table(
            "may",
            "everybody, if it is the only issuer; with several, each must say",
            "For whom the issuer may speak. What a list does not cover, it may not; `\"*\"` is everybody.",
            vec![
                Key::value("agents", List(Box::new(Pattern), 0), json!([]), "Agents: the owners of keys."),
                Key::value("roles", List(Box::new(Pattern), 0), json!([]), "Roles."),
                Key::value(
                    "subjects",
                    List(Box::new(Pattern), 0),
                    json!([]),
                    "On whose behalf agents may act: the subjects of delegated tokens.",
                ),
            ],
        ),
    ]
}

fn replay() -> Vec<Key> {
    let usual = ReplayConfig::default();
    let (shortest, longest) = (ANSWER_WITHIN.start().as_millis(), ANSWER_WITHIN.end().as_millis());
    let ms = |time: u128| u64::try_from(time).unwrap_or(u64::MAX);
    vec![
        Key::value(
            "guard",
            Choice(&["local", "shared"]),
            "local",
            "Who remembers nonces: this process, for one replica, or a JetStream stream, for any number of them (docs/reliability.md).",
        ),
        Key::value(
            "window_s",
            Number("seconds", 30, Some(300)),
            usual.window_s,
            "The longest life of a message. Clients sign for 30 s, so with less all messages would be refused; for one to end earlier, its caller sets a deadline.",
        ),
        Key::value(
            "skew_s",
            Number("seconds", 0, Some(30)),
            usual.skew_s,
            "The tolerated difference of clocks. The shared guard needs 1.",
        ),
        Key::none(
            "state",
            Path,
            "`<service>.floor`",
            "Where the latest time seen is kept across restarts, with the local guard.",
        ),
        Key::value("per_agent", Number("nonces", 1, None), usual.per_agent, "The most live nonces of one agent."),
        Key::value(
            "total",
            Number("nonces", 2, None),
            usual.total,
            "The most live nonces of all agents together, some 70 bytes each.",
        ),
        Key::value(
            "agents",
            Number("agents", 1, None),
            usual.agents,
            "The most agents with live nonces, and the most that the key ring may have. Each has a reserve that no other agent can take: 32 nonces, or fewer if half of `total` is not enough for so many agents.",
        ),
        Key::none(
            "replicas",
            Number("copies", 1, Some(5)),
            "3 in a cluster, 1 on a single server",
            "Shared guard: how many copies its stream must have.",
        ),
        Key::value(
            "stream_messages",
            Number("nonces", 1, Some(u32::MAX.into())),
            SharedConfig::MAX_MESSAGES,
            "Shared guard: the most nonces that its stream holds; a million is 10,000 messages a second.",
        ),
        Key::value(
            "answer_within_ms",
            Number("milliseconds", ms(shortest), Some(ms(longest))),
            ms(SharedConfig::ANSWER_WITHIN.as_millis()),
            "Shared guard: how long one check may take.",
        ),
        Key::table(
            "nats",
            "that of `[nats]`",
            "Shared guard: as whom it connects to the broker. With a user of its own, the one that publishes answers, to subjects that callers choose, needs no right on the guard's stream.",
            bus(),
        ),
    ]
}

fn limits() -> Vec<Key> {
    let usual = LimitsConfig::default();
    let most = u32::MAX.into();
    vec![
        Key::value(
            "request_bytes",
            Number("bytes", 1_024, Some(MOST_PAYLOAD)),
            usual.request_bytes,
            "The largest payload of a request.",
        ),
        Key::value(
            "response_bytes",
            Number("bytes", 1_024, Some(MOST_PAYLOAD)),
            usual.response_bytes,
            "The largest payload of an answer; less on a broker whose `max_payload` has no room for it.",
        ),
        Key::value("batch", Number("entries", 1, Some(MAX_BATCH as u64)), usual.batch, "The most entries of a batch."),
        Key::value(
            "batch_concurrency",
            Number("entries", 1, None),
            usual.batch_concurrency,
            "How many entries of one batch run at a time.",
        ),
        Key::value(
            "agent_per_second",
            Number("calls per second", 1, Some(most)),
            usual.agent_per_second,
            "What an agent may call, sustained, in each replica; each entry of a batch counts.",
        ),
        Key::value(
            "agent_burst",
            Number("calls", 1, Some(most)),
            usual.agent_burst,
            "How many of an agent's calls may come at once.",
        ),
        Key::value(
            "agent_in_flight",
            Number("messages", 1, Some(most)),
            usual.agent_in_flight,
            "How many of an agent's messages may be under way.",
        ),
        Key::value(
            "hints_per_second",
            Number("answers per second", 1, Some(most)),
            usual.hints_per_second,
            "Unsigned refusals, all callers together. Beyond it, silence.",
        ),
        Key::value(
            "queue",
            Number("messages", 1, None),
            usual.queue,
            "How many accepted messages may wait, in lines of their own for each agent. What finds no place is refused with a hint.",
        ),
        Key::value(
            "queue_bytes",
            Number("bytes", 1_024, None),
            usual.queue_bytes,
            "The bytes of messages that wait or are handled.",
        ),
        Key::value(
            "in_flight",
            Number("messages", 1, None),
            usual.in_flight,
            "How many messages are handled at a time.",
        ),
        Key::value(
            "drain_s",
            Number("seconds", 0, Some(86_400)),
            usual.drain_s,
            "How long stopping may take before what is still running is given up.",
        ),
    ]
}

/// A number out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{member}` is {value}: write {range}. {about}")]
pub struct OutOfRange {
    /// Where it stands.
    member: String,
    value: u64,
    range: String,
    /// What the key means, and why it has this range.
    about: &'static str,
}

/// The first number of a file that is out of its range. What else may be wrong with the file is not looked at.
pub(super) fn check_ranges(text: &str) -> Result<(), OutOfRange> {
    match text.parse::<toml::Table>() {
        Ok(table) => check_table(&file(), &table, ""),
        Err(_) => Ok(()),
    }
}

fn check_table(table: &Table, values: &toml::Table, path: &str) -> Result<(), OutOfRange> {
    let with_values = table.keys.iter().filter_map(|key| Some((key, values.get(key.name)?)));
    for (key, value) in with_values {
        let member = format!("{path}{}", key.name);
        match (&key.kind, value) {
            (Number(_, least, most), toml::Value::Integer(value)) => {
                let (value, most) = (u64::try_from(*value).unwrap_or(0), *most);
                if value < *least || most.is_some_and(|most| value > most) {
                    let range = most.map_or(format!("{least} or more"), |most| format!("{least} to {most}"));
                    return Err(OutOfRange { member, value, range, about: key.about });
                }
            }
            (Kind::Table(table), toml::Value::Table(values)) => check_table(table, values, &format!("{member}."))?,
            (Tables(table), toml::Value::Array(items)) => {
                for (position, item) in items.iter().enumerate() {
                    if let toml::Value::Table(values) = item {
                        check_table(table, values, &format!("{member}[{position}]."))?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}
