//! `sealwire setup operator --hosted`: what to create at an operator whose keys somebody else has.
//! Never writes a file, and makes no key.

use sealwire::Name;
use sealwire_lab::parties::{self, ENVIRONMENT};
use serde_json::{Value, json};

use super::mark::AUTHD;
use crate::exit::{Exit, Failure};
use crate::gate::{ACCOUNT, with};
use crate::output::Output;
use crate::users::{AUTH, Account, Kind, SYSTEM, Users};

/// Prints the accounts that these services need, and with `authd` what lets agents in by their access tokens.
pub(super) fn print(services: &[Name], authd: bool, out: &Output) -> Result<Exit, Failure> {
    // Only who there is matters here: nobody gets these keys.
    let mut users = Users::default();
    drop(users.make(Kind::Revoker, &parties::named("operator")?)?);
    if authd {
        drop(users.make(Kind::Responder, &parties::named(AUTHD)?)?);
    }
    for service in services {
        drop(users.make(Kind::Guard, service)?);
    }
    let accounts: Vec<_> = users.accounts(ENVIRONMENT).into_iter().filter(|account| account.name != SYSTEM).collect();
    let all: Vec<Value> = accounts.iter().map(|account| with(object(account), of_callout(account, authd))).collect();
    out.result(&all, || {
        let text: Vec<String> = accounts.iter().map(text).collect();
        format!(
            "# What to create at the operator. For `nsc` as it stands; a console has the same under the same names.\n\n{}\n\
             # Then each user, with the seed of the scoped key of its role (SA…) and the account's public key (A…):\n\
             sealwire setup user NAME --signing-key SEED-FILE --account A… --out NAME.creds\n\
             # NAME is the agent's or the service's; `operator` for the role revoker.{}",
            text.join("\n"),
            if authd { CALLOUT } else { "" },
        )
    })?;
    Ok(Exit::Ok)
}

/// What lets agents in by their access tokens, after the accounts.
const CALLOUT: &str = "

# For `sealwire authd`: a user of the role responder, a signing key of SEALWIRE without a scope, and a curve key.
sealwire setup user authd --signing-key SEED-FILE --account A… --out authd.creds
nsc edit account SEALWIRE --sk generate        # the seed (SA…) is issuer.nk
nsc generate nkey --curve                      # the seed (SX…) is authd.xk
nsc edit authcallout --account AUTH --auth-user U… --allowed-account A… --curve X…
# U… is in authd.creds; A… is the account SEALWIRE. authd.nats.json has {\"urls\": […], \"creds_file\": \"authd.creds\"}.
sealwire authd --login authd.nats.json --issuer issuer.nk --xkey authd.xk --config authd --account A…

# Ask the operator for one more thing before you rely on it: agents show nothing but their access token, so the servers themselves need
# `default_sentinel`, with a JWT of the role sentinel. It holds for a whole server, so a host who shares servers among customers cannot
# set it for you. Without it agents are refused: give them .creds files, as above, and leave `authd` out.
sealwire setup user sentinel --signing-key SEED-FILE --account A… --nkey U…    # prints that JWT; any new user key will do";

/// What an account has besides, so that agents may be let in by their access tokens.
fn of_callout(account: &Account<'_>, authd: bool) -> Value {
    match account.name.as_str() {
        ACCOUNT if authd => json!({ "unscoped_signing_key": true }),
        AUTH => json!({
            "authorization": { "auth_users": Kind::Responder.as_str(), "allowed_accounts": [ACCOUNT], "xkey": true },
            "default_sentinel": Kind::Sentinel.as_str(),
        }),
        _ => json!({}),
    }
}

fn object(account: &Account<'_>) -> Value {
    let share = |with: &str, subject: &str, is_service: bool| json!({ "account": with, "subject": subject, "type": if is_service { "service" } else { "stream" } });
    let roles: Vec<Value> = account
        .kinds
        .iter()
        .map(|kind| json!({ "role": kind.as_str(), "template": account.template(*kind, ENVIRONMENT) }))
        .collect();
    json!({
        "account": account.name, "purpose": account.purpose, "limits": account.claims_of_limits(), "signing_keys": roles,
        "exports": account.exports.iter().map(|s| share(s.with, &s.subject, s.is_service)).collect::<Vec<_>>(),
        "imports": account.imports.iter().map(|s| share(s.with, &s.subject, s.is_service)).collect::<Vec<_>>(),
    })
}

fn number(of: &Value, member: &str) -> i64 {
    of.get(member).and_then(Value::as_i64).unwrap_or(-1)
}

fn is(of: &Value, member: &str) -> bool {
    of.get(member).and_then(Value::as_bool) == Some(true)
}

fn text(account: &Account<'_>) -> String {
    let name = &account.name;
    let limits = account.claims_of_limits();
    let mut lines = vec![
        format!("# {}", account.purpose),
        format!("nsc add account {name}"),
        format!(
            "nsc edit account {name} --conns {} --leaf-conns 0 --subscriptions {} --exports {} --imports {}{}",
            number(&limits, "conn"),
            number(&limits, "subs"),
            number(&limits, "exports"),
            number(&limits, "imports"),
            if is(&limits, "disallow_bearer") { " --disallow-bearer" } else { "" }
        ),
    ];
    if let Some(storage) = &account.storage {
        lines.push(format!(
            "nsc edit account {name} --js-mem-storage {}mib --js-disk-storage {}mib --js-streams {} --js-consumer 0",
            storage.memory_mib, storage.file_mib, storage.streams
        ));
    }
    for kind in account.kinds {
        let template = account.template(*kind, ENVIRONMENT);
        let list = |pointer: &str, option: &str| -> String {
            let subjects = template.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
            subjects.filter_map(Value::as_str).map(|subject| format!(" \\\n    {option} '{subject}'")).collect()
        };
        lines.push(format!(
            "nsc edit signing-key --account {name} --sk generate --role {} --subs {} --payload {} --conn-type STANDARD,WEBSOCKET{}{}{}{}{}",
            kind.as_str(),
            number(&template, "subs"),
            number(&template, "payload"),
            if is(&template, "bearer_token") { " --bearer" } else { "" },
            list("/pub/allow", "--allow-pub"),
            list("/pub/deny", "--deny-pub"),
            list("/sub/allow", "--allow-sub"),
            list("/sub/deny", "--deny-sub")
        ));
    }
    for share in &account.exports {
        let service = if share.is_service { " --service" } else { "" };
        lines.push(format!("nsc add export --account {name} --private{service} --subject '{}'", share.subject));
        lines.push(format!(
            "nsc generate activation --account {name} --subject '{}' --target-account {} --output-file '{}.activation'",
            share.subject, share.with, share.subject
        ));
    }
    for share in &account.imports {
        lines.push(format!("nsc add import --account {name} --token '{}.activation'", share.subject));
    }
    lines.join("\n") + "\n"
}
