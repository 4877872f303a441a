//! Which dependencies the library's features add for a user.

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that the library depends on with these features, as a user compiles them.
fn tree(features: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["tree", "--package", "sealwire", "--no-default-features"]);
    cargo.args(["--features", features, "--edges", "normal", "--prefix", "none", "--format", "{p}", "--locked"]);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn a_library_user_compiles_only_what_a_library_needs() {
    let whole = tree("client,service,policy-tools,shared-guard");
    for command_only in ["clap", "hdrhistogram", "rcgen", "tempfile", "tracing-subscriber", "sealwire-nats-server"] {
        assert!(!whole.contains(command_only), "{command_only}");
    }
    let default = tree("default");
    assert!(whole.contains("nkeys") && !default.contains("nkeys"), "only for the shared guard");
    assert!(!default.contains("prometheus-client") && tree("client,metrics").contains("prometheus-client"));
    let traces = tree("client,otel");
    for heavy in ["opentelemetry_sdk", "opentelemetry-otlp", "prost", "reqwest", "tonic"] {
        assert!(!traces.contains(heavy), "{heavy}");
    }
    assert!(!default.contains("opentelemetry") && traces.contains("tracing-opentelemetry"));
    let client = tree("client");
    assert!(!default.contains("tokio-tungstenite") && tree("client,websockets").contains("tokio-tungstenite"));
    for serving in ["cedar-policy", "governor", "hyper", "jsonwebtoken", "moka", "sealwire-http", "toml", "tower"] {
        assert!(default.contains(serving), "{serving}");
        assert!(!client.contains(serving), "{serving}");
    }
    assert!(client.len() <= 110, "{}", client.len());
}
