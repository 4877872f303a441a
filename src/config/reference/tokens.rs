//! The keys of `[tokens]`.

use serde_json::json;

use super::key::Kind::{Choice, Claim, Claims, Flag, List, Number, Path, Pattern, Tables, Text, Texts};
use super::key::{Key, Table};
use crate::auth::{KeyRules, KeySource, TokenRules};

const ALGORITHMS: &[&str] = &["EdDSA", "ES256", "RS256", "PS256", "HS256"];

pub(super) fn tokens() -> Vec<Key> {
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
