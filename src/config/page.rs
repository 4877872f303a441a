//! docs/configuration.md, generated from the table of keys.

use std::fmt::Write as _;

use super::Config;
use super::reference::{self, Kind, LeftOut, Table};

const HEAD: &str = "\
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

impl Config {
    /// docs/configuration.md: every key of the configuration file with type, unit, range and default, in Markdown.
    #[must_use]
    pub fn reference() -> String {
        let mut page = HEAD.to_owned();
        section(&mut page, &reference::file(), "", "");
        page
    }
}

fn section(page: &mut String, table: &Table, path: &str, left_out: &str) {
    let heading = match path {
        "" => "At the top".to_owned(),
        "tokens.issuer" | "backend" | "backend.method" | "backend.method.params" => format!("`[[{path}]]`"),
        _ => format!("`[{path}]`"),
    };
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## {heading}\n\n{}{left_out}\n", table.about);
    let plain = |kind: &Kind| !matches!(kind, Kind::Table(_) | Kind::Tables(_));
    // The guard's own connection has the same keys as the service's.
    if path == "replay.nats" {
        page.push_str("\nThe keys are those of `[nats]`.\n");
        return;
    }
    page.push_str("\n| key | value | if left out | meaning |\n|---|---|---|---|\n");
    for key in table.keys.iter().filter(|key| plain(&key.kind)) {
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
            LeftOut::Means(means) => format!(" If left out: {means}."),
            _ => " Required.".to_owned(),
        };
        match &key.kind {
            Kind::Table(table) | Kind::Tables(table) => section(page, table, &path, &left_out),
            _ => {}
        }
    }
}

fn value(kind: &Kind) -> String {
    let choices = |of: &[&str]| of.iter().map(|choice| format!("`\"{choice}\"`")).collect::<Vec<_>>().join(", ");
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Name => "1 to 64 of `A-Z a-z 0-9 _ -`".to_owned(),
        Kind::Prefix => "1 to 8 tokens of `A-Z a-z 0-9 _ -`, with dots in between".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Number(unit, least, None) => format!("{unit}, from {least}"),
        Kind::Number(unit, least, Some(most)) => format!("{unit}, {least} to {most}"),
        Kind::Choice(of) => format!("one of {}", choices(of)),
        Kind::Claim => "a claim: `\"azp\"`, `\"a.b\"` for a nested one, `[\"https://a.example/b\"]`".to_owned(),
        Kind::Pattern => "text; a final `*` stands for anything".to_owned(),
        Kind::Claims => "table of texts by claim".to_owned(),
        Kind::Texts => "table of texts by text".to_owned(),
        Kind::List(item, fewest) => {
            let some = if *fewest == 0 { "" } else { ", not empty" };
            let each = match &**item {
                Kind::Choice(of) => choices(of),
                item => value(item),
            };
            format!("list{some}: {each}")
        }
        Kind::Table(_) | Kind::Tables(_) => "table".to_owned(),
    }
}
