//! Traces of what a command does, sent while it runs.
//! Never sends any unless a file or a variable says where.

use sealwire::Credentials;
use sealwire::configure::{FileTrust, TelemetryConfig};
use sealwire::traces::{TraceOptions, Traces};

use crate::exit::{Exit, Failure, OrFail as _};

/// Where the traces of what this agent does are sent; `None` if nowhere.
pub(crate) fn of_agent(config: &TelemetryConfig, credentials: &Credentials) -> Result<Option<TraceOptions>, Failure> {
    let namespace = credentials.environment().as_str();
    config.traces(credentials.agent().as_str(), Some(namespace), &FileTrust::default()).or_fail(Exit::Input)
}

/// Sends the last traces, if any are sent.
pub(crate) async fn close(traces: Option<Traces>) {
    if let Some(traces) = traces {
        traces.close().await;
    }
}
