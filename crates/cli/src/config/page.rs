//! docs/configuration.md and docs/gateway/configuration.md, generated from the keys of the files.

use std::fmt::Write as _;

use sealwire::internal::settings::{Kind, LeftOut, Table};

/// The head of the page about a service's file.
pub(super) const SERVICE: &str = "\
# The configuration file

Every key of `sealwire.toml`, which `sealwire serve`, `sealwire ping` and `Config::load` read. This page is what
`sealwire config reference` prints. A key that is not listed here is an error, and so is a value out of its range. Relative
paths are relative to the file. `sealwire serve --config FILE --check` reads the file, and everything that it names, as the
service would, without connecting to anything. It checks policies against the methods of the backends or, if there are none,
against those that the policies declare, as `sealwire policy` does.

Editors that support JSON Schema complete and check the file as you type, with [sealwire.schema.json](sealwire.schema.json),
which is what `sealwire config schema` prints. With Taplo, or Even Better TOML in VS Code, the first line of the file says where
it is:

```toml
#:schema ./sealwire.schema.json
```
";

/// The head of the page about a gateway's file.
pub(super) const GATEWAY: &str = "\
# The gateway's configuration file

Every key of `gateway.toml`, which `sealwire gateway` reads. This page is what `sealwire config reference --gateway` prints. A key that
is not listed here is an error, and so is a value out of its range. Relative paths are relative to the file.

Editors complete and check the file with [gateway.schema.json](gateway.schema.json), which is what `sealwire config schema --gateway`
prints; its first line is then `#:schema ./gateway.schema.json`.
";

/// Tables that are explained elsewhere.
const ELSEWHERE: &[(&str, &str)] = &[
    // The guard's own connection has the same keys as the service's.
    ("replay.nats", "`[nats]`"),
    ("gateway.replay.nats", "`[nats]` of a service ([configuration.md](../configuration.md#nats))"),
    ("gateway.tokens", "`[tokens]` of a service ([configuration.md](../configuration.md#tokens))"),
    ("gateway.reload", "`[reload]` of a service ([configuration.md](../configuration.md#reload))"),
];

/// Every key of the file with type, unit, range and default, in Markdown.
pub(super) fn reference_page(head: &str, file: &Table) -> String {
    let mut page = head.to_owned();
    section(&mut page, file, "", &Heading::Top, file.about);
    page
}

/// What stands over a table.
enum Heading {
    Top,
    Table,
    /// One of a list.
    Item,
    /// Of tables that a key tells apart: the key and its word.
    Variant(&'static str, &'static str),
}

fn section(page: &mut String, table: &Table, path: &str, heading: &Heading, about: &str) {
    let heading = match heading {
        Heading::Top => "At the top".to_owned(),
        Heading::Table => format!("`[{path}]`"),
        Heading::Item => format!("`[[{path}]]`"),
        Heading::Variant(tag, word) => format!("`{path}` with `{tag} = \"{word}\"`"),
    };
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## {heading}\n\n{about}\n");
    if let Some((_, place)) = ELSEWHERE.iter().find(|(known, _)| *known == path) {
        let _ = write!(page, "\nThe keys are those of {place}.\n");
        return;
    }
    let plain = |kind: &Kind| !matches!(kind, Kind::Table(_) | Kind::Tables(_) | Kind::Variants(..));
    let mut rows = table.keys.iter().filter(|key| plain(&key.kind)).peekable();
    if rows.peek().is_some() {
        page.push_str("\n| key | value | if left out | meaning |\n|---|---|---|---|\n");
    }
    for key in rows {
        let left_out = match &key.left_out {
            LeftOut::Required => "required".to_owned(),
            LeftOut::Value(value) => format!("`{value}`"),
            LeftOut::Means(means) => (*means).to_owned(),
        };
        let _ = writeln!(page, "| `{}` | {} | {left_out} | {} |", key.name, value(&key.kind), key.about);
    }
    for key in &table.keys {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", key.name);
        let left_out = match &key.left_out {
            LeftOut::Means(means) => format!("If left out: {means}."),
            _ => "Required.".to_owned(),
        };
        let about = format!("{} {left_out}", key.about);
        match &key.kind {
            Kind::Table(table) => section(page, table, &path, &Heading::Table, &about),
            Kind::Tables(table) => section(page, table, &path, &Heading::Item, &about),
            Kind::Variants(tag, tables) => {
                let words: Vec<&str> = tables.iter().map(|(word, _)| *word).collect();
                let _ = write!(page, "\n## `{path}`\n\n{about} Its `{tag}` is one of {}.\n", choices(&words));
                for (word, table) in tables {
                    section(page, table, &path, &Heading::Variant(tag, word), table.about);
                }
            }
            _ => {}
        }
    }
}

fn choices(of: &[&str]) -> String {
    of.iter().map(|choice| format!("`\"{choice}\"`")).collect::<Vec<_>>().join(", ")
}

fn value(kind: &Kind) -> String {
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Name => "1 to 64 of `A-Z a-z 0-9 _ -`".to_owned(),
        Kind::Prefix => "1 to 8 tokens of `A-Z a-z 0-9 _ -`, with dots in between".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Number(unit, least, None) => format!("{unit}, from {least}"),
        Kind::Number(unit, least, Some(most)) => format!("{unit}, {least} to {most}"),
        Kind::Fraction => "a number from 0 to 1".to_owned(),
        Kind::Choice(of @ [_]) => choices(of),
        Kind::Choice(of) => format!("one of {}", choices(of)),
        Kind::Claim => "a claim: `\"azp\"`, `\"a.b\"` for a nested one, `[\"https://a.example/b\"]`".to_owned(),
        Kind::Pattern => "text; a final `*` stands for anything".to_owned(),
        Kind::Map(key, _) => match **key {
            Kind::Claim => "table of texts by claim".to_owned(),
            _ => "table of texts by text".to_owned(),
        },
        Kind::List(item, fewest) => {
            let some = if *fewest == 0 { "" } else { ", not empty" };
            let each = match &**item {
                Kind::Choice(of) => choices(of),
                item => value(item),
            };
            format!("list{some}: {each}")
        }
        Kind::Table(_) | Kind::Tables(_) | Kind::Variants(..) => "table".to_owned(),
    }
}
