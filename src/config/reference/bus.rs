//! The keys of `[nats]`.

use super::key::Key;
use super::key::Kind::{Flag, List, Path, Text};

pub(super) fn bus() -> Vec<Key> {
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
            "The user's password. This file is then a secret, and must be readable by its owner alone.",
        ),
        Key::none("password_file", Path, "no password", "A file that holds the password, readable by its owner alone."),
        Key::none("token", Text, "no token", "A token for the broker (not the access token of calls)."),
        Key::none("nkey_seed", Text, "no nkey", "An nkey seed (`SU…`)."),
        Key::none("nkey_seed_file", Path, "no nkey", "A file that holds the nkey seed, readable by its owner alone."),
        Key::none(
            "tls_ca",
            Path,
            "the system's",
            "A PEM file with the certificate authorities that sign the brokers' certificates. If set, every connection must use TLS.",
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
