//! `sealwire exporter`: the numbers of all NATS micro services as Prometheus metrics.
//! Never asks the bus because somebody scrapes often, and never keeps a scrape waiting for the bus.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use sealwire::configure::TelemetryConfig;
use sealwire::metrics::Telemetry;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::survey::SurveyArgs;
use crate::when;

/// Export the numbers of all NATS micro services to Prometheus
///
/// Asks `$SRV.STATS` of every micro service (ADR-32), whoever made it, and serves at /metrics what they answer: requests, errors and
/// processing time of each endpoint. A service whose key is known must have signed its answer; of these, it also exports refusals, denials
/// and states. See docs/observability.md.
///
/// Runs until SIGTERM or SIGINT. One line on stdout says where it listens.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire exporter --url nats://127.0.0.1:4222
  sealwire exporter --login sealwire-dev/tools.nats.json \\
      --creds sealwire-dev/planner.creds.json
  sealwire exporter --login tools.nats.json --listen 127.0.0.1:9465 \\
      --service-key svc:dev/math:1=11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo

  curl -s http://127.0.0.1:9465/metrics")]
pub(crate) struct Exporter {
    #[command(flatten)]
    survey: SurveyArgs,
    /// Where /metrics, /livez and /readyz are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9465")]
    listen: SocketAddr,
    /// Let other machines ask: whoever reaches the address learns the names of services, endpoints, methods and subjects
    #[arg(long)]
    allow_remote: bool,
    /// How often the services are asked, while somebody scrapes
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = when::interval)]
    every: Duration,
}

impl Exporter {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let mut config = TelemetryConfig::default();
        (config.listen, config.allow_remote) = (Some(self.listen), self.allow_remote);
        config.check().map_err(|_| {
            let failure = Failure::new(Exit::Usage, format!("other machines reach {}", self.listen));
            failure.help(
                "listen on 127.0.0.1, or add --allow-remote if everybody who reaches it may know the names of services, endpoints and methods",
            )
        })?;
        let signals = Signals::listen(Some(ENDING))?;
        block_on(async {
            let telemetry = Telemetry::start(&config).await.or_fail(Exit::Input)?;
            let opened = signals.unless_stopped(self.survey.open("exporter", self.every)).await;
            let Some(survey) = opened.transpose()? else { return Ok(Exit::Ok) };
            let Some(telemetry) = &telemetry else { return Ok(Exit::Ok) };
            telemetry.report(&survey);
            let asked = survey.clone();
            telemetry.ready_when(move || asked.conditions());
            let at = telemetry.at();
            out.tell(&json!({ "ready": true, "listen": at }), || format!("metrics are at http://{at}/metrics"))?;
            signals.unless_stopped(survey.run()).await;
            Ok(Exit::Ok)
        })?
    }
}

/// How long ending may take.
const ENDING: Duration = Duration::from_secs(5);
