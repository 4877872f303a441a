//! Whether a service is there, as one of its agents finds out: `sealwire ping SERVICE`.
//! Never takes anything for the service that the service did not sign for this very question.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealwire::Name;
use sealwire::client::ClientError;
use sealwire::rpc::code;
use serde_json::json;
use serde_json::value::RawValue;

use super::Options;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Calls `rpc.can`, which every service has and which changes nothing. A refusal by its policy is signed as well.
pub(crate) fn reach(creds: PathBuf, service: &str, within: Duration, out: &Output) -> Result<Exit, Failure> {
    Name::new(service).or_fail(Exit::Input)?;
    let options = Options { creds, deadline: within, wait: None, idempotent: true };
    let (refused, after) = options.run(service, out, async |client| {
        let started = Instant::now();
        let answer =
            options.request(&client, service).call::<Box<RawValue>>("rpc.can", &json!({ "method": "rpc.can" })).await;
        let refused = match answer {
            Ok(_) => None,
            // Whoever may call the method or not, it is the service that says so.
            Err(ClientError::Remote(error)) => Some(error).filter(|error| error.code() != code::PERMISSION_DENIED),
            Err(error) => return Err(error),
        };
        Ok((refused, started.elapsed()))
    })?;
    let refused = refused.as_ref();
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    out.result(&json!({ "service": service, "verified": true, "after_ms": after_ms, "error": refused }), || {
        let but = refused.map(|error| format!(", and refuses: {error}")).unwrap_or_default();
        format!("{service} is there, verified by its signature, after {after_ms} ms{but}")
    })?;
    Ok(Exit::Ok)
}
