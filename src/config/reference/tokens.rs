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
            "The longest lifetime of a token, from `iat` to `exp`.",
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
            "Whether `typ` may be `JWT` as well as `at+jwt`, for issuers without a `typ` of their own.",
        ),
        Key::value(
            "accept_symmetric",
            Flag,
            false,
            "Whether HS256 keys are accepted: everybody who can verify such tokens can also issue them.",
        ),
        Key::required(
            "issuer",
            Tables(Table {
                about: "An issuer of access tokens; there may be several. Exactly one of `jwks`, `jwks_url`, `discovery` and `openid_configuration` says where its keys are (docs/identity-providers.md).",
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
        Key::none("jwks", Path, "the keys are elsewhere", "Its public keys, a JWKS file. Read again when it changes."),
        Key::none("jwks_url", Text, "the keys are elsewhere", "Its public keys, the `https` address of a JWKS."),
        Key::value(
            "discovery",
            Flag,
            false,
            "Whether the keys are found by OpenID Connect discovery, at `/.well-known/openid-configuration` below the issuer.",
        ),
        Key::none(
            "openid_configuration",
            Text,
            "the keys are elsewhere",
            "The `https` address of the discovery document, if it is elsewhere. Its `issuer` must be this one.",
        ),
        Key::none("tls_ca", Path, "the system's", "A PEM file with the trust anchors for fetching."),
        Key::value(
            "http_on_loopback",
            Flag,
            false,
            "Whether addresses may be `http` if they are loopback addresses, for development.",
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
            "How long fetched keys are used if they cannot be fetched again. After that the issuer's tokens are refused.",
        ),
        Key::none(
            "algorithm",
            Choice(ALGORITHMS),
            "keys without `alg` are ignored unless their type determines it",
            "The algorithm of keys without `alg`; needed for RSA keys. If set, keys with another `alg` are ignored.",
        ),
        Key::value("key_use", Text, KeyRules::new("").key_use, "What a key's `use` must be if present."),
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
            "Which additional members the tokens' header may have; they are ignored.",
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
            "The longest lifetime of a token.",
        ),
        Key::value(
            "id",
            Claim,
            "jti",
            "The claim that identifies a token, or `digest` to identify each token by its digest.",
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
                    "Its format: a list, or one text of words, like `scope`.",
                ),
                Key::none(
                    "prefix",
                    Text,
                    "all texts count",
                    "Only texts that begin with this are roles; the prefix is removed.",
                ),
                Key::none(
                    "map",
                    Texts,
                    "roles keep their names",
                    "Only texts listed here are roles, with these names. Applied after `prefix`.",
                ),
            ],
        ),
        Key::table(
            "agent",
            "`act.sub`, or `sub`",
            "Where the agent's name comes from, for issuers whose `sub` is not an agent's name. A token is delegated unless `own` makes it the agent's own.",
            vec![
                Key::required("claim", Claim, "The claim, such as `azp`, `client_id` or `sub`."),
                Key::none("prefix", Text, "nothing is removed", "What the text must begin with; it is removed."),
                Key::none(
                    "map",
                    Texts,
                    "the text is the name",
                    "Only texts listed here name an agent, with these names. Applied after `prefix`.",
                ),
                Key::value(
                    "own",
                    Claims,
                    json!({}),
                    "A token is the agent's own if these claims have exactly these texts; `{value}` stands for the text of `claim`. Not needed if `claim` is `sub`.",
                ),
            ],
        ),
        Key::table(
            "may",
            "everybody, if it is the only issuer; with several issuers, it is required",
            "For whom the issuer may speak. It may not speak for anything that a list does not cover; `\"*\"` covers everything.",
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
