//! `sealwire ping SERVICE`: whether an agent can reach a service.
//! Never accepts an answer that the service did not sign for this very call.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealwire::errors::code;
use sealwire::{ClientError, Name};
use serde_json::json;
use serde_json::value::RawValue;

use super::{Options, interrupted};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Calls `rpc.can`, which every service has and which changes nothing. A denial by its policy is signed as well.
pub(crate) fn reach(creds: Option<PathBuf>, service: &str, within: Duration, out: &Output) -> Result<Exit, Failure> {
    Name::new(service).or_fail(Exit::Input)?;
    let options = Options { creds, deadline: Some(within), wait: Some(within), idempotent: true };
    let began = Instant::now();
    let reached = options.run(service, out, async |client, signals| {
        let started = Instant::now();
        // Waiting for the service may have used up nearly all of the time.
        let left = within.saturating_sub(began.elapsed()).max(Duration::from_millis(100));
        let request = options.request(&client, service).deadline(left);
        let asked = request.call::<Box<RawValue>>("rpc.can", json!({ "method": "rpc.can" }));
        let refused = match signals.unless_stopped(asked).await {
            None => return Ok(None),
            Some(Ok(_)) => None,
            Some(Err(error)) => {
                // The call does nothing, so it does not matter whether earlier attempts ran.
                let last = if let ClientError::Repeated { last, .. } = error { *last } else { error };
                match last {
                    // A denial will do: it is the service that signed it.
                    ClientError::Remote(error) => {
                        Some(error).filter(|error| error.profile_code() != Some(code::PERMISSION_DENIED))
                    }
                    last => return Err(last),
                }
            }
        };
        Ok(Some((refused, started.elapsed())))
    })?;
    let (refused, after) = reached.ok_or_else(interrupted)?;
    let refused = refused.as_ref();
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    out.result(&json!({ "service": service, "verified": true, "after_ms": after_ms, "error": refused }), || {
        let but = refused.map(|error| format!(", and refuses: {error}")).unwrap_or_default();
        format!("{service} is there, verified by its signature, after {after_ms} ms{but}")
    })?;
    Ok(Exit::Ok)
}
