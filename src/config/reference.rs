//! Every key of the configuration file: its type, unit, range, default and meaning. The JSON Schema,
//! docs/configuration.md and the range checks are generated from this one table.
//! Never states a default of its own: it gets each one from the code that defines it.

mod backend;
mod bounds;
mod bus;
mod key;
mod ranges;
mod tokens;

use serde_json::json;

use self::backend::backend;
use self::bounds::{limits, replay};
use self::bus::bus;
pub(super) use self::key::{Key, Kind, LeftOut, Table};
pub use self::ranges::OutOfRange;
pub(super) use self::ranges::check_ranges;
use self::tokens::tokens;
use crate::wire::Endpoint;

use Kind::{List, Name, Number, Path, Prefix, Tables};

/// The whole file.
pub(super) fn file() -> Table {
    let required = |name, about, keys| Key::required(name, Kind::Table(Table { about, keys }), "");
    let optional = |name, about, keys| Key::table(name, "the defaults below", about, keys);
    Table {
        about: "The service, and the subjects that it uses.",
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
            optional("limits", "Limits on sizes, rates and queues.", limits()),
            optional(
                "reload",
                "What happens when a file cannot be read again.",
                vec![Key::none(
                    "fail_closed_after_s",
                    Number("seconds", 1, None),
                    "the last version read stays in force",
                    "For how long the key ring or the denylist may be missing, unreadable or invalid before everything is refused (`-32014`) until it can be read.",
                )],
            ),
            optional(
                "files",
                "Whose files are trusted besides root's and those of the user who runs the service (docs/files.md). The configuration file itself must belong to one of these two.",
                vec![
                    Key::value(
                        "trust_users",
                        List(Box::new(Number("user ids", 0, Some(u32::MAX.into()))), 0),
                        json!([]),
                        "Further users to whom files may belong, for example those who deploy policies.",
                    ),
                    Key::value(
                        "trust_groups",
                        List(Box::new(Number("group ids", 0, Some(u32::MAX.into()))), 0),
                        json!([]),
                        "Groups whose members may write files and read secrets that belong to the group, for example a Kubernetes `fsGroup`.",
                    ),
                ],
            ),
            Key::new(
                "backend",
                Tables(Table {
                    about: "A program whose tools `sealwire serve` puts behind the bus; there may be several (docs/backends.md). A program of your own that builds its service from this file refuses it.",
                    keys: backend(),
                }),
                LeftOut::Means("there is none"),
                "",
            ),
        ],
    }
}

fn keys() -> Vec<Key> {
    vec![
        Key::required("ring", Path, "The key ring, made by `sealwire keys new-agent`. Read again when it changes."),
        Key::none(
            "service_key",
            Path,
            "Ed25519 requests and the shared guard are refused",
            "The key that signs answers to Ed25519 requests, and what replicas say about themselves; made by `sealwire keys new-service`. Read again when it changes.",
        ),
        Key::none(
            "denylist",
            Path,
            "nothing but keys can be revoked",
            "Revoked tokens, subjects and keys, written by `sealwire token revoke`. Read again when it changes.",
        ),
    ]
}
