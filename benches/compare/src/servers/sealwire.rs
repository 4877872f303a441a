//! A service of this project, from files as an operator has them. `site/add` has a rule with a condition on an
//! argument, `site/echo` one without. Both also allow callers for whom a gateway acts.

use std::path::Path;

use sealwire::serve::Description;
use sealwire::{Config, Ctx, Router, RpcError};
use serde::Deserialize;
use serde_json::json;

use crate::error::Fallible;

pub const POLICY: &str = "\
[method.\"site/add\"]
params = [{ name = \"a\", type = \"integer\" }, { name = \"b\", type = \"integer\" }]
[method.\"site/echo\"]
params = [{ name = \"text\", type = \"string\" }]

[role.worker]

[rule.texts]
roles = [\"worker\"]
delegated = \"also\"
allow = [\"site/echo\"]

[rule.small-sums]
roles = [\"worker\"]
delegated = \"also\"
allow = [\"site/add\"]
when.params.a = { max = 1000000 }
";

#[derive(Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

#[derive(Deserialize)]
struct Echo {
    text: String,
}

pub async fn serve(folder: &Path) -> Fallible<()> {
    let config = Config::load(folder.join("sealwire.toml"))?;
    let (builder, options) = config.builder().await?;
    let router = Router::new(())
        .method("site/add", |_: Ctx, p: Add| async move { Ok::<_, RpcError>(p.a + p.b) })
        .method("site/echo", |_: Ctx, p: Echo| async move { Ok::<_, RpcError>(p.text) })
        .describe("site/add", Description::new("Adds.").result(json!({ "type": "integer" })))
        .describe("site/echo", Description::new("Says it again.").result(json!({ "type": "string" })));
    let service = builder.methods(router).build()?;
    super::report::print_address("on the bus");
    Ok(service.serve(&config.nats, options, |_| (), std::future::pending()).await?)
}
