//! Every key of the configuration file: its type, unit, range, default and meaning. The JSON Schema, docs/configuration.md
//! and the check of ranges are made from this one table.
//! Never states a default of its own: it asks the code that has it.

mod bounds;
mod ranges;
mod tokens;

use serde_json::{Value, json};

use self::bounds::{limits, replay};
pub use self::ranges::OutOfRange;
pub(super) use self::ranges::check_ranges;
use self::tokens::tokens;
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

use Kind::{Flag, List, Name, Number, Path, Prefix, Text};

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
