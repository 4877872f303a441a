//! `sealwire setup operator --hosted`: what to create at an operator whose keys somebody else has.
//! Never writes a file, and makes no key.

use sealwire::Name;
use sealwire_lab::parties::{self, ENVIRONMENT};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::users::{Account, Kind, SYSTEM, Users};

/// Prints the accounts that these services need.
pub(super) fn print(services: &[Name], out: &Output) -> Result<Exit, Failure> {
    // Only who there is matters here: nobody gets these keys.
    let mut users = Users::default();
    drop(users.make(Kind::Revoker, &parties::named("operator")?)?);
    for service in services {
        drop(users.make(Kind::Guard, service)?);
    }
    let accounts: Vec<_> = users.accounts(ENVIRONMENT).into_iter().filter(|account| account.name != SYSTEM).collect();
    let all: Vec<Value> = accounts.iter().map(object).collect();
    out.result(&all, || {
        let text: Vec<String> = accounts.iter().map(text).collect();
        format!(
            "# What to create at the operator. For `nsc` as it stands; a console has the same under the same names.\n\n{}\n\
             # Then each user, with the seed of the scoped key of its role (SA…) and the account's public key (A…):\n\
             sealwire setup user NAME --signing-key SEED-FILE --account A… --out NAME.creds\n\
             # NAME is the agent's or the service's; `operator` for the role revoker.",
            text.join("\n")
        )
    })?;
    Ok(Exit::Ok)
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

fn text(account: &Account<'_>) -> String {
    let name = &account.name;
    let limits = account.claims_of_limits();
    let mut lines = vec![
        format!("# {}", account.purpose),
        format!("nsc add account {name}"),
        format!(
            "nsc edit account {name} --conns {} --leaf-conns 0 --subscriptions {} --exports {} --imports {} --disallow-bearer",
            number(&limits, "conn"),
            number(&limits, "subs"),
            number(&limits, "exports"),
            number(&limits, "imports")
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
            "nsc edit signing-key --account {name} --sk generate --role {} --subs {} --payload {} --conn-type STANDARD,WEBSOCKET{}{}",
            kind.as_str(),
            number(&template, "subs"),
            number(&template, "payload"),
            list("/pub/allow", "--allow-pub"),
            list("/sub/allow", "--allow-sub")
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
